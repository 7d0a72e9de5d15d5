use super::*;
use crate::pipeline_schedule::simulate::{PassCost, SimulatedPipeline, hop, simulate_pipeline};
use PipelineSchedule::{Gpipe, Interleaved, OneForwardOneBackward, ZeroBubble};
use dtrain_protocol::{Neighbor, Pass};
use std::collections::BTreeSet;

const COST: PassCost = PassCost { forward: 1.0, input: 1.0, weights: 1.0 };

/// Returns every possible schedule and shape up to 8 stages, 3 chunks and 17 micro-batches.
fn all() -> impl Iterator<Item = (PipelineSchedule, PipelineShape)> {
    [Gpipe, OneForwardOneBackward, Interleaved, ZeroBubble].into_iter().flat_map(|schedule| {
        let chunks = if schedule == Interleaved { 2..=3 } else { 1..=1 };
        let shapes = chunks.flat_map(|chunks| {
            (1..=8)
                .flat_map(move |stages| (1..=17).map(move |micros| PipelineShape { stages, chunks, micros }))
        });
        let is_ring = move |shape: &PipelineShape| shape.chunks == 1 || shape.stages > 1;
        shapes
            .filter(move |shape| is_ring(shape) && is_possible(schedule, *shape))
            .map(move |shape| (schedule, shape))
    })
}

fn walked(schedule: PipelineSchedule, shape: PipelineShape) -> SimulatedPipeline {
    let costs = vec![COST; shape.stages as usize];
    simulate_pipeline(&passes(schedule, shape), shape, &costs, 0.0, |_, _, _| {})
        .expect("no stage waits forever")
}

/// Returns `true` if all stages end although a message is passed only when both its ends are ready.
fn ends_without_buffers(steps: &[Vec<Action>], shape: PipelineShape) -> bool {
    let mut left: Vec<Vec<Action>> = steps.to_vec();
    loop {
        let mut moved = false;
        for stage in 0..shape.stages {
            let first = left[stage as usize].first().copied();
            let Some(Action::Exchange { with, send, .. }) = first else {
                moved |= first.is_some();
                left[stage as usize].drain(..usize::from(first.is_some()));
                continue;
            };
            let Some(pass) = send else { continue };
            let (other, back, theirs) = hop(shape, stage, with, pass);
            let Some(Action::Exchange { with: facing, recv, .. }) = left[other as usize].first_mut() else {
                continue;
            };
            if *facing == back && *recv == Some(theirs) {
                *recv = None;
                let Some(Action::Exchange { send, .. }) = left[stage as usize].first_mut() else { continue };
                *send = None;
                moved = true;
            }
        }
        for actions in &mut left {
            let is_empty = |a: &Action| matches!(a, Action::Exchange { send: None, recv: None, .. });
            if actions.first().is_some_and(is_empty) {
                actions.remove(0);
                moved = true;
            }
        }
        if !moved {
            return left.iter().all(Vec::is_empty);
        }
    }
}

#[test]
fn no_schedule_deadlocks_even_over_links_that_hold_no_message() {
    for (schedule, shape) in all() {
        let steps = passes(schedule, shape);
        assert!(ends_without_buffers(&steps, shape), "{schedule:?} {shape:?}");
        let walked = walked(schedule, shape);
        let busy = f64::from(shape.micros * shape.chunks) * 3.0;
        assert!(
            walked.seconds >= busy - 1e-9,
            "{schedule:?} {shape:?}: {} is shorter than the work",
            walked.seconds
        );
    }
}

#[test]
fn every_pass_is_done_once_forward_before_backward() {
    for (schedule, shape) in all() {
        for (stage, actions) in passes(schedule, shape).into_iter().enumerate() {
            let (mut forward, mut input, mut whole) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
            for action in actions {
                let is_new = match action {
                    Action::Forward(pass) => forward.insert(pass),
                    Action::Backward(pass) => {
                        forward.contains(&pass) && input.insert(pass) && whole.insert(pass)
                    }
                    Action::BackwardInput(pass) => forward.contains(&pass) && input.insert(pass),
                    Action::BackwardWeights(pass) => input.contains(&pass) && whole.insert(pass),
                    _ => true,
                };
                assert!(is_new, "{schedule:?} {shape:?}, stage {stage}: {action:?}");
            }
            assert_eq!(whole.len(), (shape.micros * shape.chunks) as usize);
            assert_eq!((forward, input), (whole.clone(), whole));
        }
    }
}

#[test]
fn a_broken_schedule_is_seen_to_deadlock() {
    let shape = PipelineShape { stages: 2, chunks: 1, micros: 2 };
    let mut steps = passes(OneForwardOneBackward, shape);
    let is_send = |a: &Action| matches!(a, Action::Exchange { with: Neighbor::Next, send: Some(_), .. });
    let first = steps[0].iter().position(is_send).expect("the first stage sends");
    steps[0].remove(first);
    assert!(simulate_pipeline(&steps, shape, &[COST; 2], 0.0, |_, _, _| {}).is_none());
    assert!(!ends_without_buffers(&steps, shape));
}

