//! A detached run goes on by itself: a process in the background supervises it until it ends.

use crate::cluster::train::nothing_is_left;
use crate::lab::Lab;
use dtrain_protocol::{AttemptId, Rank, TrialId};
use dtrain_runner::LedgerError;
use dtrain_runner::ledger::{History, MetricSample, TrialActivity, TrialDetails, TrialStatus};
use dtrain_tests::{SHORT_TRAINING, numbered_lines};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Settings of a training without end. Its steps are long enough that messages between hosts take a small part of them,
/// since hosts that share two cores compute no faster together.
pub(super) const WITHOUT_END: [&str; 4] =
    ["model.hidden=128", "train.batch=192", "checkpoint.every=4", "objective.stop={ steps = 100000 }"];

/// Time until a host that was shut down is back.
const BOOT: Duration = Duration::from_secs(10);

/// How long anything may take that must come.
const PATIENCE: Duration = Duration::from_secs(150);

/// A detached trial, looked at from the controller's machine.
pub(super) struct Detached<'a> {
    lab: &'a Lab,
    trial: TrialId,
    /// What the command that started it said.
    said: String,
}

impl<'a> Detached<'a> {
    /// Puts recipe, data and hosts in place, and starts. The command has ended, and its terminal is gone.
    pub(super) fn start(lab: &'a Lab, hosts: usize, recipe: &str, settings: &[&str]) -> Self {
        let cluster = format!("[cluster]\nlauncher = \"ssh\"\nhosts = [\"node[1-{hosts}]\"]\n");
        let text = numbered_lines();
        let files = [("text.txt", text.as_str()), ("recipe.toml", recipe), ("hosts.toml", &cluster)];
        let machines = (1..=hosts).map(|number| format!("node{number}"));
        for machine in machines.chain(["controller".to_owned()]) {
            files.iter().for_each(|(name, text)| lab.put(&machine, name, text));
        }
        let mut words = vec!["run", "recipe.toml", "--cluster", "hosts.toml", "--no-sample", "--detach"];
        settings.iter().for_each(|setting| words.extend(["--set", setting]));
        let output = dtrain(lab, &words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && said.contains("supervises it until it ends"), "{said}");
        let trial = read(lab, |history| Ok(history.find("last").expect("a trial")));
        Self { lab, trial, said }
    }

    pub(super) fn details(&self) -> TrialDetails {
        read(self.lab, |history| history.trial(&self.trial, &|_| TrialActivity::Running))
    }

    pub(super) fn series(&self, key: &str) -> Vec<MetricSample> {
        read(self.lab, |history| history.series(&self.trial, key, Rank(0)))
    }

    /// The points of a series of a rank, by attempt.
    pub(super) fn by_attempt(&self, key: &str, rank: u32) -> Vec<(AttemptId, Vec<MetricSample>)> {
        read(self.lab, |history| history.series_by_attempt(&self.trial, key, Rank(rank)))
    }

    /// Number of checkpoints so far.
    pub(super) fn checkpoints(&self) -> usize {
        self.details().checkpoints.len()
    }

    /// Process id of the controller in the background, on its machine.
    pub(super) fn controller(&self) -> u32 {
        let (before, _) = self.said.split_once(" supervises it").expect("it was said");
        before.rsplit(' ').next().and_then(|id| id.parse().ok()).expect("a process id")
    }

    /// Whether the trial has ended as completed.
    pub(super) fn is_completed(&self) -> bool {
        self.details().row.status == TrialStatus::Completed
    }

    /// Number of hosts of the newest attempt.
    pub(super) fn hosts(&self) -> usize {
        let path = home(self.lab).join("trials").join(&self.trial.0).join("hosts");
        fs::read_to_string(path).unwrap_or_default().lines().count()
    }

    /// What the controller in the background said.
    pub(super) fn log(&self) -> String {
        let path = home(self.lab).join("trials").join(&self.trial.0).join("logs/controller.log");
        fs::read_to_string(path).unwrap_or_default()
    }

    /// Waits until the newest attempt has taken a step on this number of hosts, and returns the seconds that takes.
    pub(super) fn wait_for_hosts(&self, hosts: usize, after: usize) -> f64 {
        let begun = Instant::now();
        loop {
            let trial = self.details();
            let newest = trial.attempts.last().expect("it was launched").number;
            let has_step = || {
                let all = self.by_attempt("loss", 0);
                all.iter().any(|(attempt, steps)| *attempt == newest && !steps.is_empty())
            };
            if trial.attempts.len() > after && self.hosts() == hosts && has_step() {
                return begun.elapsed().as_secs_f64();
            }
            assert!(begun.elapsed() < PATIENCE, "no step on {hosts} hosts: {}", self.log());
            sleep(Duration::from_millis(50));
        }
    }
}

/// Reads the history of the controller. From outside of its machine, a reader does not see what is being written.
fn read<T>(lab: &Lab, ask: impl Fn(&History) -> Result<T, LedgerError>) -> T {
    let begun = Instant::now();
    let path = home(lab).join("history.db");
    loop {
        let is_written = path.with_extension("db-wal").exists();
        // SQLite finds a file without writers by a path that leads nowhere outside of the machine.
        let read = if is_written {
            History::open_read_only(&path).and_then(|history| ask(&history))
        } else {
            read_copy(&path, &ask)
        };
        match read {
            Ok(found) => return found,
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                assert!(begun.elapsed() < PATIENCE, "{error}: {cause:?}");
            }
        }
        sleep(Duration::from_millis(20));
    }
}

