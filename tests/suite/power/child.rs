//! Process that writes checkpoints and rows until its disk's power is cut, and reports each once it is
//! durable.

use crate::layouts::{Case, assignments};
use dtrain_protocol::checkpoint::folder_name;
use dtrain_protocol::{
    Assignment, AttemptId, Event, PhaseTimes, Rank, Slice, StampedEvent, StepFigures, StepId, TensorKind,
    TrialId,
};
use dtrain_runner::checkpoints::{commit, retention};
use dtrain_runner::{Fact, History, Ledger, TrialFolder, TrialUpdate};
use dtrain_worker::checkpoint::{NamedPiece, save};
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What the child is told, as JSON, by this variable.
const WORK: &str = "POWER_CHILD";

/// Elements of the one tensor of a checkpoint, which each of two ranks writes a half of.
const ELEMENTS: u64 = 20_001;

/// Committed checkpoints that are kept.
pub(super) const KEEP: u32 = 40;

/// Steps from one checkpoint to the next.
const EVERY: u64 = 8;

/// What the child does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Work {
    /// The mounted disk.
    pub(super) disk: PathBuf,
    /// Its attempt: it grows from child to child.
    pub(super) attempt: u64,
    /// Whether it also keeps rows, whose flushes would cover for flushes that a checkpoint lacks.
    pub(super) has_rows: bool,
}

/// A line of the child.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Word {
    /// When it was known, in nanoseconds since the Unix epoch.
    pub(super) at: u128,
    pub(super) said: Said,
}

/// What it says: something that is durable now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Said {
    /// A committed checkpoint, by the name of its folder.
    Checkpoint(String),
    /// Rows up to this step of its attempt are in the history.
    Rows { trial: TrialId, attempt: u64, step: u64 },
    /// So is a fact.
    Fact { trial: TrialId, fact: Fact },
}

impl Work {
    /// A child that does it; what it says comes out of its standard output.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("a test knows where it is"));
        command
            .args(["--exact", "power::child::works_until_the_power_is_cut", "--ignored", "--nocapture"])
            .env(WORK, serde_json::to_string(self).expect("a path of plain letters"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        command
    }

    /// The folder of the trial.
    pub(super) fn trial(&self) -> TrialFolder {
        TrialFolder::at(self.disk.join("trial"))
    }

    /// The history.
    pub(super) fn history(&self) -> PathBuf {
        self.disk.join("history.db")
    }
}

/// What a line of the child says, when it is one of its own.
pub(super) fn heard(line: &str) -> Option<Word> {
    serde_json::from_str(line).ok()
}

/// Nanoseconds since the Unix epoch.
pub(super) fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later").as_nanos()
}

#[expect(clippy::print_stdout, reason = "it is what the parent listens to")]
fn say(said: Said) {
    println!("{}", serde_json::to_string(&Word { at: now(), said }).expect("plain data"));
    std::io::stdout().flush().ok();
}

/// Not a test of its own: what the others start, and whose disk they cut off.
#[test]
#[ignore = "not a test: the child of those that cut its power"]
fn works_until_the_power_is_cut() {
    let Ok(work) = std::env::var(WORK) else { return };
    let work: Work = serde_json::from_str(&work).expect("our own words");
    println!();
    // It ends when its disk fails, which is what it is for.
    drop(work_on(&work));
}

fn work_on(work: &Work) -> Result<(), Box<dyn Error>> {
    let trial = work.trial();
    trial.create()?;
    let one = assignment(work)?;
    commit::remove_partial(&trial.checkpoints(), one.attempt)?;
    let mut rows = if work.has_rows { Some(Rows::open(work)?) } else { None };
    for step in 1.. {
        if let Some(rows) = &mut rows {
            rows.keep(step)?;
        }
        if step % EVERY == 0 || rows.is_none() {
            checkpoint(&trial, &one, StepId(step))?;
            say(Said::Checkpoint(folder_name(StepId(step), one.attempt)));
            if let Some(rows) = &mut rows {
                let folder = trial.checkpoint(StepId(step), one.attempt);
                rows.fact(Fact::CheckpointCommitted { attempt: one.attempt, step: StepId(step), folder })?;
            }
            retention::apply_retention(&trial.checkpoints(), KEEP, one.attempt, None)?;
        }
        if rows.is_none() {
            // Time for nothing to be flushed by chance.
            std::thread::sleep(Duration::from_millis(150));
        }
    }
    Ok(())
}

