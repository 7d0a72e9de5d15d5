//! Writers that are killed, and concurrent writers.

use crate::support::*;
use dtrain_runner::{History, Ledger, TrialUpdate};
use rusqlite::Connection;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Not a test of its own: the two below start it many times.
#[test]
#[ignore = "not a test: the child of those that kill it"]
fn child_writes_until_killed() {
    let Some(path) = std::env::var_os("LEDGER_CHILD_PATH").map(PathBuf::from) else { return };
    let limit: u64 = std::env::var("LEDGER_CHILD_STEPS").expect("set").parse().expect("a number");
    let name = std::env::var("LEDGER_CHILD_NAME").expect("set");
    let mut history = History::open(&path).expect("opens");
    let trial = match history.find(&format!("{name}-1")) {
        Ok(trial) => trial,
        Err(_) => history.create_trial(&new_trial(&name)).expect("created").id,
    };
    let acknowledged = path.with_file_name(format!("{name}.acknowledged"));
    let mut next = history.offset(&trial, ATTEMPT).expect("read");
    while next < limit {
        let batch = (next..next + 20).map(|n| step(n, n + 1)).collect();
        next += 20;
        let news = TrialUpdate { events: batch, offset: Some((ATTEMPT, next)), ..TrialUpdate::default() };
        history.record(&trial, &news).expect("kept");
        std::fs::write(&acknowledged, next.to_string()).expect("told");
    }
}

fn child(path: &Path, name: &str, steps: u64) -> Child {
    Command::new(std::env::current_exe().expect("known"))
        .args(["--exact", "processes::child_writes_until_killed", "--ignored", "--quiet"])
        .env("LEDGER_CHILD_PATH", path)
        .env("LEDGER_CHILD_NAME", name)
        .env("LEDGER_CHILD_STEPS", steps.to_string())
        .stdout(Stdio::null())
        .spawn()
        .expect("started")
}

#[test]
fn nothing_acknowledged_is_lost_when_the_writer_is_killed() {
    let (_folder, path) = place();
    drop(History::open(&path).expect("made"));
    let acknowledged = path.with_file_name("killed.acknowledged");
    for round in 0..5u64 {
        let before = std::fs::read_to_string(&acknowledged).unwrap_or_default();
        let mut writer = child(&path, "killed", u64::MAX);
        let begun = Instant::now();
        while std::fs::read_to_string(&acknowledged).unwrap_or_default() == before {
            assert!(begun.elapsed() < Duration::from_secs(20), "the writer writes");
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_millis(20 + round * 13));
        writer.kill().expect("killed");
        writer.wait().expect("gone");
        let told: u64 = std::fs::read_to_string(&acknowledged).expect("there").parse().unwrap_or(0);
        let history = History::open(&path).expect("opens after the kill");
        let trial = history.find("killed-1").expect("there");
        let kept = history.offset(&trial, ATTEMPT).expect("read");
        assert!(kept >= told, "{kept} kept of {told} acknowledged");
        let expected: Vec<_> = (1..=kept).map(|s| (s, 1.0 / s as f64)).collect();
        assert_eq!(losses(&history, &trial), expected, "whole batches, once each");
        let check: String = Connection::open(&path)
            .expect("opens")
            .query_row("PRAGMA integrity_check", [], |row| row.get(0))
            .expect("checked");
        assert_eq!(check, "ok");
    }
}

#[test]
fn eight_processes_write_at_once_into_a_new_file() {
    let (_folder, path) = place();
    let names: Vec<_> = (0..8).map(|n| format!("writer{n}")).collect();
    let writers: Vec<_> = names.iter().map(|name| child(&path, name, 200)).collect();
    for mut writer in writers {
        assert!(writer.wait().expect("ended").success(), "no writer fails");
    }
    let history = History::open(&path).expect("opens");
    for name in names {
        let trial = history.find(&format!("{name}-1")).expect("there");
        assert_eq!(losses(&history, &trial).len(), 200, "{name}");
    }
}
