//! A training that is watched from outside: which of its processes completed which step, and when.

use super::shared::{Step, heard, now_ms, send};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::{Duration, Instant};

/// The variable that marks every process of a training.
const MARKER: &str = "RECOVERY_BENCH";

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
        assert!(send(process, signal), "the second rank lives");
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
            left.into_iter().for_each(|id| _ = send(id, Signal::KILL));
            thread::sleep(Duration::from_millis(20));
        }
        drop(self.process.wait());
    }
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
