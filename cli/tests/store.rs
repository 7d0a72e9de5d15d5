//! Tests of removal, JSON errors and shell completion; foreign commands keep them fast, since nothing is
//! trained.

mod test_env;

use dtrain_runner::strikes::{Strike, StrikeCause};
use dtrain_runner::{History, HostUpdate, Ledger, TrialUpdate};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};
use test_env::{Said, TestEnv, said};

/// Foreign program that reports a step, and ends when it may.
const COMMAND: &str = r#"
name = "quick"
[model]
kind = "command"
argv = ["sh", "-c", "echo step 1 loss 0.5; while [ ! -e go ]; do sleep 0.02; done; echo step 2 loss 0.4"]
progress = ["step {step} loss {loss}"]
"#;

/// Creates an environment with trials `quick-1` and so on.
fn trials(number: usize) -> TestEnv {
    let house = TestEnv::new();
    house.file("command.toml", COMMAND);
    house.file("go", "");
    for _ in 0..number {
        let run = house.dtrain(&["run", "command.toml"]);
        assert_eq!(run.code, 0, "{}", run.stderr);
    }
    house
}

#[test]
fn what_is_run_is_in_the_audit_log_and_what_cannot_be_written_there_is_not_run() {
    let house = TestEnv::new();
    house.file("command.toml", COMMAND);
    house.file("go", "");
    let nothing = house.dtrain(&["audit"]);
    assert_eq!((nothing.code, nothing.stdout.as_str()), (0, ""), "{}", nothing.stderr);
    assert_eq!(house.dtrain(&["run", "command.toml"]).code, 0);
    let log = json(&house.dtrain(&["audit", "--json"]));
    let entries = log["entries"].as_array().expect("a list");
    let actions: Vec<_> = entries.iter().map(|entry| entry["action"].as_str().expect("a text")).collect();
    assert_eq!(actions, ["run", "launch"], "{log}");
    let launched = &entries[1];
    assert_eq!((&launched["attempt"], &launched["recipe"]), (&1.into(), &"own files".into()), "{log}");
    assert_eq!(launched["argv"][0], "sh", "{log}");
    assert_eq!(launched["program"].as_str().map(str::len), Some(64), "{log}");
    assert_eq!(launched["hosts"][0]["transport"], "here", "{log}");

    let page = house.dtrain(&["audit", "quick-1", "--since", "1h"]);
    assert!(page.code == 0 && page.stdout.contains("launch"), "{}{}", page.stdout, page.stderr);
    assert_eq!(house.dtrain(&["audit", "--since", "soon"]).code, 2);
    assert_eq!(house.dtrain(&["rm", "quick-1", "--yes"]).code, 0);
    assert_eq!(json(&house.dtrain(&["audit", "--json"]))["entries"].as_array().map(Vec::len), Some(2));

    let file = house.path().join("state/audit.jsonl");
    fs::remove_file(&file).expect("it is there");
    fs::create_dir(&file).expect("made");
    let refused = house.dtrain(&["run", "command.toml"]);
    assert_eq!(refused.code, 6, "{}", refused.stderr);
    assert!(refused.stderr.contains("cannot write the audit log"), "{}", refused.stderr);
    assert!(!refused.stderr.contains("launching"), "{}", refused.stderr);
}

/// Parses the single JSON document on stdout.
fn json(said: &Said) -> Value {
    serde_json::from_str(&said.stdout).unwrap_or_else(|error| panic!("{error}: {}", said.stdout))
}

