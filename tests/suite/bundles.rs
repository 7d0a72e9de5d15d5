//! Histories of two machines become one, by `dtrain history export` and `dtrain history import`.

use dtrain_tests::{TestEnv, root};
use serde_json::Value;
use std::fs;

fn train(house: &TestEnv, name: &str, steps: u32) {
    let recipe = root().join("tests/data/tiny/recipe.toml");
    let steps = format!("objective.stop={{ steps = {steps} }}");
    let recipe = recipe.to_str().expect("UTF-8");
    let fixed = ["run", recipe, "--name", name, "--quiet", "--no-sample"];
    house.expect(0, fixed.into_iter().chain(["--set", "cluster.ranks=1", "--set", &steps]));
}

/// What a command says with `--json`.
fn json(house: &TestEnv, arguments: &[&str]) -> Value {
    let output = house.dtrain(arguments.iter().chain(&["--json"])).output().expect("it starts");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one document")
}

/// What a command that fails says.
fn error(house: &TestEnv, code: i32, arguments: &[&str]) -> String {
    let output = house.dtrain(arguments).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
    text
}

#[test]
fn two_machines_that_share_a_folder_have_the_same_history() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let (a, b) = (TestEnv::default(), TestEnv::default());
    train(&a, "shared", 6);
    train(&b, "shared", 8);
    a.expect(0, ["note", "shared-1", "from a", "--tag", "keep"]);
    let shared = path("shared/");
    let (one, two) = (path("a.dtrain"), path("b.dtrain"));
    a.expect(0, ["history", "export", "--to", &shared]);
    b.expect(0, ["history", "export", "--to", &shared]);
    assert_eq!(fs::read_dir(&shared).expect("made").count(), 2, "each machine has a file of its own");
    a.expect(0, ["history", "export", "--to", &one]);
    b.expect(0, ["history", "export", "--to", &two]);

    let (first, second, third) = (TestEnv::default(), TestEnv::default(), TestEnv::default());
    let merged = json(&first, &["history", "import", &one, &two]);
    assert_eq!(merged["bundles"][1]["new"], 1, "{merged}");
    for bundle in [&two, &one, &two] {
        second.expect(0, ["history", "import", bundle]);
    }
    third.expect(0, ["history", "import", &shared]);
    let listed = json(&first, &["history"]);
    assert_eq!(listed["trials"].as_array().map(Vec::len), Some(2), "{listed}");
    assert_eq!(listed, json(&second, &["history"]));
    assert_eq!(listed, json(&third, &["history"]));

    // One goes on: a further run, and all are brought forward.
    train(&a, "shared", 10);
    a.expect(0, ["history", "export", "--to", &one]);
    for house in [&first, &second] {
        house.expect(0, ["history", "import", &one]);
    }
    let listed = json(&first, &["history"]);
    assert_eq!(listed["trials"].as_array().map(Vec::len), Some(3), "{listed}");
    assert_eq!(listed, json(&second, &["history"]));
    let shown = json(&first, &["show", "shared-2"]);
    assert_eq!(shown["trial"]["row"]["step"], 10, "{shown}");
    assert!(shown["trial"]["row"]["imported_from"].is_string(), "{shown}");
    first.expect(0, ["compare", "shared-1", "shared-2"]);

    // The machines themselves take in each other's, and keep their own names.
    a.expect(0, ["history", "import", &two]);
    let own = json(&a, &["history"]);
    let labels: Vec<_> =
        own["trials"].as_array().expect("a list").iter().map(|row| row["label"].as_str()).collect();
    assert!(labels.contains(&Some("shared-1")) && labels.len() == 3, "{labels:?}");

    // Nothing of it runs here, and nothing is resumed.
    let refused = error(&first, 2, &["resume", "shared-2"]);
    assert!(refused.contains("imported") && refused.contains("checkpoints are not here"), "{refused}");
    let refused = error(&first, 2, &["resume", "shared-2", "--set", "objective.stop.steps=20"]);
    assert!(refused.contains("imported"), "{refused}");
    first.expect(0, ["rm", "shared-2", "--yes"]);
}

#[test]
fn a_file_that_is_no_bundle_a_newer_one_and_one_that_was_cut_are_told_apart() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let house = TestEnv::default();
    let missing = error(&house, 2, &["history", "export", "--to", &path("x.dtrain")]);
    assert!(missing.contains("there is no history"), "{missing}");
    train(&house, "one", 6);
    let whole = path("whole.dtrain");
    house.expect(0, ["history", "export", "--to", &whole, "one-1"]);
    let bytes = fs::read(&whole).expect("written");
    let with = |name: &str, bytes: &[u8]| {
        let file = path(name);
        fs::write(&file, bytes).expect("room on disk");
        error(&TestEnv::default(), 2, &["history", "import", &file])
    };
    assert!(with("text", b"name,loss\n").contains("not a bundle"));
    let newer = [&bytes[..8], &[9, 0, 0, 0], &bytes[12..]].concat();
    assert!(with("newer", &newer).contains("format 9"));
    assert!(with("cut", &bytes[..bytes.len() / 2]).contains("not copied whole"));
    let mut damaged = bytes;
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    assert!(with("damaged", &damaged).contains("damaged"));
    fs::create_dir(path("empty")).expect("room on disk");
    let empty = error(&house, 2, &["history", "import", &path("empty")]);
    assert!(empty.contains("there is no bundle in"), "{empty}");
    let nothing = error(&house, 2, &["history", "export", "--to", &whole, "--where", "recipe=other"]);
    assert!(nothing.contains("no trial matches"), "{nothing}");
}
