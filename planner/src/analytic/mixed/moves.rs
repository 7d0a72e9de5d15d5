//! Steps from a layout to others near it.

use super::layout::{Layout, Run};
use super::space::{Degree, Mixture};
use dtrain_recipes::{Recompute, ZeroStage};

/// One step in the space of layouts.
#[derive(Clone, Copy, Debug)]
pub(super) enum Move {
    /// The next value of a degree. Stages become fewer as they become wider.
    Up(Degree),
    /// The one before.
    Down(Degree),
    /// The one before, with as many stages as there are: devices become idle.
    Narrow(Degree),
    /// A degree up and another down.
    Trade(Degree, Degree),
    /// Sequences in parts, or not.
    Sequence,
    /// What is computed again.
    Recompute((Recompute, u32)),
    /// What replicas shard.
    Zero(ZeroStage),
    /// The next order of passes.
    Order,
    /// The one before.
    OrderBack,
    /// A stage more on a group; its first stands behind the others.
    More(usize),
    /// A stage less on a group.
    Fewer(usize),
    /// As many stages on a group as it has room for.
    Fill(usize),
    /// No stage on a group.
    Leave(usize),
    /// A stage from a group to another.
    Shift(usize, usize),
    /// Half of the stages of every group.
    Halve,
    /// Twice the stages of every group.
    Double,
    /// A run and the next change places.
    Swap(usize),
}

impl Mixture {
    /// All steps there are, whatever the layout.
    pub(super) fn moves(&self) -> Vec<Move> {
        const DEGREES: [Degree; 5] =
            [Degree::Tensor, Degree::Context, Degree::Data, Degree::Expert, Degree::Micro];
        let mut moves = vec![Move::Sequence, Move::Order, Move::OrderBack, Move::Halve, Move::Double];
        moves.extend(DEGREES.map(Move::Up));
        moves.extend(DEGREES.map(Move::Down));
        moves.extend(DEGREES[..3].iter().map(|degree| Move::Narrow(*degree)));
        for up in DEGREES {
            moves.extend(DEGREES.into_iter().filter(|down| *down != up).map(|down| Move::Trade(up, down)));
        }
        moves.extend(self.modes().into_iter().map(Move::Recompute));
        moves.extend(self.first().zeros().into_iter().map(Move::Zero));
        for group in 0..self.questions().len() {
            moves.extend([Move::More(group), Move::Fewer(group), Move::Fill(group), Move::Leave(group)]);
            let others = (0..self.questions().len()).filter(|other| *other != group);
            moves.extend(others.map(|other| Move::Shift(group, other)));
        }
        moves.extend((1..self.questions().len()).map(|place| Move::Swap(place - 1)));
        moves
    }

    /// The layout that a step leads to; `None` where it leads nowhere.
    pub(super) fn moved(&self, layout: &Layout, step: Move) -> Option<Layout> {
        let mut next = layout.clone();
        match step {
            Move::Up(degree) => self.set(&mut next, degree, true)?,
            Move::Down(degree) | Move::Narrow(degree) => self.set(&mut next, degree, false)?,
            Move::Trade(up, down) => {
                self.set(&mut next, down, false)?;
                self.set(&mut next, up, true)?;
            }
            Move::Sequence => next.is_sequence_parallel = !next.is_sequence_parallel,
            Move::Recompute(recompute) => next.recompute = recompute,
            Move::Zero(zero) => next.zero = zero,
            Move::Order => self.order(&mut next, 1),
            Move::OrderBack => self.order(&mut next, self.schedules(layout).len() - 1),
            Move::More(group) => stages(&mut next.runs, group, |stages| stages + 1),
            Move::Fewer(group) => stages(&mut next.runs, group, |stages| stages.saturating_sub(1)),
            Move::Fill(group) => stages(&mut next.runs, group, |_| self.layers()),
            Move::Leave(group) => stages(&mut next.runs, group, |_| 0),
            Move::Shift(from, to) => {
                stages(&mut next.runs, from, |stages| stages.saturating_sub(1));
                stages(&mut next.runs, to, |stages| stages + 1);
            }
            Move::Halve => next.runs.iter_mut().for_each(|run| run.stages = run.stages.div_ceil(2)),
            Move::Double => next.runs.iter_mut().for_each(|run| run.stages *= 2),
            Move::Swap(place) => {
                if place + 1 >= next.runs.len() {
                    return None;
                }
                next.runs.swap(place, place + 1);
            }
        }
        let width = next.width();
        if !matches!(step, Move::Narrow(_)) {
            rescale(&mut next.runs, layout.width(), width);
        }
        self.settled(next).filter(|settled| settled != layout)
    }

