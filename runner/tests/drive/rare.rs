//! Rare events: hanging ranks, exhausted memory or files, and controllers that sleep, compete, or cannot
//! write.

use crate::TAKEN;
use crate::toy::GROUP;
use crate::world::{World, kill, wait};
use dtrain_protocol::{AttemptId, Failure, TrialId};
use dtrain_runner::ledger::TrialActivity;
use dtrain_runner::strikes::Strike;
use dtrain_runner::{
    AttemptEnd, DriveError, DriveOutcome, Fact, History, Ledger, LedgerError, TrialUpdate, Verdict,
    checkpoints, driver,
};
use dtrain_skip::skip;
use rustix::process::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) fn a_rank_that_hangs_is_replaced() {
    let world = World::new();
    world.sabotage("hang 25");
    let outcome = world.drive(driver::start).0.expect("driven");
    world.assert_completed(&outcome);
    let silent = |fact: &Fact| matches!(fact, Fact::AttemptEnded { ended: AttemptEnd::Lost(Failure::PeerLost { peer: Some(peer), .. }), .. } if peer.0 == 1);
    assert!(world.facts().iter().any(silent), "who was waited for is named: {:?}", world.facts());
    world.assert_nothing_lives();
}

/// Control group with so little memory that a rank in it is killed; removed on drop.
struct SmallGroup(PathBuf);

impl SmallGroup {
    /// Creates the group; `Err` says why that is impossible.
    fn new() -> Result<Self, String> {
        let name = format!("dtrain-test-{}", std::process::id());
        let old = Path::new("/sys/fs/cgroup/memory");
        let (parent, limit) = if old.is_dir() {
            (old, "memory.limit_in_bytes")
        } else {
            (Path::new("/sys/fs/cgroup"), "memory.max")
        };
        let folder = parent.join(name);
        fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let group = Self(folder);
        fs::write(group.0.join(limit), (48 << 20).to_string())
            .map_err(|error| format!("{limit}: {error}"))?;
        Ok(group)
    }
}

impl Drop for SmallGroup {
    fn drop(&mut self) {
        let until = Instant::now() + Duration::from_secs(5);
        while fs::remove_dir(&self.0).is_err() && Instant::now() < until {
            thread::sleep(Duration::from_millis(10));
        }
    }
}

pub(crate) fn a_rank_killed_for_memory_ends_the_trial() {
    let group = match SmallGroup::new() {
        Ok(group) => group,
        Err(reason) => {
            return skip(format_args!("no control group with little memory can be made: {reason}"));
        }
    };
    let world = World::new();
    fs::write(world.root.join(GROUP), group.0.to_str().expect("plain text")).expect("room on disk");
    world.sabotage("hog 25");
    let outcome = world.drive(driver::start).0.expect("driven");
    let DriveOutcome::Ended { verdict: Verdict::OutOfMemory, checkpoint: Some(point), attempts: 1 } = outcome
    else {
        panic!("memory ran out: {outcome:?}, {:?}", world.facts())
    };
    assert_eq!(point.step.0, 20, "what was saved before is kept");
    let told = |fact: &Fact| matches!(fact, Fact::AttemptEnded { ended: AttemptEnd::Lost(Failure::OutOfMemory { detail }), .. } if detail.contains("MiB"));
    assert!(world.facts().iter().any(told), "{:?}", world.facts());
    world.assert_nothing_lives();
    world.assert_completed(&world.drive(driver::resume).0.expect("with memory enough it goes on"));
}

/// Returns the step of the newest committed checkpoint.
fn newest(world: &World) -> u64 {
    let kept = checkpoints::committed(&world.home.trial(&world.trial).checkpoints()).unwrap_or_default();
    kept.last().map_or(0, |point| point.step.0)
}

fn signal(child: &Child, signal: Signal) {
    let id = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw).expect("it runs");
    rustix::process::kill_process(id, signal).expect("it is ours");
}

pub(crate) fn a_controller_that_slept_goes_on() {
    let world = World::new().paced(0.02);
    let mut child = world.controller("start");
    world.wait_for_a_checkpoint();
    signal(&child, Signal::STOP);
    let before = newest(&world);
    wait("training without the controller", || newest(&world) >= before + 20);
    signal(&child, Signal::CONT);
    assert!(child.wait().expect("our child").success());
    let starts = world.facts().iter().filter(|fact| matches!(fact, Fact::AttemptStarted { .. })).count();
    assert_eq!(starts, 1, "nothing was lost");
    world.assert_completed(&world.drive(driver::resume).0.expect("it is complete"));
    world.assert_nothing_lives();
}

