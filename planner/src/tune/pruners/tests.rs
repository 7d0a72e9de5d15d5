//! Pruners on recorded curves.

use crate::tune::{
    Asha, Dimension, Hyperband, Median, ProposalSource, PruneDecision, Pruner, Scale, SearchSpace,
    SlotAction, Study, StudyEvent, StudyState, Threshold, TrialOutcome, TrialValue,
};
use proptest::prelude::*;

fn study(pruner: Pruner) -> Study {
    let space = SearchSpace::new(vec![Dimension::new("x", Scale::Uniform { low: 0.0, high: 1.0 })]);
    Study { pruner, trials: Some(4), ..Study::new(space, 1) }
}

fn launched(trial: u64) -> StudyEvent {
    #[expect(clippy::cast_precision_loss, reason = "small counts")]
    let values = vec![TrialValue::Real(trial as f64 / 100.0)];
    StudyEvent::Launched { trial, values, source: ProposalSource::Random }
}

fn reported(trial: u64, at: u64, value: f64) -> StudyEvent {
    StudyEvent::Reported { trial, progress: at, value }
}

/// Validation losses of four trainings of a small decoder at steps 10, 20, 30 and 40: two good ones, one that
/// is slow, one whose learning rate was too high.
const CURVES: [[f64; 4]; 4] =
    [[4.10, 3.41, 3.02, 2.88], [4.32, 3.60, 3.11, 2.93], [4.61, 4.20, 3.90, 3.71], [4.05, 5.90, 7.40, 7.38]];

/// Returns the decisions after each report of the curves, one trial after the other.
fn judged(pruner: Pruner) -> Vec<Vec<PruneDecision>> {
    let study = study(pruner);
    let mut log = Vec::new();
    let curve = |(trial, curve): (u64, &[f64; 4])| {
        log.push(launched(trial));
        let mut said = Vec::new();
        for (at, value) in [10, 20, 30, 40].into_iter().zip(curve) {
            log.push(reported(trial, at, *value));
            said.push(study.prune_decision(&log, trial));
            match said.last() {
                Some(PruneDecision::Pause) => {
                    log.push(StudyEvent::Paused { trial, progress: at });
                    return said;
                }
                Some(PruneDecision::Stop) => break,
                _ => {}
            }
        }
        let pruned = said.last() == Some(&PruneDecision::Stop);
        let value = curve[said.len() - 1];
        let outcome = if pruned { TrialOutcome::Pruned { value } } else { TrialOutcome::done(value) };
        log.push(StudyEvent::Ended { trial, outcome });
        said
    };
    (0..).zip(&CURVES).map(curve).collect()
}

use PruneDecision::{Continue, Pause, Stop};

#[test]
fn nobody_is_pruned_without_a_pruner() {
    assert!(judged(Pruner::None).iter().flatten().all(|one| *one == Continue));
}

#[test]
fn the_median_stops_what_is_worse_after_as_much_training() {
    let said = judged(Pruner::Median(Median { startup_trials: 2, warmup: 20 }));
    assert_eq!(said[..2], [[Continue; 4].to_vec(), [Continue; 4].to_vec()], "two others are needed");
    assert_eq!(said[2], [Continue, Stop], "4.20 is above 3.60");
    // Its best is its first value, 4.05; at 20 that is above 3.60 of {3.41, 3.60, 4.20}.
    assert_eq!(said[3], [Continue, Stop]);
    let patient = judged(Pruner::Median(Median { startup_trials: 4, warmup: 0 }));
    assert!(patient.iter().flatten().all(|one| *one == Continue), "there are three others");
}

#[test]
fn a_trial_that_reports_at_other_places_is_compared_at_equal_training() {
    let study = study(Pruner::Median(Median { startup_trials: 1, warmup: 0 }));
    let mut log = vec![launched(0), reported(0, 10, 4.0), reported(0, 30, 2.0), launched(1)];
    log.push(reported(1, 20, 3.5));
    assert_eq!(study.prune_decision(&log, 1), Continue, "3.5 is below 4.0, the last at 20; 2.0 comes later");
    log.push(reported(1, 40, 3.4));
    assert_eq!(study.prune_decision(&log, 1), Continue, "no other trial trained for 40");
    let log = [launched(0), reported(0, 10, 4.0), reported(0, 30, 2.0), launched(1), reported(1, 30, 3.5)];
    assert_eq!(study.prune_decision(&log, 1), Stop);
}

#[test]
fn the_threshold_stops_what_diverged() {
    let said = judged(Pruner::Threshold(Threshold { limit: 5.0, warmup: 0 }));
    assert_eq!(said[3], [Continue, Stop]);
    assert!(said[..3].iter().flatten().all(|one| *one == Continue));
    let study = study(Pruner::Threshold(Threshold { limit: 5.0, warmup: 100 }));
    let nan = reported(0, 1, f64::NAN);
    assert_eq!(study.prune_decision(&[launched(0), reported(0, 1, 9.0)], 0), Continue, "not before 100");
    assert_eq!(study.prune_decision(&[launched(0), nan], 0), Stop);
}

