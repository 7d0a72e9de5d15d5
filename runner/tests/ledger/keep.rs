//! Batches are stored atomically, once, and in order.

use crate::support::*;
use dtrain_protocol::{AttemptId, Event, Failure, Rank, StampedEvent, StepId, StopReason};
use dtrain_recipes::model::ForeignCommand;
use dtrain_recipes::{Framework, Model};
use dtrain_runner::ledger::{Filter, Pagination, Sort, TrialActivity, TrialStatus};
use dtrain_runner::{AttemptEnd, Fact, History, Ledger, MetricPoint, TrialUpdate, Verdict};
use proptest::prelude::*;
use rusqlite::Connection;
use std::collections::BTreeMap;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Deliveries repeat and overlap as after lost acknowledgements; connections are dropped between them.
    #[test]
    fn every_event_counts_once_however_often_it_is_delivered(
        cuts in prop::collection::vec((0u64..700, 1u64..700, any::<bool>()), 1..12),
    ) {
        let (_folder, path) = place();
        let (mut history, trial) = with_trial(&path);
        let mut reached = 0;
        for (back, forward, reopen) in cuts {
            let from = reached - u64::min(reached, back);
            let to = u64::min(from + forward, 1500).max(reached);
            let batch: Vec<_> = (from..to).map(|n| step(n, n + 1)).collect();
            let news = TrialUpdate { events: batch, offset: Some((ATTEMPT, to * 100)), ..TrialUpdate::default() };
            history.record(&trial.id, &news).expect("kept");
            reached = to;
            if reopen {
                drop(history);
                history = History::open(&path).expect("opens again");
            }
        }
        let expected: Vec<_> = (1..=reached).map(|s| (s, 1.0 / s as f64)).collect();
        prop_assert_eq!(losses(&history, &trial.id), expected);
        prop_assert_eq!(history.offset(&trial.id, ATTEMPT).expect("read"), reached * 100);
        let summaries = history.summaries(&trial.id).expect("read");
        if let Some(loss) = summaries.iter().find(|summary| summary.key == "loss") {
            prop_assert_eq!(loss.points, reached);
            prop_assert_eq!(loss.last_step, reached);
        }
    }

    /// Points of the host come in any order, twice, and as NaN; sealing must not change them. SQLite's rows
    /// do not distinguish -0 from 0.
    #[test]
    fn points_survive_sealing(
        raw in prop::collection::vec((0u64..3000, prop::num::f64::ANY), 1..1500), sizes in prop::collection::vec(1usize..900, 1..6),
    ) {
        let (_folder, path) = place();
        let (mut history, trial) = with_trial(&path);
        let mut model = BTreeMap::new();
        let mut rest = raw.as_slice();
        let mut newest = None;
        for size in sizes.iter().cycle() {
            if rest.is_empty() { break }
            let (batch, after) = rest.split_at((*size).min(rest.len()));
            rest = after;
            // Within a batch all points newer than the stored ones count; the later of two wins.
            for (step, value) in batch {
                if newest.is_none_or(|newest| *step > newest) {
                    model.insert(*step, *value);
                }
            }
            newest = model.keys().next_back().copied();
            let points = batch.iter().map(|(step, value)| MetricPoint {
                attempt: ATTEMPT, rank: Rank(0), key: "cpu".into(), step: *step, at_ms: *step, value: *value,
            }).collect();
            history.record(&trial.id, &TrialUpdate { points, ..TrialUpdate::default() }).expect("kept");
        }
        let kept = history.series(&trial.id, "cpu", Rank(0)).expect("read");
        let bits = |v: f64| if v.is_nan() { f64::NAN.to_bits() } else { (v + 0.0).to_bits() };
        let kept: Vec<_> = kept.iter().map(|s| (s.step, bits(s.value))).collect();
        let expected: Vec<_> = model.into_iter().map(|(s, v)| (s, bits(v))).collect();
        prop_assert_eq!(kept, expected);
    }
}

#[test]
fn a_batch_is_kept_whole_or_not_at_all() {
    let (_folder, path) = place();
    let (mut history, trial) = with_trial(&path);
    history.record(&trial.id, &facts(vec![started(1)])).expect("kept");
    // An error at the end of a transaction, such as a full disk, undoes its beginning.
    let saboteur = Connection::open(&path).expect("opens");
    saboteur
        .execute_batch(
            "CREATE TRIGGER full BEFORE INSERT ON open_points BEGIN SELECT RAISE(ABORT, 'disk full'); END",
        )
        .expect("made");
    let durable = Fact::CheckpointCommitted { attempt: ATTEMPT, step: StepId(2), folder: "c".into() };
    let news = TrialUpdate {
        facts: vec![durable.clone()],
        events: vec![step(0, 1), step(1, 2)],
        offset: Some((ATTEMPT, 50)),
        ..TrialUpdate::default()
    };
    let error = history.record(&trial.id, &news).expect_err("refused");
    assert!(error.source.to_string().contains("disk full"), "{error:?}");
    assert_eq!(history.facts(&trial.id).expect("read"), [started(1)]);
    assert!(losses(&history, &trial.id).is_empty());

    saboteur.execute_batch("DROP TRIGGER full").expect("dropped");
    history.record(&trial.id, &news).expect("kept now");
    assert_eq!(history.facts(&trial.id).expect("read"), [started(1), durable]);
    assert_eq!(losses(&history, &trial.id).len(), 2);
}

