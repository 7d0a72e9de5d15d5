//! The trial of a soak: its controller, which may come and go, and what is heard of it.

use super::lab::{self, Lab};
use super::shared::perceptron::{TRAINING, rows};
use super::shared::{Step, heard, seen, step};
use dtrain_runner::{AttemptEnd, Fact, TrialEvent};
use rustix::process::Signal;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// The hosts.
pub(crate) const HOSTS: [&str; 4] = ["node1", "node2", "node3", "node4"];

/// Four replicas however many hosts there are, so that the sums have the same terms in the same order.
const REPLICAS: &str = r#"
schedule = "constant"
warmup = "10 steps"

[layout]
data = 4
tensor = 1
pipeline = 1
context = 1
zero = 0
micro_batch = 32
recompute = "none"
"#;

const CLUSTER: &str = r#"
[cluster]
launcher = "ssh"
hosts = ["node[1-4]"]
ranks = 4
"#;

/// Lines of a log that are told when something went wrong.
const LAST_LINES: usize = 15;

/// The recipe without a cluster.
pub(crate) fn recipe() -> String {
    format!("name = \"soak\"\n{TRAINING}{REPLICAS}")
}

/// What is heard of the trial.
enum Heard {
    /// Rank 0 completed a step.
    Step(Step),
    /// An attempt was lost, for this reason.
    Lost(String),
}

/// A trial on the hosts of a lab.
pub(crate) struct Trial<'a> {
    lab: &'a Lab,
    controller: Child,
    heard: Receiver<Heard>,
    /// Steps of rank 0, in the order in which they were completed.
    pub(crate) steps: Vec<Step>,
    /// Why attempts were lost, one after the other.
    pub(crate) lost: Vec<String>,
}

impl<'a> Trial<'a> {
    /// Puts recipe and data on all machines of the lab, and starts.
    pub(crate) fn start(lab: &'a Lab) -> Self {
        let files = [("rows.csv", rows()), ("recipe.toml", recipe()), ("hosts.toml", CLUSTER.into())];
        for machine in HOSTS.iter().chain(&["controller"]) {
            files.iter().for_each(|(name, text)| lab.put(machine, name, text));
        }
        let (controller, heard) =
            control(lab, &["run", "recipe.toml", "--cluster", "hosts.toml", "--no-sample"]);
        Self { lab, controller, heard, steps: Vec::new(), lost: Vec::new() }
    }

    /// Hears for so long what is said. `Some` when the controller ended, with how it did.
    pub(crate) fn listen(&mut self, patience: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + patience;
        loop {
            match self.heard.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Heard::Step(step)) => self.steps.push(step),
                Ok(Heard::Lost(why)) => self.lost.push(why),
                Err(RecvTimeoutError::Timeout) => return None,
                Err(RecvTimeoutError::Disconnected) => {
                    return Some(self.controller.wait().expect("it is ours"));
                }
            }
        }
    }

    /// Waits until so many steps are complete; panics when that takes longer than `patience`.
    pub(crate) fn reaches(&mut self, number: u64, patience: Duration) {
        let until = Instant::now() + patience;
        while self.steps.iter().all(|step| step.number < number) {
            let ended = self.listen(Duration::from_millis(50));
            let is_late = Instant::now() > until || ended.is_some();
            assert!(!is_late, "step {number} did not come; {ended:?}\n{}", self.logs());
        }
    }

    /// The most steps that were completed.
    pub(crate) fn reached(&self) -> u64 {
        self.steps.iter().map(|step| step.number).max().unwrap_or(0)
    }

    /// The hosts of the newest attempt; the first leads.
    pub(crate) fn hosts(&self) -> Vec<String> {
        let known = fs::read_to_string(self.folder().join("hosts")).expect("the trial was launched");
        known.lines().map(str::to_owned).collect()
    }

    /// Kills the controller at once.
    pub(crate) fn kill_controller(&mut self) {
        self.controller.kill().expect("it is ours");
        while self.listen(Duration::from_millis(50)).is_none() {}
    }

    /// Becomes the controller again, as a user would.
    pub(crate) fn resume(&mut self) {
        (self.controller, self.heard) = control(self.lab, &["resume", "last"]);
    }

    /// Stops by Ctrl-C; panics when that fails.
    pub(crate) fn stop(&mut self, patience: Duration) {
        lab::signal(&mut self.controller, Signal::INT);
        let ended = self.listen(patience);
        let is_interrupted = ended.is_some_and(|ended| ended.code() == Some(130));
        assert!(is_interrupted, "after Ctrl-C: {ended:?}\n{}", self.logs());
    }

    /// The last lines of the controller and of the agents, for somebody who wants to know what went wrong.
    pub(crate) fn logs(&self) -> String {
        let trial = self.folder();
        let trial = trial.file_name().expect("a trial has a name").to_string_lossy().into_owned();
        let mut files = vec![("controller".to_owned(), log(self.lab))];
        for host in HOSTS {
            let logs = self.lab.trials(host).join(&trial).join("logs");
            let mut newest: Vec<PathBuf> =
                fs::read_dir(logs).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
            newest.sort_by_key(|path| path.metadata().and_then(|found| found.modified()).ok());
            files.extend(newest.into_iter().rev().take(3).map(|path| (host.to_owned(), path)));
        }
        let tail = |(host, path): &(String, PathBuf)| {
            let text = fs::read_to_string(path).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let from = lines.len().saturating_sub(LAST_LINES);
            format!("--- {host}: {}\n{}\n", path.display(), lines[from..].join("\n"))
        };
        files.iter().map(tail).collect()
    }

    fn folder(&self) -> PathBuf {
        let trials = self.lab.home("controller").join(".local/state/dtrain/trials");
        fs::read_dir(trials).expect("a trial").flatten().next().expect("a trial").path()
    }
}

/// Where the controller's words go.
fn log(lab: &Lab) -> PathBuf {
    lab.home("controller").join("controller.log")
}

/// A controller, and what is heard of it.
fn control(lab: &Lab, arguments: &[&str]) -> (Child, Receiver<Heard>) {
    let log = File::options().create(true).append(true).open(log(lab)).expect("room on disk");
    let mut command = lab.command("dtrain");
    command.args(arguments).arg("--json").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    let mut controller = command.spawn().expect("nsenter starts");
    let heard = heard(controller.stdout.take().expect("it is piped"), told);
    (controller, heard)
}

fn told(line: &str) -> Option<Heard> {
    let seen = seen(line)?;
    match &seen {
        TrialEvent::Record(Fact::AttemptEnded { ended: AttemptEnd::Lost(failure), .. }) => {
            Some(Heard::Lost(failure.to_string()))
        }
        TrialEvent::Record(Fact::AttemptEnded { ended: AttemptEnd::NotLaunched(why), .. }) => {
            Some(Heard::Lost(why.to_string()))
        }
        _ => step(&seen).filter(|step| step.rank == 0).map(Heard::Step),
    }
}

/// Lets time pass.
pub(crate) fn pause(time: Duration) {
    thread::sleep(time);
}