#[test]
fn asha_pauses_at_rungs_and_resumes_what_turns_out_to_be_good() {
    let study = study(Pruner::Asha(Asha { eta: 2, min_resource: 10, max_resource: 40 }));
    let said = judged(study.pruner);
    assert_eq!(said[0], [Continue; 4], "the first is the best of every rung");
    assert_eq!((&said[1], &said[2]), (&vec![Pause], &vec![Pause]));
    assert_eq!(said[3], [Continue, Pause], "the best at 10, not at 20");
    let mut log = vec![launched(0), reported(0, 10, 4.0), reported(0, 15, 3.9), launched(1)];
    log.extend([reported(1, 10, 4.2), StudyEvent::Paused { trial: 1, progress: 10 }]);
    log.extend([
        launched(2),
        reported(2, 10, 4.5),
        StudyEvent::Paused { trial: 2, progress: 10 },
        launched(3),
    ]);
    assert_eq!(study.next(&log), SlotAction::Wait, "of three, one goes on");
    log.extend([reported(3, 10, 4.6), StudyEvent::Paused { trial: 3, progress: 10 }]);
    assert_eq!(study.next(&log), SlotAction::Resume { trial: 1, until: Some(20) }, "of four, two do");
    log.push(StudyEvent::Resumed { trial: 1 });
    assert_eq!(study.prune_decision(&log, 1), Continue);
    assert_eq!(study.next(&log), SlotAction::Wait);
    log.push(reported(1, 20, 3.0));
    assert_eq!(study.prune_decision(&log, 1), Continue, "the first at its rung");
    log.push(StudyEvent::Reported { trial: 0, progress: 21, value: 3.4 });
    assert_eq!(study.prune_decision(&log, 0), Pause, "a rung is judged at the first report after it");
}

#[test]
fn brackets_of_hyperband_begin_later_and_later_and_train_about_as_much() {
    let hyperband = Hyperband { eta: 3, min_resource: 1, max_resource: 27 };
    assert_eq!(hyperband.brackets(), 4);
    let first: Vec<Option<u64>> = (0..4).map(|bracket| hyperband.asha(bracket).level(0)).collect();
    assert_eq!(first, [Some(1), Some(3), Some(9), None]);
    let mut counts = [0u64; 4];
    for trial in 0..49 {
        counts[hyperband.bracket(trial) as usize] += 1;
    }
    assert_eq!(counts, [27, 12, 6, 4], "table 1 of Li et al. for a rate of 3 and 27 units: 27, 12, 6, 4");
}

proptest! {
    /// For any reports in any order: the best of a rung is never stopped or left paused, and the state built
    /// from the log is that of its events one by one.
    #[test]
    fn the_best_of_a_rung_is_never_stopped(
        steps in prop::collection::vec((0u64..6, 0.0f64..1.0), 1..60),
        eta in 2u32..4,
        brackets in any::<bool>(),
    ) {
        let (least, most) = (1, 9);
        let pruner = match brackets {
            true => Pruner::Hyperband(Hyperband { eta, min_resource: least, max_resource: most }),
            false => Pruner::Asha(Asha { eta, min_resource: least, max_resource: most }),
        };
        let study = Study { trials: Some(6), ..study(pruner) };
        let mut log: Vec<StudyEvent> = (0..6).map(launched).collect();
        let mut study_state = StudyState::of(&study, &log);
        let mut trained = [0u64; 6];
        for (trial, value) in steps {
            let place = usize::try_from(trial).expect("small");
            trained[place] += 1;
            let mut events = vec![reported(trial, trained[place], value)];
            study_state.record(&study, &events[0]);
            if study_state.trial(trial).decision == Pause {
                let paused = StudyEvent::Paused { trial, progress: trained[place] };
                study_state.record(&study, &paused);
                events.push(paused);
            }
            while let SlotAction::Resume { trial, .. } = study.next_from(&study_state, &|_| true) {
                let resumed = StudyEvent::Resumed { trial };
                study_state.record(&study, &resumed);
                events.push(resumed);
            }
            log.extend(events);
            prop_assert_eq!(&StudyState::of(&study, &log), &study_state);
        }
        for paused in study_state.paused() {
            let (bracket, _) = study.pruner.rungs(paused).expect("there are rungs");
            let rung = study_state.trial(paused).rungs - 1;
            prop_assert!(study_state.rungs.at(bracket, rung)[0].1 != paused, "the best of a rung goes on");
        }
    }
}
