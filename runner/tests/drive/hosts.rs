//! Trials on several hosts: here processes that share nothing but the loopback interface.

use crate::world::{RANKS, STEPS, World, kill, processes_of, wait};
use dtrain_protocol::{Event, Failure, LeaveCause, StepId};
use dtrain_recipes::{NoticePoll, NoticeQuery, Seconds};
use dtrain_runner::ledger::TrialActivity;
use dtrain_runner::process::Process;
use dtrain_runner::strikes::StrikeCause;
use dtrain_runner::{
    AttemptEnd, ControllerStatus, DriveOutcome, Fact, History, Home, Ledger as _, TrialEvent, Verdict,
    checkpoints, driver, store,
};
use rustix::process::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) fn hosts_train_what_one_machine_does() {
    let world = World::new().on_hosts(RANKS);
    let (outcome, _) = world.drive(driver::start);
    world.assert_completed(&outcome.expect("driven"));
    for host in 0..RANKS {
        let kept = checkpoints::committed(&Home::at(world.host(host)).trial(&world.trial).checkpoints());
        let newest = kept.expect("a folder").pop().expect("committed");
        checkpoints::verify(&newest.folder).expect("with what the other host wrote");
    }
    world.assert_nothing_lives();
}

pub(crate) fn a_removed_trial_leaves_its_hosts() {
    let world = World::new().on_hosts(RANKS);
    let mut refused = None;
    let outcome = world.drive_and(driver::start, &mut |seen| {
        if matches!(seen, TrialEvent::Event(_)) && refused.is_none() {
            refused = Some(world.remote(0).remove(&world.trial));
        }
    });
    world.assert_completed(&outcome.expect("driven"));
    let refused = refused.expect("ranks said something").expect_err("it runs");
    assert!(refused.contains("still lives there: process"), "{refused}");

    let mut history = History::open(&world.home.history()).expect("opens");
    let mut remove = || {
        let elsewhere = || (0..RANKS).try_for_each(|host| world.remote(host).remove(&world.trial).map(drop));
        store::remove(&world.home, &mut history, &world.trial, &|_| TrialActivity::None, elsewhere)
    };
    let is_there = |home: &Home| home.trial(&world.trial).path().exists();
    let host = |host| Home::at(world.host(host));
    world.switch(1, false);
    remove().expect_err("a host is away");
    assert!(is_there(&world.home) && is_there(&host(1)), "it can be removed again");
    world.switch(1, true);
    assert!(remove().expect("all hosts answer").bytes > 0);
    assert!(!is_there(&world.home) && !(0..RANKS).any(|index| is_there(&host(index))));
    assert!(history.find(&world.trial.0).is_err());
    world.assert_nothing_lives();
}

pub(crate) fn hosts_that_share_a_folder_save_there_once() {
    for host in 0..RANKS {
        let world = World::new().on_hosts_that_share(RANKS);
        let (outcome, _) = disturbed(&world, host, kill);
        world.assert_completed(&outcome);
        let own = Home::at(world.host(host)).trial(&world.trial).checkpoints();
        assert!(own.is_symlink(), "a host keeps nothing of its own");
        let kept = checkpoints::committed(&world.home.trial(&world.trial).checkpoints()).expect("a folder");
        assert!(!kept.is_empty(), "all were saved to one folder");
        kept.iter().for_each(|point| drop(checkpoints::verify(&point.folder).expect("with every part")));
        world.assert_nothing_lives();
    }
}

pub(crate) fn a_host_that_is_lost_is_started_again() {
    for host in 0..RANKS {
        let world = World::new().on_hosts(RANKS);
        let (outcome, lost) = disturbed(&world, host, kill);
        world.assert_completed(&outcome);
        if host > 0 {
            assert!(matches!(&lost, Failure::HostLost { host, .. } if host == "node1"), "{lost:?}");
        }
        world.assert_nothing_lives();
    }
}

fn signal(agent: &Process, signal: Signal) {
    let agent = rustix::process::Pid::from_raw(agent.id as i32).expect("it lives");
    rustix::process::kill_process(agent, signal).expect("it is ours");
}

/// As at a reboot: the ranks save, and the other host continues from there at once. Nothing is held against the host.
pub(crate) fn a_host_that_is_asked_to_end_leaves_and_the_others_continue() {
    for host in 0..RANKS {
        let world = World::new().on_hosts(RANKS);
        let (outcome, lost) = disturbed(&world, host, |agent| signal(agent, Signal::TERM));
        world.assert_completed(&outcome);
        let cause = LeaveCause::Termination;
        assert_eq!(lost, Failure::HostLeft { host: Some(format!("node{host}")), cause });
        world.assert_left_out_without_a_strike(host);
        world.assert_nothing_lives();
    }
}

