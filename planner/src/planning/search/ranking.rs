//! The best candidates seen so far, and the best of every value of every axis.

use crate::choice::front::Front;
use crate::layout::candidate::zero_word;
use crate::layout::space::{Place, Space, Way};
use crate::price::judge::{Judge, Verdict};
use dtrain_protocol::{Arrangement, Axis, DeviceKind};
use std::collections::BTreeMap;

/// The best candidates seen so far.
#[derive(Clone, Debug)]
pub struct Ranking {
    keep: usize,
    /// Fastest first; equal times in the order of the space.
    pub best: Vec<(f64, Place)>,
    /// What nothing betters in time, memory and money at once.
    pub front: Front<Place>,
    /// Best of every value of every axis.
    champions: Vec<Option<(f64, Place)>>,
    slots: Slots,
    /// Candidates that were priced.
    pub priced: u64,
    /// Of those, the ones that do not fit.
    pub too_large: u64,
    /// The one that came nearest to fitting: bytes missing, and where.
    pub nearest: Option<(u64, Place)>,
}

/// Which entries of the table of champions a candidate competes for.
#[derive(Clone, Debug)]
struct Slots {
    names: Vec<(&'static str, String)>,
    /// By way.
    ways: Vec<Vec<u32>>,
    /// By way, then by micro-batch.
    micros: Vec<Vec<u32>>,
}

impl Ranking {
    /// An empty ranking of a space, keeping the best `keep`.
    pub fn new(space: &Space, keep: usize) -> Self {
        let slots = Slots::of(space);
        let champions = vec![None; slots.names.len()];
        Self {
            keep,
            best: Vec::new(),
            front: Front::default(),
            champions,
            slots,
            priced: 0,
            too_large: 0,
            nearest: None,
        }
    }

    /// Takes note of a verdict.
    pub fn note(&mut self, place: Place, verdict: Verdict) {
        self.priced += 1;
        match verdict {
            Verdict::Fits(cost) => {
                self.front.note(cost, place);
                self.place(place, cost.step_seconds);
            }
            Verdict::TooMuch(missing) => {
                self.too_large += 1;
                if self.nearest.is_none_or(|nearest| (missing.0, place) < nearest) {
                    self.nearest = Some((missing.0, place));
                }
            }
        }
    }

    fn place(&mut self, place: Place, seconds: f64) {
        let entry = (seconds, place);
        if self.best.len() < self.keep || self.best.last().is_some_and(|last| before(&entry, last)) {
            let at = self.best.partition_point(|other| before(other, &entry));
            if self.best.get(at) != Some(&entry) {
                self.best.insert(at, entry);
                self.best.truncate(self.keep);
            }
        }
        let micro = self.slots.micros[place.way as usize][place.micro as usize];
        for slot in self.slots.ways[place.way as usize].iter().chain([&micro]) {
            let champion = &mut self.champions[*slot as usize];
            if champion.as_ref().is_none_or(|other| before(&entry, other)) {
                *champion = Some(entry);
            }
        }
    }

    /// The best of every value of every axis: axis, value, place.
    pub fn champions(&self) -> impl Iterator<Item = (&'static str, &str, Place)> {
        let named = self.slots.names.iter().zip(&self.champions);
        named
            .filter_map(|((axis, value), champion)| champion.map(|(_, place)| (*axis, value.as_str(), place)))
    }

    /// The values of a place along every axis: axis, value.
    pub fn values(&self, place: Place) -> impl Iterator<Item = (&'static str, &str)> {
        let micro = self.slots.micros[place.way as usize][place.micro as usize];
        let slots = self.slots.ways[place.way as usize].iter().copied().chain([micro]);
        slots.map(|slot| &self.slots.names[slot as usize]).map(|(axis, value)| (*axis, value.as_str()))
    }

    /// Puts in order again by exact times, where the search used a closed form.
    pub fn refine(&mut self, judge: &Judge<'_>) {
        let mut front = Front::default();
        for point in std::mem::take(&mut self.front).into_points() {
            front.note(judge.cost(point.what), point.what);
        }
        self.front = front;
        for (seconds, place) in &mut self.best {
            *seconds = judge.time(*place).total();
        }
        self.best.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
    }
}

/// A total order: by time, then by place, so that the order of evaluation changes nothing.
fn before(a: &(f64, Place), b: &(f64, Place)) -> bool {
    a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)).is_lt()
}

