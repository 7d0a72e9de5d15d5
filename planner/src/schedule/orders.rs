//! In which order a stage does its passes.

use super::Shape;
use dtrain_protocol::{Action, Pass};
use std::collections::VecDeque;

/// All forwards before all backwards: every micro-batch is alive at once. The same for every stage.
pub(super) fn all_forward_all_backward(shape: Shape) -> Vec<Action> {
    let (forwards, backwards) = rounds(shape);
    forwards.map(Action::Forward).chain(backwards.map(Action::Backward)).collect()
}

/// After as many forwards as it takes for the first gradient to come back, one forward and one backward in turn.
///
/// With one chunk at most `stages - stage` micro-batches are alive at once; with several the first gradient takes a
/// way through all chunks, so more are.
pub(super) fn one_forward_one_backward(stage: u32, shape: Shape) -> Vec<Action> {
    let Shape { stages, chunks, micros } = shape;
    assert!(stage < stages, "stage {stage} is outside a pipeline of {stages}");
    let ahead = stages - stage - 1;
    let warmup = if chunks == 1 { ahead } else { 2 * ahead + (chunks - 1) * stages };
    let warmup = warmup.min(micros * chunks) as usize;
    let (mut forwards, mut backwards) = rounds(shape);
    let mut order: Vec<_> = forwards.by_ref().take(warmup).map(Action::Forward).collect();
    for forward in forwards {
        order.push(Action::Forward(forward));
        order.extend(backwards.next().map(Action::Backward));
    }
    order.extend(backwards.map(Action::Backward));
    order
}

/// The passes forward and backward: in rounds of `stages` micro-batches, each round through one chunk after the other.
fn rounds(shape: Shape) -> (impl Iterator<Item = Pass>, impl Iterator<Item = Pass>) {
    let Shape { stages, chunks, micros } = shape;
    // With one chunk the rounds make no difference.
    let rounds =
        move || (0..micros).step_by(stages as usize).map(move |first| first..micros.min(first + stages));
    let of = |round: std::ops::Range<u32>, chunk| round.map(move |micro| Pass { micro, chunk });
    let forwards =
        rounds().flat_map(move |round| (0..chunks).flat_map(move |chunk| of(round.clone(), chunk)));
    let backwards =
        rounds().flat_map(move |round| (0..chunks).rev().flat_map(move |chunk| of(round.clone(), chunk)));
    (forwards, backwards)
}

/// ZB-H1: as one forward, one backward, but gradients of weights wait until there is nothing more urgent.
///
/// Every stage takes the first that it can: a gradient for the stage before, a forward, gradients of weights. At most
/// `stages` micro-batches are alive at once, as on the first stage of one forward, one backward. One chunk a stage.
pub(super) fn zero_bubble(shape: Shape) -> Vec<Vec<Action>> {
    assert_eq!(shape.chunks, 1, "gradients of weights fill the bubble of stages with one chunk");
    let last = shape.stages as usize - 1;
    let mut stages: Vec<Stage> = (0..=last).map(|_| Stage::default()).collect();
    for micro in 0..shape.micros {
        stages[0].forwards.push_back((0, micro));
    }
    // All three passes take one tick. Whoever is earliest acts; of several the first stage.
    while let Some(at) =
        (0..=last).filter(|s| stages[*s].is_busy()).min_by_key(|s| stages[*s].next(shape.stages))
    {
        let (clock, action) = stages[at].act(shape.stages);
        match action {
            Action::Forward(pass) if at < last => stages[at + 1].forwards.push_back((clock, pass.micro)),
            Action::Forward(pass) => stages[at].backwards.push_back((clock, pass.micro)),
            Action::BackwardInput(pass) if at > 0 => stages[at - 1].backwards.push_back((clock, pass.micro)),
            _ => {}
        }
    }
    stages.into_iter().map(|stage| stage.order).collect()
}

/// A stage while its order is found.
#[derive(Default)]
struct Stage {
    clock: u32,
    /// When the input is there, and the micro-batch.
    forwards: VecDeque<(u32, u32)>,
    /// When the gradient is there, and the micro-batch.
    backwards: VecDeque<(u32, u32)>,
    weights: VecDeque<u32>,
    alive: u32,
    order: Vec<Action>,
}

impl Stage {
    /// Whether it could do something, now or later.
    fn is_busy(&self) -> bool {
        !(self.forwards.is_empty() && self.backwards.is_empty() && self.weights.is_empty())
    }

    /// The tick at which it can act next; never, when it waits for memory that only others can free.
    fn next(&self, most: u32) -> u32 {
        if !self.weights.is_empty() {
            return self.clock;
        }
        let forward = self.forwards.front().filter(|_| self.alive < most).map(|(tick, _)| *tick);
        let backward = self.backwards.front().map(|(tick, _)| *tick);
        let first = forward.into_iter().chain(backward).min();
        first.map_or(u32::MAX, |tick| tick.max(self.clock))
    }

    /// Does the most urgent thing at [`Stage::next`]; returns when it is done.
    fn act(&mut self, most: u32) -> (u32, Action) {
        let now = self.next(most);
        assert!(now < u32::MAX, "somebody can always act");
        let is_there = |queue: &VecDeque<(u32, u32)>| queue.front().is_some_and(|(tick, _)| *tick <= now);
        let pass = |micro| Pass { micro, chunk: 0 };
        let action = if is_there(&self.backwards) {
            let micro = self.backwards.pop_front().expect("it is there").1;
            self.weights.push_back(micro);
            Action::BackwardInput(pass(micro))
        } else if self.alive < most && is_there(&self.forwards) {
            self.alive += 1;
            Action::Forward(pass(self.forwards.pop_front().expect("it is there").1))
        } else {
            self.alive -= 1;
            Action::BackwardWeights(pass(self.weights.pop_front().expect("there is nothing else")))
        };
        self.clock = now + 1;
        self.order.push(action);
        (self.clock, action)
    }
}