fn folders(house: &TestEnv) -> Vec<PathBuf> {
    let entries = fs::read_dir(house.path().join("state/trials")).expect("a state folder");
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

#[test]
fn a_trial_that_is_removed_is_gone_from_history_and_disk() {
    let house = trials(3);
    let refused = house.dtrain(&["rm", "quick-1"]);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("--yes"), "{}", refused.stderr);
    assert_eq!(folders(&house).len(), 3, "the user was not asked");

    let unknown = house.dtrain(&["rm", "quick-1", "quickk-9", "--yes"]);
    assert_eq!(unknown.code, 2);
    assert!(unknown.stderr.contains("did you mean"), "{}", unknown.stderr);
    assert_eq!(folders(&house).len(), 3, "all or none");

    let removed = house.dtrain(&["rm", "quick-1", "last", "quick-1", "--yes", "--json"]);
    assert_eq!(removed.code, 0, "{}", removed.stderr);
    let report = json(&removed);
    assert_eq!(report["format"], "dtrain.removed/2");
    let labels: Vec<&Value> =
        report["trials"].as_array().expect("trials").iter().map(|one| &one["label"]).collect();
    assert_eq!(labels, ["quick-1", "quick-3"]);
    assert!(report["bytes"].as_u64().expect("bytes") > 0);
    assert_eq!(folders(&house).len(), 1);
    assert_eq!(house.dtrain(&["show", "quick-1"]).code, 2);
    assert_eq!(house.dtrain(&["show", "quick-2"]).code, 0);
    house.dtrain(&["run", "command.toml"]);
    assert_eq!(house.dtrain(&["show", "quick-4"]).code, 0, "numbers are not given again");
}

#[test]
fn a_running_trial_is_not_removed_and_its_process_is_named() {
    let house = trials(0);
    fs::remove_file(house.path().join("go")).expect("it is there");
    assert_eq!(house.dtrain(&["run", "command.toml", "--detach"]).code, 0);
    let refused = house.dtrain(&["rm", "last", "--yes"]);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    let agent = fs::read_to_string(folders(&house)[0].join("agent.json")).expect("an agent");
    let agent: Value = serde_json::from_str(&agent).expect("JSON");
    // The controller in the background, and the agent.
    let processes = refused.stderr.split_once("it is running: processes ").map_or("", |(_, rest)| rest);
    assert!(
        processes.contains(&agent["agent"]["id"].to_string())
            && refused.stderr.contains("dtrain stop quick-1"),
        "{}",
        refused.stderr
    );
    house.file("go", "");
    // Its controller records the end.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while house.dtrain(&["rm", "last", "--yes"]).code != 0 {
        assert!(std::time::Instant::now() < until, "it ends, and can be removed");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[test]
fn what_an_interrupted_removal_left_is_collected_and_what_is_unknown_stays() {
    let house = trials(1);
    let known = folders(&house);
    let trial = house.path().join("state/trials");
    for (name, file) in [("01REMOVED", "removed"), ("01UNKNOWN", "plan.json")] {
        house.file(&format!("state/trials/{name}/{file}"), "");
        house.file(&format!("state/trials/{name}/checkpoints/step-000000001.a1/COMMIT"), "0123456789");
    }
    let dry = house.dtrain(&["gc", "--dry-run", "--json"]);
    assert_eq!(dry.code, 0, "{}", dry.stderr);
    let report = json(&dry);
    let kinds: Vec<(&str, u64)> = report["kinds"]
        .as_array()
        .expect("kinds")
        .iter()
        .map(|sum| (sum["kind"].as_str().expect("a word"), sum["bytes"].as_u64().expect("bytes")))
        .collect();
    assert_eq!(kinds, [("removed_trial", 10)], "{report}");
    assert!(report["kept"][0]["reason"].as_str().expect("words").contains("--orphans"), "{report}");
    assert!(trial.join("01REMOVED").exists(), "nothing was removed");

    let collected = house.dtrain(&["gc"]);
    assert_eq!(collected.code, 0, "{}", collected.stderr);
    assert!(collected.stdout.contains("FREED") && collected.stdout.contains("total"), "{}", collected.stdout);
    assert!(!trial.join("01REMOVED").exists() && trial.join("01UNKNOWN").exists());
    assert_eq!(house.dtrain(&["gc", "--orphans"]).code, 2, "no terminal to ask on");
    assert!(trial.join("01UNKNOWN").exists());
    assert_eq!(house.dtrain(&["gc", "--orphans", "--yes"]).code, 0);
    assert_eq!(folders(&house), known);
    assert!(house.dtrain(&["gc"]).stderr.contains("everything is needed"));
}

#[test]
fn reports_that_the_history_has_are_collected_but_for_the_newest() {
    let house = trials(2);
    let spools =
        || folders(&house).iter().filter(|folder| folder.join("spool/attempt-1.spool").exists()).count();
    house.dtrain(&["gc"]);
    assert_eq!(spools(), 2, "the newest ten stay");
    house.dtrain(&["gc", "--keep-last", "1"]);
    assert_eq!(spools(), 1);
    assert!(house.dtrain(&["logs", "quick-2"]).stdout.contains("step 2"), "the newest stays");
    assert!(house.dtrain(&["show", "quick-1"]).stdout.contains("0.4000"), "the history has the figures");
    house.dtrain(&["gc", "--keep-last", "0"]);
    assert_eq!((spools(), folders(&house).len()), (0, 2));
    assert_eq!(house.dtrain(&["resume", "quick-1"]).code, 0, "it is completed as before");
}

#[test]
fn copies_of_other_versions_are_collected_but_for_those_that_run() {
    let house = trials(1);
    let copy = |digest: &str| format!(".cache/dtrain/bin/{}/dtrain", digest.repeat(64));
    house.file(&copy("a"), "another version");
    let running = house.file(&copy("b"), "");
    fs::copy("/bin/sleep", &running).expect("a program");
    let mut child = Command::new(&running).arg("60").spawn().expect("it starts");
    let collected = house.dtrain(&["gc", "--json"]);
    assert_eq!(collected.code, 0, "{}", collected.stderr);
    let (other, used) = (house.path().join(copy("a")), running.exists());
    child.kill().and_then(|()| child.wait()).expect("it runs");
    assert!(!other.exists() && used, "{}", collected.stdout);
    house.dtrain(&["gc"]);
    assert!(!running.exists());
}

#[test]
fn a_package_that_is_removed_leaves_the_lock_file_the_trust_and_the_store() {
    let house = TestEnv::new();
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.args(["-C", "team", "-c", "user.name=t", "-c", "user.email=t@example.org"]).args(arguments);
        command.current_dir(house.path()).env("GIT_CONFIG_GLOBAL", "/dev/null");
        assert!(command.output().expect("git").status.success(), "{arguments:?}");
    };
    house.file("team/cmd.toml", COMMAND);
    git(&["init", "-q"]);
    git(&["add", "-A"]);
    git(&["commit", "-q", "-m", "recipes"]);
    let url = house.path().join("team").display().to_string();
    for arguments in [&["recipe", "add", &url, "--allow-file"][..], &["recipe", "trust", "team"]] {
        let said = house.dtrain(arguments);
        assert_eq!(said.code, 0, "{}", said.stderr);
    }
    let trust = || fs::read_to_string(house.path().join(".config/dtrain/trust.toml")).expect("it is there");
    assert!(trust().contains("team"));
    let removed = house.dtrain(&["recipe", "remove", "team", "--json"]);
    assert_eq!(removed.code, 0, "{}", removed.stderr);
    let report = json(&removed);
    assert_eq!(
        (&report["format"], &report["was_trusted"]),
        (&"dtrain.package_removed/2".into(), &true.into())
    );
    assert!(!trust().contains("team"), "{}", trust());
    assert!(!house.path().join(".local/share/dtrain/recipes/team").exists());
    let again = house.dtrain(&["recipe", "remove", "team"]);
    assert_eq!(again.code, 2);
    assert!(again.stderr.contains("known are: none"), "{}", again.stderr);
}

