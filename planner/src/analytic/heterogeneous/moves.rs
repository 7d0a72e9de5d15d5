//! Moves of simulated annealing: small changes that turn one layout into a neighboring one.

use super::grouped_layout::{GroupStages, GroupedLayout};
use super::space::{GroupedProblem, SharedDegree};
use dtrain_recipes::{Recompute, ZeroStage};

/// A small change that turns a layout into a neighboring one.
#[derive(Clone, Copy, Debug)]
pub(super) enum LayoutMove {
    /// Raises a degree to its next value; the number of stages shrinks as each takes more devices.
    Up(SharedDegree),
    /// Lowers a degree to its previous value; the number of stages grows as each takes fewer devices.
    Down(SharedDegree),
    /// Lowers a degree and keeps the number of stages, which leaves devices idle.
    Narrow(SharedDegree),
    /// Raises the first degree and lowers the second.
    Trade(SharedDegree, SharedDegree),
    /// Toggles sequence parallelism.
    Sequence,
    /// Sets the recompute mode.
    Recompute((Recompute, u32)),
    /// Sets the ZeRO stage of the replicas.
    Zero(ZeroStage),
    /// Switches to the next pipeline schedule.
    Order,
    /// Switches to the previous pipeline schedule.
    OrderBack,
    /// Adds a stage to a group; a group without stages comes after all others.
    More(usize),
    /// Removes a stage from a group.
    Fewer(usize),
    /// Gives a group as many stages as it has devices for.
    Fill(usize),
    /// Removes all stages of a group.
    Leave(usize),
    /// Moves a stage from the first group to the second.
    Shift(usize, usize),
    /// Halves the stages of every group.
    Halve,
    /// Doubles the stages of every group.
    Double,
    /// Swaps the run of stages at the given index with the next run.
    Swap(usize),
}

impl GroupedProblem {
    /// Returns all moves of the problem, including those that do not apply to every layout.
    pub(super) fn moves(&self) -> Vec<LayoutMove> {
        const DEGREES: [SharedDegree; 5] = [
            SharedDegree::Tensor,
            SharedDegree::Context,
            SharedDegree::Data,
            SharedDegree::Expert,
            SharedDegree::Micro,
        ];
        let mut moves = vec![
            LayoutMove::Sequence,
            LayoutMove::Order,
            LayoutMove::OrderBack,
            LayoutMove::Halve,
            LayoutMove::Double,
        ];
        moves.extend(DEGREES.map(LayoutMove::Up));
        moves.extend(DEGREES.map(LayoutMove::Down));
        moves.extend(DEGREES[..3].iter().map(|degree| LayoutMove::Narrow(*degree)));
        for up in DEGREES {
            moves.extend(
                DEGREES.into_iter().filter(|down| *down != up).map(|down| LayoutMove::Trade(up, down)),
            );
        }
        moves.extend(self.modes().into_iter().map(LayoutMove::Recompute));
        moves.extend(self.first().zeros().into_iter().map(LayoutMove::Zero));
        for group in 0..self.problems().len() {
            moves.extend([
                LayoutMove::More(group),
                LayoutMove::Fewer(group),
                LayoutMove::Fill(group),
                LayoutMove::Leave(group),
            ]);
            let others = (0..self.problems().len()).filter(|other| *other != group);
            moves.extend(others.map(|other| LayoutMove::Shift(group, other)));
        }
        moves.extend((1..self.problems().len()).map(|place| LayoutMove::Swap(place - 1)));
        moves
    }