impl Slots {
    fn of(space: &Space) -> Self {
        let mut index = BTreeMap::new();
        let mut names = Vec::new();
        let mut slot = |axis: usize, code: u64, name: &dyn Fn() -> (&'static str, String)| {
            *index.entry((axis, code)).or_insert_with(|| {
                names.push(name());
                u32::try_from(names.len() - 1).expect("values are few")
            })
        };
        let mut ways = Vec::with_capacity(space.ways.len());
        let mut micros = Vec::with_capacity(space.ways.len());
        for way in &space.ways {
            let codes = codes(space, way).into_iter().enumerate();
            let name = |axis: usize| values(space, way)[axis].clone();
            ways.push(codes.map(|(axis, code)| slot(axis, code, &|| name(axis))).collect());
            let all = space.micros(way).iter();
            let name = |micro: u32| ("micro-batch", micro.to_string());
            micros.push(all.map(|m| slot(AXES, m.get().into(), &|| name(m.get()))).collect());
        }
        Self { names, ways, micros }
    }
}

/// Values of a way, see [`values`].
const AXES: usize = 12;

/// What tells the values of a way along every axis from others, in the order of [`values`] and sooner than their words.
fn codes(space: &Space, way: &Way) -> [u64; AXES] {
    let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
    let pool = space.pools[way.pool as usize];
    let threads = if pool.device == DeviceKind::Cpu { pool.threads } else { 0 };
    let a = way.arrangement;
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

/// The values of a way along every axis, in words.
fn values(space: &Space, way: &Way) -> [(&'static str, String); AXES] {
    let pool = space.pools[way.pool as usize];
    let (ranks, threads) = (pool.ranks, pool.threads);
    let s = |n: u32| if n == 1 { "" } else { "s" };
    let together = match pool.device {
        DeviceKind::Cpu => format!("{ranks} rank{} × {threads} thread{}", s(ranks), s(threads)),
        DeviceKind::Cuda | DeviceKind::Wgpu => format!("{ranks} GPU{}", s(ranks)),
    };
    let Arrangement { zero, shard, sequence, recompute, recompute_every, schedule, chunks, .. } =
        way.arrangement;
    let recompute = match recompute_every {
        1 => recompute.name().to_string(),
        every => format!("{} of one block in {every}", recompute.name()),
    };
    let schedule = match chunks {
        1 => schedule.name().to_string(),
        chunks => format!("{} over {chunks} chunks", schedule.name()),
    };
    let [tensor, context, expert, data, pipeline] =
        Axis::ALL.map(|axis| (axis.word(), way.arrangement.layout.degree(axis).to_string()));
    [
        ("ranks", together),
        ("zero", zero_word(zero).to_string()),
        ("shard", shard.to_string()),
        ("recompute", recompute),
        ("schedule", schedule),
        ("sequence", if sequence { "parallel" } else { "whole" }.to_string()),
        ("precision", way.arrangement.precision.name().to_string()),
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
    use crate::layout::space::Abilities;
    use crate::sample;
    use std::num::NonZeroU64;

    #[test]
    fn codes_tell_apart_what_words_tell_apart() {
        let batch = NonZeroU64::new(48).expect("positive");
        let abilities = Abilities { worker: |_, _| None, engine: None };
        let space = Space::of(&sample::recipe(), &sample::host(8), None, batch, &abilities);
        let (mut words, mut codes_of) = (BTreeMap::new(), BTreeMap::new());
        for way in &space.ways {
            for (axis, (code, (_, word))) in
                codes(&space, way).into_iter().zip(values(&space, way)).enumerate()
            {
                assert_eq!(*words.entry((axis, code)).or_insert(word.clone()), word, "axis {axis}");
                assert_eq!(*codes_of.entry((axis, word)).or_insert(code), code, "axis {axis}");
            }
        }
        assert!(words.len() > 2 * AXES, "{words:?}");
    }
}