#[test]
fn a_command_that_fails_says_so_in_json_too() {
    let house = trials(1);
    house.file("bad.toml", "[model]\nkind = \"decodr\"\n");
    for (arguments, message) in [
        (&["show", "quickk-1", "--json"][..], "did you mean quick-1"),
        (&["plan", "bad.toml", "--json"], "decodr"),
        (&["runn", "--json"], "unrecognized subcommand 'runn'"),
        (&["--json", "history", "--limit", "x"], "invalid value 'x'"),
        (&["history", "--json", "--where", "statuss=completed"], "`status`"),
    ] {
        let said = house.dtrain(arguments);
        let error = json(&said);
        assert_eq!((said.code, &error["format"]), (2, &"dtrain.error/2".into()), "{arguments:?}");
        assert_eq!((&error["exit"], &error["meaning"]), (&2.into(), &"usage error or invalid recipe".into()));
        assert!(error["message"].as_str().expect("words").contains(message), "{error}");
        assert!(said.stderr.contains("error"), "the text stays: {}", said.stderr);
        assert_eq!(
            house
                .dtrain(&arguments.iter().copied().filter(|word| *word != "--json").collect::<Vec<_>>())
                .stdout,
            ""
        );
    }
    let problem = &json(&house.dtrain(&["plan", "bad.toml", "--json"]))["problems"][0];
    assert_eq!((&problem["line"], &problem["column"]), (&2.into(), &8.into()), "as `check` has it");
    let checked = json(&house.dtrain(&["check", "bad.toml", "--json"]));
    assert_eq!((&checked["format"], &checked["problems"][0]), (&"dtrain.check/2".into(), problem));
    let hint = json(&house.dtrain(&["runn", "--json"]));
    assert!(hint["hint"].as_str().expect("a tip").contains("'run'"), "{hint}");

    let said = house.dtrain(&["run", "bad.toml", "--json"]);
    assert_eq!(said.stdout.lines().count(), 1, "one line: {}", said.stdout);
    assert_eq!(json(&said)["format"], "dtrain.error/2");
    let said = house.dtrain(&["run", "--json", "--rank", "2"]);
    assert_eq!((said.stdout.lines().count(), said.code), (1, 2), "{}", said.stdout);
}

