//! `dtrain checkpoint` on a trial of this machine.

use dtrain_tests::{TestEnv, newest_checkpoint, root};
use serde_json::Value;
use std::fs;

/// A house with a trial that has checkpoints of steps 10 and 20, by two ranks.
fn trained() -> TestEnv {
    let house = TestEnv::default();
    let recipe = root().join("tests/data/tiny/recipe.toml");
    let recipe = recipe.to_str().expect("the path is UTF-8");
    let settings = ["--set", "cluster.ranks=2", "--set", "layout.data=2", "--no-sample", "--quiet"];
    house.expect(0, ["run", recipe].into_iter().chain(settings));
    house
}

fn json(house: &TestEnv, code: i32, arguments: &[&str]) -> Value {
    let output = house.expect(code, arguments.iter().copied().chain(["--json"]));
    serde_json::from_slice(&output.stdout).expect("one document")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn checkpoints_are_listed_verified_and_pulled() {
    let house = trained();
    let listed = json(&house, 0, &["checkpoint", "ls", "last"]);
    assert_eq!(listed["format"], "dtrain.checkpoints/2");
    let all = listed["checkpoints"].as_array().expect("a list");
    let rows: Vec<_> = all.iter().map(|one| (one["step"].as_u64(), one["state"].as_str())).collect();
    assert_eq!(rows, [(Some(10), Some("committed")), (Some(20), Some("committed"))]);
    assert_eq!(all[0]["places"][0]["holder"], "this machine");
    let page = text(&house.expect(0, ["checkpoint", "ls"]).stdout);
    assert!(page.contains("STEP") && page.contains("this machine"), "{page}");

    let whole = text(&house.expect(0, ["checkpoint", "verify", "last"]).stdout);
    assert_eq!(whole.matches(": intact (").count(), 2, "both are read: {whole}");

    // A bit of one tensor falls over.
    let (_, newest) = newest_checkpoint(&house.newest_trial());
    let path = newest.join("rank-00001.safetensors");
    let intact = fs::read(&path).expect("a file");
    let mut bytes = intact.clone();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&path, &bytes).expect("room on disk");
    let output = house.expect(6, ["checkpoint", "verify", "last", "20"]);
    let said = text(&output.stdout);
    assert!(said.contains("rank-00001.safetensors at byte 0: the content has changed"), "{said}");
    assert!(text(&output.stderr).contains("dtrain resume"), "{}", text(&output.stderr));
    let found = json(&house, 6, &["checkpoint", "verify", "last", "20"]);
    let damaged = &found["checkpoints"][0]["damaged"][0];
    let named = damaged["tensors"].as_array().expect("a list");
    assert!(named.iter().any(|name| name.as_str().is_some_and(|name| name.contains("blocks."))), "{damaged}");
    house.expect(0, ["checkpoint", "verify", "last", "10"]);

    // What is not whole is not copied; what was copied by then is kept for when it is.
    let to = house.state().with_file_name("kept");
    let to = to.to_str().expect("UTF-8");
    let refused = house.expect(6, ["checkpoint", "pull", "last", "20", "--to", to]);
    let said = text(&refused.stderr);
    assert!(
        said.contains("rank-00001.safetensors at byte 0") && !house.state().with_file_name("kept").exists(),
        "{said}"
    );
    fs::write(&path, &intact).expect("room on disk");
    let pulled = json(&house, 0, &["checkpoint", "pull", "last", "--to", to]);
    assert_eq!((&pulled["format"], &pulled["step"]), (&"dtrain.pulled/2".into(), &20.into()));
    for entry in fs::read_dir(&newest).expect("a checkpoint").flatten() {
        let copy = house.state().with_file_name("kept").join(entry.file_name());
        assert_eq!(fs::read(entry.path()).ok(), fs::read(copy).ok(), "{:?}", entry.file_name());
    }
    let again = text(&house.expect(2, ["checkpoint", "pull", "last", "--to", to]).stderr);
    assert!(again.contains("already exists"), "{again}");
    let unknown = text(&house.expect(2, ["checkpoint", "verify", "last", "15"]).stderr);
    assert!(unknown.contains("no checkpoint of step 15") && unknown.contains("10, 20"), "{unknown}");
}
