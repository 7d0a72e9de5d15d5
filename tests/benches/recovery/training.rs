//! A training that is watched from outside: which of its processes completed which step, and when.

use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The variable that marks every process of a training.
const MARKER: &str = "RECOVERY_BENCH";

/// A completed step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// The life that its processes belong to: an attempt, or a process.
    pub(crate) life: u64,
    /// The rank.
    pub(crate) rank: u32,
    /// Steps completed, this one included.
    pub(crate) number: u64,
    /// Milliseconds since the Unix epoch when it was completed.
    pub(crate) at_ms: u64,
}

/// How a training recovered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recovery {
    /// From the fault to the next completed step.
    pub(crate) seconds: f64,
    /// Steps that were completed before the fault, and were completed again.
    pub(crate) again: u64,
}

/// A training under way. Everything of it ends when it is dropped.
pub(crate) struct Training {
    marker: String,
    process: Child,
    steps: Receiver<Step>,
    seen: Vec<Step>,
    /// The number of the process behind a rank, as the bench sees it.
    process_of: Box<dyn Fn(&[Step], u32) -> u32>,
    /// What must live as long as the training does.
    _kept: Box<dyn std::any::Any>,
}

impl Training {
    /// Starts `command`, each line of whose output may tell of a step.
    pub(crate) fn start(
        command: &mut Command,
        step: impl Fn(&str) -> Option<Step> + Send + 'static,
        process_of: impl Fn(&[Step], u32) -> u32 + 'static,
        kept: impl std::any::Any,
    ) -> Self {
        let marker = format!("{}.{}", std::process::id(), now_ms());
        command.env(MARKER, &marker).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().expect("it starts");
        let from = process.stdout.take().expect("it is piped");
        let steps = heard(from, step);
        Self {
            marker,
            process,
            steps,
            seen: Vec::new(),
            process_of: Box::new(process_of),
            _kept: Box::new(kept),
        }
    }

    /// Waits until a step of this number is complete; panics when it takes longer than `patience`.
    pub(crate) fn reaches(&mut self, number: u64, patience: Duration) {
        let until = Instant::now() + patience;
        while self.seen.iter().all(|step| step.number < number) {
            let left = until.saturating_duration_since(Instant::now());
            let step = self.steps.recv_timeout(left);
            self.seen.push(
                step.unwrap_or_else(|_| panic!("step {number} did not come; {} steps came", self.seen.len())),
            );
        }
    }

    /// Waits at most `limit` for a step by processes that are younger than `began_ms`.
    pub(crate) fn recovers(&mut self, began_ms: u64, limit: Duration) -> Option<Recovery> {
        let until = Instant::now() + limit;
        let mut known: BTreeSet<u64> = self.seen.iter().map(|step| step.life).collect();
        let mut last = self.seen.iter().map(|step| step.number).max().unwrap_or(0);
        loop {
            let step = self.steps.recv_timeout(until.saturating_duration_since(Instant::now())).ok()?;
            if step.at_ms <= began_ms || known.contains(&step.life) {
                known.insert(step.life);
                last = last.max(step.number);
                continue;
            }
            #[expect(clippy::cast_precision_loss, reason = "some seconds")]
            let seconds = (step.at_ms - began_ms) as f64 / 1e3;
            return Some(Recovery { seconds, again: (last + 1).saturating_sub(step.number) });
        }
    }

    /// Sends a signal to the process of the second rank.
    pub(crate) fn signal(&self, signal: Signal) {
        let process = (self.process_of)(&self.seen, 1);
        kill_process(pid(process), signal).expect("the second rank lives");
    }
}

impl Drop for Training {
    fn drop(&mut self) {
        drop(self.process.kill());
        // Those that were about to start others may have done so meanwhile.
        loop {
            let left = marked(&self.marker);
            if left.is_empty() {
                break;
            }
            left.into_iter().for_each(|id| _ = kill_process(pid(id), Signal::KILL).ok());
            thread::sleep(Duration::from_millis(20));
        }
        drop(self.process.wait());
    }
}

/// Reads lines in a thread of its own.
fn heard(from: ChildStdout, step: impl Fn(&str) -> Option<Step> + Send + 'static) -> Receiver<Step> {
    let (sender, steps) = channel();
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if let Some(step) = step(&line) {
                sender.send(step).ok();
            }
        }
    });
    steps
}

/// Processes that began with the marker in their environment, and still run.
fn marked(marker: &str) -> Vec<u32> {
    let pair = format!("{MARKER}={marker}");
    let ids = fs::read_dir("/proc").expect("there is /proc");
    let ids = ids.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_ours = |id: &u32| {
        let environment = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|found| found == pair.as_bytes())
    };
    ids.filter(is_ours).collect()
}

/// The number of a process, checked.
fn pid(id: u32) -> Pid {
    i32::try_from(id).ok().and_then(Pid::from_raw).expect("processes have positive numbers")
}

/// Milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    u64::try_from(since.as_millis()).expect("it is before the year 500 million")
}
