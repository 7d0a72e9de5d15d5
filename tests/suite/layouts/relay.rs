//! A run goes on under another layout from where the last one stopped, as if it had never stopped.

use super::Case;
use super::world::{Trace, run_from, saved, trace, train};
use super::{LOSS, NORM, every_second, farthest};
use dtrain_protocol::{Assignment, Event, ResumePoint, StepId};
use dtrain_runner::TrialFolder;
use dtrain_runner::checkpoints::commit;
use std::path::PathBuf;

/// Steps under each layout.
const LEG: u64 = 2;

/// Every model goes through all its layouts, one after the other, and ends on one rank; losses and norms are those
/// of one rank that never stopped.
#[test]
fn a_run_handed_from_layout_to_layout_trains_as_one_rank_does() {
    let mut waiting = every_second(1);
    let mut wrong = Vec::new();
    while let Some(first) = waiting.first() {
        let one = first.on_one_rank();
        let is_this = |case: &Case| case.on_one_rank().text() == one.text();
        let (mut legs, rest): (Vec<_>, Vec<_>) = waiting.iter().cloned().partition(is_this);
        // A model with few layouts takes turns from its last to its first too, so that it meets other pairs.
        legs.extend(legs.clone().into_iter().rev().skip(1));
        legs.push(one.clone());
        let expected = train(&one, LEG * legs.len() as u64);
        let found = relay(&legs);
        let (loss, norm) =
            (farthest(&expected.losses, &found.losses), farthest(&expected.norms, &found.norms));
        println!("{} legs from {}: losses part by {loss:.1e}, norms by {norm:.1e}", legs.len(), legs[0]);
        if !(loss < LOSS && norm < NORM) {
            wrong.push(format!("{}: losses part by {loss:.1e}, norms by {norm:.1e}", legs[0]));
        }
        waiting = rest;
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A run of two replicas of matrices cut in two goes on as two replicas of a pipeline of two stages.
#[test]
fn tensor_parallel_replicas_go_on_as_stages() {
    for (name, sequence) in [("gpt", "false"), ("llama", "true")] {
        let before = Case::new(name, &[("data", "2"), ("tensor", "2"), ("sequence", sequence)]);
        let after = Case::new(name, &[("data", "2"), ("pipeline", "2"), ("schedule", "\"1f1b\"")]);
        let expected = train(&before.on_one_rank(), 4 * LEG);
        let found = relay(&[before.clone(), before, after.clone(), after]);
        assert!(farthest(&expected.losses, &found.losses) < LOSS, "{name}: losses part");
        assert!(farthest(&expected.norms, &found.norms) < NORM, "{name}: norms part");
    }
}

/// Trains each of the layouts for a few steps, from the checkpoint of the one before.
fn relay(legs: &[Case]) -> Trace {
    let folder = tempfile::tempdir().expect("a folder for the relay");
    let mut all = Trace::default();
    let mut from = None;
    for (leg, case) in legs.iter().enumerate() {
        let folder = folder.path().join(leg.to_string());
        std::fs::create_dir(&folder).expect("a folder for the leg");
        let last = LEG * (leg as u64 + 1);
        let (assignments, events) = run_from(case, from.as_ref(), last, &folder);
        let told = trace(case, LEG, &events);
        all.losses.extend(told.losses);
        all.norms.extend(told.norms);
        let step = StepId(last);
        from = Some(ResumePoint { folder: commit(case, &assignments[0], step, &events), step });
    }
    all
}

/// Commits what the ranks saved after `step`, as the agent does.
pub(super) fn commit(case: &Case, one: &Assignment, step: StepId, events: &[Vec<Event>]) -> PathBuf {
    let (folder, saved) = saved(case, step, events);
    let trial = TrialFolder::at(one.checkpoints.parent().expect("it lies in the folder of its trial"));
    let committed = commit::check(&folder, &saved)
        .and_then(|()| commit::manifest_contents(one, step, saved))
        .and_then(|contents| commit::prepare(&folder, &contents))
        .and_then(|()| commit::finish(&trial, step, one.attempt));
    committed.unwrap_or_else(|error| panic!("{case}: {error}"));
    trial.checkpoint(step, one.attempt)
}
