//! Pages of trials, comparisons and studies, from invented ledgers.

use super::tests::{Element, elements};
use super::trial_page::HOVER;
use super::{
    ChartedTrial, ComparedTrials, MetricCurve, PlottedTrial, PosteriorEstimate, StudyPage, comparison_page,
    study_page, trial_page,
};
use crate::render::compare::tests::comparison;
use crate::render::show::tests::{trial, typical};
use dtrain_runner::ledger::{MetricSample, Note, TrialStatus};
use serde_json::json;

const HOSTILE: &str = "</script><script src=\"http://a.b/\">&'\u{1b}[31m<img src=x onerror=\"alert(1)\">";

fn samples(steps: std::ops::Range<u64>, value: impl Fn(u64) -> f64) -> Vec<MetricSample> {
    let of = |step: u64| MetricSample { step, at_ms: 1_700_000_000_000 + 1000 * step, value: value(step) };
    steps.map(of).collect()
}

#[expect(clippy::cast_precision_loss, reason = "small")]
fn falling(step: u64) -> f64 {
    8.0 / (1.0 + step as f64).sqrt()
}

fn curve(key: &str, attempts: Vec<(u64, Vec<MetricSample>)>) -> MetricCurve {
    MetricCurve { key: key.into(), attempts }
}

fn shown() -> ChartedTrial {
    let curves = vec![
        curve("valid.loss", vec![(2, samples(30..31, falling))]),
        curve("loss", vec![(1, samples(1..40, falling)), (2, samples(31..90, falling))]),
        curve("val/f1", vec![(2, samples(31..90, |_| f64::NAN))]),
        curve("tokens_per_second", vec![(2, samples(31..90, |_| 1000.0))]),
        curve("step_seconds", vec![(2, samples(31..90, |_| 0.512))]),
        curve("system.cpu_percent", vec![(1, samples(1..90, |_| 50.0))]),
    ];
    ChartedTrial { trial: trial(), typical: typical(), curves, now_ms: 1_700_000_000_000 }
}

/// Parses a page that is well-formed and self-contained.
fn sound(page: &str) -> Vec<Element> {
    let found = elements(page);
    for (name, attributes) in &found {
        assert!(!["link", "img", "iframe", "object", "base", "form"].contains(&name.as_str()), "{name}");
        for key in attributes.keys() {
            assert!(!["src", "href", "srcset", "action"].contains(&key.as_str()), "{attributes:?}");
            assert!(!key.starts_with("on"), "{attributes:?}");
        }
    }
    assert!(found.iter().filter(|(name, _)| name == "script").count() <= 1);
    let unnamed = |(name, attributes): &&Element| {
        name == "svg" && !attributes.contains_key("aria-label") && !attributes.contains_key("aria-hidden")
    };
    assert_eq!(found.iter().find(unnamed), None, "every drawing is told in words");
    assert!(page.contains("default-src 'none'"), "the browser is told to fetch nothing");
    found
}

fn of<'a>(found: &'a [Element], element: &str, key: &str) -> Vec<&'a str> {
    let all = found.iter().filter(|(name, _)| name == element);
    all.filter_map(|(_, attributes)| attributes.get(key).map(String::as_str)).collect()
}

#[test]
fn style_and_script_ask_for_nothing() {
    for text in [HOVER, include_str!("style.css")] {
        for word in
            ["http", "url(", "@import", "fetch", "XMLHttp", "WebSocket", "eval", "innerHTML", "<", "&"]
        {
            assert!(!text.contains(word), "{word}");
        }
    }
}

/// On a narrow page no drawing is wider than the page, except parallel axes, which scroll in their own box.
#[test]
fn drawings_shrink_to_a_narrow_page() {
    let style = include_str!("style.css");
    let (_, narrow) =
        style.split_once("@media (max-width: 640px)").expect("there are rules for narrow pages");
    let narrow = narrow.split("@media").next().unwrap_or_default();
    for rule in narrow.lines().filter(|rule| rule.contains("min-width") && rule.contains("svg")) {
        let least = rule.split("min-width: ").nth(1).and_then(|rest| rest.split("px").next()?.parse().ok());
        let least: u32 = least.unwrap_or(0);
        assert!(least <= 360 || rule.contains("svg.parallel"), "{rule}");
    }
    assert!(style.contains("svg { display: block; width: 100%;"), "drawings are as wide as the page");
}

#[test]
fn a_page_of_a_trial_draws_every_attempt_and_every_rank() {
    let page = trial_page(&shown());
    let found = sound(&page);
    let names = of(&found, "path", "data-name");
    let count = |name: &str| names.iter().filter(|other| **other == name).count();
    // Over steps, samples and time.
    assert_eq!((count("attempt 1"), count("attempt 2")), (3, 12), "{names:?}");
    assert_eq!(of(&found, "input", "id"), ["by-steps", "by-tokens", "by-time"]);
    assert!(page.contains("none of 59 points is finite"), "a series without a number is not left out");
    for told in [
        "lost: killed by signal 9",
        "refused: torn",
        ">rank 0</text>",
        ">plan</text>",
        "with uncommitted changes",
    ] {
        assert!(page.contains(told), "{told}");
    }
    for (_, attributes) in found.iter().filter(|(name, _)| name == "th") {
        assert_eq!(attributes.get("scope").map(String::as_str), Some("col"));
    }
}

