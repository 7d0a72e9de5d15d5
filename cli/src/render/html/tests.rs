use super::svg::AxisScale;
use super::{page, plan_page, step_timeline, what_if_page};
use dtrain_planner::engine::MEGATRON;
use dtrain_planner::hardware::{HostGroup, gpu};
use dtrain_planner::step::timeline::{Activity, Span, Timeline};
use dtrain_planner::what_if::{DatasheetPlanRequest, NEXT, plan_from_datasheets};
use dtrain_planner::{Plan, PlanRequest, StepProfile, plan, step_profile};
use dtrain_protocol::HostFacts;
use dtrain_recipes::{CheckContext, ConfigLayer, Document, Recipe, Source, check};
use std::collections::BTreeMap;
use std::path::Path;

/// Name and attributes of an element.
pub(super) type Element = (String, BTreeMap<String, String>);

/// Parses the elements of a page in order. Panics unless the page is well-formed: matching tags, quoted and
/// unique attributes, escaped text.
pub(super) fn elements(page: &str) -> Vec<Element> {
    let mut rest = page.strip_prefix("<!DOCTYPE html>").expect("a page says what it is");
    let (mut open, mut found) = (Vec::new(), Vec::new());
    while let Some(at) = rest.find('<') {
        well_formed(&rest[..at]);
        let end = at + rest[at..].find('>').expect("a tag ends");
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "before {:?}", &rest[..rest.len().min(80)]);
            continue;
        }
        let (tag, is_closed) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
        let (name, attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        assert!(name.chars().all(char::is_alphanumeric), "{name:?} is no name");
        found.push((name.to_owned(), attributes_of(attributes)));
        if !is_closed {
            open.push(name.to_owned());
        }
    }
    well_formed(rest);
    assert!(open.is_empty(), "left open: {open:?}");
    found
}

fn attributes_of(text: &str) -> BTreeMap<String, String> {
    let (mut attributes, mut rest) = (BTreeMap::new(), text.trim());
    while !rest.is_empty() {
        let (name, after) = rest.split_once("=\"").expect("an attribute has a value in quotes");
        let (value, after) = after.split_once('"').expect("a quote ends");
        well_formed(value);
        let name = name.trim().to_owned();
        assert!(attributes.insert(name.clone(), value.to_owned()).is_none(), "{name} twice in {text}");
        rest = after.trim_start();
    }
    attributes
}

/// Checks that every `&` starts an XML entity, and that no tag is left.
fn well_formed(text: &str) {
    assert!(!text.contains('<'), "{text}");
    for entity in text.split('&').skip(1) {
        let name = entity.split(';').next().unwrap_or_default();
        assert!(["amp", "lt", "gt", "quot"].contains(&name), "&{name} is no entity");
    }
}

fn recipe(name: &str, layout: &str) -> Recipe {
    let text = format!(
        "name = \"{name}\"\ndescription = \"<b> & so on\"\n[model]\nkind = \"decoder\"\nlayers = 8\nhidden = 64\nheads = 4\n\
         context = 64\n[data]\ntrain = \"a.txt\"\n[objective]\nstop = {{ steps = 100 }}\n[train]\nbatch = 32\n\
         [cluster]\nprice = 0.04\n[layout]\n{layout}"
    );
    let source = Source::file(Path::new("page.toml"), ConfigLayer::Recipe, &text);
    let document = Document::parse(&source).unwrap_or_else(|problems| panic!("{problems:?}"));
    let checked = check(&document, &CheckContext::of_file(Path::new("page.toml")));
    checked.unwrap_or_else(|problems| panic!("{problems:?}")).recipe
}

fn planned(layout: &str) -> (Plan, StepProfile) {
    let recipe = recipe("page", layout);
    let host = HostFacts { name: "<host> & \"friends\"".into(), cores: 4, ..HostFacts::example() };
    let request = PlanRequest {
        data_root: "/data".into(),
        train_samples: Some(10_000),
        valid_samples: Some(100),
        seed: 1,
        program: "0.1.0",
        ..PlanRequest::new(&recipe, &host)
    };
    let plan = plan(&request).expect("it fits");
    let picture = step_profile(&plan, &plan.best().candidate, None).expect("it ends");
    (plan, picture)
}

/// Returns the drawn seconds of a timeline: one map from class to seconds per lane.
fn boxes(found: &[Element], timeline: &Timeline) -> Vec<BTreeMap<String, f64>> {
    let scale = AxisScale::even((0.0, timeline.step_seconds), step_timeline::LANES);
    let unit = scale.at(timeline.step_seconds) - scale.at(0.0);
    let mut lanes: BTreeMap<u64, BTreeMap<String, f64>> = BTreeMap::new();
    for (_, attributes) in found.iter().filter(|(name, _)| name == "rect") {
        let number = |key: &str| attributes[key].parse::<f64>().expect("a number");
        let lane = lanes.entry(number("y").to_bits()).or_default();
        *lane.entry(attributes["class"].clone()).or_default() +=
            number("width") / unit * timeline.step_seconds;
    }
    lanes.into_values().collect()
}

