//! Canaries in everything that is secret: found nowhere that dtrain writes, prints, or names a process after.

use super::trap::Trap;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// All canaries begin so.
const CANARY: &str = "canary-7f3a91e2c4";

/// What keys look like: their header, and how those of our certificates begin.
pub(super) const KEYS: [&str; 2] = ["PRIVATE KEY", "MIGHAgEAMBMGByqGSM49"];

/// Secrets of a user that programs find in the environment; some of them begin as variables do that dtrain mentions.
const VARIABLES: [&str; 7] = [
    "AWS_SECRET_ACCESS_KEY",
    "HF_TOKEN",
    "WANDB_API_KEY",
    "SLURM_JWT",
    "NCCL_SECRET",
    "CUDA_LICENCE",
    "OMP_PASSWORD",
];

/// Files below a folder that hold one of the needles, links not followed.
pub(super) fn holding(folder: &Path, needles: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, kind) = (entry.path(), entry.file_type().expect("it is there"));
        if kind.is_dir() {
            found.extend(holding(&path, needles));
        } else if kind.is_file() {
            let bytes = fs::read(&path).unwrap_or_default();
            // Bytes that are no text become other bytes, and what is looked for is text.
            let text = String::from_utf8_lossy(&bytes);
            let has = |needle: &&&str| text.contains(**needle);
            found.extend(needles.iter().filter(has).map(|needle| format!("{}: {needle}", path.display())));
        }
    }
    found
}

/// Fails unless only its owner can look into a folder of dtrain's.
pub(super) fn is_private(folder: &Path) {
    let mode = fs::metadata(folder).expect("it was made").mode() & 0o777;
    assert_eq!(mode & 0o077, 0, "{} has mode {mode:o}", folder.display());
}

/// What processes are called while something happens: those with a needle in their arguments.
fn named_meanwhile<T>(needle: &str, work: impl FnOnce() -> T) -> (T, BTreeSet<String>) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut found = BTreeSet::new();
            while !is_over.load(Ordering::Relaxed) {
                for process in fs::read_dir("/proc").expect("there is one").flatten() {
                    let line = fs::read_to_string(process.path().join("cmdline")).unwrap_or_default();
                    found.extend(line.contains(needle).then(|| line.replace('\0', " ")));
                }
                thread::sleep(Duration::from_millis(15));
            }
            found
        });
        let result = work();
        is_over.store(true, Ordering::Relaxed);
        (result, looking.join().expect("looking does not panic"))
    })
}

fn silent(output: &Output) {
    for text in [&output.stdout, &output.stderr] {
        assert!(!String::from_utf8_lossy(text).contains(CANARY), "{}", String::from_utf8_lossy(text));
    }
}

fn git(folder: &Path, words: &[&str]) {
    let identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"];
    let done =
        Command::new("git").arg("-C").arg(folder).args(identity).args(words).output().expect("git runs");
    assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// A command in an environment full of secrets.
fn with_secrets(mut command: Command) -> Command {
    command.envs(VARIABLES.map(|name| (name, format!("{CANARY}-{name}"))));
    command
}

#[test]
fn canaries_of_a_user_are_found_nowhere() {
    let trap = Trap::set();
    let folder = trap.folder().join("repository");
    let recipe =
        |name: &str, text: &str| trap.house.file(&format!("repository/{name}"), text).display().to_string();
    let rows: String = (0..200).map(|n| format!("{n},{},{}\n", n % 7, n % 2)).collect();
    trap.house.file("repository/table.csv", format!("a,b,y\n{rows}"));
    trap.house.file("repository/.env", "TOKEN=none\n");
    let ours = recipe(
        "ours.toml",
        "[model]\nkind = 'mlp'\ninputs = 2\nhidden = [4]\nclasses = 2\n[data]\ntrain = 'table.csv'\ntarget = 'y'\n\
         [objective]\nstop = { steps = 40 }\n[train]\nbatch = 8\nlearning_rate = 1e-3\n[layout]\ndata = 2\n[cluster]\nranks = 2\n",
    );
    let foreign = recipe(
        "foreign.toml",
        "[model]\nkind = 'command'\nargv = ['witness']\n[objective]\nstop = { steps = 1 }\n",
    );
    // It sees what the user has, and makes no core file.
    trap.program(
        "witness",
        "env | grep -c ^HF_TOKEN=canary >\"$DTRAIN_RUN_DIR/seen\"; ulimit -c >>\"$DTRAIN_RUN_DIR/seen\"; echo so far; sleep 0.2; echo '{\"step\": 1, \"loss\": 0.5}' >&\"$DTRAIN_EVENTS_FD\"",
    );
    git(&folder, &["init", "-q"]);
    git(&folder, &["add", "-A"]);
    git(&folder, &["commit", "-q", "-m", "first"]);
    let remote = format!("https://user:{CANARY}-remote@127.0.0.1/r.git");
    git(&folder, &["remote", "add", "origin", &remote]);
    git(&folder, &["config", "http.extraHeader", &format!("Authorization: {CANARY}-header")]);
    trap.house.file("repository/.env", format!("TOKEN={CANARY}-dotenv\n"));
    trap.house.file("repository/id.key", format!("{CANARY}-untracked"));

    let run = |words: &[&str], codes: &[i32]| silent(&trap.ends(with_secrets(trap.dtrain(words)), codes));
    let ((), named) = named_meanwhile(CANARY, || {
        run(&["run", &ours], &[0]);
        run(&["run", &foreign], &[0]);
        for words in
            [&["show", "last"][..], &["show", "last", "--json"], &["history", "--json"], &["logs", "last"]]
        {
            run(words, &[0]);
        }
        run(&["doctor"], &[0, 4]);
    });
    assert!(named.is_empty(), "processes are named {named:?}");
    let seen =
        fs::read_to_string(trap.house.newest_trial().join("command/seen")).expect("the witness wrote it");
    assert_eq!(seen, "1\n0\n", "a program has the environment of its user, and no core files");
    for url in [
        &remote,
        &format!("https://{CANARY}@127.0.0.1/r.git"),
        &format!("ssh://git:{CANARY}@127.0.0.1/r.git"),
    ] {
        run(&["recipe", "add", url, "--name", "r"], &[2]);
    }

    is_private(&trap.house.state());
    let needles = [CANARY, KEYS[0], KEYS[1]];
    for place in ["state", "config", "data"] {
        let found = holding(&trap.folder().join(place), &needles);
        assert!(found.is_empty(), "{found:#?}");
    }
    assert!(!holding(&folder, &needles).is_empty(), "what was planted is found");
    assert!(
        holding(&trap.house.state(), &["witness"]).len() >= 2,
        "the history and the plan are looked through"
    );
}
