//! Ranking of candidates: the best ones found so far, and the best one of every value of every axis.

use crate::choice::pareto_front::ParetoFront;
use crate::layout::candidate::zero_name;
use crate::layout::space::{CandidateId, CandidateSpace, LayoutOption};
use crate::price::cost_model::{CostModel, Feasibility};
use dtrain_protocol::{Arrangement, Axis, DeviceKind};
use std::collections::BTreeMap;

/// The best candidates that a search has found so far.
#[derive(Clone, Debug)]
pub struct Ranking {
    keep: usize,
    /// Step seconds and ids of the best candidates, fastest first; equal times in the order of the space.
    pub best: Vec<(f64, CandidateId)>,
    /// Pareto front over time, memory and cost of the candidates priced so far.
    pub front: ParetoFront<CandidateId>,
    /// Step seconds and id of the best candidate for each value of each axis; `None` while no candidate with
    /// it fits.
    best_per_axis: Vec<Option<(f64, CandidateId)>>,
    slots: AxisSlots,
    /// Number of candidates priced so far.
    pub priced: u64,
    /// Number of priced candidates that do not fit in memory.
    pub too_large: u64,
    /// Missing bytes and id of the candidate that came nearest to fitting; `None` while all candidates fit.
    pub nearest: Option<(u64, CandidateId)>,
}

/// The entries of the best-per-axis table in which each candidate competes.
#[derive(Clone, Debug)]
struct AxisSlots {
    names: Vec<(&'static str, String)>,
    /// Table entries of each layout option, one for each axis.
    options: Vec<Vec<u32>>,
    /// Table entry of each micro-batch size, by layout option.
    micros: Vec<Vec<u32>>,
}

impl Ranking {
    /// Creates an empty ranking of the candidates in a space, keeping the best `keep`.
    pub fn new(space: &CandidateSpace, keep: usize) -> Self {
        let slots = AxisSlots::of(space);
        let best_per_axis = vec![None; slots.names.len()];
        Self {
            keep,
            best: Vec::new(),
            front: ParetoFront::default(),
            best_per_axis,
            slots,
            priced: 0,
            too_large: 0,
            nearest: None,
        }
    }

    /// Records a candidate with its cost, or with the memory that it lacks.
    pub fn record(&mut self, id: CandidateId, verdict: Feasibility) {
        self.priced += 1;
        match verdict {
            Feasibility::Fits(cost) => {
                self.front.insert(cost, id);
                self.insert(id, cost.step_seconds);
            }
            Feasibility::TooMuch(missing) => {
                self.too_large += 1;
                if self.nearest.is_none_or(|nearest| (missing.0, id) < nearest) {
                    self.nearest = Some((missing.0, id));
                }
            }
        }
    }

    fn insert(&mut self, id: CandidateId, seconds: f64) {
        let entry = (seconds, id);
        if self.best.len() < self.keep || self.best.last().is_some_and(|last| before(&entry, last)) {
            let at = self.best.partition_point(|other| before(other, &entry));
            if self.best.get(at) != Some(&entry) {
                self.best.insert(at, entry);
                self.best.truncate(self.keep);
            }
        }
        let micro = self.slots.micros[id.option as usize][id.micro as usize];
        for slot in self.slots.options[id.option as usize].iter().chain([&micro]) {
            let champion = &mut self.best_per_axis[*slot as usize];
            if champion.as_ref().is_none_or(|other| before(&entry, other)) {
                *champion = Some(entry);
            }
        }
    }

    /// Returns the best candidate of every value of every axis, as (axis, value, candidate).
    pub fn best_per_axis(&self) -> impl Iterator<Item = (&'static str, &str, CandidateId)> {
        let named = self.slots.names.iter().zip(&self.best_per_axis);
        named.filter_map(|((axis, value), champion)| champion.map(|(_, id)| (*axis, value.as_str(), id)))
    }

    /// Returns the values of a candidate along every axis, as (axis, value).
    pub fn values(&self, id: CandidateId) -> impl Iterator<Item = (&'static str, &str)> {
        let micro = self.slots.micros[id.option as usize][id.micro as usize];
        let slots = self.slots.options[id.option as usize].iter().copied().chain([micro]);
        slots.map(|slot| &self.slots.names[slot as usize]).map(|(axis, value)| (*axis, value.as_str()))
    }

    /// Replaces the times of a search in closed form by simulated ones, and sorts the candidates again.
    pub fn refine(&mut self, cost_model: &CostModel<'_>) {
        let mut front = ParetoFront::default();
        for point in std::mem::take(&mut self.front).into_points() {
            front.insert(cost_model.cost(point.what), point.what);
        }
        self.front = front;
        for (seconds, id) in &mut self.best {
            *seconds = cost_model.time(*id).total();
        }
        self.best.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
    }
}

/// Returns `true` if `a` ranks before `b`: by time, then by id, so that the order of evaluation changes
/// nothing.
fn before(a: &(f64, CandidateId), b: &(f64, CandidateId)) -> bool {
    a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)).is_lt()
}