/// Returns the largest number of micro-batches, over all chunks, whose inputs are kept at once.
fn live_peak(actions: &[Action]) -> u32 {
    let (mut live, mut peak) = (0u32, 0u32);
    for action in actions {
        match action {
            Action::Forward(_) => live += 1,
            Action::Backward(_) | Action::BackwardWeights(_) => live -= 1,
            _ => {}
        }
        peak = peak.max(live);
    }
    assert_eq!(live, 0, "every forward has its backward");
    peak
}

#[test]
fn live_activations_stay_within_the_bound() {
    for (schedule, shape) in all() {
        for (stage, actions) in (0..shape.stages).zip(passes(schedule, shape)) {
            let found = live_peak(&actions);
            let ahead = shape.stages - stage - 1;
            let most = match schedule {
                Gpipe => shape.micros,
                OneForwardOneBackward => ahead + 1,
                Interleaved => 2 * ahead + (shape.chunks - 1) * shape.stages + 1,
                ZeroBubble => shape.stages,
            };
            assert!(found <= most, "{schedule:?} {shape:?}, stage {stage}: {found} alive");
        }
    }
}

#[test]
fn equal_stages_have_the_bubble_of_the_textbook() {
    for (stages, micros) in [(1, 1), (2, 4), (4, 4), (4, 16), (8, 32)] {
        let plain = f64::from(stages - 1) * 3.0;
        let bubble = |schedule, chunks| walked(schedule, PipelineShape { stages, chunks, micros }).bubble();
        assert!((bubble(Gpipe, 1) - plain).abs() < 1e-9);
        assert!((bubble(OneForwardOneBackward, 1) - plain).abs() < 1e-9);
        // Here a chunk costs as much as a whole stage, so the bubble in its time does not shrink.
        if stages > 1 {
            assert!(
                (bubble(Interleaved, 2) - plain).abs() < 1e-9,
                "{stages} × {micros}: {}",
                bubble(Interleaved, 2)
            );
        }
    }
}

/// Qi et al. 2023: weight gradients of as many micro-batches as a stage is ahead fill its bubble.
#[test]
fn gradients_of_weights_fill_the_bubble() {
    for (forward, input, weights) in [(1.0, 1.0, 1.0), (1.0, 1.25, 0.75), (1.0, 2.0, 1.0), (2.0, 2.5, 0.5)] {
        let cost = PassCost { forward, input, weights };
        for (stages, micros) in (1..=8).flat_map(|stages| (1..=20).map(move |micros| (stages, micros))) {
            let shape = PipelineShape { stages, chunks: 1, micros };
            let costs = vec![cost; stages as usize];
            let walked = simulate_pipeline(&passes(ZeroBubble, shape), shape, &costs, 0.0, |_, _, _| {})
                .expect("no stage waits forever");
            let filled = f64::from(stages.min(micros) - 1) * weights;
            let expected = f64::from(stages - 1) * (forward + input) - filled;
            assert!(
                (walked.bubble() - expected).abs() < 1e-9,
                "{shape:?}: {} for {expected}",
                walked.bubble()
            );
        }
    }
}

#[test]
fn one_stage_goes_forward_and_backward_then_reduces_and_updates() {
    use Action::{Backward, Forward, ReduceGradients, UpdateWeights};
    let two = NonZeroU32::MIN.saturating_add(1);
    let pass = |micro| Pass { micro, chunk: 0 };
    let expected = [
        Forward(pass(0)),
        Backward(pass(0)),
        Forward(pass(1)),
        Backward(pass(1)),
        ReduceGradients,
        UpdateWeights,
    ];
    assert_eq!(steps(&Arrangement::SINGLE, two), [expected.to_vec()]);
}

#[test]
fn ends_that_count_as_blocks_make_their_stages_shorter() {
    use dtrain_protocol::{Arrangement, EmbeddingHeadCost, Layout};
    use std::num::NonZeroU32;
    let of = |stages: u32, chunks: u32, ends: EmbeddingHeadCost| -> Vec<Vec<u32>> {
        let pipeline = NonZeroU32::new(stages).expect("stages start at one");
        let layout = Layout { pipeline, ..Layout::SINGLE };
        let arrangement = Arrangement { layout, chunks, ends, ..Arrangement::SINGLE };
        let runs = |stage| super::chunks_of(stage, &arrangement, 126).map(|run| run.len() as u32).collect();
        (0..stages).map(runs).collect()
    };
    let both = EmbeddingHeadCost { embedding: 1, head: 1 };
    // Llama 3.1 405B: 126 layers on 16 stages, with one layer less in the first and the last (arXiv
    // 2407.21783, 3.3.2).
    let llama: Vec<u32> = of(16, 1, both).into_iter().map(|runs| runs.iter().sum()).collect();
    assert_eq!(llama, [[7].as_slice(), &[8; 14], &[7]].concat());
    let interleaved = of(16, 8, both);
    assert_eq!(
        (&interleaved[0][..], &interleaved[15][..]),
        (&[0, 1, 1, 1, 1, 1, 1, 1][..], &[1, 1, 1, 1, 1, 1, 1, 0][..])
    );
    assert_eq!(interleaved[7], [1; 8]);
    assert_eq!(of(2, 1, EmbeddingHeadCost { embedding: 0, head: 4 }), [[65], [61]]);
    assert_eq!(of(4, 1, EmbeddingHeadCost::FREE).concat().iter().sum::<u32>(), 126);
}
