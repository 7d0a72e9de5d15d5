//! The patches of `tests/broken` apply, and the tests that must notice them exist. `tests/broken/run` shows that they do.

use crate::failures::sources;
use dtrain_tests::root;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// Patches there are at least.
const LEAST: usize = 20;

fn patches() -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join("tests/broken")).expect("the folder of the patches");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.filter(|path| path.extension().is_some_and(|ending| ending == "patch")).collect()
}

#[test]
fn every_patch_applies_and_names_a_test_that_exists() {
    let mut text = String::new();
    sources(&root(), &mut text);
    let mut wrong = Vec::new();
    let patches = patches();
    for path in &patches {
        let patch = fs::read_to_string(path).expect("patches are UTF-8");
        let head: BTreeMap<_, _> = patch
            .lines()
            .take_while(|line| !line.starts_with("---"))
            .filter_map(|line| line.split_once(": "))
            .collect();
        let missing: Vec<_> = ["promise", "package", "target", "test"]
            .into_iter()
            .filter(|key| !head.contains_key(key))
            .collect();
        if !missing.is_empty() {
            wrong.push(format!("{}: no {}", path.display(), missing.join(", ")));
            continue;
        }
        let name = head["test"].rsplit("::").next().expect("a name");
        if !text.contains(&format!("fn {name}(")) {
            wrong.push(format!("{}: there is no test {name}", path.display()));
        }
        let applied = Command::new("git").args(["apply", "--check"]).arg(path).current_dir(root()).output();
        let applied = applied.expect("git is there");
        if !applied.status.success() {
            let reason = String::from_utf8_lossy(&applied.stderr).into_owned();
            wrong.push(format!("{}: {reason}adapt it to the sources", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(patches.len() >= LEAST, "{} patches, at least {LEAST} are wanted", patches.len());
}
