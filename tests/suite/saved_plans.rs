//! Plans that were saved: carried out as long as recipe, data and host are what they were, and read in one way.

use dtrain_runner::ledger::{History, NewTrial, TrialActivity};
use dtrain_tests::{TestEnv, random_rows};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

const RECIPE: &str = "name = \"rows\"\n[model]\nkind = \"mlp\"\ninputs = 64\nhidden = [8]\nclasses = 10\n[data]\n\
    train = \"*.csv\"\ntarget = \"class\"\n[objective]\nstop = { steps = 3 }\n[train]\nbatch = 8\nseed = 7\n";

/// What the program printed on standard error, with all white space as one space.
fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Saves a plan of the recipe in the folder `project`, with these further arguments.
fn planned(house: &TestEnv, more: &[&str]) -> PathBuf {
    house.file("project/rows.csv", random_rows(200));
    house.file("project/notes.toml", RECIPE);
    let plan = ["plan", "project/notes.toml", "--out", "project/p.json"];
    house.expect(0, plan.iter().chain(more));
    house.state().with_file_name("project")
}

/// Runs the plan, which must be refused, and then anyway; what it said then must name the same changes.
fn refused(house: &TestEnv, plan: &str, changes: &[&str]) {
    let stale = words(&house.expect(8, ["run", plan]));
    let anyway = words(&house.expect(0, ["run", plan, "--stale-ok"]));
    for change in changes {
        assert!(stale.contains(change), "{change}: {stale}");
        assert!(anyway.contains(change), "{change}: {anyway}");
    }
}

#[test]
fn a_plan_is_held_against_its_recipe() {
    let house = TestEnv::default();
    let folder = planned(&house, &[]);
    house.expect(0, ["run", "project/p.json"]);
    // A comment, a name and another order of keys change nothing.
    house.file(
        "project/notes.toml",
        format!("# notes\ndescription = \"d\"\n{}", RECIPE.replace("\"rows\"", "\"r\"")),
    );
    house.expect(0, ["run", "project/p.json"]);
    house
        .file("project/notes.toml", RECIPE.replace("hidden = [8]", "hidden = [9]").replace("seed = 7\n", ""));
    let changes = [
        "model.hidden: [8] in the plan, [9] in project/notes.toml",
        "train.seed: 7 in the plan, not set in project/notes.toml",
    ];
    refused(&house, "project/p.json", &changes);
    house.file("project/notes.toml", "[model\n");
    refused(
        &house,
        "project/p.json",
        &["project/notes.toml, the recipe that the plan was made from, cannot be read"],
    );
    fs::remove_file(folder.join("notes.toml")).expect("it is there");
    refused(&house, "project/p.json", &["notes.toml, the recipe that the plan was made from, is gone"]);
}

#[test]
fn a_plan_is_held_against_what_its_recipe_extends() {
    let house = TestEnv::default();
    house.file("project/base.toml", RECIPE);
    planned(&house, &[]);
    house.file("project/small.toml", "name = \"small\"\nextends = \"base.toml\"\n");
    house.expect(0, ["plan", "project/small.toml", "--out", "project/small.json"]);
    house.expect(0, ["run", "project/small.json"]);
    house.file("project/base.toml", RECIPE.replace("batch = 8", "batch = 16"));
    refused(&house, "project/small.json", &["train.batch: 8 in the plan, 16 in project/small.toml"]);
}

#[test]
fn a_plan_is_held_against_its_data() {
    let house = TestEnv::default();
    let folder = planned(&house, &[]);
    let rows = random_rows(200);
    house.file("project/more.csv", random_rows(20));
    refused(&house, "project/p.json", &["data: `more.csv` was added"]);
    fs::remove_file(folder.join("more.csv")).expect("it is there");
    house.expect(0, ["run", "project/p.json"]);
    house.file("project/rows.csv", rows.replacen("c1\n", "c2\n", 1));
    refused(&house, "project/p.json", &["data: the contents of `rows.csv` have changed"]);
    house.file("project/rows.csv", random_rows(300));
    refused(&house, "project/p.json", &["data: `rows.csv` has ", "training samples, expected"]);
    fs::remove_file(folder.join("rows.csv")).expect("it is there");
    let gone = words(&house.expect(8, ["run", "project/p.json"]));
    assert!(gone.contains("the data cannot be read"), "{gone}");
}

