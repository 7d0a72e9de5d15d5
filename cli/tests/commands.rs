//! End-to-end tests of the command line: help, exit codes, stdout and stderr.

mod test_env;

use serde_json::Value;
use std::io::Read;
use std::process::Stdio;
use test_env::{TestEnv, said};

#[test]
fn the_help_of_every_command_is_as_reviewed() {
    let house = TestEnv::new();
    let mut text = String::new();
    let mut paths = vec![Vec::<String>::new()];
    while let Some(path) = paths.pop() {
        let mut args: Vec<&str> = path.iter().map(String::as_str).collect();
        args.push("--help");
        let help = house.dtrain(&args);
        assert_eq!(help.code, 0, "{args:?}: {}", help.stderr);
        text += &format!("$ dtrain {}\n{}\n", args.join(" "), help.stdout);
        let commands = help
            .stdout
            .split("Commands:\n")
            .nth(1)
            .and_then(|rest| rest.split("\n\n").next())
            .unwrap_or_default();
        let names =
            commands.lines().filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
        let mut below: Vec<Vec<String>> =
            names.map(|name| path.iter().cloned().chain([name.to_owned()]).collect()).collect();
        below.reverse();
        paths.extend(below);
    }
    insta::assert_snapshot!(text);
}

#[test]
fn wrong_use_is_exit_2_and_help_is_exit_0() {
    let house = TestEnv::new();
    for args in [
        &["runn"][..],
        &["note", "last"],
        &["note", "last", "--tag", "a b"],
        &["plan", "--top", "x"],
        &["check", "nowhere.toml"],
        &["show"],
        &["man", "nothing"],
    ] {
        let said = house.dtrain(args);
        assert_eq!((said.code, said.stdout.as_str()), (2, ""), "{args:?}: {}", said.stderr);
        assert!(said.stderr.contains("error"), "{args:?} says why: {}", said.stderr);
    }
    assert_eq!(house.dtrain(&["help", "run"]).code, 0);
}

#[test]
fn every_problem_of_a_recipe_is_told_with_its_place() {
    let house = TestEnv::new();
    house.file("bad.toml", "[model]\nkind = \"decoder\"\nlayers = 0\nhiden = 3\n[train]\nbatch = \"many\"\n");
    let said = house.dtrain(&["check", "bad.toml"]);
    assert_eq!((said.code, said.stdout.as_str()), (2, ""));
    insta::assert_snapshot!(said.stderr);
}

#[test]
fn problems_are_json_on_request() {
    let house = TestEnv::new();
    house.file("bad.toml", "[model]\nkind = \"decodr\"\n");
    let said = house.dtrain(&["check", "bad.toml", "--json"]);
    let json: Value = serde_json::from_str(&said.stdout).expect("one document");
    assert_eq!((said.code, &json["format"], &json["valid"]), (2, &"dtrain.check/2".into(), &false.into()));
    assert_eq!((&json["problems"][0]["line"], &json["problems"][0]["column"]), (&2.into(), &8.into()));
}

#[test]
fn a_recipe_that_holds_names_the_next_command_last() {
    let house = TestEnv::new();
    house.recipe();
    let said = house.dtrain(&["check"]);
    assert_eq!((said.code, said.stdout.as_str()), (0, ""));
    assert_eq!(said.stderr.lines().last(), Some("next: dtrain plan recipe.toml"));
    assert_eq!(house.dtrain(&["check", "--quiet"]).stderr, "");
}

#[test]
fn data_that_is_not_there_is_told_at_the_line_that_names_it() {
    let house = TestEnv::new();
    let path = house.recipe();
    std::fs::remove_file(house.path().join("data/a.txt")).expect("it is there");
    let said = house.dtrain(&["check", path.to_str().expect("UTF-8")]);
    assert_eq!(said.code, 2);
    assert!(
        said.stderr.contains("recipe.toml:11:9") && said.stderr.contains("data/*.txt"),
        "{}",
        said.stderr
    );
}

#[test]
fn every_value_tells_who_said_it_and_the_last_layer_wins() {
    let house = TestEnv::new();
    house.recipe();
    house.file(".config/dtrain/config.toml", "[checkpoint]\nkeep = 5\n[train]\nclip = 0.5\n");
    let said = house
        .command(&["show", "--resolved", "--set", "train.batch=16"])
        .env("DTRAIN_TRAIN__SEED", "9")
        .env("DTRAIN_CHECKPOINT__KEEP", "4")
        .output()
        .map(said)
        .expect("the program starts");
    assert_eq!(said.code, 0, "{}", said.stderr);
    let stdout = said.stdout.replace(house.path().to_str().expect("UTF-8"), "HOME");
    // `the_defaults_of_each_kind_are_as_they_were` has the defaults.
    let (defaults, others): (Vec<_>, Vec<_>) = stdout.lines().partition(|line| line.ends_with(" default"));
    assert!(defaults.len() > others.len(), "{stdout}");
    insta::assert_snapshot!(others.join("\n"));
}