/// What rank 0 of a small trial is to do, in this attempt.
fn assignment(work: &Work) -> Result<Assignment, Box<dyn Error>> {
    let case = Case::new("mlp", &[("data", "2")]);
    let one = assignments(&case, &work.disk, None, 1).into_iter().next().ok_or("there are two ranks")?;
    Ok(Assignment { attempt: AttemptId(work.attempt), checkpoints: work.trial().checkpoints(), ..one })
}

/// Makes one checkpoint on the disk of `work`.
pub(super) fn commit_once(work: &Work, step: StepId) -> Result<(), Box<dyn Error>> {
    let trial = work.trial();
    trial.create()?;
    checkpoint(&trial, &assignment(work)?, step)
}

/// Saves as two ranks do, and commits as their agent does.
fn checkpoint(trial: &TrialFolder, one: &Assignment, step: StepId) -> Result<(), Box<dyn Error>> {
    let partial = trial.partial_checkpoint(step, one.attempt);
    let whole = Slice::whole(&[ELEMENTS]);
    let mut saved = Vec::new();
    for rank in 0..2u64 {
        let range = rank * ELEMENTS / 2..(rank + 1) * ELEMENTS / 2;
        let values: Vec<f32> = range.clone().map(|element| (element + 7 * step.0) as f32).collect();
        let slice = Slice::of(whole.region().clone(), range);
        let piece =
            NamedPiece { name: "weight", kind: TensorKind::Parameter, slice: &slice, values: &values };
        saved.push(save(&partial, Rank(u32::try_from(rank)?), &[piece])?);
    }
    commit::check(&partial, &saved)?;
    commit::prepare(&partial, &commit::manifest_contents(one, step, saved)?)?;
    commit::finish(trial, step, one.attempt)?;
    Ok(())
}

/// The history that the child writes.
struct Rows {
    history: History,
    trial: TrialId,
    attempt: AttemptId,
}

impl Rows {
    fn open(work: &Work) -> Result<Self, Box<dyn Error>> {
        let mut history = History::open(&work.history())?;
        let trial = match history.find("power-1") {
            Ok(trial) => trial,
            Err(_) => history.create_trial(&super::new_trial())?.id,
        };
        let mut rows = Self { history, trial, attempt: AttemptId(work.attempt) };
        rows.fact(Fact::AttemptStarted { attempt: rows.attempt, from: None })?;
        Ok(rows)
    }

    fn keep(&mut self, step: u64) -> Result<(), Box<dyn Error>> {
        let events = vec![figures(self.attempt, step)];
        let news = TrialUpdate { events, offset: Some((self.attempt, step)), ..TrialUpdate::default() };
        self.history.record(&self.trial, &news)?;
        say(Said::Rows { trial: self.trial.clone(), attempt: self.attempt.0, step });
        Ok(())
    }

    fn fact(&mut self, fact: Fact) -> Result<(), Box<dyn Error>> {
        self.history
            .record(&self.trial, &TrialUpdate { facts: vec![fact.clone()], ..TrialUpdate::default() })?;
        say(Said::Fact { trial: self.trial.clone(), fact });
        Ok(())
    }
}

/// The loss that the child tells after a step.
pub(super) fn loss(attempt: u64, step: u64) -> f64 {
    (attempt as f64) + 1.0 / step as f64
}

fn figures(attempt: AttemptId, step: u64) -> StampedEvent {
    let figures = StepFigures {
        step: StepId(step),
        loss: loss(attempt.0, step),
        gradient_norm: Some(1.0),
        learning_rate: 1e-3,
        elapsed: None,
        noise: None,
        tokens: 32,
        times: PhaseTimes::default(),
        memory_bytes: 1,
        held: dtrain_protocol::ResidentBytes::default(),
        sent_bytes: 0,
    };
    StampedEvent { attempt, rank: Rank(0), sequence: step, at_ms: 1, event: Event::Step(figures) }
}

/// A library that makes a process believe that it flushed, compiled into `folder`. `Err` where there is no C compiler.
pub(super) fn forgetting(folder: &Path) -> Result<PathBuf, String> {
    compiled(folder, "forget")
}

/// The library `tests/data/<name>.c`, compiled into `folder`. `Err` where there is no C compiler.
pub(super) fn compiled(folder: &Path, name: &str) -> Result<PathBuf, String> {
    let library = folder.join(name).with_extension("so");
    let source = dtrain_tests::root().join("tests/data").join(name).with_extension("c");
    let output =
        Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).output();
    let output = output.map_err(|error| format!("cc: {error}"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(library) } else { Err(format!("cc: {error}")) }
}