    /// The next value of a degree up or down.
    fn set(&self, layout: &mut Layout, degree: Degree, is_up: bool) -> Option<()> {
        let values = self.values(degree, layout);
        let now = of(layout, degree);
        let next = if is_up {
            values.iter().find(|value| **value > *now)
        } else {
            values.iter().rev().find(|value| **value < *now)
        };
        *now = *next?;
        Some(())
    }

    /// The order of passes that stands `by` places further in their list.
    fn order(&self, layout: &mut Layout, by: usize) {
        let orders = self.schedules(layout);
        let now = orders.iter().position(|order| *order == (layout.schedule, layout.chunks));
        if let Some(now) = now {
            (layout.schedule, layout.chunks) = orders[(now + by) % orders.len()];
        }
    }

    /// A layout with what does not divide or has no room changed to the nearest that does; `None` where there is none.
    pub(super) fn settled(&self, mut layout: Layout) -> Option<Layout> {
        for degree in [Degree::Tensor, Degree::Context, Degree::Data, Degree::Micro, Degree::Expert] {
            let values = self.values(degree, &layout);
            let now = of(&mut layout, degree);
            let below = values.iter().rev().find(|value| **value <= *now);
            *now = *below.or(values.first())?;
        }
        while !self.shares_experts(&layout) {
            self.set(&mut layout, Degree::Expert, false)?;
        }
        let sequences = self.sequences(&layout);
        if !sequences.contains(&layout.is_sequence_parallel) {
            layout.is_sequence_parallel = *sequences.first()?;
        }
        self.settle_runs(&mut layout)?;
        let orders = self.schedules(&layout);
        if !orders.contains(&(layout.schedule, layout.chunks)) {
            (layout.schedule, layout.chunks) = *orders.first()?;
        }
        Some(layout)
    }

    /// Stages that there is room for, and as many in all as there may be.
    fn settle_runs(&self, layout: &mut Layout) -> Option<()> {
        let width = layout.width();
        for run in &mut layout.runs {
            run.stages = run.stages.min(self.room(run.group, width));
        }
        layout.runs.retain(|run| run.stages > 0);
        let most = self.first().pins.pipeline.unwrap_or(u32::MAX).min(self.layers());
        while layout.depth() > most {
            layout.runs.iter_mut().max_by_key(|run| run.stages)?.stages -= 1;
            layout.runs.retain(|run| run.stages > 0);
        }
        while !self.has_depth(layout.depth()) {
            let room = layout.runs.iter_mut().find(|run| run.stages < self.room(run.group, width));
            room?.stages += 1;
        }
        Some(())
    }
}

fn of(layout: &mut Layout, degree: Degree) -> &mut u32 {
    match degree {
        Degree::Tensor => &mut layout.tensor,
        Degree::Context => &mut layout.context,
        Degree::Expert => &mut layout.expert,
        Degree::Data => &mut layout.data,
        Degree::Micro => &mut layout.micro,
    }
}

/// Changes the stages of a group.
fn stages(runs: &mut Vec<Run>, group: usize, change: impl Fn(u32) -> u32) {
    if !runs.iter().any(|run| run.group == group) {
        runs.push(Run { group, stages: 0 });
    }
    for run in runs.iter_mut().filter(|run| run.group == group) {
        run.stages = change(run.stages);
    }
    runs.retain(|run| run.stages > 0);
}

/// Keeps about as many devices at work where stages become wider or narrower.
fn rescale(runs: &mut [Run], from: u32, to: u32) {
    if from == to {
        return;
    }
    for run in runs {
        let devices = u64::from(run.stages) * u64::from(from);
        let stages = (devices + u64::from(to) / 2) / u64::from(to);
        run.stages = u32::try_from(stages.max(1)).unwrap_or(u32::MAX);
    }
}