/// Reads a copy of a history to which nobody writes.
fn read_copy<T>(path: &Path, ask: &impl Fn(&History) -> Result<T, LedgerError>) -> Result<T, LedgerError> {
    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join("history.db");
    // A copy that is missing or torn is an error of the history.
    drop(fs::copy(path, &copy));
    History::open_read_only(&copy).and_then(|history| ask(&history))
}

/// The state folder of the controller.
fn home(lab: &Lab) -> PathBuf {
    lab.home("controller").join(".local/state/dtrain")
}

pub(super) fn dtrain(lab: &Lab, words: &[&str]) -> Output {
    lab.command("dtrain").args(words).stdin(Stdio::null()).output().expect("the program starts")
}

/// Three hosts. One is shut down, and the others continue; it is back, and takes part again.
#[test]
fn a_detached_run_goes_on_without_a_host_that_is_shut_down() {
    let Some(lab) = Lab::start(3) else { return };
    let recipe = format!("name = \"lab\"\n{SHORT_TRAINING}");
    let run = Detached::start(&lab, 3, &recipe, &WITHOUT_END);
    run.wait_for_hosts(3, 0);
    let seconds = std::thread::scope(|scope| {
        scope.spawn(|| lab.shut_down("node3"));
        run.wait_for_hosts(2, 1)
    });
    println!("node3 is shut down: next step after {seconds:.1} s");
    sleep(BOOT);
    lab.start_host("node3");
    let seconds = run.wait_for_hosts(3, 2);
    println!("node3 is back: next step on three hosts after {seconds:.1} s");
    println!("{}", run.log());
    let struck = dtrain(&lab, &["hosts", "--json"]);
    assert!(!String::from_utf8_lossy(&struck.stdout).contains("\"cause\""), "nobody is struck");
    let stopped = dtrain(&lab, &["stop"]);
    let said = String::from_utf8_lossy(&stopped.stderr).into_owned();
    assert!(stopped.status.success() && said.contains("stopped after"), "{said}");
    nothing_is_left(&lab, &["node1", "node2", "node3", "controller"]);
}

/// Unit of processor times in `/proc`: the same on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// Share of a core that a process uses, and its resident memory in bytes.
fn load(process: u32, during: Duration) -> (f64, u64) {
    let ticks = || {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).expect("it runs");
        let (_, rest) = stat.rsplit_once(") ").expect("a state follows");
        let number = |index: usize| rest.split(' ').nth(index).and_then(|text| text.parse::<u64>().ok());
        number(11).expect("utime") + number(12).expect("stime")
    };
    let before = ticks();
    sleep(during);
    let seconds = (ticks() - before) as f64 / TICKS_PER_SECOND;
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has memory");
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    (seconds / during.as_secs_f64(), kibibytes << 10)
}

/// A controller that has nothing to do but to read a record now and then.
#[test]
#[ignore = "a measurement that needs an idle machine"]
fn a_controller_in_the_background_takes_hardly_anything() {
    let Some(lab) = Lab::start(4) else { return };
    let recipe = format!("name = \"lab\"\n{SHORT_TRAINING}");
    let slow = ["objective.stop={ steps = 100000 }", "model.layers=8", "model.hidden=256", "train.batch=96"];
    let run = Detached::start(&lab, 4, &recipe, &slow);
    run.wait_for_hosts(4, 0);
    sleep(Duration::from_secs(10));
    let supervisor = lab.processes("controller").into_iter().find(|one| one.is_hidden_command("supervise"));
    let steps = run.series("loss").len();
    let (share, bytes) = load(supervisor.expect("it runs").id, Duration::from_secs(60));
    let steps = run.series("loss").len() - steps;
    println!("{:.2} % of a core and {:.1} MB with {steps} steps a minute", 100.0 * share, bytes as f64 / 1e6);
    assert!(dtrain(&lab, &["stop"]).status.success());
}

/// An agent and the controller in the background are killed: `attach` takes over, and leaves a new one.
#[test]
fn a_detached_run_survives_its_agents_and_its_controller() {
    let Some(lab) = Lab::start(2) else { return };
    let recipe = format!("name = \"lab\"\n{SHORT_TRAINING}");
    let run = Detached::start(&lab, 2, &recipe, &["objective.stop={ steps = 100000 }"]);
    run.wait_for_hosts(2, 0);
    lab.kill_processes("node1");
    let seconds = run.wait_for_hosts(2, 1);
    println!("the leader's processes are killed: next step after {seconds:.1} s");
    lab.kill_processes("controller");
    let shown = dtrain(&lab, &["history", "--json"]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("\"unattended\""), "{shown}");
    let stopped = dtrain(&lab, &["stop"]);
    assert!(stopped.status.success(), "{}", String::from_utf8_lossy(&stopped.stderr));
    nothing_is_left(&lab, &["node1", "node2", "controller"]);
}
