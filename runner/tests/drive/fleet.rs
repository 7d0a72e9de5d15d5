//! The controller with its history on disk and a thousand simulated hosts, of which one dies per second.
//!
//! `DTRAIN_FLEET=1000` is their number in the longer test, which prints memory and time of the controller.

use crate::TAKEN;
use crate::world::World;
use dtrain_protocol::{
    Assignment, AttemptId, Event, Failure, PhaseTimes, Placement, Rank, ResidentBytes, StampedEvent,
    StepFigures, StepId, StopReason, TrialId, frame,
};
use dtrain_runner::control_protocol::{AgentCard, AgentOrder, LaunchError};
use dtrain_runner::launch::{
    AgentContact, AvailableHosts, CancellationToken, CheckpointPlacement, ConnectedAgent, ControllerClaim,
    DiskSearch, FencedAgent, FencingReport, FinalFencing, HostPool, IdleHost, Launcher, SpoolUnreadable,
};
use dtrain_runner::process::Process;
use dtrain_runner::spool::SpoolRecord;
use dtrain_runner::{Drive, DriveOutcome, Fact, History, LaunchContext, TrialEvent, Verdict, driver};
use std::fs;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Length of a step.
const STEP: Duration = Duration::from_millis(250);

/// Steps of an attempt before it loses a host: one per second, including the restart.
const LIVES: u64 = 3;

/// Simulated leader of the hosts.
struct Fleet {
    hosts: u32,
    until: u64,
    leader: Option<(AttemptId, Child)>,
}

impl Fleet {
    /// Ends the current leader.
    fn leave(&mut self) {
        if let Some((_, mut leader)) = self.leader.take() {
            drop(leader.kill());
            drop(leader.wait());
        }
    }
}

impl Launcher for Fleet {
    fn cancel(&self) -> CancellationToken {
        CancellationToken::default()
    }

    fn pool(&mut self) -> Option<&mut dyn HostPool> {
        Some(self)
    }

