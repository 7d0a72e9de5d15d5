//! A trial in a folder of its own, and ways to drive and disturb it.

use crate::toy;
use dtrain_protocol::{
    Arrangement, Assignment, Hyperparameters, Layout, Placement, Rank, ResumePoint, RunUntil, StepId, TrialId,
};
use dtrain_recipes::{Framework, Mlp, MlpActivation, Model, Optimizer, model};
use dtrain_runner::control_protocol::{AgentCard, LinkChoice, Program};
use dtrain_runner::driver::HostsPrediction;
use dtrain_runner::ledger::{ExpectedPerformance, NewTrial};
use dtrain_runner::process::Process;
use dtrain_runner::provenance::Provenance;
use dtrain_runner::relay_server::RELAY_IDLE_TIMEOUT;
use dtrain_runner::workdir::WorkdirSnapshot;
use dtrain_runner::{
    ControllerStatus, Drive, DriveError, DriveOutcome, Fact, History, Home, Interrupts, LaunchContext,
    Ledger, Options, Programs, TrialEvent, TrialFolder, driver,
};
use rustix::process::Signal;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Ranks of every trial here.
pub(crate) const RANKS: u32 = 2;

/// Steps of every trial here.
pub(crate) const STEPS: u64 = 60;

/// Name of a file with the seconds per step, for controllers in processes of their own.
const PACE: &str = "pace";

