//! Puts the messages between the passes.
//!
//! All passes and messages of a step get one order in time, from a rehearsal with nominal durations; every stage
//! does its own in that order. So the earliest thing that is not done can always be done, even over links that hold no
//! message, and no stage ever waits forever.

use super::PipelineShape;
use crate::step::simulate::{StageAction, hop};
use dtrain_protocol::{Action, Neighbor, Pass};
use std::collections::BTreeMap;

/// Ticks of the passes: backward takes twice as long as forward, and more of it for the gradient of the input.
///
/// A message that comes earlier than here costs nothing; for one that comes later its stage stands still, with
/// gradients of weights at hand. So what others wait for is taken for a little longer than it may be.
fn ticks(action: Action) -> u64 {
    match action {
        Action::Forward(_) => 8,
        Action::BackwardInput(_) => 9,
        Action::BackwardWeights(_) => 7,
        Action::Backward(_) => 16,
        Action::Exchange { .. } | Action::ReduceGradients | Action::UpdateWeights => 0,
    }
}

/// When something happens: messages before the passes that begin at the same tick, those of one link side by side.
type EventOrder = (u64, bool, u32, u32);

/// One end of a message.
#[derive(Clone, Copy)]
struct MessageEnd {
    with: Neighbor,
    pass: Pass,
    is_send: bool,
}

/// The actions of every stage: its `orders` with the messages between them.
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

/// Passes and messages of one stage in their order; a send and a receive side by side become one exchange.
fn merge(passes: Vec<(EventOrder, Action)>, mut ends: Vec<(EventOrder, MessageEnd)>) -> Vec<Action> {
    ends.sort_by_key(|(moment, _)| *moment);
    let messages = ends.into_iter().map(|(moment, end)| {
        let half = |is_send| (end.is_send == is_send).then_some(end.pass);
        (moment, Action::Exchange { with: end.with, send: half(true), recv: half(false) })
    });
    let mut all: Vec<_> = passes.into_iter().chain(messages).collect();
    // Stable: passes of one stage never begin at the same tick.
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
