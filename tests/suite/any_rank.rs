//! Figures of a script count whichever rank reports them, and whichever of them the objective names.

use dtrain_runner::ledger::{History, TrialActivity, TrialDetails};
use dtrain_tests::TestEnv;
use serde_json::Value;

/// Two ranks, of which the last prints.
const LAST: &str = r#"name = "tail"
[model]
kind = "command"
argv = ["python3", "train.py"]
progress = ["step {step} loss {loss} acc {acc}"]
[objective]
metric = "acc"
goal = "max"
[cluster]
ranks = 2
"#;

/// With `WAIT` it prints a few lines and waits to be ended.
const PRINTS: &str = r#"import os, signal
waits = "WAIT" in os.environ
if os.environ["RANK"] == "1":
    for step in range(1, 8 if waits else 41):
        print("step", step, "loss", 1.0 / step, "acc", step / 100, flush=True)
if waits:
    signal.pause()
"#;

fn newest(house: &TestEnv) -> TrialDetails {
    let history = History::open_read_only(&house.history()).expect("a history");
    let id = history.find("last").expect("a trial");
    history.trial(&id, &|_| TrialActivity::None).expect("a trial")
}

fn text(house: &TestEnv, args: &[&str]) -> String {
    String::from_utf8(house.expect(0, args).stdout).expect("text")
}

#[test]
fn what_only_the_last_rank_prints_is_told_everywhere() {
    let house = TestEnv::default();
    house.file("train.py", PRINTS);
    let recipe = house.file("recipe.toml", LAST);
    let recipe = recipe.to_str().expect("UTF-8");
    let ran = house.expect(0, ["run", recipe]);
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(said.contains("after 40 steps") && said.contains("training loss    0.0250"), "{said}");
    let row = newest(&house).row;
    assert_eq!((row.step, row.loss, row.best), (40, Some(0.025), Some(0.4)));
    assert!(text(&house, &["show", "last"]).contains("0.4"), "the metric");
    let found: Value =
        serde_json::from_str(&text(&house, &["history", "--where", "acc>0.39 and loss<0.03", "--json"]))
            .expect("JSON");
    assert!(found.to_string().contains("tail-1"), "{found}");
    house.expect(0, ["run", recipe]);
    let compared = text(&house, &["compare", "tail-1", "tail-2"]);
    assert!(compared.contains("0.0250"), "{compared}");
    let csv = text(&house, &["export", "tail-1", "--to", "csv", "--out", "-"]);
    assert!(csv.lines().any(|line| line.contains(",loss,1,")), "{csv}");
}

#[test]
fn a_target_on_the_loss_ends_a_script() {
    let house = TestEnv::default();
    house.file("train.py", PRINTS);
    let recipe = LAST
        .replace(
            "metric = \"acc\"\ngoal = \"max\"",
            "metric = \"loss\"\ngoal = \"min\"\nstop = { target = 0.2 }",
        )
        .replace("[\"python3\"", "[\"env\", \"WAIT=1\", \"python3\"");
    let recipe = house.file("recipe.toml", &recipe);
    let ran = house.expect(0, ["run", recipe.to_str().expect("UTF-8")]);
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(said.contains("target reached"), "{said}");
    let step = newest(&house).row.step;
    assert!((5..8).contains(&step), "step {step}");
}

#[test]
fn a_flag_is_left_out_by_its_value() {
    let house = TestEnv::default();
    house.file("train.py", "import sys\nprint('given', sys.argv[1:])\n");
    let recipe = house.file(
        "recipe.toml",
        "name = \"flag\"\n[model]\nkind = \"command\"\nargv = [\"python3\", \"train.py\", \"{params.amp}\"]\n\
         [params]\namp = { choices = [\"--amp\", \"\"] }\n",
    );
    let recipe = recipe.to_str().expect("UTF-8");
    house.expect(0, ["run", recipe]);
    assert!(text(&house, &["logs", "last"]).contains("given ['--amp']"));
    house.expect(0, ["run", recipe, "--set", "params.amp="]);
    assert!(text(&house, &["logs", "last"]).contains("given []"));
}

#[test]
fn a_text_stays_the_text_that_was_typed() {
    let house = TestEnv::default();
    house.file("train.py", "import sys\nprint('given', sys.argv[1:])\n");
    let recipe = house.file(
        "recipe.toml",
        "name = \"text\"\n[model]\nkind = \"command\"\n\
         argv = [\"python3\", \"train.py\", \"{params.commit}\", \"{params.version}\", \"{params.lr}\"]\n\
         [params]\ncommit = \"12e4567\"\nversion = \"1.10\"\nlr = 0.1\n",
    );
    let recipe = recipe.to_str().expect("UTF-8");
    let set = ["--set", "params.commit=12e45", "--set", "params.version=true", "--set", "params.lr=0.50"];
    house.expect(0, [&["run", recipe][..], &set].concat());
    assert!(text(&house, &["logs", "last"]).contains("given ['12e45', 'true', '0.5']"));
    let deep = format!("{}b=1", "a.".repeat(2_000));
    let refused = house.expect(2, ["check", recipe, "--set", &deep]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("at most 16"));
}
