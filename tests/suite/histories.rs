//! Histories that vanish during a run, that cannot be written, or whose folder was copied; and what is meant without a name.

use dtrain_runner::ledger::History;
use dtrain_runner::ledger::TrialActivity;
use dtrain_skip::skip;
use dtrain_tests::{TestEnv, root};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long anything may take that must come.
const PATIENCE: Duration = Duration::from_secs(60);

fn wait(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        sleep(Duration::from_millis(10));
    }
}

/// A recipe whose program writes its process id to a file `pid` and trains until it is stopped.
fn endless(house: &TestEnv) -> String {
    let lines = "import os, time\nopen('pid', 'w').write(str(os.getpid()))\nfor step in range(1, 100000):\n    \
        print('step', step, 'loss', 1 / step, flush=True)\n    time.sleep(0.02)\n";
    house.file("train.py", lines);
    let recipe = "[model]\nkind = \"command\"\nargv = [\"python3\", \"train.py\"]\n\
        progress = [\"step {step} loss {loss}\"]\n[objective]\nstop = { steps = 100000 }\n[cluster]\nranks = 1\n";
    house.file("recipe.toml", recipe).to_str().expect("UTF-8").to_owned()
}

/// The steps of the newest trial that the history has; 0 without one.
fn steps(house: &TestEnv) -> u64 {
    let newest = || -> Result<u64, Box<dyn std::error::Error>> {
        let history = History::open_read_only(&house.history())?;
        Ok(history.trial(&history.find("last")?, &|_| TrialActivity::Running)?.row.step)
    };
    newest().unwrap_or(0)
}

/// The exit code, and what was printed on standard error.
fn ended(mut child: Child) -> (Option<i32>, String) {
    let mut words = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut words).expect("UTF-8");
    (child.wait().expect("it ends").code(), words)
}

/// What the program prints on standard error when it ends with `code`.
fn words(house: &TestEnv, code: i32, arguments: &[&str]) -> String {
    String::from_utf8_lossy(&house.expect(code, arguments).stderr).into_owned()
}

/// Removes the files of a history.
fn remove_history(house: &TestEnv) {
    for ending in ["", "-wal", "-shm"] {
        let mut name = house.history().into_os_string();
        name.push(ending);
        fs::remove_file(&name).expect("it is there while a run has it open");
    }
}

#[test]
fn a_history_removed_during_a_run_ends_it_with_exit_6_and_its_ranks() {
    let removals: [(&str, fn(&TestEnv)); 3] = [
        ("history.db was removed while it was open", remove_history),
        ("/state was removed while it was open", |house| {
            fs::rename(house.state(), house.state().with_extension("away")).expect("moved");
        }),
        ("history.db was replaced by another file while it was open", |house| {
            let copy = house.history().with_extension("copy");
            fs::copy(house.history(), &copy)
                .and_then(|_| fs::rename(copy, house.history()))
                .expect("replaced");
        }),
    ];
    for (expected, remove) in removals {
        let house = TestEnv::default();
        let recipe = endless(&house);
        let mut run = house.dtrain(["run", &recipe]);
        let run = run.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let run = run.expect("it starts");
        wait("the history should have a step", || steps(&house) > 0);
        let pid = fs::read_to_string(house.state().with_file_name("pid")).expect("the program trains");
        remove(&house);
        let (code, said) = ended(run);
        assert_eq!(code, Some(6), "{said}");
        assert!(said.contains(expected), "{said}");
        assert!(!said.contains("completed"), "{said}");
        let process = Path::new("/proc").join(pid);
        wait("the program should be stopped", || !process.exists());
    }
}

