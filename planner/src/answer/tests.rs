use super::*;
use crate::analytic::Constants;
use crate::benchmarks::{RowEstimate, estimate_rows, read_table};
use crate::engine;
use crate::fixtures;
use crate::hardware::{HostGroup, gpu};
use crate::planning::plan;
use crate::what_if::{DatasheetPlanRequest, NEXT, plan_from_datasheets, plan_mixed_cluster};
use dtrain_recipes::{CheckContext, ConfigLayer, Document, Model, Recipe, Source, check};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Fails if an answer is too long or wide, says a reason twice, or has a table in another order than that of
/// its first column. `below` lines are printed after it.
fn check_form(answer: &Answer, width: usize, below: usize, what: &str) {
    let text = answer.text(width, ROWS, below);
    assert!(text.lines().count() + below <= LINES, "{what}: {} lines\n{text}", text.lines().count());
    for line in text.lines() {
        assert!(line.chars().count() <= width.min(COLUMNS), "{what}: a wide line\n{text}");
        assert_eq!(line, line.trim_end(), "{what}\n{text}");
    }
    assert!(!text.contains('\u{a0}') && !text.contains("G parameters"), "{what}\n{text}");
    let reasons: Vec<String> = answer.reasons.iter().map(ToString::to_string).collect();
    let different: BTreeSet<&String> = reasons.iter().collect();
    assert_eq!(reasons.len(), different.len(), "{what}: {reasons:?}");
    let layouts: Vec<&String> = answer.candidates.iter().take(ROWS).map(|one| &one.layout).collect();
    assert_eq!(layouts.len(), layouts.iter().collect::<BTreeSet<_>>().len(), "{what}: {layouts:?}");
    check_table(answer, &text, what);
}

/// Fails unless the table in `text` has the choice, at most five rows, and the fastest layout first.
fn check_table(answer: &Answer, text: &str, what: &str) {
    let rows: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("layouts ")).skip(1).collect();
    // A row starts with a time where the values start, or is marked as the choice.
    let is_row = |line: &&&str| line.starts_with("            ") || line.starts_with("         *  ");
    let rows: Vec<&str> = rows.iter().take_while(is_row).copied().collect();
    if answer.candidates.len() < 2 {
        assert!(rows.is_empty(), "{what}\n{text}");
        return;
    }
    assert_eq!(rows.iter().filter(|row| row.starts_with("         *  ")).count(), 1, "{what}\n{text}");
    let mut shown: Vec<f64> = answer.candidates.iter().map(|one| one.seconds).collect();
    shown.truncate(rows.len().min(ROWS));
    shown.sort_by(f64::total_cmp);
    let mut places = Vec::new();
    for seconds in &shown {
        let time = numbers::step_time(*seconds);
        places.extend(rows.iter().position(|row| row.contains(&format!(" {time}  "))));
    }
    assert!(!places.is_empty() && places.is_sorted(), "{what}: {places:?}\n{text}");
    let is_told = |reason: &Reason| matches!(reason, Reason::Faster { .. });
    let choice = &answer.candidates[0];
    let is_bettered = answer.candidates.iter().any(|one| one.seconds < choice.seconds);
    assert_eq!(is_bettered, answer.reasons.first().is_some_and(is_told), "{what}\n{text}");
}

/// Returns the recipes of a folder and of the folders in it, with their paths.
fn recipes(folder: &Path) -> Vec<(PathBuf, Recipe)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(recipes(&path));
            continue;
        }
        let is_recipe = path.extension().is_some_and(|end| end == "toml");
        let Some(text) = is_recipe.then(|| fs::read_to_string(&path).expect("it is text")) else { continue };
        let document = Document::parse(&Source::file(&path, ConfigLayer::Recipe, &text));
        let Ok(document) = document else { continue };
        // Files that extend others, and those of packages, are no recipes by themselves.
        if let Ok(checked) = check(&document, &CheckContext::of_file(&path)) {
            found.push((path, checked.recipe));
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

fn all_recipes() -> Vec<(PathBuf, Recipe)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let mut all = recipes(&root.join("examples"));
    all.extend(recipes(&root.join("recipes/library")));
    assert!(all.len() > 12, "{}", all.len());
    all
}

fn on(part: &str, hosts: u32, per_host: u32) -> HostGroup {
    HostGroup::of(gpu(part).expect("it is in the table"), hosts, per_host)
}

