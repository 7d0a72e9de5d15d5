//! A study that is started again says how much of it is done.

use dtrain_tests::House;

const RECIPE: &str = r#"
[model]
kind = "command"
argv = ["echo", "step 1 score {params.x}"]
progress = ["step {step} score {score}"]

[params]
x = { uniform = [0.1, 1.0] }

[objective]
metric = "score"
goal = "min"
stop = { steps = 1 }

[cluster]
ranks = 1
"#;

#[test]
fn a_study_that_goes_on_says_how_many_trials_are_done() {
    let house = House::default();
    let recipe = house.file("recipe.toml", RECIPE);
    let recipe = recipe.to_str().expect("UTF-8");
    let tune = |trials| {
        let output = house.expect(0, ["tune", recipe, "--study", "s", "--trials", trials]);
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let first = tune("2");
    assert!(first.contains("study s; if interrupted"), "{first}");
    let second = tune("3");
    assert!(second.contains("study s, continuing: 2 of 3 trials done; if interrupted"), "{second}");
}