#[test]
fn the_boxes_of_a_timeline_last_as_long_as_the_simulation_says() {
    for layout in
        ["pipeline = 4", "pipeline = 2\nschedule = \"zero_bubble\"\ndata = 2", "pipeline = 1\ndata = 2"]
    {
        let (plan, picture) = planned(layout);
        let timeline = &picture.timeline;
        let drawn = format!("<!DOCTYPE html><div>{}</div>", step_timeline::step_timeline(timeline));
        let boxes = boxes(&elements(&drawn), timeline);
        assert_eq!(boxes.len(), plan.best().candidate.arrangement.layout.pipeline.get() as usize, "{layout}");
        for (lane, boxes) in timeline.lanes.iter().zip(&boxes) {
            for doing in Activity::ALL {
                let drawn = boxes.get(step_timeline::class(doing)).copied().unwrap_or(0.0);
                // A box is drawn to a thousandth of a unit.
                let off = (drawn - lane.of(doing)).abs() / timeline.step_seconds;
                assert!(off < 1e-3, "{layout}: {doing:?} {drawn} of {}", lane.of(doing));
            }
            let all: f64 = boxes.values().sum();
            assert!((all / plan.best().price().step.0 - 1.0).abs() < 1e-3, "{layout}: {all}");
        }
    }
}

#[test]
fn spans_too_many_to_be_told_one_by_one_last_as_long_all_together() {
    let (_, StepProfile { mut timeline, .. }) = planned("pipeline = 4");
    let once = timeline.step_seconds;
    for lane in &mut timeline.lanes {
        let spans = lane.spans.clone();
        for again in 1..40 {
            let later = |span: &Span| Span { begin: span.begin + f64::from(again) * once, ..*span };
            lane.spans.extend(spans.iter().map(later));
        }
    }
    timeline.step_seconds = 40.0 * once;
    let found = elements(&format!("<!DOCTYPE html><div>{}</div>", step_timeline::step_timeline(&timeline)));
    assert!(!found.iter().any(|(name, _)| name == "rect"));
    let unit = (step_timeline::LANES.1 - step_timeline::LANES.0) / timeline.step_seconds;
    for doing in Activity::ALL {
        let of_kind = found.iter().filter(|(_, attributes)| {
            attributes.contains_key("d") && attributes["class"] == step_timeline::class(doing)
        });
        let widths = of_kind.flat_map(|(_, attributes)| attributes["d"].split('M').skip(1));
        let width =
            |area: &str| area.split(['h', 'v']).nth(1).expect("a width").parse::<f64>().expect("a number");
        let drawn: f64 = widths.map(width).sum::<f64>() / unit;
        let all: f64 = timeline.lanes.iter().map(|lane| lane.of(doing)).sum();
        assert!((drawn - all).abs() < 1e-2 * timeline.step_seconds, "{doing:?}: {drawn} of {all}");
    }
}

#[test]
fn a_page_of_a_plan_is_well_formed_and_needs_nothing_else() {
    let (plan, picture) = planned("pipeline = 4");
    let page = page(&plan_page(&plan, picture));
    let found = elements(&page);
    let count = |name: &str| found.iter().filter(|(element, _)| element == name).count();
    assert_eq!((count("h1"), count("svg"), count("table")), (1, 4, 2));
    assert!(page.contains("&lt;host&gt; &amp; &quot;friends&quot;"), "what is shown is escaped");
    for (name, attributes) in &found {
        assert!(!["script", "link", "img", "iframe"].contains(&name.as_str()), "{name}");
        assert!(!attributes.keys().any(|key| ["src", "href"].contains(&key.as_str())), "{attributes:?}");
    }
    assert!(!page.contains("url(") && !page.contains("@import"));
    for part in plan.best().price().memory.categories().iter().filter(|(_, bytes)| bytes.0 > 0) {
        assert!(page.contains(part.0), "{} is told", part.0);
    }
}

#[test]
fn a_page_of_an_outlook_is_well_formed_and_draws_every_stage() {
    let recipe = recipe("far", "pipeline = 4\ntensor = 2");
    let part = gpu("H100").expect("it is in the table");
    let request = DatasheetPlanRequest {
        recipe: &recipe,
        cluster: HostGroup::of(part, 2, 8),
        engine: &MEGATRON,
        next: NEXT,
    };
    let outlook = plan_from_datasheets(&request).expect("it fits");
    let page = page(&what_if_page(&outlook));
    let found = elements(&page);
    assert_eq!(found.iter().filter(|(name, _)| name == "svg").count(), 4);
    assert!(page.contains(">stage 3</text>") && !page.contains(">stage 4</text>"));
    let dots =
        found.iter().filter(|(name, attributes)| name == "circle" && attributes["class"].starts_with("dot "));
    assert_eq!(dots.count(), outlook.tradeoffs.pareto_front.len());
}