#[test]
fn every_line_of_a_run_names_its_trial_and_its_attempt() {
    let house = trials(0);
    house.file("failing.toml", &COMMAND.replace("step 2 loss 0.4", "step 2 loss 0.4; exit 3"));
    let run = house.dtrain(&["run", "failing.toml", "--json"]);
    assert_eq!(run.code, 5, "{}", run.stderr);
    let lines: Vec<Value> =
        run.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let (error, rest) = lines.split_last().expect("lines");
    let (result, seen) = rest.split_last().expect("lines");
    assert_eq!((&error["format"], &error["exit"]), (&"dtrain.error/2".into(), &5.into()));
    assert_eq!(result["format"], "dtrain.result/2");
    let id = result["trial"].as_str().expect("an id");
    assert!(!seen.is_empty() && seen.iter().all(|line| line["trial"] == id), "{}", run.stdout);
    for line in seen {
        let is_of_the_trial = line["record"].get("trial_ended").is_some() || line["record"] == "resumed";
        assert_eq!(line["attempt"].is_u64(), !is_of_the_trial, "{line}");
    }
}

#[test]
fn unknown_names_in_conditions_are_refused_with_a_suggestion() {
    let house = trials(1);
    let history = |arguments: &[&str]| house.dtrain(&[&["history"], arguments].concat());
    for (condition, words) in [
        ("statuss=completed", "trials have no `statuss`; did you mean `status`?"),
        ("sede=7", "`train.seed`"),
        ("foo>1", "a recorded figure"),
        ("status=fine", "expected one of"),
    ] {
        let said = history(&["--where", condition]);
        assert_eq!(said.code, 2, "{condition}");
        assert!(said.stderr.contains(words), "{condition}: {}", said.stderr);
    }
    assert!(history(&["--by", "foo"]).stderr.contains("`foo` is nothing to sort by"));
    for condition in ["status=done", "STATUS=done and loss<1", "TOK/S>=0 and train.seed>=0", "model.layers=3"]
    {
        let said = history(&["--where", condition]);
        assert_eq!(said.code, 0, "{condition}: {}", said.stderr);
    }
    assert!(history(&["--where", "status=done"]).stdout.contains("quick-1"));
    assert_eq!(history(&["--by", "RATE"]).code, 0);
}

/// Returns bash's completions of a line's last word, with the script that dtrain prints.
fn offered(house: &TestEnv, line: &str) -> Vec<String> {
    let words: Vec<&str> = line.split(' ').collect();
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let script = format!(
        "source <(dtrain completions bash); COMP_WORDS=({}); COMP_CWORD={}; COMP_TYPE=9; \
         _clap_complete_dtrain dtrain '{}' x; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        quoted.join(" "),
        words.len() - 1,
        words.last().expect("a word"),
    );
    let program = Path::new(env!("CARGO_BIN_EXE_dtrain")).parent().expect("a folder");
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap_or_default());
    let mut bash = Command::new("bash");
    bash.args(["-c", &script]).current_dir(house.path()).env_clear();
    bash.env("HOME", house.path()).env("PATH", path).env("DTRAIN_STATE", house.path().join("state"));
    let said = said(bash.output().expect("bash"));
    assert_eq!((said.code, said.stderr.as_str()), (0, ""), "{line}: {}", said.stdout);
    said.stdout.lines().filter(|word| !word.is_empty()).map(|word| word.trim_end().to_owned()).collect()
}