/// Entry point of the driver: start, resume or attach.
pub(crate) type Verb = fn(Drive<'_>) -> Result<DriveOutcome, DriveError>;

/// A trial in a folder of its own.
pub(crate) struct World {
    pub(crate) root: PathBuf,
    pub(crate) home: Home,
    pub(crate) trial: TrialId,
    /// Number of hosts for the ranks; `None` for this machine.
    pub(crate) hosts: Option<u32>,
    /// Most hosts that have ranks.
    pub(crate) spread: u32,
    /// True if the hosts share one state folder.
    pub(crate) is_shared: bool,
    /// Silence of a controller after which a host ends the process that serves it.
    pub(crate) relay_idle_timeout: Duration,
    pub(crate) options: Options,
    pub(crate) interrupts: Arc<Interrupts>,
    pub(crate) command: Option<Vec<String>>,
    pub(crate) framework: Framework,
    pub(crate) progress: Vec<String>,
    /// The recipe's folder that is sent to the hosts, in which the ranks then run.
    pub(crate) workdir: Option<Arc<WorkdirSnapshot>>,
    /// Seconds per step.
    pub(crate) pace: f64,
    /// Seconds per step of the first attempt, if it must not end by itself.
    pub(crate) first_pace: Option<f64>,
    /// Statuses that the controller reported.
    statuses: Mutex<Vec<ControllerStatus>>,
    /// Seconds of earlier training that each launch was given.
    pub(crate) spent: Mutex<Vec<f64>>,
    _folder: Option<tempfile::TempDir>,
}

impl World {
    /// Creates a new trial that was never launched.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().to_owned();
        let home = Home::at(root.join("state"));
        fs::create_dir_all(home.path()).expect("room on disk");
        let trial = History::open(&home.history())
            .and_then(|mut h| h.create_trial(&new_trial()))
            .expect("created")
            .id;
        Self { _folder: Some(folder), ..Self::at(&root, trial) }
    }

    /// Opens the trial that another process created.
    pub(crate) fn at(root: &Path, trial: TrialId) -> Self {
        Self {
            root: root.to_owned(),
            home: Home::at(root.join("state")),
            trial,
            hosts: None,
            spread: RANKS,
            is_shared: false,
            relay_idle_timeout: RELAY_IDLE_TIMEOUT,
            options: Options::default(),
            interrupts: Arc::default(),
            command: None,
            framework: Framework::Pytorch,
            progress: Vec::new(),
            workdir: None,
            pace: fs::read_to_string(root.join(PACE))
                .ok()
                .and_then(|text| text.parse().ok())
                .unwrap_or(0.004),
            first_pace: None,
            statuses: Mutex::default(),
            spent: Mutex::default(),
            _folder: None,
        }
    }

    /// Sets the seconds per step for all controllers.
    pub(crate) fn paced(mut self, seconds: f64) -> Self {
        fs::write(self.root.join(PACE), seconds.to_string()).expect("room on disk");
        self.pace = seconds;
        self
    }

    /// Drives the trial from this process; returns the observed events as well.
    pub(crate) fn drive(&self, verb: Verb) -> (Result<DriveOutcome, DriveError>, Vec<TrialEvent>) {
        let mut seen = Vec::new();
        let outcome = self.drive_and(verb, &mut |one| seen.push(one.clone()));
        (outcome, seen)
    }

    /// Drives the trial from this process with an observer.
    pub(crate) fn drive_and(
        &self,
        verb: Verb,
        observe: &mut dyn FnMut(&TrialEvent),
    ) -> Result<DriveOutcome, DriveError> {
        let mut ledger = History::open(&self.home.history()).expect("opens");
        self.drive_with(verb, &mut ledger, observe)
    }

    /// Drives the trial with another ledger.
    pub(crate) fn drive_with(
        &self,
        verb: Verb,
        ledger: &mut dyn Ledger,
        observe: &mut dyn FnMut(&TrialEvent),
    ) -> Result<DriveOutcome, DriveError> {
        let (programs, begun) = (programs(&self.root), Instant::now());
        let mut observer = |seen: &TrialEvent| {
            if let TrialEvent::Status(status) = seen {
                // Shown if the test fails.
                eprintln!("{:6.3} {status:?}", begun.elapsed().as_secs_f64());
                self.statuses.lock().expect("whole").push(status.clone());
            }
            observe(seen);
        };
        verb(Drive {
            home: &self.home,
            trial: &self.trial,
            lower: &|launching| self.lower(launching),
            predict: &|hosts| {
                let hosts = hosts.min(RANKS);
                let step_seconds = 1.0 / f64::from(hosts);
                Some(HostsPrediction { hosts, step_seconds, interval: (step_seconds, step_seconds) })
            },
            programs: &programs,
            launcher: self.hosts.map(|hosts| self.launcher(hosts)),
            audit: None,
            options: &self.options,
            ledger,
            observer: &mut observer,
            interrupts: Arc::clone(&self.interrupts),
        })
    }

    /// Starts a controller in a process of its own, which can be killed.
    pub(crate) fn controller(&self, verb: &str) -> Child {
        self.controller_by(Command::new(std::env::current_exe().expect("this program")), verb)
    }

    /// Like `controller`, started by a command that ends with this program.
    pub(crate) fn controller_by(&self, mut command: Command, verb: &str) -> Child {
        let said = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.root.join("seen"))
            .expect("room on disk");
        command
            .args(["controller", verb])
            .arg(&self.root)
            .arg(&self.trial.0)
            .stdin(Stdio::null())
            .stdout(said)
            .spawn()
            .expect("this program starts")
    }

    pub(crate) fn lower(&self, launching: &LaunchContext) -> Result<Vec<Assignment>, String> {
        if launching.hosts == 0 {
            return Err("no host answers".into());
        }
        self.spent.lock().expect("whole").push(launching.spent_seconds);
        let layout = Layout::replicas(NonZeroU32::new(RANKS).expect("not zero"));
        let mlp = Mlp { inputs: 4, hidden: vec![8], classes: 2, activation: MlpActivation::Relu };
        let model = match &self.command {
            Some(argv) => Model::Command(model::ForeignCommand {
                argv: argv.clone(),
                framework: self.framework,
                progress: self.progress.clone(),
                env: std::collections::BTreeMap::new(),
            }),
            None => Model::Mlp(mlp),
        };
        let recipe: dtrain_recipes::Recipe = serde_json::from_value(recipe()).expect("a recipe");
        let of_rank = |rank| Assignment {
            trial: self.trial.clone(),
            attempt: launching.attempt,
            rank,
            arrangement: Arrangement { layout, ..Arrangement::SINGLE },
            model: model.clone(),
            data: recipe.data.clone(),
            data_root: self.root.clone(),
            workdir: self.workdir.as_ref().map(|workdir| workdir.digest().to_owned()),
            training: Hyperparameters {
                batch: 8,
                share: 4 * u64::from(rank.0)..4 * u64::from(rank.0 + 1),
                micro_batch: 4,
                optimizer: Optimizer { beta2: 0.99, weight_decay: 0.0, ..Optimizer::ADAMW },
                learning_rate: self.first_pace.filter(|_| launching.attempt.0 == 1).unwrap_or(self.pace),
                schedule_steps: STEPS,
                ..Hyperparameters::plain()
            },
            until: RunUntil { steps: Some(StepId(STEPS)), ..RunUntil::default() },
            placement: Placement {
                host: rank.0 * launching.hosts.min(self.spread) / RANKS,
                ..Assignment::example().placement
            },
            validate_every: STEPS,
            save_every: 10,
            checkpoints: launching.checkpoints.clone(),
            resume: launching.from.clone(),
            ..Assignment::example()
        };
        Ok((0..RANKS).map(Rank).map(of_rank).collect())
    }

    pub(crate) fn sabotage(&self, text: &str) {
        fs::write(self.root.join(toy::SABOTAGE), text).expect("room on disk");
    }

    /// Returns the statuses that the controller reported so far.
    pub(crate) fn seen(&self) -> Vec<ControllerStatus> {
        self.statuses.lock().expect("whole").clone()
    }

    pub(crate) fn facts(&self) -> Vec<Fact> {
        History::open(&self.home.history()).and_then(|history| history.facts(&self.trial)).expect("readable")
    }

    /// Waits for the newest agent and its ranks.
    pub(crate) fn card(&self) -> Option<AgentCard> {
        card(&self.home.trial(&self.trial))
    }

    /// Waits until a checkpoint has been committed.
    pub(crate) fn wait_for_a_checkpoint(&self) {
        let folder = self.home.trial(&self.trial).checkpoints();
        wait("a checkpoint", || {
            dtrain_runner::checkpoints::committed(&folder).is_ok_and(|committed| !committed.is_empty())
        });
    }

    /// Asserts that within [`PATIENCE`] no process of this trial lives.
    pub(crate) fn assert_nothing_lives(&self) {
        let marker = self.root.to_str().expect("plain text");
        wait("the end of all processes", || processes_of(marker).is_empty());
    }

    /// Asserts that the trial completed with the state of an undisturbed one.
    pub(crate) fn assert_completed(&self, outcome: &DriveOutcome) {
        let DriveOutcome::Ended { verdict, checkpoint: Some(ResumePoint { folder, step }), .. } = outcome
        else {
            panic!("it should have completed: {outcome:?}")
        };
        let complete = dtrain_runner::Verdict::Completed(dtrain_protocol::StopReason::Complete);
        assert_eq!((verdict, *step), (&complete, StepId(STEPS)));
        dtrain_runner::checkpoints::verify(folder).expect("what was committed");
        assert!(
            toy::state(folder, RANKS) == undisturbed(),
            "the final state differs from an undisturbed run's"
        );
    }
}