#[test]
fn a_plan_is_compared_under_the_settings_it_was_made_with() {
    let house = TestEnv::default();
    house.file("cluster.toml", "[cluster]\nranks = 1\n");
    let folder = planned(&house, &["--set", "train.batch=16", "--cluster", "cluster.toml"]);
    // From another folder; a variable that would change the recipe is refused, as `--set` is.
    let mut command = house.dtrain(["run", "p.json"]);
    command.current_dir(&folder);
    let output = command.output().expect("it starts");
    assert_eq!(output.status.code(), Some(0), "{}", words(&output));
    let output = command.env("DTRAIN_TRAIN__SEED", "3").output().expect("it starts");
    assert_eq!(output.status.code(), Some(2), "{}", words(&output));
    assert!(words(&output).contains("DTRAIN_TRAIN__SEED"), "{}", words(&output));
    house.file("project/notes.toml", RECIPE.replace("batch = 8", "batch = 32"));
    house.expect(0, ["run", "project/p.json"]);
    house.file("cluster.toml", "[cluster]\nranks = 2\n");
    refused(&house, "project/p.json", &["cluster.ranks: 1 in the plan, 2 in project/notes.toml"]);
}

#[test]
fn a_plan_that_is_moved_with_its_recipe_and_its_data_is_carried_out() {
    let house = TestEnv::default();
    let folder = planned(&house, &[]);
    let moved = folder.with_file_name("moved");
    fs::rename(&folder, &moved).expect("one file system");
    house.expect(0, ["run", "moved/p.json"]);
    house.file("moved/notes.toml", RECIPE.replace("batch = 8", "batch = 16"));
    refused(&house, "moved/p.json", &["train.batch: 8 in the plan, 16 in ", "moved/notes.toml"]);
}

#[test]
fn a_plan_of_an_older_program_says_not_what_it_was_made_from_and_is_carried_out() {
    let house = TestEnv::default();
    let folder = planned(&house, &[]);
    let mut plan = json(&folder.join("p.json"));
    plan.as_object_mut().expect("an object").remove("made_from").expect("it says what it was made from");
    house.file("project/p.json", plan.to_string());
    house.file("project/notes.toml", RECIPE.replace("batch = 8", "batch = 16"));
    house.expect(0, ["run", "project/p.json"]);
}

#[test]
fn the_plan_of_a_study_is_held_against_its_recipe() {
    let house = TestEnv::default();
    planned(&house, &[]);
    let tune = [
        "tune",
        "project/notes.toml",
        "--study",
        "s",
        "--trials",
        "2",
        "--steps",
        "2",
        "--layouts",
        "1",
        "--pruner",
        "none",
    ];
    house.file(
        "project/notes.toml",
        RECIPE.replace("seed = 7", "seed = 7\nlearning_rate = { log = [1e-4, 1e-2] }"),
    );
    house.expect(0, tune.iter().chain(&["--out", "best.json", "--quiet"]));
    house.expect(0, ["run", "best.json"]);
    house.file(
        "project/notes.toml",
        RECIPE.replace("seed = 7", "seed = 8\nlearning_rate = { log = [1e-4, 1e-2] }"),
    );
    refused(&house, "best.json", &["train.seed: 7 in the plan, 8 in project/notes.toml"]);
}

#[test]
fn a_plan_of_another_format_or_without_a_field_is_refused_by_every_command() {
    let house = TestEnv::default();
    let folder = planned(&house, &[]);
    house.expect(0, ["run", "project/p.json"]);
    let newer = |plan: &mut Value| plan["format"] = 99.into();
    let partial = |plan: &mut Value| drop(plan.as_object_mut().expect("an object").remove("data_root"));
    let cases: [(&dyn Fn(&mut Value), &str); 2] =
        [(&newer, "it has format 99; this version reads up to 2"), (&partial, "missing field `data_root`")];
    for (change, why) in cases {
        let mut file = json(&folder.join("p.json"));
        change(&mut file["plan"]);
        house.file("project/changed.json", file.to_string());
        let run = words(&house.expect(2, ["run", "project/changed.json"]));
        assert!(run.contains(why), "{run}");

        let label = recorded(&house, change);
        for command in ["resume", "attach"] {
            let said = words(&house.expect(6, [command, &label]));
            assert!(
                said.contains(&format!("the plan of {label} cannot be read")) && said.contains(why),
                "{said}"
            );
            assert!(!said.contains("dtrain resume"), "the same command would fail again: {said}");
        }
        let shown = words(&house.expect(0, ["show", &label]));
        assert!(shown.contains(why) && !shown.contains("next: dtrain resume"), "{shown}");
    }
}

