//! `docs/failures.md` says for every failure which test shows it: each of them is there.

use dtrain_tests::root;
use std::fs;
use std::path::Path;

/// Rows of the table.
const ROWS: usize = 45;

/// Rows that must have a test.
const SHOWN: usize = 40;

/// Adds all sources below `folder` to `text`.
pub(crate) fn sources(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            sources(&path, text);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            *text += &fs::read_to_string(&path).expect("sources are UTF-8");
        }
    }
}

/// Words between backquotes that read like the name of a test.
fn names(cell: &str) -> Vec<&str> {
    let quoted = cell.split('`').skip(1).step_by(2);
    quoted.filter(|word| word.matches('_').count() >= 2).collect()
}

/// What trains in the best of these tests: the worker that ships, toy ranks, or nothing.
fn best(names: &[&str]) -> &'static str {
    let below = |folder: &str| {
        let mut text = String::new();
        sources(&root().join(folder), &mut text);
        names
            .iter()
            .any(|name| text.contains(&format!("fn {name}(")) || text.contains(&format!("\"{name}\",")))
    };
    match (below("tests/suite"), below("runner/tests/drive")) {
        (true, _) => "yes",
        (false, true) => "toy ranks",
        (false, false) => "no",
    }
}

#[test]
fn every_failure_of_the_table_is_shown_by_a_test_that_exists() {
    let table = fs::read_to_string(root().join("docs/failures.md")).expect("docs/failures.md is there");
    let rows: Vec<Vec<&str>> = table
        .lines()
        .filter(|line| line.starts_with("| ") && line.as_bytes()[2].is_ascii_digit())
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let numbers: Vec<usize> = rows.iter().map(|row| row[0].parse().expect("a number")).collect();
    assert_eq!(numbers, (1..=ROWS).collect::<Vec<_>>(), "one row for each failure");
    let mut text = String::new();
    sources(&root(), &mut text);
    // A test is a function, or an entry in the list of a program that runs its tests itself.
    let exists = |name: &str| text.contains(&format!("fn {name}(")) || text.contains(&format!("\"{name}\","));
    let mut missing = Vec::new();
    let mut shown = 0;
    for row in &rows {
        let [number, _, _, _, proof, _, worker] = row.as_slice() else { panic!("seven cells: {row:?}") };
        let names = names(proof);
        assert_eq!(*worker, best(&names), "row {number}: which worker its tests use");
        shown += usize::from(!names.is_empty());
        missing.extend(names.iter().filter(|name| !exists(name)).map(|name| format!("{number}: {name}")));
    }
    assert!(missing.is_empty(), "docs/failures.md names tests that are not there: {missing:#?}");
    assert!(shown >= SHOWN, "{shown} of {ROWS} failures have a test, at least {SHOWN} should");
    let told = format!("{shown} of {ROWS}");
    assert!(table.contains(&told), "docs/failures.md should say that {told} have a test");
}
