//! Launches on remote hosts whose answer is lost, or that come too late.

use crate::world::{RANKS, World, programs, wait};
use dtrain_protocol::AttemptId;
use dtrain_runner::control_protocol::{AgentOrder, LaunchError, LinkChoice};
use dtrain_runner::launch::{AgentContact, AvailableHosts};
use dtrain_runner::{AttemptEnd, ControllerStatus, DriveOutcome, Fact, LaunchContext, driver};
use std::thread;

pub(crate) fn a_launch_whose_answer_is_lost_is_found_out() {
    let world = World::new().on_hosts(RANKS);
    world.lose_answers(0, true);
    let outcome = thread::scope(|scope| {
        let driven = scope.spawn(|| world.drive(driver::start).0.expect("driven"));
        wait("the agent that leads", || world.card_of(0).is_some());
        world.switch(0, false);
        wait("a word about it", || {
            world.seen().iter().any(|seen| matches!(seen, ControllerStatus::Unreachable { .. }))
        });
        world.lose_answers(0, false);
        world.switch(0, true);
        driven.join().expect("it does not panic")
    });
    let is_end = |fact: &Fact| matches!(fact, Fact::AttemptEnded { ended: AttemptEnd::NotLaunched(_), .. });
    assert!(!world.facts().iter().any(is_end), "it was launched: {:?}", world.facts());
    assert!(matches!(outcome, DriveOutcome::Ended { attempts: 1, .. }), "{outcome:?}");
    world.assert_completed(&outcome);
    world.assert_nothing_lives();
}

pub(crate) fn a_launch_that_comes_after_its_attempt_was_told_to_be_gone_is_refused() {
    let world = World::new().on_hosts(RANKS);
    world.home.trial(&world.trial).create().expect("room on disk");
    let attempt = AttemptId(1);
    let mut launcher = world.launcher(RANKS);
    assert!(matches!(launcher.reach(attempt, 0), AgentContact::Gone));
    assert_eq!(AvailableHosts::of(launcher.as_mut()).hosts, RANKS);
    let late = order(&world, attempt, RANKS);
    let refused = launcher.launch(&late);
    let is_refusal =
        |error: &LaunchError| matches!(error, LaunchError::OnHost { reason, .. } if reason.contains("spool"));
    assert!(refused.as_ref().is_err_and(is_refusal), "{refused:?}");
    drop(launcher);
    world.assert_nothing_lives();
}

/// Returns the order to launch an attempt on `hosts` hosts.
pub(crate) fn order(world: &World, attempt: AttemptId, hosts: u32) -> AgentOrder {
    let checkpoints = world.home.trial(&world.trial).checkpoints();
    let launching = LaunchContext { attempt, from: None, spent_seconds: 0.0, checkpoints, hosts };
    AgentOrder {
        trial: world.trial.clone(),
        attempt,
        folder: world.home.trial(&world.trial).path().to_owned(),
        worker: programs(&world.root).worker,
        assignments: world.lower(&launching).expect("ranks"),
        link: LinkChoice::SharedMemory,
        keep: 2,
        seat: None,
        others: Vec::new(),
        notice: None,
    }
}
