//! A time limit: the learning rate follows the clock of rank 0, on all ranks, and across a stop.

use super::world::{Ended, World, commit};
use dtrain_protocol::learning_rate_warmup_and_decay::{LearningRateSchedule, SchedulePosition};
use dtrain_protocol::{Assignment, Event, StepFigures, StepId, StopReason};

fn steps(ended: &Ended) -> Vec<&StepFigures> {
    assert!(ended.result.is_ok(), "{:?}", ended.result);
    let mut steps = Vec::new();
    for event in &ended.events {
        if let Event::Step(figures) = event {
            steps.push(figures);
        }
    }
    steps
}

/// Limits the time alone, with a plan of `steps` steps in it.
fn until(seconds: f64, steps: u64) -> impl Fn(&mut Assignment) {
    move |assignment| {
        assignment.until.seconds = Some(seconds);
        (assignment.training.warmup_steps, assignment.training.schedule_steps) = (steps / 10, steps);
    }
}

/// Checks that every step had the learning rate of its share of the time, the same on all ranks.
fn check(ended: &[Ended]) {
    for rank in ended {
        let training = &rank.assignment.training;
        let curve = LearningRateSchedule {
            schedule: training.schedule,
            peak: training.learning_rate,
            final_fraction: training.final_fraction,
            warmup: training.warmup_steps,
            total: training.schedule_steps,
        };
        for (own, first) in steps(rank).iter().zip(steps(&ended[0])) {
            assert_eq!((own.learning_rate, own.elapsed), (first.learning_rate, first.elapsed));
            assert!(own.elapsed.is_some_and(|share| (0.0..=1.0).contains(&share)), "{:?}", own.elapsed);
            let steps = rank.assignment.until.steps.map(|steps| steps.0);
            let progress = SchedulePosition { step: own.step.0 - 1, steps, elapsed: own.elapsed };
            assert_eq!(own.learning_rate, curve.at(progress));
        }
        assert_eq!(steps(rank).len(), steps(&ended[0]).len());
        assert!(steps(rank).windows(2).all(|pair| pair[0].elapsed <= pair[1].elapsed));
    }
}

#[test]
fn a_run_that_time_ends_decays_to_its_end_however_fast_steps_are() {
    // Steps planned much faster, and much slower, than they are.
    for planned in [1_000_000, 3] {
        let ended = World::new(2).edit(until(0.3, planned)).run();
        check(&ended);
        for rank in &ended {
            let steps = steps(rank);
            let last = steps.last().expect("it took steps");
            assert_eq!(rank.finished(), (last.step, StopReason::Time));
            assert_eq!(last.elapsed, Some(1.0));
            let training = &rank.assignment.training;
            let end = training.learning_rate * training.final_fraction;
            assert!((last.learning_rate / end - 1.0).abs() < 1e-9, "{} of {end}", last.learning_rate);
        }
    }
}

#[test]
fn a_run_that_goes_on_continues_on_the_curve_of_its_time() {
    let first = World::new(2).edit(until(1e6, 100)).stop_at(4).run();
    check(&first);
    let saved = commit(&first, StepId(4));
    let rest = |assignment: &mut Assignment| {
        until(0.25e6, 100)(assignment);
        assignment.until.spent_seconds = 0.75e6;
    };
    let second = World::new(2).edit(rest).resume(&saved, StepId(4)).stop_at(6).run();
    check(&second);
    let share = steps(&second[0])[0].elapsed.expect("time ends it");
    assert!((0.75..0.76).contains(&share), "{share}");
    assert!(steps(&second[0])[0].learning_rate < 0.3 * first[0].assignment.training.learning_rate);
}

#[test]
fn steps_that_end_before_the_time_lead_the_learning_rate() {
    let by_steps = |ended: &[Ended]| -> Vec<f64> {
        steps(&ended[0]).iter().map(|figures| figures.learning_rate).collect()
    };
    let plain = |assignment: &mut Assignment| {
        assignment.until.steps = Some(StepId(12));
        (assignment.training.warmup_steps, assignment.training.schedule_steps) = (2, 12);
    };
    let limited = |assignment: &mut Assignment| assignment.until.seconds = Some(1e6);
    let alone = World::new(1).edit(plain).run();
    let both = World::new(1).edit(plain).edit(limited).run();
    check(&both);
    assert_eq!(by_steps(&alone), by_steps(&both), "ample time changes nothing");
    assert_eq!(alone[0].weights(), both[0].weights());
}