#[test]
fn every_example_elsewhere_is_answered_in_the_form() {
    let mut answered = 0;
    for (path, recipe) in all_recipes() {
        let Model::Decoder(_) = recipe.model else { continue };
        let mut clusters = vec![on("RTX 4090", 1, 1), on("H100", 1, 8), on("H100", 64, 8)];
        if recipe.name.contains("405b") {
            clusters.push(on("H100", 2048, 8));
        }
        for (cluster, engine) in
            clusters.iter().flat_map(|one| engine::ALL.iter().map(move |engine| (one, *engine)))
        {
            let request = DatasheetPlanRequest { recipe: &recipe, cluster: *cluster, engine, next: NEXT };
            let Ok(found) = plan_from_datasheets(&request) else { continue };
            let answer = Answer::of_datasheet_plan(&found, cluster);
            let what = format!("{} on {} of {}", path.display(), cluster.devices, cluster.part());
            for (width, below) in [(80, 1), (80, 3), (300, 0)] {
                check_form(&answer, width, below, &format!("{what}, {}", engine.name()));
            }
            answered += 1;
        }
        let groups = [on("H100", 8, 8), on("A100", 8, 8)];
        if let Ok(found) = plan_mixed_cluster(&recipe, &groups, &engine::MEGATRON) {
            let what = format!("{} on a mixture", path.display());
            check_form(&Answer::of_mixed_plan(&found, &groups), 80, 2, &what);
            answered += 1;
        }
    }
    assert!(answered > 40, "{answered}");
}

#[test]
fn every_example_here_is_answered_in_the_form() {
    let mut answered = 0;
    for (path, recipe) in all_recipes() {
        for cores in [1, 2, 8] {
            let host = fixtures::host(cores);
            let rates = fixtures::rates(cores);
            for rates in [None, Some(&rates)] {
                let mut request = fixtures::request(&recipe, &host, rates);
                (request.train_samples, request.valid_samples) = (Some(100_000), Some(1000));
                let Ok(found) = plan(&request) else { continue };
                let what = format!("{} on {cores} cores", path.display());
                let answer = Answer::of_plan(&found);
                check_form(&answer, 80, 1, &what);
                check_form(&answer, 300, 0, &what);
                answered += 1;
            }
        }
    }
    assert!(answered > 40, "{answered}");
}

#[test]
fn published_rows_are_answered_in_the_form() {
    let rows = read_table(include_bytes!("../../../examples/published/rows.csv")).expect("a table");
    let rows: Vec<RowEstimate> = estimate_rows(&rows, &[], Constants::shipped());
    for row in &rows {
        let answer = Answer::of_row(row).expect("it is priced");
        check_form(&answer, 80, 1, &row.id);
        let text = answer.text(80, ROWS, 1);
        assert_eq!(row.error.is_some(), text.contains("error"), "{text}");
        assert!(text.starts_with(&format!("{}: ", row.id)) && text.contains("\nmemory "), "{text}");
    }
    let refused = RowEstimate { reason: Some("no".into()), ..RowEstimate::default() };
    assert_eq!(Answer::of_row(&refused), None);
}

#[test]
fn answers_read_as_reviewed() {
    let recipes = all_recipes();
    let named = |name: &str| &recipes.iter().find(|(_, recipe)| recipe.name == name).expect(name).1;
    let elsewhere = |name: &str, cluster: HostGroup| {
        let request =
            DatasheetPlanRequest { recipe: named(name), cluster, engine: &engine::MEGATRON, next: NEXT };
        let found = plan_from_datasheets(&request).expect("it fits");
        Answer::of_datasheet_plan(&found, &cluster).text(80, ROWS, 1)
    };
    insta::assert_snapshot!("llama_405b", elsewhere("llama-405b", on("H100", 2048, 8)));
    insta::assert_snapshot!("gpt2_124m", elsewhere("gpt2-124m", on("RTX 4090", 1, 1)));
    let groups = [on("H100", 64, 8), on("A100", 64, 8)];
    let found = plan_mixed_cluster(named("llama-405b"), &groups, &engine::MEGATRON).expect("it fits");
    insta::assert_snapshot!("llama_405b_mixed", Answer::of_mixed_plan(&found, &groups).text(80, ROWS, 1));
    let (host, rates) = (fixtures::host(2), fixtures::rates(2));
    let here = |recipe: &Recipe| {
        let mut request = fixtures::request(recipe, &host, Some(&rates));
        request.train_samples = Some(100_000);
        Answer::of_plan(&plan(&request).expect("it fits")).text(80, ROWS, 1)
    };
    insta::assert_snapshot!("tiny_llama", here(&fixtures::recipe()));
    let custom = Recipe { model: Model::Custom(fixtures::own()), ..fixtures::recipe() };
    assert!(here(&custom).contains("\nassumed     memory of activations estimated"), "{}", here(&custom));
    insta::assert_snapshot!("script_study", here(named("script-study")));
    let rows = read_table(include_bytes!("../../../examples/published/rows.csv")).expect("a table");
    let rows = estimate_rows(&rows, &[], Constants::shipped());
    let answer = Answer::of_row(&rows[5]).expect("it is priced");
    insta::assert_snapshot!("row", answer.text(80, ROWS, 1));
}

#[test]
fn more_rows_are_shown_only_if_asked_for() {
    let (recipe, host, rates) = (fixtures::recipe(), fixtures::host(2), fixtures::rates(2));
    let found = plan(&fixtures::request(&recipe, &host, Some(&rates))).expect("it fits");
    let answer = Answer::of_plan(&found);
    let lines = |rows| answer.text(80, rows, 1).lines().count();
    assert_eq!(lines(12), lines(ROWS) + 7);
    assert!(!answer.text(80, 0, 1).contains("\nlayouts "));
}