#[test]
fn bash_completes_trials_recipes_and_keys() {
    let house = trials(2);
    assert_eq!(offered(&house, "dtrain show qu"), ["quick-2", "quick-1"]);
    assert_eq!(offered(&house, "dtrain rm quick-1 la"), ["last"]);
    assert_eq!(offered(&house, "dtrain run library/char"), ["library/char-gpt"]);
    assert!(offered(&house, "dtrain run comm").contains(&"command.toml".to_owned()));
    assert_eq!(offered(&house, "dtrain plan --set train.see"), ["train.seed="]);
    assert!(offered(&house, "dtrain ").contains(&"doctor".to_owned()));
    assert!(offered(&house, "dtrain age").is_empty(), "hidden commands are not offered");
    let elsewhere = format!("dtrain --state {} show qu", house.path().join("nowhere").display());
    assert!(offered(&house, &elsewhere).is_empty(), "another state folder has no history");
    assert!(!house.path().join("nowhere").exists(), "a question makes no folder");
}

#[test]
fn a_shell_that_asks_is_answered_without_a_script() {
    let house = trials(1);
    let asked = |words: &[&str]| {
        let mut command = house.command(&["--", "dtrain"]);
        command.args(words).env("COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", words.len().to_string());
        said(command.output().expect("it starts")).stdout
    };
    assert_eq!(asked(&["show", "qu"]), "quick-1");
    assert_eq!(asked(&["checkpoint", "ls", "qu"]), "quick-1");
    assert_eq!(asked(&["tune", "--study", "qu"]), "");
    house.recipe();
    let run = house.dtrain(&["history"]);
    assert_eq!(run.code, 0, "without the variable it is a command");
}

#[test]
fn what_is_held_against_hosts_is_listed_and_forgiven() {
    let house = trials(1);
    let nobody = house.dtrain(&["hosts"]);
    assert!(nobody.code == 0 && nobody.stderr.contains("no host was used yet"), "{}", nobody.stderr);
    let mut history = History::open(&house.path().join("state/history.db")).expect("opens");
    let trial = history.find("last").expect("it ran");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    let at_ms = u64::try_from(now.as_millis()).expect("a time of this age");
    let detail = "lost host gpu-02: it is silent".to_owned();
    let strike = Strike { host: "gpu-02".into(), partner: None, cause: StrikeCause::Lost, at_ms, detail };
    let answered = vec!["gpu-01".to_owned(), "gpu-02".to_owned()];
    let hosts = HostUpdate { answered, strikes: vec![strike.clone(), strike] };
    history.record(&trial, &TrialUpdate { hosts, ..TrialUpdate::default() }).expect("kept");
    drop(history);

    let listed = house.dtrain(&["hosts"]);
    assert_eq!(listed.code, 0, "{}", listed.stderr);
    let line = |host: &str| listed.stdout.lines().find(|line| line.contains(host)).map(str::to_owned);
    let bad = line("gpu-02").expect("it is listed");
    assert!(bad.contains("10 min") || bad.contains("600 s") || bad.contains("9."), "{bad}");
    assert!(bad.contains("the host was lost") && line("gpu-01").is_some(), "{}", listed.stdout);
    let document = json(&house.dtrain(&["hosts", "--json"]));
    assert_eq!(document["hosts"][1]["excluded"]["cause"], "lost", "{document}");

    let unknown = house.dtrain(&["hosts", "forgive", "gpu-03"]);
    assert!(unknown.code == 2 && unknown.stderr.contains("`dtrain hosts` lists them"), "{}", unknown.stderr);
    let forgiven = house.dtrain(&["hosts", "forgive", "gpu-02"]);
    assert!(forgiven.stderr.contains("2 strikes forgiven"), "{}", forgiven.stderr);
    let document = json(&house.dtrain(&["hosts", "--json"]));
    assert!(document["hosts"][1]["excluded"].is_null(), "{document}");
}
