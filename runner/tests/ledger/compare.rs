//! Comparison of trials in the ledger.

use crate::support::*;
use dtrain_protocol::{AttemptId, Event, PhaseTimes, Rank, StampedEvent, StepFigures, StepId};
use dtrain_runner::compare::{ChangeAssessment, TrialComparison, compare};
use dtrain_runner::ledger::TrialName;
use dtrain_runner::{History, Ledger};

/// Creates a trial of 100 steps: loss falls as `start / step`, a step takes `seconds` and a little noise.
fn trained(history: &mut History, rate: f64, start: f64, seconds: f64) -> TrialName {
    let mut new = new_trial("r");
    new.recipe.train.learning_rate = dtrain_recipes::Tunable::Pinned(rate);
    if let Some(git) = &mut new.provenance.git {
        git.patch = (rate > 0.001).then(|| "diff --git a/x b/x\n--- a/x\n+++ b/x\n-1\n+2\n+3\n".to_owned());
    }
    new.provenance.environment.insert("variable.OMP_NUM_THREADS".into(), rate.to_string());
    let created = history.create_trial(&new).expect("created");
    let mut all = Vec::new();
    for step in 1..=100u64 {
        let noise = 1.0 + 0.02 * ((step % 5) as f64 - 2.0);
        let figures = StepFigures {
            step: StepId(step),
            loss: start / step as f64,
            gradient_norm: Some(1.0),
            learning_rate: rate,
            elapsed: None,
            noise: None,
            tokens: 100,
            times: PhaseTimes {
                step: seconds * noise,
                communication: seconds / 10.0,
                ..PhaseTimes::default()
            },
            memory_bytes: 2 << 20,
            sent_bytes: 0,
            held: dtrain_protocol::ResidentBytes::default(),
        };
        all.push(Event::Step(figures));
        if step % 10 == 0 {
            all.push(Event::Validated {
                step: StepId(step),
                loss: start / step as f64,
                accuracy: Some(0.5),
                seconds: None,
            });
        }
    }
    let stamp = |(n, event)| StampedEvent {
        attempt: AttemptId(1),
        rank: Rank(0),
        sequence: n as u64,
        at_ms: n as u64,
        event,
    };
    history.record(&created.id, &events(all.into_iter().enumerate().map(stamp).collect())).expect("kept");
    created
}

fn call(comparison: &TrialComparison, name: &str) -> ChangeAssessment {
    let figure = comparison.results.iter().find(|figure| figure.name == name).expect(name);
    figure.changes[1].expect("both have it").call
}

#[test]
fn only_what_differs_is_marked_and_noise_is_not_called_better() {
    let (_folder, path) = place();
    let mut history = History::open(&path).expect("opens");
    let a = trained(&mut history, 0.001, 4.0, 0.1);
    let b = trained(&mut history, 0.002, 2.0, 0.101);
    let c = trained(&mut history, 0.002, 2.0, 0.2);
    let of = |trials: &[&TrialName], levels: &[f64]| {
        let ids: Vec<_> = trials.iter().map(|created| created.id.clone()).collect();
        compare(&history, &ids, levels, &nobody).expect("compared")
    };
    let two = of(&[&a, &b], &[]);
    let differing: Vec<_> = two.params.iter().filter(|p| p.differs).collect();
    assert_eq!(differing.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["train.learning_rate"]);
    assert_eq!(differing[0].ratio(), Some(2.0));
    assert!(two.params.len() > 20);
    let communicates = two.results.iter().any(|figure| figure.name == "exposed communication");
    assert!(!communicates, "one rank has no peer to wait for");
    assert_eq!(two.environment.iter().filter(|e| e.differs).count(), 1);

    assert_eq!(call(&two, "step"), ChangeAssessment::Same, "one percent is within the noise");
    assert_eq!(
        call(&two, "best valid.loss"),
        ChangeAssessment::Open,
        "one run each tells nothing of its spread"
    );
    assert_eq!(call(&of(&[&a, &c], &[]), "step"), ChangeAssessment::Worse);
    assert_eq!(call(&of(&[&c, &a], &[]), "step"), ChangeAssessment::Better);
    assert_eq!(call(&of(&[&c, &a], &[]), "samples/s"), ChangeAssessment::Better);
    assert_eq!(call(&of(&[&a, &a], &[]), "best valid.loss"), ChangeAssessment::Same);

    // Every trial reached 4.0 / 100; the second one after half the steps.
    let time = two.results.iter().find(|f| f.name == "time to valid.loss 0.04000").expect("told");
    let seconds: Vec<_> = time.values.iter().map(|v| v.expect("reached").value).collect();
    assert!((seconds[0] - 10.0).abs() < 0.1 && (seconds[1] - 5.05).abs() < 0.1, "{seconds:?}");
    let asked = of(&[&a, &b], &[0.03]);
    let time = asked.results.iter().find(|f| f.name == "time to valid.loss 0.03000").expect("told");
    assert!(time.values[0].is_none() && time.values[1].is_some(), "the first never reached it");

    assert!(two.code.is_same_commit && !two.code.is_same);
    let patched = two.code.revisions[1].as_ref().expect("in a repository");
    assert_eq!((patched.files, patched.added, patched.removed), (1, 2, 1));

    let three = of(&[&a, &b, &c], &[]);
    assert!(
        three.results.iter().all(|f| f.values.len() == 3 && f.changes.len() == 3 && f.changes[0].is_none())
    );
    assert_eq!(three.curves.len(), 3);
    assert_eq!(three.curve_steps, (1, 100));
    let json = serde_json::to_value(&three).expect("JSON");
    assert_eq!(json["version"], 1);
}