#[test]
fn facts_are_kept_once_and_a_late_finish_corrects_a_presumed_loss() {
    let (_folder, path) = place();
    let (mut history, trial) = with_trial(&path);
    let ended = |ended| Fact::AttemptEnded { attempt: ATTEMPT, ended };
    let lost = ended(AttemptEnd::Lost(Failure::Exited { code: None, signal: Some(9) }));
    let finished = ended(AttemptEnd::Finished(StopReason::Complete));
    let over = Fact::TrialEnded { verdict: Verdict::Completed(StopReason::Complete) };
    for _ in 0..2 {
        for fact in [started(1), lost.clone()] {
            history.record(&trial.id, &facts(vec![fact])).expect("kept");
        }
    }
    assert_eq!(history.facts(&trial.id).expect("read"), [started(1), lost.clone()]);
    for _ in 0..2 {
        for fact in [finished.clone(), over.clone()] {
            history.record(&trial.id, &facts(vec![fact])).expect("kept");
        }
    }
    assert_eq!(history.facts(&trial.id).expect("read"), [started(1), lost, finished.clone(), over.clone()]);
    history.record(&trial.id, &facts(vec![Fact::Resumed, started(2), over.clone()])).expect("kept");
    assert_eq!(history.facts(&trial.id).expect("read").len(), 7, "a resumed trial may end again");
}

#[test]
fn only_a_checkpoint_of_another_trial_counts_again_after_it_was_refused() {
    let (_folder, path) = place();
    let (mut history, trial) = with_trial(&path);
    let durable = |attempt: u64, folder: &str| Fact::CheckpointCommitted {
        attempt: AttemptId(attempt),
        step: StepId(2),
        folder: folder.into(),
    };
    let refused = |folder: &str| Fact::CheckpointRefused {
        step: StepId(2),
        folder: folder.into(),
        reason: "torn".into(),
    };
    let told =
        [durable(0, "a"), durable(0, "a"), refused("a"), refused("a"), durable(0, "a"), durable(0, "a")];
    history.record(&trial.id, &facts(told.to_vec())).expect("kept");
    assert_eq!(history.facts(&trial.id).expect("read"), [durable(0, "a"), refused("a"), durable(0, "a")]);
    let checkpoints = history.checkpoints(&trial.id).expect("read");
    assert_eq!(checkpoints.iter().filter(|saved| saved.refused.is_none()).count(), 1);
    history.record(&trial.id, &facts(vec![durable(1, "b"), refused("b"), durable(1, "b")])).expect("kept");
    assert_eq!(history.facts(&trial.id).expect("read").len(), 5, "what an attempt saved stays refused");
}

#[test]
fn a_status_is_never_taken_on_trust() {
    let (_folder, path) = place();
    let (mut history, trial) = with_trial(&path);
    let status =
        |history: &History, activity| history.trial(&trial.id, &|_| activity).expect("read").row.status;
    assert_eq!(status(&history, TrialActivity::Running), TrialStatus::Created);
    history.record(&trial.id, &facts(vec![started(1)])).expect("kept");
    let live = [
        (TrialActivity::Running, TrialStatus::Running),
        (TrialActivity::Waiting, TrialStatus::Waiting),
        (TrialActivity::Unattended, TrialStatus::Unattended),
        (TrialActivity::None, TrialStatus::Lost),
    ];
    live.into_iter().for_each(|(activity, expected)| assert_eq!(status(&history, activity), expected));

    assert!(history.mark_lost_attempts(&|_| TrialActivity::Running).expect("looked").is_empty());
    assert_eq!(history.mark_lost_attempts(&nobody).expect("looked"), std::slice::from_ref(&trial.id));
    assert!(history.mark_lost_attempts(&nobody).expect("looked").is_empty(), "told once");
    assert_eq!(history.trial(&trial.id, &nobody).expect("read").attempts.len(), 1);
    assert_eq!(status(&history, TrialActivity::None), TrialStatus::Lost);

    let verdicts = [
        (Verdict::OutOfMemory, TrialStatus::OutOfMemory),
        (Verdict::Stopped, TrialStatus::Stopped),
        (Verdict::Completed(StopReason::Target), TrialStatus::Completed),
    ];
    for (verdict, expected) in verdicts {
        history.record(&trial.id, &facts(vec![Fact::TrialEnded { verdict }])).expect("kept");
        assert_eq!(status(&history, TrialActivity::Running), expected);
        history.record(&trial.id, &facts(vec![Fact::Resumed])).expect("kept");
        assert_eq!(status(&history, TrialActivity::Running), TrialStatus::Running);
    }
}