pub(crate) fn card(trial: &TrialFolder) -> Option<AgentCard> {
    let card: AgentCard = serde_json::from_slice(&fs::read(trial.agent_card()).ok()?).ok()?;
    Some(card).filter(|card| !card.ranks.is_empty())
}

/// Returns the final state of an undisturbed trial; trained once.
fn undisturbed() -> &'static [u8] {
    static STATE: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    STATE.get_or_init(|| {
        let world = World::new();
        match world.drive(driver::start).0.expect("driven") {
            DriveOutcome::Ended { checkpoint: Some(point), attempts: 1, .. } => {
                toy::state(&point.folder, RANKS)
            }
            other => panic!("nothing disturbed it: {other:?}"),
        }
    })
}

/// Returns this program as agent and as rank, marked so that its processes can be found.
pub(crate) fn programs(marker: &Path) -> Programs {
    let exe = std::env::current_exe().expect("this program");
    let marker = marker.to_str().expect("plain text");
    Programs { agent: Program::new(&exe, ["agent", marker]), worker: Program::new(&exe, ["worker", marker]) }
}

/// Time for anything that must happen. Less than the time for which a controller waits for the record of a host, so that a
/// test fails where that is waited for in vain.
const PATIENCE: Duration = Duration::from_secs(15);

/// Waits until `is_true`, at most for [`PATIENCE`].
pub(crate) fn wait(what: &str, is_true: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_true() {
        assert!(Instant::now() < until, "waited {} s for {what}", PATIENCE.as_secs());
        thread::sleep(Duration::from_millis(5));
    }
}

/// Kills a process unless its id was reused.
pub(crate) fn kill(process: &Process) {
    signal(process, Signal::KILL);
}

/// Sends a signal to a process unless its id was reused.
pub(crate) fn signal(process: &Process, signal: Signal) {
    if let Some(pid) = rustix::process::Pid::from_raw(process.id as i32).filter(|_| process.is_alive()) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Returns every process whose command line contains the marker.
pub(crate) fn processes_of(marker: &str) -> Vec<u32> {
    let of = |entry: fs::DirEntry| {
        let id = entry.file_name().to_str()?.parse().ok()?;
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        String::from_utf8_lossy(&line).contains(marker).then_some(id)
    };
    fs::read_dir("/proc").expect("Linux").flatten().filter_map(of).collect()
}

fn recipe() -> serde_json::Value {
    json!({
        "name": "toy",
        "model": {"kind": "mlp", "inputs": 4, "hidden": [8], "classes": 2, "activation": "relu"},
        "data": {"format": {"format": "csv", "target": "y"}, "train": ["a.csv"], "valid": {"fraction": 0.1}, "fraction": 1.0},
        "objective": {"metric": "valid.loss", "stop": {"steps": STEPS}},
        "train": {
            "optimizer": {"kind": "adamw", "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.1},
            "batch": "auto", "learning_rate": {"pinned": 0.001}, "warmup": "auto", "schedule": "cosine",
            "final_fraction": 0.1, "clip": 1.0, "precision": {"pinned": "f32"}, "seed": 7
        },
        "layout": {},
        "checkpoint": {"every": "auto", "keep": 2},
        "cluster": {"launcher": "local", "ranks": null, "devices": "cpu", "hosts": []}
    })
}

fn new_trial() -> NewTrial {
    NewTrial {
        recipe: serde_json::from_value(recipe()).expect("a recipe"),
        plan: json!({"version": 1}),
        candidate: json!({}),
        layout: Layout::SINGLE.to_string(),
        batch: 8,
        learning_rate: 1e-3,
        predicted: ExpectedPerformance::default(),
        host_digest: String::new(),
        model_digest: String::new(),
        study: None,
        parent: None,
        sources: BTreeMap::new(),
        provenance: Provenance::default(),
    }
}

impl World {
    /// Links the ranks by TLS.
    pub(crate) fn over_tls(mut self) -> Self {
        self.options.link = LinkChoice::Tls { bind: "127.0.0.1".into() };
        self
    }
}