    fn launch(&mut self, order: &AgentOrder) -> Result<AgentCard, LaunchError> {
        self.leave();
        if order.attempt == AttemptId(1) {
            println!(
                "the order to the leader of {} hosts has {} KiB",
                self.hosts,
                frame::encode(order).len() >> 10
            );
        }
        let from = order.assignments[0].resume.as_ref().map_or(0, |point| point.step.0);
        let exe = std::env::current_exe().expect("this program");
        let leader = Command::new(exe)
            .arg("crew")
            .args([u64::from(self.hosts), order.attempt.0, from, self.until].map(|n| n.to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let agent = Process::of(leader.id()).ok_or("it is gone already")?;
        self.leader = Some((order.attempt, leader));
        Ok(AgentCard { attempt: order.attempt, agent, ranks: Vec::new(), socket: PathBuf::new() })
    }

    fn reach(&mut self, attempt: AttemptId, _: u64) -> AgentContact {
        let Some((_, leader)) = self.leader.as_mut().filter(|(led, _)| *led == attempt) else {
            return AgentContact::Gone;
        };
        match (leader.stdout.take(), leader.stdin.take()) {
            (Some(spool), Some(requests)) => AgentContact::Connected(ConnectedAgent {
                agent: leader.id(),
                ranks: Vec::new(),
                spool: Box::new(spool),
                requests: Box::new(requests),
            }),
            _ => AgentContact::Gone,
        }
    }

    fn is_responsive(&mut self, _: AttemptId) -> bool {
        true
    }

    fn spool_remainder(&mut self, _: AttemptId, _: u64) -> Result<Box<dyn Read + Send>, SpoolUnreadable> {
        Ok(Box::new(io::empty()))
    }

    fn kill(&mut self, _: AttemptId) -> bool {
        self.leave();
        true
    }
}

impl HostPool for Fleet {
    fn available_hosts(&mut self) -> AvailableHosts {
        AvailableHosts { hosts: self.hosts, ..AvailableHosts::default() }
    }

    fn attempt_hosts(&self) -> Vec<String> {
        Vec::new()
    }

    fn idle_hosts(&self) -> Vec<IdleHost> {
        Vec::new()
    }

    fn deprioritize(&mut self, _: &[String]) {}

    fn suspect(&mut self, _: &str) {}

    fn give_up(&mut self, _: AttemptId) -> bool {
        false
    }

    fn mirrored_spool(&mut self, _: AttemptId, _: u64) -> Option<Box<dyn Read + Send>> {
        None
    }

    fn fence_returned(&mut self, _: AttemptId) -> Vec<FencedAgent> {
        Vec::new()
    }

    fn fence_at_end(&mut self, _: &FinalFencing) -> FencingReport {
        FencingReport::default()
    }

    fn claim(&mut self) {}

    fn poll_claims(&mut self) {}

    fn ask_for_claims(&mut self) {}

    fn newer_claim(&self) -> Option<ControllerClaim> {
        None
    }
}

impl CheckpointPlacement for Fleet {
    fn complete_checkpoints(&mut self, _: &(dyn Fn(AttemptId, StepId) -> bool + Sync)) -> DiskSearch {
        DiskSearch::default()
    }

    fn is_missing(&self, _: &Path) -> bool {
        false
    }

    fn verify(&mut self, _: &Path) -> Result<(), String> {
        Ok(())
    }
}

/// Runs the controller in a process of its own, so that its resources can be measured.
pub(crate) fn controller(root: &Path, trial: &str, hosts: &str, steps: &str) -> ExitCode {
    let world = World::at(root, TrialId(trial.into()));
    let (hosts, until) = (hosts.parse().expect("a number"), steps.parse().expect("a number"));
    let lower = |launching: &LaunchContext| -> Result<Vec<Assignment>, String> {
        let one = world.lower(launching)?.swap_remove(0);
        let of = |rank| Assignment {
            rank: Rank(rank),
            placement: Placement { host: rank, ..one.placement.clone() },
            ..one.clone()
        };
        Ok((0..hosts).map(of).collect())
    };
    let mut history = History::open(&world.home.history()).expect("opens");
    let fleet = Fleet { hosts, until, leader: None };
    let (begun, mut events) = (Instant::now(), 0u64);
    let outcome = driver::start(Drive {
        home: &world.home,
        trial: &world.trial,
        lower: &lower,
        predict: &|_| None,
        programs: &crate::world::programs(root),
        launcher: Some(Box::new(fleet)),
        audit: None,
        options: &world.options,
        ledger: &mut history,
        observer: &mut |seen: &TrialEvent| events += u64::from(matches!(seen, TrialEvent::Event(_))),
        interrupts: world.interrupts.clone(),
    });
    let seconds = begun.elapsed().as_secs_f64();
    let Ok(DriveOutcome::Ended { verdict: Verdict::Completed(_), attempts, .. }) = outcome else {
        println!("{outcome:?}");
        return ExitCode::from(TAKEN);
    };
    let peak = status("VmHWM:") >> 10;
    println!(
        "{hosts} hosts, {seconds:.1} s, {attempts} attempts, {events} events: the controller took {:.1} % of a core, \
         {:.0} us an event, {peak} MiB at its peak, and its history {} MiB",
        100.0 * cpu() / seconds,
        1e6 * cpu() / events as f64,
        fs::metadata(world.home.history()).map_or(0, |found| found.len()) >> 20
    );
    ExitCode::SUCCESS
}

/// Returns a value of this process from `/proc/self/status`, in KiB.
fn status(key: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").expect("Linux");
    let line = text.lines().find_map(|line| line.strip_prefix(key)).expect("it tells");
    line.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number")
}

/// Returns the processor time of this process in seconds.
fn cpu() -> f64 {
    let text = fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields: Vec<&str> = text.rsplit_once(") ").expect("a name").1.split(' ').collect();
    let ticks = |index: usize| fields[index].parse::<f64>().expect("a number");
    (ticks(11) + ticks(12)) / 100.0
}

/// Writes the events of a leader of many hosts: they train, save every second step, and after some steps one
/// of them is lost.
pub(crate) fn crew(words: [&str; 4]) -> ExitCode {
    let [hosts, attempt, from, until] = words.map(|word| word.parse::<u64>().expect("a number"));
    let (hosts, attempt) = (u32::try_from(hosts).expect("few enough"), AttemptId(attempt));
    let mut said = Voice { attempt, hosts, to: BufWriter::new(io::stdout()), sequence: 0 };
    said.record(&SpoolRecord::Began { attempt, ranks: hosts });
    said.all(&Event::Ready {
        step: StepId(from),
        parameters: 1 << 20,
        device: "cpu (flex, 1 thread)".into(),
        train_samples: 1 << 20,
        valid_samples: 1 << 10,
        data_fingerprint: "0".repeat(64),
        notice: None,
    });
    for step in from + 1..=until.min(from + LIVES) {
        thread::sleep(STEP);
        said.all(&Event::Step(figures(step)));
        if step.is_multiple_of(2) || step == until {
            let folder = PathBuf::from(format!("checkpoints/step-{step:09}.a{attempt}"));
            let saved = Event::Saved {
                step: StepId(step),
                folder: folder.clone(),
                files: Vec::new(),
                stall_seconds: 0.0,
            };
            said.all(&saved);
            said.record(&SpoolRecord::Committed { attempt, step: StepId(step), folder });
        }
        said.to.flush().expect("the controller listens");
    }
    let ended = if until <= from + LIVES {
        let reason = StopReason::Complete;
        said.all(&Event::Finished { step: StepId(until), reason });
        dtrain_runner::AttemptEnd::Finished(reason)
    } else {
        let host = format!("node{}", attempt.0 % u64::from(hosts));
        let failure = Failure::HostLost { host, detail: "no heartbeat for 2.0 s".into() };
        said.one(Rank(0), &Event::Failed(failure.clone()));
        said.all(&Event::Failed(Failure::PeerLost { peer: None, detail: "it closed the connection".into() }));
        dtrain_runner::AttemptEnd::Lost(failure)
    };
    said.record(&SpoolRecord::Over { attempt, ended });
    said.to.flush().expect("the controller listens");
    // The controller closes the connection after it has read everything.
    drop(io::stdin().read_to_end(&mut Vec::new()));
    ExitCode::SUCCESS
}

struct Voice {
    attempt: AttemptId,
    hosts: u32,
    to: BufWriter<io::Stdout>,
    sequence: u64,
}

impl Voice {
    fn record(&mut self, record: &SpoolRecord) {
        self.to.write_all(&frame::encode(record)).expect("the controller listens");
    }

    fn one(&mut self, rank: Rank, event: &Event) {
        let (attempt, sequence) = (self.attempt, self.sequence);
        let at_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        self.record(&SpoolRecord::Event(StampedEvent {
            attempt,
            rank,
            sequence,
            at_ms,
            event: event.clone(),
        }));
    }

    fn all(&mut self, event: &Event) {
        (0..self.hosts).for_each(|rank| self.one(Rank(rank), event));
        self.sequence += 2;
    }
}

fn figures(step: u64) -> StepFigures {
    StepFigures {
        step: StepId(step),
        loss: 1.0 / step as f64,
        gradient_norm: Some(1.0),
        learning_rate: 1e-3,
        elapsed: None,
        noise: None,
        tokens: 8,
        times: PhaseTimes { step: 0.25, forward: 0.08, backward: 0.17, ..PhaseTimes::default() },
        memory_bytes: 1 << 30,
        sent_bytes: 1 << 20,
        held: ResidentBytes { weights: 1 << 20, gradients: 1 << 20, optimizer: 2 << 20 },
    }
}

pub(crate) fn a_controller_of_many_hosts_keeps_up() {
    let hosts = std::env::var("DTRAIN_FLEET").ok();
    let steps: u64 = if hosts.is_some() { 180 } else { 12 };
    let world = World::new();
    let output = Command::new(std::env::current_exe().expect("this program"))
        .arg("fleet")
        .arg(&world.root)
        .args([&world.trial.0, &hosts.unwrap_or_else(|| "100".into()), &steps.to_string()])
        .output()
        .expect("this program starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    println!("{}", said.trim());
    let history = History::open_read_only(&world.home.history()).expect("opens");
    let losses = history.series(&world.trial, "loss", Rank(0)).expect("kept");
    let kept: Vec<_> = losses.iter().map(|point| (point.step, point.value)).collect();
    let expected: Vec<_> = (1..=steps).map(|step| (step, 1.0 / step as f64)).collect();
    assert_eq!(kept, expected, "every step once");
    let lost = world.facts().into_iter().filter(|fact| {
        matches!(
            fact,
            Fact::AttemptEnded { ended: dtrain_runner::AttemptEnd::Lost(Failure::HostLost { .. }), .. }
        )
    });
    assert!(lost.count() as u64 >= steps / LIVES - 1, "a host a second");
}