#[test]
fn the_last_attempt_wins_where_attempts_overlap_and_both_can_be_seen() {
    let (_folder, path) = place();
    let (mut history, trial) = with_trial(&path);
    history.record(&trial.id, &events((0..20).map(|n| step(n, n + 1)).collect())).expect("kept");
    let again: Vec<_> = (0..15)
        .map(|n| {
            let mut event = StampedEvent { attempt: AttemptId(2), ..step(n, n + 11) };
            if let Event::Step(figures) = &mut event.event {
                figures.loss = -1.0;
            }
            event
        })
        .collect();
    history.record(&trial.id, &events(again)).expect("kept");
    let joined = losses(&history, &trial.id);
    assert_eq!(joined.len(), 25);
    assert!(joined.iter().all(|(step, loss)| (*loss == -1.0) == (*step > 10)), "{joined:?}");
    let by_attempt = history.series_by_attempt(&trial.id, "loss", Rank(0)).expect("read");
    assert_eq!(by_attempt.iter().map(|(_, s)| s.len()).collect::<Vec<_>>(), [20, 15]);
}

#[test]
fn of_the_first_ranks_every_step_is_kept_and_of_many_others_one_of_sixteen() {
    let (_folder, path) = place();
    let (mut history, trial) = with_trial(&path);
    let of = |rank| (1..=32).map(move |n| StampedEvent { rank: Rank(rank), ..step(n - 1, n) });
    let events = [0, 63, 64, 999].into_iter().flat_map(of).collect();
    history.record(&trial.id, &TrialUpdate { events, ..TrialUpdate::default() }).expect("kept");
    let kept = |rank| {
        let series = history.series(&trial.id, "step_seconds", Rank(rank)).expect("read");
        series.iter().map(|sample| sample.step).collect::<Vec<_>>()
    };
    assert_eq!((kept(0).len(), kept(63).len()), (32, 32));
    assert_eq!((kept(64), kept(999)), (vec![16, 32], vec![7, 23]));
    assert_eq!(losses(&history, &trial.id).len(), 32);
}

#[test]
fn of_a_script_the_lowest_rank_that_reports_a_figure_counts() {
    let (_folder, path) = place();
    let mut history = History::open(&path).expect("opens");
    let mut new = new_trial("r");
    new.recipe.model = Model::Command(ForeignCommand {
        argv: vec!["train".into()],
        env: BTreeMap::new(),
        framework: Framework::default(),
        progress: Vec::new(),
    });
    let trial = history.create_trial(&new).expect("created").id;
    let printed = |rank: u32| {
        (1..=32).map(move |n| {
            let mut said = StampedEvent { rank: Rank(rank), ..step(n - 1, n) };
            if let Event::Step(figures) = &mut said.event {
                (figures.loss, figures.memory_bytes) = (f64::from(rank), 0);
            }
            said
        })
    };
    let mut told = |ranks: &[u32]| {
        let events = ranks.iter().flat_map(|rank| printed(*rank)).collect();
        history.record(&trial, &TrialUpdate { events, ..TrialUpdate::default() }).expect("kept");
        let count = |rank| history.series(&trial, "loss", Rank(rank)).expect("read").len();
        let curve = history.curve(&trial, "loss").expect("read");
        let row = history.trial(&trial, &nobody).expect("read").row;
        assert_eq!((curve.len(), row.step), (32, 32));
        assert_eq!(row.loss, Some(curve[0].value));
        let condition = format!("loss={}", curve[0].value).parse().expect("a condition");
        let by_loss = Filter { conditions: vec![condition], ..Filter::default() };
        let found = history.trials(&by_loss, &Sort::Newest, Pagination::default(), &nobody).expect("read");
        assert_eq!(found.len(), 1, "of no other rank");
        (curve[0].value, [3, 7, 70, 90].map(count))
    };
    assert_eq!(told(&[70, 90]), (70.0, [0, 0, 32, 0]), "far more ranks than are kept in full");
    assert_eq!(told(&[7]), (7.0, [0, 32, 32, 0]));
    assert_eq!(told(&[3]), (3.0, [32, 32, 32, 0]));
}

#[test]
fn how_long_attempts_trained_is_told_by_their_steps() {
    let (_folder, path) = place();
    let (mut history, trial) = with_trial(&path);
    assert_eq!(history.trained_ms(&trial.id).expect("read"), []);
    // Steps of 20 ms, reported 5 s apart; between two of them the clock is set an hour ahead.
    let at = |n: u64| 1_700_000_000_000 + 5_000 * n + if n >= 3 { 3_600_000 } else { 0 };
    let of = |attempt, n| StampedEvent { attempt: AttemptId(attempt), at_ms: at(n), ..step(n, n + 1) };
    let said = (0..5).map(|n| of(1, n)).chain((0..2).map(|n| of(2, n)));
    history.record(&trial.id, &events(said.collect())).expect("kept");
    let trained = history.trained_ms(&trial.id).expect("read");
    assert_eq!(trained, [(AttemptId(1), 15_020), (AttemptId(2), 5_020)]);
}