#[test]
fn an_unknown_key_of_the_environment_is_an_error_that_names_the_variable() {
    let house = TestEnv::new();
    house.recipe();
    let said =
        house.command(&["check"]).env("DTRAIN_TRAIN__SEDE", "9").output().map(said).expect("it starts");
    assert_eq!(said.code, 2);
    assert!(
        said.stderr.contains("DTRAIN_TRAIN__SEDE") && said.stderr.contains("train.seed"),
        "{}",
        said.stderr
    );
}

#[test]
fn init_writes_recipes_that_hold_and_never_overwrites() {
    let house = TestEnv::new();
    let images = [&[0, 0, 8, 3, 0, 0, 0, 9, 0, 0, 0, 28, 0, 0, 0, 28][..], &[0; 9 * 28 * 28]].concat();
    house.file("text.bin", &"to be or not to be\n".repeat(200));
    std::fs::write(house.path().join("images.bin"), images).expect("room on disk");
    std::fs::write(house.path().join("labels.bin"), [0, 0, 8, 1, 0, 0, 0, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8])
        .expect("room on disk");
    house.file("table.bin", &format!("a,b,c,d,class\n{}", "1,2,3,4,0\n1,2,3,5,1\n1,2,3,6,2\n".repeat(9)));
    for (template, data) in [("decoder", "text.bin"), ("cnn", "images.bin"), ("mlp", "table.bin")] {
        let file = format!("{template}.toml");
        let written = house.dtrain(&["init", &file, "--template", template, "--data", data]);
        assert_eq!(written.code, 0, "{}", written.stderr);
        let checked = house.dtrain(&["check", &file]);
        assert_eq!(checked.code, 0, "{template}: {}", checked.stderr);
    }
    let again = house.dtrain(&["init", "mlp.toml", "--template", "decoder"]);
    assert_eq!(again.code, 2);
    assert!(again.stderr.contains("never overwritten"), "{}", again.stderr);
    let text = std::fs::read_to_string(house.path().join("mlp.toml")).expect("it is there");
    assert!(text.contains("\"mlp\""));
}

#[test]
fn color_is_for_terminals_and_a_pipe_gets_none() {
    let house = TestEnv::new();
    house.file("bad.toml", "x = 1\n");
    for args in [&["check", "bad.toml"][..], &["doctor"], &["--help"]] {
        let said = house.dtrain(args);
        assert!(!said.stdout.contains('\u{1b}') && !said.stderr.contains('\u{1b}'), "{args:?}");
    }
}

