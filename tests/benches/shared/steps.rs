//! Steps of a training, as they are heard from outside.

use dtrain_protocol::Event;
use dtrain_runner::TrialEvent;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::process::ChildStdout;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

/// A completed step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// What lines tell, read in a thread of its own.
pub(crate) fn heard<T: Send + 'static>(
    from: ChildStdout,
    told: impl Fn(&str) -> Option<T> + Send + 'static,
) -> Receiver<T> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if let Some(one) = told(&line) {
                sender.send(one).ok();
            }
        }
    });
    receiver
}

/// What a line of `--json` tells of a trial under way.
pub(crate) fn seen(line: &str) -> Option<TrialEvent> {
    let mut line: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line).ok()?;
    line.retain(|key, _| ["record", "event", "status"].contains(&key.as_str()));
    serde_json::from_value(line.into()).ok()
}

/// The step that it tells of.
pub(crate) fn step(seen: &TrialEvent) -> Option<Step> {
    let TrialEvent::Event(said) = seen else { return None };
    let Event::Step(figures) = &said.event else { return None };
    Some(Step { life: said.attempt.0, rank: said.rank.0, number: figures.step.0, at_ms: said.at_ms })
}

/// Sends a signal to a process; `false` when it is gone.
pub(crate) fn send(id: u32, signal: Signal) -> bool {
    let id = i32::try_from(id).ok().and_then(Pid::from_raw).expect("processes have positive numbers");
    kill_process(id, signal).is_ok()
}

/// Milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    u64::try_from(since.as_millis()).expect("it is before the year 500 million")
}
