//! The patches of `tests/broken` apply, and the tests that must notice them exist. `tests/broken/run` shows that they do.

use dtrain_tests::root;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Patches there are at least.
const LEAST: usize = 20;

fn patches() -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join("tests/broken")).expect("the folder of the patches");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.filter(|path| path.extension().is_some_and(|ending| ending == "patch")).collect()
}

/// Returns `true` if a target of a package has a test, by its path: modules are files, or lie in a file.
fn is_test(package: &str, target: &str, test: &str) -> bool {
    let package = match package {
        "dtrain" => "cli",
        name => name.strip_prefix("dtrain-").expect("a package of this workspace"),
    };
    let package = root().join(package);
    let (mut folder, mut file) = match target.strip_prefix("test ") {
        None => (package.join("src"), package.join("src/lib.rs")),
        Some(name) => {
            let folders = [package.join("tests").join(name), package.join(name), package.join("tests")];
            let files = ["main.rs".to_owned(), format!("{name}.rs")];
            let found =
                folders.iter().flat_map(|folder| files.iter().map(move |file| (folder, folder.join(file))));
            let Some((folder, file)) = found.into_iter().find(|(_, file)| file.exists()) else {
                return false;
            };
            (folder.clone(), file)
        }
    };
    let (modules, name) = test.rsplit_once("::").unwrap_or(("", test));
    for module in modules.split("::").filter(|module| !module.is_empty()) {
        folder.push(module);
        let files = [folder.with_extension("rs"), folder.join("mod.rs")];
        let inline =
            || fs::read_to_string(&file).is_ok_and(|text| text.contains(&format!("mod {module} {{")));
        match files.into_iter().find(|file| file.exists()) {
            Some(found) => file = found,
            None if inline() => {}
            None => return false,
        }
    }
    let has = |file: &Path| fs::read_to_string(file).is_ok_and(|text| text.contains(&format!("fn {name}(")));
    // A target with a `main` of its own lists tests without their modules.
    let listed =
        || fs::read_dir(&folder).is_ok_and(|mut all| all.any(|entry| entry.is_ok_and(|e| has(&e.path()))));
    has(&file) || modules.is_empty() && listed()
}

#[test]
fn every_patch_applies_and_names_a_test_that_exists() {
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
        let (package, target, test) = (head["package"], head["target"], head["test"]);
        if !is_test(package, target, test) {
            wrong.push(format!("{}: {package} has no test {test} in {target}", path.display()));
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