impl AxisSlots {
    fn of(space: &CandidateSpace) -> Self {
        let mut index = BTreeMap::new();
        let mut names = Vec::new();
        let mut slot = |axis: usize, code: u64, name: &dyn Fn() -> (&'static str, String)| {
            *index.entry((axis, code)).or_insert_with(|| {
                names.push(name());
                u32::try_from(names.len() - 1).expect("values are few")
            })
        };
        let mut options = Vec::with_capacity(space.options.len());
        let mut micros = Vec::with_capacity(space.options.len());
        for option in &space.options {
            let codes = codes(space, option).into_iter().enumerate();
            let name = |axis: usize| values(space, option)[axis].clone();
            options.push(codes.map(|(axis, code)| slot(axis, code, &|| name(axis))).collect());
            let all = space.micros(option).iter();
            let name = |micro: u32| ("micro-batch", micro.to_string());
            micros.push(all.map(|m| slot(AXES, m.get().into(), &|| name(m.get()))).collect());
        }
        Self { names, options, micros }
    }
}

/// Number of axes of a layout option, see [`values`].
const AXES: usize = 12;

/// Returns integer codes for the values of a layout option along every axis, in the order of [`values`]; they
/// are cheaper to compare than words.
fn codes(space: &CandidateSpace, option: &LayoutOption) -> [u64; AXES] {
    let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
    let pool = space.pools[option.pool as usize];
    let threads = if pool.device == DeviceKind::Cpu { pool.threads } else { 0 };
    let a = option.arrangement;
    let [tensor, context, expert, data, pipeline] = Axis::ALL.map(|axis| u64::from(a.layout.degree(axis)));
    [
        pair(pool.ranks, threads),
        a.zero as u64,
        a.shard.into(),
        pair(a.recompute as u32, a.recompute_every),
        pair(a.schedule as u32, a.chunks),
        a.sequence.into(),
        a.precision as u64,
        tensor,
        context,
        expert,
        data,
        pipeline,
    ]
}

/// Returns the name of each axis, with the value of a layout option on it in words.
fn values(space: &CandidateSpace, option: &LayoutOption) -> [(&'static str, String); AXES] {
    let pool = space.pools[option.pool as usize];
    let (ranks, threads) = (pool.ranks, pool.threads);
    let s = |n: u32| if n == 1 { "" } else { "s" };
    let together = match pool.device {
        DeviceKind::Cpu => format!("{ranks} rank{} × {threads} thread{}", s(ranks), s(threads)),
        DeviceKind::Cuda | DeviceKind::Wgpu => format!("{ranks} GPU{}", s(ranks)),
    };
    let Arrangement { zero, shard, sequence, recompute, recompute_every, schedule, chunks, .. } =
        option.arrangement;
    let recompute = match recompute_every {
        1 => recompute.name().to_string(),
        every => format!("{} of one block in {every}", recompute.name()),
    };
    let schedule = match chunks {
        1 => schedule.name().to_string(),
        chunks => format!("{} over {chunks} chunks", schedule.name()),
    };
    let [tensor, context, expert, data, pipeline] =
        Axis::ALL.map(|axis| (axis.word(), option.arrangement.layout.degree(axis).to_string()));
    [
        ("ranks", together),
        ("zero", zero_name(zero).to_string()),
        ("shard", shard.to_string()),
        ("recompute", recompute),
        ("schedule", schedule),
        ("sequence", if sequence { "parallel" } else { "whole" }.to_string()),
        ("precision", option.arrangement.precision.name().to_string()),
        tensor,
        context,
        expert,
        data,
        pipeline,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use crate::layout::space::Capabilities;
    use std::num::NonZeroU64;

    #[test]
    fn codes_tell_apart_what_words_tell_apart() {
        let batch = NonZeroU64::new(48).expect("positive");
        let abilities = Capabilities { worker: |_, _| None, engine: None, is_run: false };
        let space = CandidateSpace::of(&fixtures::recipe(), &fixtures::host(8), None, batch, &abilities);
        let (mut words, mut codes_of) = (BTreeMap::new(), BTreeMap::new());
        for option in &space.options {
            for (axis, (code, (_, word))) in
                codes(&space, option).into_iter().zip(values(&space, option)).enumerate()
            {
                assert_eq!(*words.entry((axis, code)).or_insert(word.clone()), word, "axis {axis}");
                assert_eq!(*codes_of.entry((axis, word)).or_insert(code), code, "axis {axis}");
            }
        }
        assert!(words.len() > 2 * AXES, "{words:?}");
    }
}
