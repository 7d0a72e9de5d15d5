//! Display of multi-line scripts in `argv`.

use dtrain_tests::TestEnv;

const RECIPE: &str = r#"
[model]
kind = "command"
argv = ["bash", "-c", """
echo one
	echo step 1 loss 2
"""]
progress = ["step {step} loss {loss}"]

[objective]
stop = { steps = 1 }

[cluster]
ranks = 1
"#;

#[test]
fn a_script_of_several_lines_is_shown_on_one() {
    let house = TestEnv::default();
    let recipe = house.file("recipe.toml", RECIPE);
    let plan = house.expect(0, ["plan", recipe.to_str().expect("UTF-8")]);
    let plan = String::from_utf8_lossy(&plan.stdout).into_owned();
    let runs = plan.lines().find(|line| line.starts_with("runs ")).unwrap_or_default();
    assert!(runs.contains(r"bash -c echo one\n\techo step 1 loss 2\n"), "{plan}");
}