/// Returns how many of eight controllers that start at the same time drive the trial; the others name the one
/// that does.
fn race(world: &World, verb: &str) -> usize {
    let children: Vec<Child> = (0..8).map(|_| world.controller(verb)).collect();
    let codes = children.into_iter().map(|mut child| child.wait().expect("our child").code());
    let codes: Vec<Option<i32>> = codes.collect();
    let taken = codes.iter().filter(|code| **code == Some(i32::from(TAKEN))).count();
    let driven = codes.iter().filter(|code| **code == Some(0)).count();
    assert_eq!(taken + driven, 8, "{codes:?}");
    driven
}

pub(crate) fn of_many_controllers_one_drives() {
    for _ in 0..2 {
        let world = World::new();
        assert_eq!(race(&world, "start"), 1, "a trial is launched once");
        let starts = world.facts().iter().filter(|fact| matches!(fact, Fact::AttemptStarted { .. })).count();
        assert_eq!(starts, 1);
        world.assert_completed(&world.drive(driver::resume).0.expect("it is complete"));
        world.assert_nothing_lives();
    }
    let world = World::new().paced(0.02);
    let mut first = world.controller("start");
    world.wait_for_a_checkpoint();
    kill(&world.card().expect("it runs").agent);
    first.kill().expect("our child");
    first.wait().expect("our child");
    assert!(race(&world, "resume") >= 1, "the newest attempt is replaced");
    let ended = |fact: &&Fact| matches!(fact, Fact::AttemptEnded { .. });
    assert_eq!(world.facts().iter().filter(ended).count(), 2, "by one attempt: {:?}", world.facts());
    world.assert_completed(&world.drive(driver::resume).0.expect("it is complete"));
    world.assert_nothing_lives();
}

/// Ledger whose disk is full after so many batches.
struct Full {
    history: History,
    room: u32,
}

impl Ledger for Full {
    fn record(&mut self, trial: &TrialId, news: &TrialUpdate) -> Result<(), LedgerError> {
        let Some(room) = self.room.checked_sub(1) else {
            let source = "database or disk is full".into();
            return Err(LedgerError { doing: "write to", path: self.history.path().to_owned(), source });
        };
        self.room = room;
        self.history.record(trial, news)
    }

    fn facts(&self, trial: &TrialId) -> Result<Vec<Fact>, LedgerError> {
        self.history.facts(trial)
    }

    fn trained_ms(&self, trial: &TrialId) -> Result<Vec<(AttemptId, u64)>, LedgerError> {
        self.history.trained_ms(trial)
    }

    fn offset(&self, trial: &TrialId, attempt: AttemptId) -> Result<u64, LedgerError> {
        self.history.offset(trial, attempt)
    }

    fn strikes(&self) -> Result<Vec<Strike>, LedgerError> {
        self.history.strikes()
    }
}

pub(crate) fn a_history_without_room_stops_nobody_else() {
    let world = World::new().paced(0.03);
    let history = History::open(&world.home.history()).expect("opens");
    let outcome = world.drive_with(driver::start, &mut Full { history, room: 4 }, &mut |_| {});
    let Err(DriveError::Ledger(error)) = outcome else { panic!("it cannot be kept: {outcome:?}") };
    assert!(error.source.to_string().contains("full"), "{error}");
    assert!(
        driver::activity(&world.home, &world.trial) != TrialActivity::None,
        "the ranks are none of its concern"
    );
    let before = newest(&world);
    wait("training without a history", || newest(&world) >= before + 10);
    let outcome = world.drive(driver::resume).0.expect("there is room again");
    assert!(matches!(outcome, DriveOutcome::Ended { attempts: 1, .. }), "nothing was lost: {outcome:?}");
    world.assert_completed(&outcome);
    let history = History::open_read_only(&world.home.history()).expect("opens");
    let losses = history.series(&world.trial, "loss", dtrain_protocol::Rank(0)).expect("kept");
    let steps: Vec<u64> = losses.iter().map(|point| point.step).collect();
    assert_eq!(steps, (1..=crate::world::STEPS).collect::<Vec<_>>(), "every step, from the spool");
    world.assert_nothing_lives();
}

pub(crate) fn a_launch_needs_enough_files() {
    let world = World::new();
    let mut limited = Command::new("sh");
    limited
        .args(["-c", "ulimit -n 64 && exec \"$@\"", "sh"])
        .arg(std::env::current_exe().expect("this program"));
    let mut child = world.controller_by(limited, "start");
    let refused = |fact: &Fact| matches!(fact, Fact::AttemptEnded { ended: AttemptEnd::NotLaunched(Failure::Other(words)), .. } if words.contains("open 64 files") && words.contains("ulimit"));
    wait("a word about it", || world.facts().iter().any(refused));
    signal(&child, Signal::KILL);
    child.wait().expect("our child");
    world.assert_completed(&world.drive(driver::resume).0.expect("with files enough it goes on"));
    world.assert_nothing_lives();
}