#[test]
fn a_closed_pipe_is_no_error() {
    let house = TestEnv::new();
    for args in [&["schema"][..], &["recipe", "keys"], &["completions", "bash"], &["man"], &["--help"]] {
        let mut child = house
            .command(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        drop(child.stdout.take());
        let mut stderr = String::new();
        child.stderr.take().expect("a pipe").read_to_string(&mut stderr).expect("UTF-8");
        let status = child.wait().expect("it ends");
        assert_eq!((status.code(), stderr.as_str()), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn documents_are_json_with_a_format_and_a_version() {
    let house = TestEnv::new();
    house.recipe();
    for (args, format) in [
        (&["check", "--json"][..], "dtrain.check/2"),
        (&["doctor", "--json"], "dtrain.doctor/2"),
        (&["recipe", "keys", "--json"], "dtrain.keys/2"),
        (&["recipe", "list", "--json"], "dtrain.recipes/2"),
        (&["show", "--resolved", "recipe.toml", "--json"], "dtrain.settings/2"),
    ] {
        let said = house.dtrain(args);
        let json: Value = serde_json::from_str(&said.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}"));
        assert_eq!((said.code, json["format"].as_str()), (0, Some(format)), "{args:?}");
    }
}

#[test]
fn shells_and_man_get_their_pages() {
    let house = TestEnv::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let said = house.dtrain(&["completions", shell]);
        assert!(
            said.code == 0 && said.stdout.contains("dtrain") && said.stdout.contains("COMPLETE"),
            "{shell}"
        );
        assert!(!said.stdout.contains("agent"), "{shell} completes a hidden command");
    }
    let page = house.dtrain(&["man", "run"]);
    assert!(page.stdout.contains(".TH dtrain-run 1"), "{}", page.stdout);
}

#[test]
fn the_schema_is_the_committed_one() {
    let schema = TestEnv::new().dtrain(&["schema"]).stdout;
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../dtrain.schema.json");
    // As snapshots are.
    if std::env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
        std::fs::write(path, &schema).expect("dtrain.schema.json can be written");
    }
    let committed = std::fs::read_to_string(path).expect("dtrain.schema.json is committed");
    assert!(
        schema == committed,
        "dtrain.schema.json is old; `INSTA_UPDATE=always tests/run the_schema_is` writes it"
    );
}

#[test]
fn without_a_history_questions_about_trials_say_how_to_begin() {
    let house = TestEnv::new();
    for args in [
        &["history"][..],
        &["show"],
        &["compare", "a", "b"],
        &["resume"],
        &["logs"],
        &["model", "sample"],
        &["note", "last", "x"],
    ] {
        let said = house.dtrain(args);
        assert_eq!(said.code, 2, "{args:?}");
        assert!(
            said.stderr.contains("there is no history") && said.stderr.contains("dtrain run"),
            "{}",
            said.stderr
        );
    }
    assert!(!house.path().join("state").exists(), "a question makes no folder");
}

#[test]
fn a_sick_state_folder_fails_the_doctor_with_a_fix() {
    let house = TestEnv::new();
    let file = house.file("occupied", "");
    let said = house.dtrain(&["doctor", "--state", file.join("state").to_str().expect("UTF-8")]);
    assert_eq!(said.code, 4, "{}", said.stdout);
    assert!(said.stdout.contains("FAIL  state folder") && said.stdout.contains("fix: "), "{}", said.stdout);
}

#[test]
fn another_launcher_is_refused_with_the_reason() {
    let house = TestEnv::new();
    house.recipe();
    for command in ["check", "plan", "run"] {
        let other = house.dtrain(&[command, "recipe.toml", "--set", "cluster.launcher=kubernetes"]);
        assert_eq!(other.code, 2, "{}", other.stderr);
        assert!(other.stderr.contains("--emit kubernetes"), "{}", other.stderr);
    }
}

#[test]
fn cuda_on_other_hosts_is_a_warning_where_this_build_has_no_backend_for_it() {
    let house = TestEnv::new();
    house.recipe();
    house
        .file("hosts.toml", "[cluster]\nlauncher = \"ssh\"\nhosts = [\"gpu-[01-04]\"]\ndevices = \"cuda\"\n");
    let said = house.dtrain(&["check", "recipe.toml", "--cluster", "hosts.toml", "--json"]);
    let json: Value = serde_json::from_str(&said.stdout).expect("one document");
    assert_eq!((said.code, &json["valid"]), (0, &true.into()), "{json}");
    let warnings = json["warnings"].as_array().expect("a list");
    if cfg!(feature = "cuda") {
        assert!(warnings.is_empty(), "only the hosts know: {json}");
        return;
    }
    assert_eq!((warnings.len(), &warnings[0]["line"]), (1, &4.into()), "{json}");
    let said = house.dtrain(&["check", "recipe.toml", "--cluster", "hosts.toml"]).stderr;
    assert!(
        said.contains("warning: `cluster.devices` is \"cuda\"") && said.contains("hosts.toml:4:"),
        "{said}"
    );
}

/// Foreign program that prints its progress, and fails once if told to.
const COMMAND: &str = r#"
name = "foreign"
[model]
kind = "command"
argv = ["sh", "-c", "for step in 1 2 3; do echo step $step loss 0.$step; done; echo bye; code=$(cat code); echo 0 >code; exit $code"]
progress = ["step {step} loss {loss}"]
"#;

#[test]
fn a_foreign_command_is_run_and_what_it_prints_is_its_progress() {
    let house = TestEnv::new();
    house.file("command.toml", COMMAND);
    house.file("code", "0");
    let plan = house.dtrain(&["plan", "command.toml", "--json"]);
    assert_eq!(plan.code, 0, "{}", plan.stderr);
    let said = house.dtrain(&["run", "command.toml", "--ranks", "2"]);
    assert_eq!(said.code, 0, "{}", said.stderr);
    assert!(said.stderr.contains("foreign-1 completed after 3 steps"), "{}", said.stderr);
    let page = house.dtrain(&["show", "foreign-1"]).stdout;
    assert!(page.contains("data 2, step 3") && page.contains("0.3000"), "{page}");
    let tune = house.dtrain(&["tune", "command.toml"]);
    assert_eq!(tune.code, 2, "{}", tune.stderr);
    assert!(tune.stderr.contains("give a param a range"), "{}", tune.stderr);
    assert!(!tune.stderr.contains("study"), "no study begins: {}", tune.stderr);
}

#[test]
fn a_foreign_command_that_fails_is_kept_with_its_code_and_its_last_words() {
    let house = TestEnv::new();
    house.file("command.toml", COMMAND);
    house.file("code", "7");
    let said = house.dtrain(&["run", "command.toml"]);
    assert_eq!(said.code, 0, "{}", said.stderr);
    assert!(said.stderr.contains("exited with 7; last output: bye"), "{}", said.stderr);
    let page = house.dtrain(&["show", "foreign-1"]).stdout;
    assert!(page.contains("| step 3 loss 0.3") && page.contains("| bye"), "{page}");
}

#[test]
fn a_file_that_is_no_plan_is_refused_by_name() {
    let house = TestEnv::new();
    house.file("plan.json", "{\"format\": \"dtrain.plan/2\", \"plan\": {\"format\": 99}}");
    let newer = house.dtrain(&["run", "plan.json"]);
    assert_eq!(newer.code, 2);
    assert!(newer.stderr.contains("format 99"), "{}", newer.stderr);
    house.file("plan.json", "{}");
    assert!(house.dtrain(&["run", "plan.json"]).stderr.contains("cannot be used as a plan"));
}