/// Records a trial like the newest one, with a plan that was changed; returns its label.
fn recorded(house: &TestEnv, change: &dyn Fn(&mut Value)) -> String {
    let mut history = History::open(&house.history()).expect("a history");
    let id = history.find("rows-1").expect("a trial");
    let trial = history.trial(&id, &|_| TrialActivity::None).expect("a trial");
    let plan = dtrain_planner::Plan::read(&trial.plan).expect("a plan");
    let mut new = NewTrial::of(&plan, plan.best(), trial.provenance.clone());
    change(&mut new.plan);
    history.create_trial(&new).expect("recorded").label
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("a file")).expect("JSON")
}

#[test]
fn a_name_of_a_study_that_is_no_file_name_is_refused_before_the_study() {
    let house = TestEnv::default();
    planned(&house, &[]);
    for name in ["a b/c", "../../../pwn", "", ".", "/tmp/x"] {
        let said = words(&house.expect(2, ["tune", "project/notes.toml", "--study", name]));
        assert!(said.contains("cannot be the name of a study"), "{said}");
    }
    let history = History::open_read_only(&house.history()).expect("a history");
    assert!(history.find("last").is_err(), "nothing was trained");
}

#[test]
fn a_variable_over_a_saved_plan_is_refused_unless_the_plan_was_made_with_it() {
    let house = TestEnv::default();
    planned(&house, &[]);
    let with = |code: i32, value: &str| {
        let mut run = house.dtrain(["run", "project/p.json"]);
        let output = run.env("DTRAIN_OBJECTIVE__STOP__STEPS", value).output().expect("it starts");
        assert_eq!(output.status.code(), Some(code), "{}", words(&output));
        words(&output)
    };
    let said = with(2, "4");
    assert!(said.contains("DTRAIN_OBJECTIVE__STOP__STEPS applies to recipes, not to saved plans"), "{said}");
    let mut plan = house.dtrain(["plan", "project/notes.toml", "--out", "project/p.json"]);
    let planned = plan.env("DTRAIN_OBJECTIVE__STOP__STEPS", "4").status().expect("it starts");
    assert!(planned.success());
    with(0, "4");
    with(2, "5");
}

#[test]
fn a_document_that_is_no_plan_is_not_trained() {
    let house = TestEnv::default();
    let plan = planned(&house, &[]).join("p.json");
    let text = fs::read_to_string(&plan).expect("it was saved");
    for (format, said) in
        [("dtrain.plan/3", "newer version of dtrain"), ("dtrain.trial/1", "expected dtrain.plan/2")]
    {
        fs::write(&plan, text.replacen("dtrain.plan/2", format, 1)).expect("written");
        let words = words(&house.expect(2, ["run", "project/p.json"]));
        assert!(words.contains(said), "{words}");
    }
}

#[test]
fn no_output_replaces_what_dtrain_keeps() {
    let house = TestEnv::default();
    planned(&house, &[]);
    house.expect(0, ["run", "project/p.json"]);
    let history = house.history().display().to_string();
    let before = fs::metadata(&history).expect("a history").len();
    for command in [
        &["report", "last", "--out"][..],
        &["plan", "project/notes.toml", "--out"],
        &["plan", "project/notes.toml", "--html"],
        &["history", "export", "--to"],
        &["export", "last", "--to", "csv", "--force", "--out"],
    ] {
        let said = words(&house.expect(2, command.iter().copied().chain([history.as_str()])));
        assert!(said.contains("is in the state folder"), "{command:?}: {said}");
    }
    house.expect(0, ["show", "last"]);
    assert!(fs::metadata(&history).expect("a history").len() >= before);
}