/// As before a spot machine is taken away: a command says so on one host, which is known by the folder of its agent.
pub(crate) fn a_host_that_gives_notice_leaves_and_the_others_continue() {
    for host in 0..RANKS {
        let mut world = World::new().on_hosts(RANKS).paced(0.05);
        let file = world.root.join("notice");
        let text = |path: &Path| path.to_str().expect("plain text").to_owned();
        let script = "grep -qF \"$1\" /proc/$PPID/cmdline && test -e \"$2\"";
        let argv = ["sh", "-c", script, "sh"].map(str::to_owned).into_iter();
        let query = NoticeQuery::Command(argv.chain([text(&world.host(host)), text(&file)]).collect());
        world.options.notice = Some(NoticePoll { query, every: Seconds(0.05) });
        let (outcome, lost) = disturbed(&world, host, |_| fs::write(&file, "").expect("room on disk"));
        world.assert_completed(&outcome);
        assert_eq!(lost, Failure::HostLeft { host: Some(format!("node{host}")), cause: LeaveCause::Notice });
        world.assert_left_out_without_a_strike(host);
        world.assert_nothing_lives();
    }
}

/// One machine alone saves and stops, as it does when its agent is asked to end.
pub(crate) fn a_machine_alone_that_gives_notice_saves_and_stops() {
    let mut world = World::new().paced(0.05);
    let file = world.root.join("notice");
    let argv = ["test", "-e", "notice"].map(str::to_owned);
    world.options.notice =
        Some(NoticePoll { query: NoticeQuery::Command(argv.to_vec()), every: Seconds(0.05) });
    let mut words = None;
    let outcome = world.drive_and(driver::start, &mut |seen| {
        let TrialEvent::Event(stamped) = seen else { return };
        match &stamped.event {
            Event::Step(figures) if figures.step == StepId(20) => fs::write(&file, "").expect("room on disk"),
            Event::Notice(said) => words = Some(said.clone()),
            _ => {}
        }
    });
    let DriveOutcome::Ended { verdict, checkpoint: Some(saved), attempts: 1, .. } = outcome.expect("driven")
    else {
        panic!("it ends with a checkpoint")
    };
    assert_eq!(verdict, Verdict::Stopped);
    assert!((20..STEPS).contains(&saved.step.0), "{saved:?}");
    assert_eq!(words.as_deref(), Some("the machine of rank 0 gave notice that it will be taken away"));
    world.assert_nothing_lives();
}

impl World {
    /// Asserts that the next attempt ran at once without a host that left, and that nothing is held against the host.
    fn assert_left_out_without_a_strike(&self, host: u32) {
        let seen = self.seen();
        let excluded = seen.iter().find_map(|seen| match seen {
            ControllerStatus::HostsExcluded { hosts } => Some(hosts),
            _ => None,
        });
        let [excluded] = &excluded.expect("the next attempt runs without it")[..] else { panic!("only it") };
        assert_eq!((excluded.host.clone(), excluded.cause), (format!("node{host}"), StrikeCause::Left));
        assert!(!seen.iter().any(|seen| matches!(seen, ControllerStatus::Backoff { .. })), "{seen:?}");
        let history = History::open(&self.home.history()).expect("opens");
        assert_eq!(history.strikes().expect("readable"), []);
    }
}

pub(crate) fn a_host_that_freezes_is_lost() {
    for host in 0..RANKS {
        let world = World::new().on_hosts(RANKS);
        let (outcome, lost) = disturbed(&world, host, |agent| signal(agent, Signal::STOP));
        world.assert_completed(&outcome);
        if host > 0 {
            let words = "no heartbeat";
            assert!(matches!(&lost, Failure::HostLost { detail, .. } if detail.contains(words)), "{lost:?}");
        }
        world.assert_nothing_lives();
    }
}

pub(crate) fn a_host_that_was_just_lost_is_not_waited_for() {
    let world = World::new().on_hosts(RANKS);
    let signal_all = |signal| {
        for id in processes_of(world.host(1).to_str().expect("plain text")) {
            let id = rustix::process::Pid::from_raw(id as i32).expect("not zero");
            // A process may have ended meanwhile.
            let _ = rustix::process::kill_process(id, signal);
        }
    };
    let (outcome, _) = disturbed(&world, 1, |_| signal_all(rustix::process::Signal::STOP));
    signal_all(rustix::process::Signal::CONT);
    world.assert_completed(&outcome);
    let away = world.seen().into_iter().find_map(|seen| match seen {
        ControllerStatus::HostsUnreachable { unreachable, .. } => Some(unreachable),
        _ => None,
    });
    assert_eq!(away.expect("one host was left"), ["node1: no answer within 0.3 s"]);
    world.assert_nothing_lives();
}

