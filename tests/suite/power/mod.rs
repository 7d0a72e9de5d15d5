//! The power is cut at any moment: what was acknowledged is there when it comes back.
//!
//! `DTRAIN_POWER_CUTS=200 tests/run power` cuts it 200 times; without it 10 times. Needs root, loop devices and `mkfs.ext4`, and
//! says so where they are missing.

mod child;
mod disk;
mod flushes;
mod program;

use crate::checkpoint::examined;
use child::{Said, Word, Work, heard, loss, now};
use disk::{Disk, with_own_mounts};
use dtrain_protocol::checkpoint::parse_folder_name;
use dtrain_protocol::shuffle::splitmix64;
use dtrain_protocol::{AttemptId, HostFacts, Layout, Rank};
use dtrain_recipes::check::{CheckContext, check};
use dtrain_recipes::document::Document;
use dtrain_recipes::source::{ConfigLayer, Source};
use dtrain_runner::checkpoints::verify;
use dtrain_runner::ledger::{ExpectedPerformance, NewTrial, host_digest};
use dtrain_runner::provenance::Provenance;
use dtrain_runner::{History, Ledger};
use dtrain_skip::skip;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Bytes of a disk.
const DISK: u64 = 128 << 20;

/// Newest acknowledged checkpoints that are asked for. Every child leaves at least one that it acknowledged, and at most one or
/// two that came too late to count: of those that are kept at least a third were acknowledged.
const ASKED: usize = child::KEEP as usize / 3;

/// How long a child may take until it says something.
const PATIENCE: Duration = Duration::from_secs(60);

/// Longest time from the first word of a child to the cut, in milliseconds.
const LONGEST: u64 = 300;

/// What children acknowledged.
#[derive(Default)]
struct Promised {
    checkpoints: Vec<String>,
    /// The last step of every attempt whose rows are kept.
    rows: BTreeMap<u64, u64>,
    said: Vec<Said>,
    /// Messages that were sent while the power failed, and had no receiver any more.
    late: u64,
}

impl Promised {
    fn add(&mut self, said: Said) {
        match &said {
            Said::Checkpoint(name) => self.checkpoints.push(name.clone()),
            Said::Rows { attempt, step, .. } => drop(self.rows.insert(*attempt, *step)),
            Said::Fact { .. } => {}
        }
        self.said.push(said);
    }

    /// What of it is not on the disk, in words.
    fn lost(&self, work: &Work) -> Vec<String> {
        let mut lost = Vec::new();
        for name in self.checkpoints.iter().rev().take(ASKED) {
            if let Err(reason) = is_whole(work, name) {
                lost.push(format!("checkpoint {name}: {reason}"));
            }
        }
        if work.has_rows
            && let Err(reason) = self.has_rows(work)
        {
            lost.push(reason);
        }
        lost
    }

    fn has_rows(&self, work: &Work) -> Result<(), String> {
        let Some(Said::Rows { trial, .. } | Said::Fact { trial, .. }) =
            self.said.iter().find(|said| !matches!(said, Said::Checkpoint(_)))
        else {
            return Ok(());
        };
        let words = |error: dtrain_runner::LedgerError| format!("{error}: {}", error.source);
        let history = History::open(&work.history()).map_err(words)?;
        let facts = history.facts(trial).map_err(words)?;
        for said in &self.said {
            if let Said::Fact { fact, .. } = said
                && !facts.contains(fact)
            {
                return Err(format!("{fact:?} is lost"));
            }
        }
        let kept = history.series_by_attempt(trial, "loss", Rank(0)).map_err(words)?;
        for (attempt, last) in &self.rows {
            let points =
                kept.iter().find(|(kept, _)| kept.0 == *attempt).map(|(_, points)| points.as_slice());
            let points = points.unwrap_or_default();
            for step in 1..=*last {
                let index = usize::try_from(step - 1).unwrap_or(usize::MAX);
                let point = points.get(index).map(|point| (point.step, point.value));
                if point != Some((step, loss(*attempt, step))) {
                    return Err(format!("step {step} of {last} of attempt {attempt} is {point:?}"));
                }
            }
            let offset = history.offset(trial, AttemptId(*attempt)).map_err(words)?;
            if offset < *last {
                return Err(format!("attempt {attempt} was heard up to {last}, {offset} is kept"));
            }
        }
        Ok(())
    }
}

/// Whether a checkpoint can be gone on from, and all of it is as it was written.
fn is_whole(work: &Work, name: &str) -> Result<(), String> {
    let (step, attempt) = parse_folder_name(name).ok_or("it has an odd name")?;
    let folder = work.trial().checkpoint(step, attempt);
    verify(&folder)?;
    let found = examined(&folder)?;
    if found.lost.is_empty() { Ok(()) } else { Err(format!("{:?}", found.damaged)) }
}