#[test]
fn a_trial_of_which_nothing_is_known_has_a_page() {
    let mut shown = shown();
    shown.curves.clear();
    let trial = &mut shown.trial;
    trial.attempts.clear();
    trial.checkpoints.clear();
    trial.figures.clear();
    trial.verdict = None;
    trial.plan = json!({});
    (trial.row.best, trial.row.loss, trial.row.step) = (None, None, 0);
    (trial.row.tokens_per_second, trial.row.step_seconds) = (None, None);
    let found = sound(&trial_page(&shown));
    assert!(of(&found, "svg", "class").is_empty());
}

#[test]
fn what_people_and_programs_wrote_is_shown_as_they_wrote_it() {
    let mut shown = shown();
    shown.trial.row.label = HOSTILE.into();
    shown.trial.row.recipe = HOSTILE.into();
    shown.trial.notes = vec![Note { at_ms: 0, text: HOSTILE.into() }];
    shown.trial.tags = [(HOSTILE.to_owned(), HOSTILE.to_owned())].into();
    shown.trial.params[0].path = HOSTILE.into();
    shown.curves.push(curve(HOSTILE, vec![(1, samples(1..9, falling))]));
    shown.curves.push(curve(HOSTILE, vec![(1, samples(1..9, |_| f64::NAN))]));
    let page = trial_page(&shown);
    sound(&page);
    assert!(page.contains("&lt;/script&gt;&lt;script src=&quot;http://a.b/&quot;&gt;&amp;"), "it is told");
    let study = StudyPage { name: HOSTILE.into(), ..study(6) };
    sound(&study_page(&study));
}

#[test]
fn a_page_of_a_comparison_shows_what_differs_and_marks_the_best() {
    let (mut a, mut b) = (shown(), shown());
    a.trial.row.label = "gpt-12".into();
    b.trial.row.label = "gpt-31".into();
    let page = comparison_page(&ComparedTrials { comparison: comparison(), trials: vec![a, b] });
    let found = sound(&page);
    assert!(page.contains("train.batch") && !page.contains("train.seed"), "only what differs");
    assert!(page.contains("<td>peak memory</td><td class=\"best\">★ 6.5 GiB</td><td>6.7 GiB</td>"));
    let names = of(&found, "path", "data-name");
    assert!(names.contains(&"A gpt-12") && names.contains(&"B gpt-31"), "{names:?}");
    let classes = of(&found, "path", "class");
    assert!(
        classes.contains(&"line look-0") && classes.contains(&"line look-1"),
        "they differ in their dashes too"
    );
    assert!(!page.contains("Paired by seed"), "one seed is no pair");
}

#[test]
fn trials_of_the_same_seeds_are_paired() {
    let trial = |label: &str, rate: f64, seed: u64, best: f64| {
        let mut shown = shown();
        shown.trial.row.label = label.into();
        shown.trial.row.best = Some(best);
        let param = |path: &str, value| dtrain_runner::ledger::TrialParameter {
            path: path.into(),
            value,
            source: dtrain_runner::ledger::ValueSource::Recipe,
        };
        shown.trial.params =
            vec![param("train.learning_rate", json!(rate)), param("train.seed", json!(seed))];
        shown
    };
    let pairs = |second: [f64; 3]| {
        let first = (1..4).map(|seed| trial("a", 1e-3, seed, 2.0));
        let other = (1..4).zip(second).map(|(seed, best)| trial("b", 1e-2, seed, best));
        let trials: Vec<ChartedTrial> = first.chain(other).collect();
        let mut comparison = comparison();
        let head = comparison.trials[0].clone();
        comparison.trials = trials.iter().map(|_| head.clone()).collect();
        comparison_page(&ComparedTrials { comparison, trials })
    };
    let clear = pairs([1.50, 1.51, 1.49]);
    sound(&clear);
    assert!(clear.contains("<td>A–D, B–E, C–F</td><td>3</td><td>-0.5</td>"), "{clear}");
    assert!(clear.contains("<td>distinguishable</td>"));
    assert!(pairs([1.5, 2.5, 2.1]).contains("<td>not distinguishable</td>"));
}