pub(crate) fn a_host_without_ranks_lends_what_it_has() {
    let world = World::new().on_hosts(RANKS + 1);
    // As if the previous attempt had run on the host that this one leaves out.
    let (outcome, _) = disturbed(&world, 0, |agent| {
        switched_off(&world, agent, || {
            fs::create_dir_all(world.host(RANKS).join("trials").join(&world.trial.0)).expect("room on disk");
            fs::rename(checkpoints_of(&world, 0), checkpoints_of(&world, RANKS)).expect("it trained");
            fs::remove_dir_all(checkpoints_of(&world, 1)).expect("it trained");
        });
        (0..=RANKS).for_each(|host| world.switch(host, true));
    });
    assert_nothing_refused(&world, &outcome);
}

pub(crate) fn a_checkpoint_on_a_host_that_is_away_is_waited_for() {
    let world = World::new().on_hosts(RANKS);
    let (outcome, _) = disturbed(&world, 0, |agent| {
        switched_off(&world, agent, || {
            fs::remove_dir_all(checkpoints_of(&world, 0)).expect("it trained");
        });
        world.switch(0, true);
        let is_not =
            |fact: Fact| matches!(fact, Fact::AttemptEnded { ended: AttemptEnd::NotLaunched(_), .. });
        wait("an attempt without it", || world.facts().into_iter().any(is_not));
        world.switch(1, true);
    });
    assert_nothing_refused(&world, &outcome);
}

/// Switches all hosts off, kills the leader, and does `work` once no rank lives.
fn switched_off(world: &World, agent: &Process, work: impl FnOnce()) {
    (0..world.hosts.expect("hosts")).for_each(|host| world.switch(host, false));
    kill(agent);
    let is_off = |host| processes_of(world.host(host).to_str().expect("plain text")).is_empty();
    wait("the end of all ranks", || (0..RANKS).all(is_off));
    work();
}

fn checkpoints_of(world: &World, host: u32) -> PathBuf {
    Home::at(world.host(host)).trial(&world.trial).checkpoints()
}

fn assert_nothing_refused(world: &World, outcome: &DriveOutcome) {
    let is_refusal = |fact: &Fact| matches!(fact, Fact::CheckpointRefused { .. });
    assert_eq!(world.facts().into_iter().find(is_refusal), None);
    world.assert_completed(outcome);
    world.assert_nothing_lives();
}

pub(crate) fn checkpoints_outlive_a_host() {
    for host in 0..RANKS {
        let world = World::new().on_hosts(RANKS);
        // Its disk is lost too, and it never comes back.
        let (outcome, _) = disturbed(&world, host, |agent| {
            world.switch(host, false);
            kill(agent);
            let until = Instant::now() + Duration::from_secs(5);
            while fs::remove_dir_all(world.host(host)).is_err() && Instant::now() < until {
                thread::sleep(Duration::from_millis(5));
            }
        });
        world.assert_completed(&outcome);
        let away = world
            .seen()
            .into_iter()
            .any(|seen| matches!(seen, ControllerStatus::HostsUnreachable { hosts: 1, .. }));
        assert!(away, "one host was left");
        world.assert_nothing_lives();
    }
}

pub(crate) fn a_controller_that_is_cut_off_waits() {
    let world = World::new().on_hosts(RANKS);
    let outcome = thread::scope(|scope| {
        let driven = scope.spawn(|| world.drive(driver::start).0.expect("driven"));
        wait("agents", || world.seen().iter().any(|seen| matches!(seen, ControllerStatus::Attached { .. })));
        (0..RANKS).for_each(|host| world.switch(host, false));
        wait("a word about it", || {
            world.seen().iter().any(|seen| matches!(seen, ControllerStatus::Unreachable { .. }))
        });
        (0..RANKS).for_each(|host| world.switch(host, true));
        driven.join().expect("it does not panic")
    });
    assert!(matches!(outcome, DriveOutcome::Ended { attempts: 1, .. }), "nothing was lost: {outcome:?}");
    world.assert_completed(&outcome);
}

/// Drives a trial whose agent on `host` is disturbed after the first commit; returns the outcome and the
/// failure of the first attempt.
fn disturbed(world: &World, host: u32, disturb: impl Fn(&Process) + Sync) -> (DriveOutcome, Failure) {
    let outcome = thread::scope(|scope| {
        let driven = scope.spawn(|| world.drive(driver::start).0.expect("driven"));
        // A checkpoint on a disk may not be recorded yet.
        let is_known = |fact: &Fact| matches!(fact, Fact::CheckpointCommitted { .. });
        wait("a checkpoint", || world.facts().iter().any(is_known));
        disturb(&world.card_of(host).expect("it runs").agent);
        driven.join().expect("it does not panic")
    });
    let lost = world.facts().into_iter().find_map(|fact| match fact {
        Fact::AttemptEnded { ended: AttemptEnd::Lost(failure), .. } => Some(failure),
        _ => None,
    });
    (outcome, lost.expect("the first attempt was lost"))
}