/// Lets a child work, cuts the power so long after its first checkpoint, and gives it back.
fn cut_once(disk: &Disk, mut command: Command, after: Duration, promised: &mut Promised) {
    let mut child = command.spawn().expect("it is this program");
    let begun = Instant::now();
    let out = child.stdout.take().expect("it is piped");
    std::thread::scope(|scope| {
        let (sender, said) = std::sync::mpsc::channel();
        scope.spawn(move || {
            for said in BufReader::new(out).lines().map_while(Result::ok).filter_map(|line| heard(&line)) {
                drop(sender.send(said));
            }
        });
        loop {
            let left = PATIENCE.saturating_sub(begun.elapsed());
            let first: Word = said.recv_timeout(left).expect("the child makes a checkpoint");
            let is_checkpoint = matches!(first.said, Said::Checkpoint(_));
            promised.add(first.said);
            if is_checkpoint {
                break;
            }
        }
        sleep(after);
        // A flush that is under way when the file system is shut down may still return, though its journal is dropped: a
        // process whose machine lost its power would say nothing any more.
        let gone = now();
        disk.cut();
        let until = Instant::now() + Duration::from_secs(10);
        while child.try_wait().expect("it is ours").is_none() {
            if Instant::now() > until {
                child.kill().expect("it is ours");
            }
            sleep(Duration::from_millis(1));
        }
        for Word { at, said } in said.iter() {
            if at < gone { promised.add(said) } else { promised.late += 1 }
        }
    });
    disk.restart();
}

fn after(round: u64) -> Duration {
    Duration::from_micros(splitmix64(2026, round) % (1000 * LONGEST))
}

/// Runs `test`, or skips it where it cannot be run.
fn with_disks(test: impl FnOnce() + Send) {
    if let Err(reason) = with_own_mounts(test) {
        skip(format_args!("the power of no disk can be cut here: {reason}"));
    }
}

#[test]
fn nothing_acknowledged_is_lost_when_the_power_is_cut() {
    let cuts: u64 = std::env::var("DTRAIN_POWER_CUTS").map_or(10, |text| text.parse().expect("a number"));
    with_disks(|| {
        let disk = Disk::new(DISK).expect("one was made before");
        let begun = Instant::now();
        let mut promised = Promised::default();
        for round in 1..=cuts {
            let work = Work { disk: disk.path(), attempt: round, has_rows: true };
            cut_once(&disk, work.command(), after(round), &mut promised);
            let lost = promised.lost(&work);
            assert!(lost.is_empty(), "cut {round}, {:?} after the first checkpoint: {lost:#?}", after(round));
        }
        println!(
            "{cuts} power cuts in {:.0} s: {} checkpoints and {} rows acknowledged, none lost; {} words came too late to count",
            begun.elapsed().as_secs_f64(),
            promised.checkpoints.len(),
            promised.rows.values().sum::<u64>(),
            promised.late
        );
    });
}

/// Cuts the power of a child that forgets to flush, until something is lost.
#[expect(clippy::print_stdout, reason = "the log of the tests tells what was lost")]
fn forgetful(what: &str, has_rows: bool) {
    let folder = tempfile::tempdir().expect("a folder");
    let library = match child::forgetting(folder.path()) {
        Ok(library) => library,
        Err(reason) => return skip(reason),
    };
    with_disks(|| {
        let mut seen = Vec::new();
        for round in 1..=5 {
            let disk = Disk::new(DISK).expect("one was made before");
            let work = Work { disk: disk.path(), attempt: 1, has_rows };
            let mut promised = Promised::default();
            let mut command = work.command();
            command.env("LD_PRELOAD", &library).env("FORGET", what);
            cut_once(&disk, command, after(round), &mut promised);
            seen.extend(promised.lost(&work));
        }
        assert!(!seen.is_empty(), "a child that forgets to flush {what} loses nothing: the cut cuts nothing");
        println!("without flushing {what}, 5 cuts lost: {seen:#?}");
    });
}

#[test]
fn without_any_flush_what_was_acknowledged_is_lost() {
    forgetful("all", true);
}

#[test]
fn without_flushing_names_checkpoints_are_lost() {
    forgetful("folders", false);
}

/// A trial for the history, of nothing in particular.
fn new_trial() -> NewTrial {
    let text = "name = \"power\"\n[model]\nkind = \"mlp\"\ninputs = 4\nclasses = 2\nhidden = [8]\n\
                [data]\ntrain = \"a.csv\"\ntarget = \"y\"\n[objective]\nstop = { steps = 100 }\n";
    let source = Source::new("power.toml", ConfigLayer::Recipe, text);
    let document = Document::parse(&source).unwrap_or_else(|problems| panic!("{problems:?}"));
    let context = CheckContext { folder: Path::new("/").to_owned(), name: "power".into() };
    let recipe = check(&document, &context).unwrap_or_else(|problems| panic!("{problems:?}")).recipe;
    let host = HostFacts::example();
    NewTrial {
        recipe,
        plan: serde_json::json!({}),
        candidate: serde_json::json!({}),
        layout: Layout::SINGLE.to_string(),
        batch: 32,
        learning_rate: 1e-3,
        predicted: ExpectedPerformance::default(),
        host_digest: host_digest(&host),
        model_digest: "m".into(),
        study: None,
        parent: None,
        sources: BTreeMap::new(),
        provenance: Provenance {
            git: None,
            program: "test".into(),
            environment: BTreeMap::new(),
            command: Vec::new(),
        },
    }
}
