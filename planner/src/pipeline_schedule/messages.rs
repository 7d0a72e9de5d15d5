//! Places the sends and receives of pipeline stages between the passes of a schedule.
//!
//! A simulation with nominal durations orders all passes and messages of a step in time; every stage executes
//! its own in that order. So the earliest action that is not done can always proceed, even over links without
//! buffers, and there is no deadlock.

use super::PipelineShape;
use crate::pipeline_schedule::simulate::{StageAction, hop};
use dtrain_protocol::{Action, Neighbor, Pass};
use std::collections::BTreeMap;

/// Returns the nominal duration of an action in ticks: a backward pass takes twice as long as a forward pass,
/// mostly for the input gradient.
///
/// A message that comes earlier than simulated costs nothing; for a later one its stage idles while weight
/// gradients could be computed. So a pass that others wait for is nominally a little longer.
fn ticks(action: Action) -> u64 {
    match action {
        Action::Forward(_) => 8,
        Action::BackwardInput(_) => 9,
        Action::BackwardWeights(_) => 7,
        Action::Backward(_) => 16,
        Action::Exchange { .. } | Action::ReduceGradients | Action::UpdateWeights => 0,
    }
}

/// Sort key of an event in the schedule: tick, messages before the passes of that tick, then those of one
/// link together.
type EventOrder = (u64, bool, u32, u32);

/// One end of a message between two pipeline stages: the send or the receive.
#[derive(Clone, Copy)]
struct MessageEnd {
    with: Neighbor,
    pass: Pass,
    is_send: bool,
}

/// Returns the actions of every stage: the passes of its list in `orders`, with sends and receives between
/// them.
pub(super) fn connect(orders: &[Vec<Action>], shape: PipelineShape) -> Vec<Vec<Action>> {
    let mut passes: Vec<Vec<(EventOrder, Action)>> = vec![Vec::new(); orders.len()];
    let mut ends: Vec<Vec<(EventOrder, MessageEnd)>> = vec![Vec::new(); orders.len()];
    let mut arrived: BTreeMap<(u32, Neighbor, Pass), u64> = BTreeMap::new();
    let mut clocks = vec![0; orders.len()];
    let mut sent = 0;
    let mut moved = true;
    while std::mem::take(&mut moved) {
        for stage in 0..shape.stages {
            let at = stage as usize;
            while let Some(action) = orders[at].get(passes[at].len()) {
                let place = StageAction { stage, action: *action };
                let input = place.reads(shape).map(|(with, pass)| arrived.get(&(stage, with, pass)));
                let begin = match input {
                    Some(None) => break,
                    Some(Some(tick)) => clocks[at].max(*tick),
                    None => clocks[at],
                };
                let end = begin + ticks(*action);
                passes[at].push(((begin, true, 0, 0), *action));
                clocks[at] = end;
                moved = true;
                if let Some((with, pass)) = place.sends(shape) {
                    let (other, back, theirs) = hop(shape, stage, with, pass);
                    // Links are numbered by the stage before them.
                    let link = if with == Neighbor::Next { stage } else { other };
                    let moment = (end, false, link, sent);
                    sent += 1;
                    ends[at].push((moment, MessageEnd { with, pass, is_send: true }));
                    ends[other as usize]
                        .push((moment, MessageEnd { with: back, pass: theirs, is_send: false }));
                    arrived.insert((other, back, theirs), end);
                }
            }
        }
    }
    let is_done = passes.iter().zip(orders).all(|(passes, order)| passes.len() == order.len());
    assert!(is_done, "every pass of {shape:?} finds its input");
    passes.into_iter().zip(ends).map(|(passes, ends)| merge(passes, ends)).collect()
}

/// Merges the passes and messages of one stage in order of time; an adjacent send and receive become one
/// exchange.
fn merge(passes: Vec<(EventOrder, Action)>, mut ends: Vec<(EventOrder, MessageEnd)>) -> Vec<Action> {
    ends.sort_by_key(|(moment, _)| *moment);
    let messages = ends.into_iter().map(|(moment, end)| {
        let half = |is_send| (end.is_send == is_send).then_some(end.pass);
        (moment, Action::Exchange { with: end.with, send: half(true), recv: half(false) })
    });
    let mut all: Vec<_> = passes.into_iter().chain(messages).collect();
    // A stable sort: passes of one stage never start at the same tick.
    all.sort_by_key(|(moment, _)| *moment);
    let mut actions: Vec<Action> = Vec::with_capacity(all.len());
    for (_, action) in all {
        match (actions.last_mut(), action) {
            (
                Some(Action::Exchange { with, send, recv: empty @ None }),
                Action::Exchange { with: same, send: None, recv },
            ) if *with == same && send.is_some() => *empty = recv,
            (
                Some(Action::Exchange { with, send: empty @ None, recv }),
                Action::Exchange { with: same, send, recv: None },
            ) if *with == same && recv.is_some() => *empty = send,
            _ => actions.push(action),
        }
    }
    actions
}
