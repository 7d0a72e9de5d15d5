//! Validation obeys orders and time limits, and reports its progress.

use super::world::{Ended, World, commit, losses, norms};
use crate::step_timer::Slowdown;
use dtrain_protocol::{Event, StepId, StopReason};
use std::time::Duration;

/// Creates `ranks` ranks whose validations take this many milliseconds for each of their passes. There are
/// 37 validation samples, and two go into a pass.
fn slow(ranks: u32, milliseconds: u64) -> World {
    let validation = Duration::from_millis(milliseconds);
    World::new(ranks).slowdown(Slowdown { validation, ..Slowdown::default() })
}

fn validations(ended: &Ended) -> Vec<u64> {
    let steps = ended.events.iter().filter_map(|event| match event {
        Event::Validated { step, .. } => Some(step.0),
        _ => None,
    });
    steps.collect()
}

/// Returns the steps, the samples done and all samples of the reports on the way.
fn progress(ended: &Ended) -> Vec<(u64, u64, u64)> {
    let told = ended.events.iter().filter_map(|event| match event {
        Event::Validating { step, done, of } => Some((step.0, *done, *of)),
        _ => None,
    });
    told.collect()
}

#[test]
fn an_order_to_stop_ends_a_validation_at_the_next_agreement_and_the_state_is_saved() {
    for ranks in [1, 2] {
        let ended = slow(ranks, 400).steps(4).edit(|a| a.validate_samples = 45).stop_in_validation().run();
        for rank in &ended {
            assert_eq!(rank.finished(), (StepId(4), StopReason::Ordered));
            assert_eq!(validations(rank), [] as [u64; 0], "it was given up");
            assert!(rank.events.iter().any(|event| matches!(event, Event::Saved { step: StepId(4), .. })));
        }
        // A pass takes longer than the time between agreements, so that there is one after each: the first
        // tells the progress after which the stop is ordered, the second heeds it.
        let told = progress(&ended[0]);
        let most = 2 * 2 * u64::from(ranks);
        assert!(told.iter().all(|(_, done, of)| *done <= most && *of == 37), "{ranks} ranks: {told:?}");
        // The resumed run makes the missing validation at the end.
        let saved = commit(&ended, StepId(4));
        let rest = World::new(ranks).steps(4).resume(&saved, StepId(4)).run();
        assert_eq!(rest[0].finished(), (StepId(4), StopReason::Complete));
        assert_eq!(validations(&rest[0]), [4]);
    }
}

#[test]
fn a_time_limit_ends_a_validation_that_takes_longer_than_was_planned() {
    let ended = slow(2, 400)
        .edit(|a| {
            (a.until.seconds, a.until.validation_seconds) = (Some(0.5), 0.1);
            (a.validate_every, a.validate_samples) = (0, 45);
        })
        .run();
    for rank in &ended {
        let (step, reason) = rank.finished();
        assert_eq!(reason, StopReason::Time);
        assert_eq!(validations(rank), [step.0], "its figures are of the samples that were used");
        let seconds = rank.events.iter().find_map(|event| match event {
            Event::Validated { seconds, .. } => *seconds,
            _ => None,
        });
        assert!(
            seconds.is_some_and(|seconds| seconds >= 0.4),
            "it is the time of one pass at least: {seconds:?}"
        );
    }
    let cut = |rank: &Ended| {
        let told = rank.events.iter().find_map(|event| match event {
            Event::Notice(words) => words.split_once("time limit ended the last validation after "),
            _ => None,
        });
        told.map(|(_, rest)| rest.split(' ').next().expect("a number").parse::<u64>().expect("a number"))
    };
    // The validation began just before the limit: it ended before half of its ten passes.
    assert!(cut(&ended[0]).is_some_and(|done| (4..=16).contains(&done)), "{:?}", cut(&ended[0]));
    assert_eq!(cut(&ended[1]), None, "it is told once");
}

#[test]
fn a_long_validation_tells_how_far_it_is() {
    let ended = slow(1, 100).steps(1).edit(|a| a.validate_samples = 40).run();
    let told = progress(&ended[0]);
    assert!((2..=8).contains(&told.len()), "{told:?}");
    assert!(
        told.iter().all(|(step, done, of)| *step == 1 && *of == 37 && (2..37).contains(done)),
        "{told:?}"
    );
    assert!(told.is_sorted(), "{told:?}");
}

/// The z-loss of an assignment changes the weights from the first step on, but neither the loss that a step
/// reports nor that of a validation.
#[test]
fn a_z_loss_is_trained_and_not_reported() {
    for ranks in [1, 2] {
        let of = |weight| {
            let ended = World::new(ranks).steps(3).edit(|a| a.training.z_loss = weight).run();
            (losses(&ended), norms(&ended))
        };
        let ((loss, norm), (with, with_norm)) = (of(0.0), of(0.5));
        assert_eq!(with[0], loss[0], "the first step begins with the same weights");
        assert!((with_norm[0] / norm[0] - 1.0).abs() > 0.1, "{with_norm:?} beside {norm:?}");
        assert_ne!(with[2], loss[2]);
        // Without a learning rate the weights stay those of the beginning.
        let still = |weight| {
            let still = |a: &mut dtrain_protocol::Assignment| {
                (a.training.z_loss, a.training.learning_rate) = (weight, 0.0);
            };
            let ended = World::new(ranks).steps(2).edit(still).run();
            let of = |event: &Event| match event {
                Event::Validated { loss, .. } => Some(*loss),
                _ => None,
            };
            (losses(&ended), ended[0].events.iter().find_map(of).expect("it was validated"))
        };
        assert_eq!(still(0.5), still(0.0));
    }
}