#[test]
fn a_command_that_waits_for_a_locked_history_says_so() {
    let house = TestEnv::default();
    train(&house, "one");
    let lines = "import sqlite3, sys\nhistory = sqlite3.connect(sys.argv[1], isolation_level=None)\n\
        history.execute('BEGIN EXCLUSIVE')\nprint('locked', flush=True)\nsys.stdin.read()\n";
    let mut other = Command::new("python3");
    other.arg("-c").arg(lines).arg(house.history()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut other = other.spawn().expect("python3");
    let mut locked = other.stdout.take().expect("a pipe");
    locked.read_exact(&mut [0; 7]).expect("it has locked the history");
    let mut note = house.dtrain(["note", "last", "text"]).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut said = BufReader::new(note.stderr.take().expect("a pipe"));
    let mut first = String::new();
    said.read_line(&mut first).expect("UTF-8");
    drop(other.stdin.take());
    assert!(other.wait().expect("it ends").success());
    assert!(note.wait().expect("it ends").success());
    assert!(first.contains("waiting for ") && first.contains("another program has locked it"), "{first}");
}

#[test]
fn stop_without_a_name_means_what_runs() {
    let house = TestEnv::default();
    let recipe = endless(&house);
    assert!(words(&house, 2, &["stop"]).contains("there is no history"));
    house.expect(0, ["run", &recipe, "--name", "one", "--detach"]);
    house.expect(0, ["run", &recipe, "--name", "two", "--detach"]);
    for command in [&["stop"][..], &["attach"], &["logs", "--follow"]] {
        let said = words(&house, 2, command);
        assert!(said.contains("2 trials are running: two-1, one-1"), "{command:?}: {said}");
    }
    // The newest is not the one that runs.
    house.expect(0, ["stop", "two-1"]);
    let said = words(&house, 0, &["stop"]);
    assert!(said.contains("asked one-1 to stop"), "{said}");
    let said = words(&house, 2, &["stop"]);
    assert!(said.contains("no trial is running"), "{said}");
}

#[test]
fn a_piece_of_an_id_that_all_trials_share_removes_nothing() {
    let house = TestEnv::default();
    train(&house, "only");
    let said = words(&house, 2, &["rm", "01", "--yes"]);
    assert!(said.contains("no trial named `01`") && said.contains("at least 8 characters"), "{said}");
    let said = words(&house, 0, &["rm", "last", "--yes"]);
    assert!(said.contains("removing only-1 ("), "{said}");
}

/// Trains a small table for five steps.
fn train(house: &TestEnv, name: &str) {
    let recipe = table();
    let recipe = recipe.to_str().expect("UTF-8");
    house.expect(0, ["run", recipe, "--quiet", "--name", name, "--set", "objective.stop={ steps = 5 }"]);
}

fn table() -> PathBuf {
    root().join("examples/table-mlp/recipe.toml")
}

#[test]
fn the_speed_of_a_table_is_counted_in_samples() {
    let house = TestEnv::default();
    train(&house, "counted");
    train(&house, "counted");
    let printed = |arguments: &[&str]| {
        String::from_utf8_lossy(&house.expect(0, arguments.iter().copied()).stdout).into_owned()
    };
    for command in [&["show", "last"][..], &["compare", "counted-1", "counted-2"]] {
        let told = printed(command);
        assert!(told.contains("samples/s") && !told.contains("tokens/s"), "{command:?}: {told}");
    }
    let list = printed(&["history", "--where", "TOK/S>0"]);
    assert!(list.contains("counted-1") && !list.contains("TOK/S"), "{list}");
}

#[test]
fn checkpoints_of_a_copied_state_folder_are_those_of_the_copy() {
    let house = TestEnv::default();
    train(&house, "copied");
    let copy = house.state().with_file_name("copy");
    let copied = Command::new("cp").arg("-a").arg(house.state()).arg(&copy).status().expect("cp starts");
    assert!(copied.success());
    // Nothing of the original can be read by the path that the history of the copy has.
    fs::rename(house.state(), house.state().with_file_name("moved")).expect("ours");
    let run = |arguments: &[&str]| {
        let output = house.dtrain(arguments).env("DTRAIN_STATE", &copy).output().expect("it starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let shown: serde_json::Value = serde_json::from_slice(&run(&["show", "last", "--json"])).expect("JSON");
    let folder = shown["trial"]["checkpoints"][0]["folder"].as_str().expect("a folder");
    assert!(Path::new(folder).starts_with(&copy), "{folder}");
    run(&["resume", "last", "--quiet", "--set", "objective.stop.steps=8"]);
}

/// Runs lines of bash with a small disk of their own mounted at the state folder: `$1` is the program, `$2` a recipe, `$3` the state
/// folder, `$4` a file outside of it.
fn on_a_small_disk(house: &TestEnv, lines: &str) {
    let can = Command::new("unshare").args(["-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]).output();
    if !can.is_ok_and(|output| output.status.success()) {
        return skip("mounting a small disk needs root and unshare");
    }
    fs::create_dir_all(house.state()).expect("a folder");
    let run = house.dtrain(["run"]);
    let mut shell = Command::new("unshare");
    shell.envs(run.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let begin = "mount -t tmpfs -o size=64m,mode=700 tmpfs \"$3\"\n\
        \"$1\" run \"$2\" --quiet --name small --set 'objective.stop={ steps = 5 }'\n";
    shell
        .args(["-m", "bash", "-euc", &format!("{begin}{lines}"), "bash"])
        .arg(run.get_program())
        .arg(table());
    let output = shell.arg(house.state()).arg(house.file("out", "")).output().expect("unshare starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
}

/// Every command that only reads must end with 0.
const READ: &str = r#"
for command in "history" "show last" "logs last" "checkpoint ls last" "checkpoint verify last" "gc --dry-run" "hosts" \
    "export last --to csv --out -" "history export --to $4.dtrain" "history"; do
    "$1" $command > "$4" || { echo "dtrain $command ended with $?"; exit 1; }
done
grep -q small-1 "$4"
"#;

#[test]
fn a_history_on_a_read_only_disk_can_be_read() {
    let then = r#"
if "$1" note last text 2> "$4"; then echo "a note was kept"; exit 1; fi
cat "$4"; tr '\n' ' ' < "$4" | tr -s ' ' | grep -q "read-only file system"
"#;
    // The agent of the trial may have its files open for a moment after the trial has ended.
    let mount = "for _ in {1..100}; do mount -o remount,ro \"$3\" && break; sleep 0.05; done\n";
    on_a_small_disk(&TestEnv::default(), &format!("{mount}{READ}{then}"));
}

#[test]
fn a_history_on_a_full_disk_can_be_read_and_rm_and_gc_free_room_there() {
    let lines = r#"
dd if=/dev/zero of="$3/fill" bs=1k 2> /dev/null || true
"#;
    let then = r#"
if "$1" note last text 2> "$4"; then echo "a note was kept"; exit 1; else code=$?; fi
cat "$4"; [ $code = 6 ]; grep -q "no space left on device for .*/history.db" "$4"
"$1" gc
"$1" rm small-1 --yes
if ls "$3"/trials/* 2> /dev/null; then echo "the folder is still there"; exit 1; fi
"$1" history 2>&1 | grep -q "no trial matches"
"#;
    on_a_small_disk(&TestEnv::default(), &format!("{lines}{READ}{then}"));
}