/// Returns a study of `count` trials in all states.
fn study(count: u64) -> StudyPage {
    let space = json!([
        { "name": "train.learning_rate", "scale": { "log": { "low": 1e-4, "high": 1e-2 } } },
        { "name": "params.optimizer", "scale": { "names": ["sgd", "adam<b>"] } },
        { "name": "params.momentum", "scale": { "uniform": { "low": 0.0, "high": 0.99 } }, "when": [[1, ["sgd"]]] },
    ]);
    let tried = |number: u64| {
        let (status, reason) = match number % 6 {
            4 => (Some(TrialStatus::Pruned), "ended early by the search"),
            5 => (Some(TrialStatus::OutOfMemory), "a rank ran out of memory"),
            _ => (Some(TrialStatus::Completed), ""),
        };
        #[expect(clippy::cast_precision_loss, reason = "small")]
        let value = 2.0 + ((number * 37 % 100) as f64 - 40.0).abs() / 50.0;
        let steps = if status == Some(TrialStatus::Completed) { 1000 } else { 200 };
        let is_sgd = number.is_multiple_of(2);
        PlottedTrial {
            number,
            label: Some(format!("gpt-{}", number + 1)),
            values: vec![
                json!(
                    1e-4 * 100f64.powf(f64::from(u32::try_from(number * 37 % 100).expect("small")) / 100.0)
                ),
                json!(if is_sgd { "sgd" } else { "adam<b>" }),
                if is_sgd { json!(0.9) } else { json!(null) },
            ],
            source: if number == 0 { json!("given") } else { json!({ "model": { "improvement": 0.01 } }) },
            status,
            result: (status != Some(TrialStatus::OutOfMemory)).then_some(value),
            is_paused: false,
            reason: reason.into(),
            metric: samples(1..steps + 1, |step| value + falling(step)),
            loss: samples(1..steps + 1, |step| value + 0.1 * falling(step * 7919 % 101)),
        }
    };
    let json = json!({ "study": { "space": space }, "steps": 1000 });
    let tried = (0..count).map(tried).collect();
    StudyPage {
        name: "gpt-tune-1".into(),
        json,
        metric: "valid.loss".into(),
        is_less: true,
        tried,
        importance: vec![("train.learning_rate".into(), 0.75), ("params.optimizer".into(), 0.25)],
        rungs: vec![111, 333],
        believed: Some(PosteriorEstimate { number: 0, mean: 2.01, low: 2.0, high: 2.02 }),
    }
}

#[test]
fn a_page_of_a_study_tells_of_every_trial() {
    let study = study(30);
    let page = study_page(&study);
    let found = sound(&page);
    let strands = of(&found, "path", "class").into_iter().filter(|class| class.starts_with("strand"));
    // The legends have one of each kind as well.
    assert!(strands.count() > 30);
    for number in 0..30 {
        let number = number.to_string();
        assert!(of(&found, "tr", "data-trial").contains(&number.as_str()), "{number}");
        assert!(of(&found, "path", "data-trial").contains(&number.as_str()), "{number}");
    }
    assert!(page.contains("30 trials: 20 completed, 5 pruned or paused, 5 failed"), "{page}");
    for told in [
        "a rank ran out of memory",
        "the plan&apos;s value",
        "importance",
        "75 %",
        "believed 2.01 (90 %: 2 to 2.02)",
        "adam&lt;b&gt;",
        "★ ",
    ] {
        assert!(page.contains(&told.replace("&apos;", "'")), "{told}");
    }
}

#[test]
fn a_trial_that_waits_at_a_rung_is_paused_and_not_merely_stopped() {
    let mut study = study(12);
    (study.tried[3].status, study.tried[3].is_paused) = (Some(TrialStatus::Stopped), true);
    let page = study_page(&study);
    assert!(page.contains("12 trials: 7 completed, 3 pruned or paused, 2 failed"));
    assert!(page.contains("<td>gpt-4</td><td>paused</td>"));
    // The rung at 111 is drawn on both charts; one beyond their steps is not.
    study.rungs = vec![111, 5000];
    let guides = study_page(&study).matches("class=\"guide\"").count();
    assert_eq!(guides, 2);
}

#[test]
fn studies_without_trials_or_results_have_a_page() {
    for mut study in [study(0), study(1), study(12)] {
        for tried in &mut study.tried {
            (tried.status, tried.result) = (Some(TrialStatus::Diverged), Some(f64::NAN));
            (tried.metric, tried.loss) = (samples(1..3, |_| f64::NAN), Vec::new());
        }
        assert!(study_page(&study).contains("no trial has completed"));
        sound(&study_page(&study));
        study.json = json!(null);
        sound(&study_page(&study));
    }
    let one = study(1);
    assert!(study_page(&one).contains("1 trial: 1 completed"));
    sound(&study_page(&one));
    let more = StudyPage { is_less: false, metric: "valid.accuracy".into(), ..study(12) };
    sound(&study_page(&more));
}

#[test]
fn a_page_of_200_trials_of_1000_points_is_at_most_3_mb() {
    let study = study(200);
    let page = study_page(&study);
    assert!(page.len() <= 3 << 20, "{} bytes", page.len());
    sound(&page);
}
