//! Tests of the failure budgets: attempts that a trial may lose to machines and to the training.

use super::begun;
use super::ranks::figures;
use crate::fact::{AttemptEnd, Fact, Verdict};
use crate::machine::backoff::{ATTEMPTS_OF_TRAINING, MACHINES_FAIL_FOR_MS};
use crate::machine::{Blame, Millis, TrialInput, TrialMachine};
use dtrain_protocol::{AttemptId, Event, Failure, Rank, StampedEvent};

/// Loses an attempt to `failure` every `seconds` until the trial fails; returns the number of attempts and
/// the milliseconds that it took.
fn lose(machine: &mut TrialMachine, failure: &Failure, seconds: u64) -> (u64, u64) {
    let begun = machine.attempt().0;
    let mut now = 0;
    while machine.verdict().is_none() {
        now += seconds * 1000;
        let attempt = machine.attempt();
        machine.step(Millis(now), TrialInput::Over { attempt, ended: AttemptEnd::Lost(failure.clone()) });
        assert_eq!(machine.step(Millis(now), TrialInput::Tick), [], "the next attempt follows after a pause");
        now += 60_000;
        machine.step(Millis(now), TrialInput::Tick);
        machine.step(Millis(now), TrialInput::DiscoveryDone);
    }
    assert_eq!(machine.verdict(), Some(&Verdict::Failed(failure.clone())));
    (machine.attempt().0 - begun + 1, now)
}

#[test]
fn a_training_that_makes_no_progress_fails_after_five_attempts() {
    let (mut machine, _) = begun();
    let failure = Failure::Other("a panic".into());
    let (attempts, _) = lose(&mut machine, &failure, 1);
    assert_eq!(attempts, u64::from(ATTEMPTS_OF_TRAINING));
}

#[test]
fn machines_that_fail_end_a_trial_after_a_day_only_and_leave_the_budget_of_the_training_alone() {
    let (mut machine, _) = begun();
    let lost = Failure::HostLost { host: "node1".into(), detail: "silent".into() };
    let (attempts, took) = lose(&mut machine.clone(), &lost, 120);
    assert!(took.abs_diff(MACHINES_FAIL_FOR_MS) < 400_000, "{took}");
    assert!((400..u64::from(Blame::Machines.attempts())).contains(&attempts), "{attempts}");
    // The facts alone also end it, where controllers are short-lived.
    let mut facts = vec![Fact::AttemptStarted { attempt: AttemptId(1), from: None }];
    while TrialMachine::replay(&facts).0.verdict().is_none() {
        let attempt = TrialMachine::replay(&facts).0.attempt();
        facts.push(Fact::AttemptEnded { attempt, ended: AttemptEnd::NotLaunched(lost.clone()) });
        facts.push(Fact::AttemptStarted { attempt: AttemptId(attempt.0 + 1), from: None });
        if u64::from(Blame::Machines.attempts()) == attempt.0 {
            facts.pop();
        }
    }
    assert_eq!(TrialMachine::replay(&facts).0.attempt().0, u64::from(Blame::Machines.attempts()));

    for attempt in 1..=100 {
        let attempt = AttemptId(attempt);
        machine.step(Millis(0), TrialInput::Over { attempt, ended: AttemptEnd::Lost(lost.clone()) });
        machine.step(Millis(60_000), TrialInput::Tick);
        machine.step(Millis(60_000), TrialInput::DiscoveryDone);
    }
    assert_eq!((machine.failures(Blame::Machines), machine.failures(Blame::Training)), (100, 0));
    let (attempts, _) = lose(&mut machine, &Failure::Exited { code: Some(1), signal: None }, 1);
    assert_eq!(attempts, u64::from(ATTEMPTS_OF_TRAINING));
}

#[test]
fn data_that_cannot_be_used_on_one_host_of_several_is_tried_once_on_others() {
    let fails = |machine: &mut TrialMachine, failure: &Failure| {
        let attempt = machine.attempt();
        machine.step(Millis(0), TrialInput::Over { attempt, ended: AttemptEnd::Lost(failure.clone()) });
        machine.step(Millis(60_000), TrialInput::Tick);
        machine.step(Millis(60_000), TrialInput::DiscoveryDone);
        machine.verdict().cloned()
    };
    let (mut machine, _) = begun();
    let alone = Failure::Data("no such file".into());
    assert_eq!(fails(&mut machine.clone(), &alone), Some(Verdict::Failed(alone)), "there is no other host");
    let there = Failure::DataOn { host: Some("node1".into()), detail: "no such file".into() };
    assert_eq!(fails(&mut machine, &there), None);
    let replayed = TrialMachine::replay(&[
        Fact::AttemptStarted { attempt: AttemptId(1), from: None },
        Fact::AttemptEnded { attempt: AttemptId(1), ended: AttemptEnd::Lost(there.clone()) },
        Fact::AttemptStarted { attempt: AttemptId(2), from: None },
    ]);
    for mut machine in [machine.clone(), replayed.0] {
        assert_eq!(fails(&mut machine, &there), Some(Verdict::Failed(there.clone())));
    }
    // A new step in between: it is another file, and another host may have it.
    let event = Event::Step(figures(7));
    let attempt = machine.attempt();
    let said = StampedEvent { attempt, rank: Rank(0), sequence: 0, at_ms: 0, event };
    machine.step(Millis(60_000), TrialInput::Event(said));
    assert_eq!(fails(&mut machine, &there), None);
}
