//! Requests of users to a trial that runs, and to one that does not.

use crate::world::{RANKS, STEPS, World, wait};
use dtrain_protocol::{AttemptId, Event, StopReason};
use dtrain_runner::ledger::TrialActivity;
use dtrain_runner::{AttemptEnd, DriveError, DriveOutcome, Fact, OnInterrupt, TrialEvent, Verdict, driver};
use std::sync::Arc;
use std::thread;

pub(crate) fn training_goes_on_without_a_controller() {
    let mut world = World::new();
    world.pace = 0.02;
    world.options.detach = true;
    let outcome = world.drive(driver::start).0.expect("driven");
    let DriveOutcome::Detached { agent: Some(agent) } = outcome else {
        panic!("it should be detached: {outcome:?}")
    };
    assert_eq!(agent, world.card().expect("it runs").agent.id);
    assert!(driver::activity(&world.home, &world.trial) != TrialActivity::None);
    world.wait_for_a_checkpoint();
    world.options = dtrain_runner::Options { on_interrupt: OnInterrupt::Leave, ..Default::default() };
    world.interrupts = Arc::default();
    let mut ready = 0;
    let left = world.drive_and(driver::attach, &mut |seen| {
        let is_ready = matches!(seen, TrialEvent::Event(said) if matches!(said.event, Event::Ready { .. }));
        ready += u32::from(is_ready);
        if is_ready && ready == RANKS {
            world.interrupts.add();
        }
    });
    let left = left.expect("it runs");
    assert!(matches!(left, DriveOutcome::Detached { .. }), "{left:?}");
    // It ends while no controller runs; its spool is enough then.
    world.assert_nothing_lives();
    // A process loses its arguments, by which it is found, a moment before its locks.
    wait("the release of the lock", || driver::activity(&world.home, &world.trial) == TrialActivity::None);
    world.interrupts = Arc::default();
    let (outcome, seen) = world.drive(driver::attach);
    world.assert_completed(&outcome.expect("what it left behind is read"));
    assert!(
        !seen.iter().any(|s| matches!(s, TrialEvent::Event(e) if matches!(e.event, Event::Ready { .. }))),
        "seen before"
    );
}

pub(crate) fn a_stopped_trial_resumes() {
    let world = World::new();
    let outcome = thread::scope(|scope| {
        let driving = scope.spawn(|| world.drive(driver::start).0);
        world.wait_for_a_checkpoint();
        world.interrupts.add();
        driving.join().expect("driven").expect("driven")
    });
    let DriveOutcome::Ended { verdict: Verdict::Stopped, checkpoint: Some(point), attempts: 1 } = outcome
    else {
        panic!("it should have stopped: {outcome:?}")
    };
    let ended =
        Fact::AttemptEnded { attempt: AttemptId(1), ended: AttemptEnd::Finished(StopReason::Ordered) };
    assert!(world.facts().contains(&ended));
    assert!(point.step.0 % 10 != 0 || point.step.0 < STEPS, "it saved where it stopped: {point:?}");
    world.assert_nothing_lives();
    let outcome = world.drive(driver::resume).0.expect("driven");
    world.assert_completed(&outcome);
    let spent = world.spent.lock().expect("whole").clone();
    assert!(spent[0] == 0.0 && (0.02..15.0).contains(&spent[1]), "earlier attempts count: {spent:?}");
    let from = Fact::AttemptStarted { attempt: AttemptId(2), from: Some(point.step) };
    assert!(world.facts().contains(&from), "{:?}", world.facts());
}

pub(crate) fn the_second_interrupt_kills() {
    let world = World::new();
    let outcome = thread::scope(|scope| {
        let driving = scope.spawn(|| world.drive(driver::start).0);
        wait("the ranks", || world.card().is_some());
        world.interrupts.add();
        world.interrupts.add();
        driving.join().expect("driven").expect("driven")
    });
    assert!(matches!(outcome, DriveOutcome::Ended { verdict: Verdict::Stopped, .. }), "{outcome:?}");
    world.assert_nothing_lives();
    world.assert_completed(&world.drive(driver::resume).0.expect("driven"));
}

pub(crate) fn stop_reaches_a_trial_of_another_process() {
    let world = World::new();
    let mut child = world.controller("start");
    world.wait_for_a_checkpoint();
    driver::stop(&world.home, &world.trial).expect("it runs");
    assert!(child.wait().expect("our child").success());
    assert!(world.facts().contains(&Fact::TrialEnded { verdict: Verdict::Stopped }), "{:?}", world.facts());
    world.assert_nothing_lives();
}

pub(crate) fn a_second_controller_is_refused() {
    let world = World::new();
    thread::scope(|scope| {
        let driving = scope.spawn(|| world.drive(driver::start).0);
        world.wait_for_a_checkpoint();
        match world.drive(driver::attach).0 {
            Err(DriveError::Busy { process, .. }) => assert_eq!(process, std::process::id()),
            other => panic!("it is driven already: {other:?}"),
        }
        world.assert_completed(&driving.join().expect("driven").expect("driven"));
    });
}

pub(crate) fn nothing_runs_is_said_of_what_does_not_run() {
    let world = World::new();
    world.home.trial(&world.trial).create().expect("room on disk");
    assert!(matches!(driver::stop(&world.home, &world.trial), Err(DriveError::NothingRuns(_))));
    assert!(matches!(world.drive(driver::attach).0, Err(DriveError::NothingRuns(_))));
}
