use super::*;
use crate::render::history::tests::row;
use crate::render::table::tests::plain;
use crate::render::truncate::width;
use dtrain_protocol::{AttemptId, PhaseTimes, Rank, StepId};
use dtrain_runner::ledger::{
    Checkpoint, ExpectedPerformance, NoiseScale, Note, Summary, TrialParameter, TrialStatus,
};
use dtrain_runner::provenance::{GitState, Provenance};
use serde_json::json;

const NOW: u64 = 1_700_000_000_000;

/// Returns a trial with two attempts that completed.
pub(crate) fn trial() -> TrialDetails {
    let attempt = |number, from: Option<u64>, seconds: (u64, u64), ended| Attempt {
        number: AttemptId(number),
        from: from.map(StepId),
        started_ms: NOW - seconds.0 * 1000,
        ended_ms: Some(NOW - seconds.1 * 1000),
        ended: Some(ended),
    };
    let checkpoint = |step: u64, refused: Option<&str>| Checkpoint {
        attempt: AttemptId(1),
        step: StepId(step),
        at_ms: NOW - 600_000,
        folder: format!("/state/step-{step}.a1").into(),
        refused: refused.map(str::to_owned),
    };
    let summary = |key: &str, min: f64, last: Option<f64>| Summary {
        key: key.into(),
        rank: Rank(0),
        points: 900,
        last,
        last_step: 900,
        min: Some(min),
        min_step: Some(880),
        max: Some(7.2e9),
        max_step: Some(1),
        mean: Some(min),
    };
    let held = |name: &str, most| Summary {
        key: format!("{name}_bytes"),
        max: Some(most),
        ..summary(name, most, Some(most))
    };
    let sent = |rank, mean| Summary {
        key: "sent_bytes".into(),
        rank: Rank(rank),
        mean: Some(mean),
        ..summary("sent", mean, Some(mean))
    };
    let param = |path: &str, value, source| TrialParameter { path: path.into(), value, source };
    TrialDetails {
        row: row("gpt-12", TrialStatus::Completed, 7300),
        verdict: Some(Verdict::Completed(StopReason::Complete)),
        recipe: json!({}),
        plan: json!({ "choices": [
            { "candidate": { "threads": 1 }, "estimate": {} },
            { "candidate": { "threads": 2 }, "estimate": { "breakdown": {
                "forward": 0.05, "backward": 0.1, "communication": 0.02, "bubble": 0.02, "optimizer": 0.01,
                "overhead": 0.0,
            }, "memory": {
                "weights": 800_000_000, "gradients": 1_000_000_000, "optimizer": 1_600_000_000,
                "activations": 3_000_000_000u64, "logits": 500_000_000, "buckets": 0, "checkpoint": 0,
                "baseline": 100_000_000,
            }, "traffic": {
                "gradients": 100_000_000, "weights": 0, "tensor": 60_000_000, "context": 0, "expert": 0,
                "pipeline": 0, "tied": 0, "figures": 128,
            } } },
        ] }),
        candidate: json!({ "threads": 2 }),
        params: vec![
            param("train.batch", json!(256), ValueSource::Recipe),
            param("train.clip", json!(null), ValueSource::Recipe),
            param("train.seed", json!(7), ValueSource::Default),
            param("plan.zero", json!("1"), ValueSource::Planner),
        ],
        parent: None,
        predicted: ExpectedPerformance {
            step_seconds: Some(0.2),
            tokens_per_second: Some(40_000.0),
            memory_bytes: Some(7_000_000_000),
        },
        attempts: vec![
            attempt(1, None, (7300, 7000), AttemptEnd::Lost(Failure::Exited { code: None, signal: Some(9) })),
            attempt(2, Some(300), (6990, 600), AttemptEnd::Finished(StopReason::Complete)),
        ],
        checkpoints: (1..=7).map(|n| checkpoint(n * 100, (n == 6).then_some("torn"))).collect(),
        noise_scale: Some(NoiseScale { samples: 412.0, low: 371.5, high: 1452.0, steps: 450 }),
        figures: vec![
            summary("loss", 3.05, None),
            summary("memory_bytes", 1e9, Some(7.2e9)),
            summary("valid.loss", 3.118, Some(3.12)),
            held("weights", 0.8e9),
            held("gradients", 0.9e9),
            held("optimizer", 1.6e9),
            sent(0, 160_000_128.0),
            sent(1, 1.2e8),
        ],
        provenance: Provenance {
            git: Some(GitState {
                revision: "a1b2c3d4e5f6".into(),
                branch: Some("main".into()),
                patch: Some("+x\n".into()),
                ..GitState::default()
            }),
            program: "0.1.0 (cuda)".into(),
            environment: [("host".to_owned(), "n03".to_owned())].into(),
            command: vec!["dtrain".into(), "run".into(), "gpt.toml".into()],
        },
        notes: vec![Note { at_ms: NOW - 60_000, text: "looks\nfine".into() }],
        tags: [("keep".to_owned(), "yes".to_owned())].into(),
    }
}

/// Returns typical steps of three ranks.
pub(crate) fn typical() -> Vec<TypicalStep> {
    let of = |rank, [forward, backward, communication, bubble]: [f64; 4]| TypicalStep {
        rank: Rank(rank),
        times: PhaseTimes {
            step: forward + backward + communication + bubble + 0.0121,
            data: 0.0001,
            forward,
            backward,
            communication,
            bubble,
            optimizer: 0.012,
        },
    };
    vec![of(0, [0.05, 0.1, 0.0119, 0.03]), of(1, [0.06, 0.11, 0.02, 0.0]), of(2, [0.055, 0.105, 0.03, 0.001])]
}

#[test]
fn the_page_of_a_trial_tells_what_was_expected_and_what_came_of_it() {
    let falling: Vec<_> = (1..=40).map(|x| Some(8.0 / f64::from(x))).collect();
    let curves = [("loss".to_owned(), falling), ("valid.loss".to_owned(), vec![None; 40])];
    let page = show(&trial(), &typical(), &curves, false, plain(80));
    insta::assert_snapshot!("show_80", page);
    assert!(!page.contains("train.seed"), "a default is not shown");
    assert!(show(&trial(), &typical(), &curves, true, plain(80)).contains("train.seed"));
    assert!(page.lines().all(|line| width(line) <= 80), "{page}");
}

#[test]
fn a_long_text_is_cut_at_the_width_of_the_page() {
    let long = "x".repeat(70_000);
    let mut trial = trial();
    trial.notes[0].text.clone_from(&long);
    trial.tags.insert(long.clone(), long.clone());
    trial.params.push(TrialParameter {
        path: "params.x".into(),
        value: json!(long),
        source: ValueSource::Recipe,
    });
    let page = show(&trial, &typical(), &[(long, vec![Some(1.0)])], true, plain(80));
    assert!(page.contains("ago  xxx"), "{page}");
    assert!(page.lines().all(|line| width(line) <= 80), "{page}");
}
