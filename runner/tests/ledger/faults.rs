//! Locked and damaged histories.

use crate::support::*;
use dtrain_protocol::Rank;
use dtrain_protocol::shuffle::splitmix64;
use dtrain_runner::{History, Ledger, TrialUpdate};
use rusqlite::Connection;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn a_writer_waits_while_another_program_holds_the_history() {
    let (_folder, path) = place();
    let mut history = History::open(&path).expect("made");
    let trial = history.create_trial(&new_trial("held")).expect("created").id;
    let other = Connection::open(&path).expect("opens");
    other.execute_batch("BEGIN EXCLUSIVE").expect("no other process writes");
    let held = Duration::from_millis(800);
    thread::scope(|scope| {
        scope.spawn(move || {
            thread::sleep(held);
            other.execute_batch("COMMIT").expect("it is held");
        });
        let begun = Instant::now();
        let news =
            TrialUpdate { events: (0..20).map(|n| step(n, n + 1)).collect(), ..TrialUpdate::default() };
        history.record(&trial, &news).expect("it waits for its turn");
        assert!(begun.elapsed() >= held / 2, "it was held");
    });
    assert_eq!(losses(&history, &trial).len(), 20);
}

/// Reads a history; `Err` is the message of the refusal.
fn read(path: &Path) -> Result<Vec<(u64, f64)>, String> {
    let words = |error: dtrain_runner::LedgerError| format!("{error}: {}", error.source);
    let history = History::open(path).map_err(words)?;
    history.check().map_err(words)?;
    let trial = history.find("damaged-1").map_err(|error| error.to_string())?;
    history.facts(&trial).map_err(words)?;
    let samples = history.series(&trial, "loss", Rank(0)).map_err(words)?;
    Ok(samples.into_iter().map(|sample| (sample.step, sample.value)).collect())
}

#[test]
fn a_damaged_history_is_refused_with_what_to_do_and_never_read_wrongly() {
    let (folder, path) = place();
    let mut history = History::open(&path).expect("made");
    let trial = history.create_trial(&new_trial("damaged")).expect("created").id;
    for batch in 0..30 {
        let events = (batch * 20..batch * 20 + 20).map(|n| step(n, n + 1)).collect();
        history.record(&trial, &TrialUpdate { events, ..TrialUpdate::default() }).expect("kept");
    }
    drop(history);
    // All of it in the one file.
    let switch = "PRAGMA wal_checkpoint(TRUNCATE)";
    Connection::open(&path)
        .and_then(|raw| raw.query_row(switch, [], |_| Ok(())))
        .expect("no other process is there");
    let (whole, expected) = (fs::read(&path).expect("it is there"), read(&path).expect("it is whole"));
    assert_eq!(expected.len(), 600);
    let damaged = folder.path().join("copy").join("history.db");
    let (mut refused, mut advised) = (0, 0);
    for round in 0..120u64 {
        fs::create_dir_all(damaged.parent().expect("a folder")).expect("room on disk");
        let mut bytes = whole.clone();
        match round % 3 {
            // A page of garbage, a cut-off end, and a flipped bit in the header of a page.
            0 => {
                let page = (splitmix64(1, round) % (bytes.len() as u64 / 4096)) as usize;
                bytes[page * 4096..][..4096]
                    .iter_mut()
                    .zip(0u64..)
                    .for_each(|(b, n)| *b = splitmix64(round, n) as u8);
            }
            1 => bytes.truncate((splitmix64(2, round) % bytes.len() as u64) as usize),
            _ => {
                let page = (splitmix64(3, round) % (bytes.len() as u64 / 4096)) as usize;
                bytes[page * 4096 + (splitmix64(4, round) % 100) as usize] ^= 1 << (round % 8);
            }
        }
        fs::write(&damaged, &bytes).expect("room on disk");
        let found = catch_unwind(AssertUnwindSafe(|| read(&damaged)));
        let found = found.unwrap_or_else(|_| panic!("round {round} panicked"));
        match found {
            Ok(losses) => {
                assert!(losses == expected, "round {round}: read as if nothing were wrong, and wrong");
            }
            Err(words) => {
                refused += 1;
                advised += u32::from(words.contains("aside") || words.contains("no trial"));
            }
        }
        fs::remove_dir_all(damaged.parent().expect("a folder")).expect("it is ours");
    }
    println!(
        "of 120 damaged histories {refused} were refused, {advised} with what to do; the rest are read as written"
    );
    assert!(refused >= 60 && 10 * advised >= 9 * refused, "{refused} refused, {advised} advised");
}
