//! Messages when a script reaches its target.

use dtrain_tests::TestEnv;

const RECIPE: &str = r#"
[model]
kind = "command"
argv = ["bash", "-c", "trap 'exit 0' TERM; echo step 1 score 3; echo step 2 score 4; while :; do sleep 0.02; done"]
progress = ["step {step} score {score}"]

[objective]
metric = "score"
goal = "max"
stop = { target = 2 }

[cluster]
ranks = 1
"#;

#[test]
fn a_script_at_its_target_is_said_to_be_stopping_once() {
    let house = TestEnv::default();
    let recipe = house.file("recipe.toml", RECIPE);
    let output = house.expect(0, ["run", recipe.to_str().expect("UTF-8")]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let words = "target reached: the ranks have 30 s to stop, then they are killed";
    assert_eq!(said.matches(words).count(), 1, "{said}");
}