    /// Applies a move to `layout`; `None` if the result cannot be made a valid layout.
    pub(super) fn apply_move(&self, layout: &GroupedLayout, step: LayoutMove) -> Option<GroupedLayout> {
        let mut next = layout.clone();
        match step {
            LayoutMove::Up(degree) => self.set(&mut next, degree, true)?,
            LayoutMove::Down(degree) | LayoutMove::Narrow(degree) => self.set(&mut next, degree, false)?,
            LayoutMove::Trade(up, down) => {
                self.set(&mut next, down, false)?;
                self.set(&mut next, up, true)?;
            }
            LayoutMove::Sequence => next.is_sequence_parallel = !next.is_sequence_parallel,
            LayoutMove::Recompute(recompute) => next.recompute = recompute,
            LayoutMove::Zero(zero) => next.zero = zero,
            LayoutMove::Order => self.order(&mut next, 1),
            LayoutMove::OrderBack => self.order(&mut next, self.schedules(layout).len() - 1),
            LayoutMove::More(group) => stages(&mut next.runs, group, |stages| stages + 1),
            LayoutMove::Fewer(group) => stages(&mut next.runs, group, |stages| stages.saturating_sub(1)),
            LayoutMove::Fill(group) => stages(&mut next.runs, group, |_| self.layers()),
            LayoutMove::Leave(group) => stages(&mut next.runs, group, |_| 0),
            LayoutMove::Shift(from, to) => {
                stages(&mut next.runs, from, |stages| stages.saturating_sub(1));
                stages(&mut next.runs, to, |stages| stages + 1);
            }
            LayoutMove::Halve => next.runs.iter_mut().for_each(|run| run.stages = run.stages.div_ceil(2)),
            LayoutMove::Double => next.runs.iter_mut().for_each(|run| run.stages *= 2),
            LayoutMove::Swap(place) => {
                if place + 1 >= next.runs.len() {
                    return None;
                }
                next.runs.swap(place, place + 1);
            }
        }
        let width = next.width();
        if !matches!(step, LayoutMove::Narrow(_)) {
            rescale(&mut next.runs, layout.width(), width);
        }
        self.nearest_valid(next).filter(|settled| settled != layout)
    }

    /// Raises a degree of `layout` to its next value, or lowers it to the previous one; `None` if there is
    /// none.
    fn set(&self, layout: &mut GroupedLayout, degree: SharedDegree, is_up: bool) -> Option<()> {
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

    /// Replaces the pipeline schedule of `layout` by the one `by` entries further in the list of schedules.
    fn order(&self, layout: &mut GroupedLayout, by: usize) {
        let orders = self.schedules(layout);
        let now = orders.iter().position(|order| *order == (layout.schedule, layout.chunks));
        if let Some(now) = now {
            (layout.schedule, layout.chunks) = orders[(now + by) % orders.len()];
        }
    }

    /// Returns the nearest valid layout, in which all degrees divide and every stage has devices; `None` if
    /// there is none.
    pub(super) fn nearest_valid(&self, mut layout: GroupedLayout) -> Option<GroupedLayout> {
        for degree in [
            SharedDegree::Tensor,
            SharedDegree::Context,
            SharedDegree::Data,
            SharedDegree::Micro,
            SharedDegree::Expert,
        ] {
            let values = self.values(degree, &layout);
            let now = of(&mut layout, degree);
            let below = values.iter().rev().find(|value| **value <= *now);
            *now = *below.or(values.first())?;
        }
        while !self.shares_experts(&layout) {
            self.set(&mut layout, SharedDegree::Expert, false)?;
        }
        let sequences = self.sequences(&layout);
        if !sequences.contains(&layout.is_sequence_parallel) {
            layout.is_sequence_parallel = *sequences.first()?;
        }
        self.clamp_stages(&mut layout)?;
        let orders = self.schedules(&layout);
        if !orders.contains(&(layout.schedule, layout.chunks)) {
            (layout.schedule, layout.chunks) = *orders.first()?;
        }
        Some(layout)
    }

    /// Reduces the stages of `layout` to as many as the groups have devices for and the pipeline may have;
    /// `None` if none are left.
    fn clamp_stages(&self, layout: &mut GroupedLayout) -> Option<()> {
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

fn of(layout: &mut GroupedLayout, degree: SharedDegree) -> &mut u32 {
    match degree {
        SharedDegree::Tensor => &mut layout.tensor,
        SharedDegree::Context => &mut layout.context,
        SharedDegree::Expert => &mut layout.expert,
        SharedDegree::Data => &mut layout.data,
        SharedDegree::Micro => &mut layout.micro,
    }
}

/// Changes the number of stages that a group has in `runs`.
fn stages(runs: &mut Vec<GroupStages>, group: usize, change: impl Fn(u32) -> u32) {
    if !runs.iter().any(|run| run.group == group) {
        runs.push(GroupStages { group, stages: 0 });
    }
    for run in runs.iter_mut().filter(|run| run.group == group) {
        run.stages = change(run.stages);
    }
    runs.retain(|run| run.stages > 0);
}

/// Scales the number of stages in `runs` by `from / to`, so that about as many devices stay busy when a stage
/// takes `to` devices instead of `from`.
fn rescale(runs: &mut [GroupStages], from: u32, to: u32) {
    if from == to {
        return;
    }
    for run in runs {
        let devices = u64::from(run.stages) * u64::from(from);
        let stages = (devices + u64::from(to) / 2) / u64::from(to);
        run.stages = u32::try_from(stages.max(1)).unwrap_or(u32::MAX);
    }
}
