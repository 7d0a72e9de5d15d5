//! The best candidates seen so far, and the best of every value of every axis.

use crate::candidate::{precision_word, recompute_word, schedule_word, zero_word};
use crate::judge::{Judge, Verdict};
use crate::space::{Place, Space, Way};
use dtrain_protocol::{Arrangement, Axis, DeviceKind};
use std::collections::BTreeMap;

/// The best candidates seen so far.
#[derive(Clone, Debug)]
pub struct Ranking {
    keep: usize,
    /// Fastest first; equal times in the order of the space.
    pub best: Vec<(f64, Place)>,
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
        Self { keep, best: Vec::new(), champions, slots, priced: 0, too_large: 0, nearest: None }
    }

    /// Takes note of a verdict.
    pub fn note(&mut self, place: Place, verdict: Verdict) {
        self.priced += 1;
        match verdict {
            Verdict::Fits(seconds) => self.place(place, seconds),
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

    /// Sorts again by exact times, where the search used a closed form.
    pub fn refine(&mut self, judge: &Judge<'_>) {
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
        let mut slot = |axis: &'static str, value: String| {
            *index.entry((axis, value.clone())).or_insert_with(|| {
                names.push((axis, value));
                u32::try_from(names.len() - 1).expect("values are few")
            })
        };
        let mut ways = Vec::with_capacity(space.ways.len());
        let mut micros = Vec::with_capacity(space.ways.len());
        for way in &space.ways {
            ways.push(values(space, way).into_iter().map(|(axis, value)| slot(axis, value)).collect());
            let all = space.micros(way).iter();
            micros.push(all.map(|micro| slot("micro-batch", micro.to_string())).collect());
        }
        Self { names, ways, micros }
    }
}

/// The values of a way along every axis, in words.
fn values(space: &Space, way: &Way) -> Vec<(&'static str, String)> {
    let pool = space.pools[way.pool as usize];
    let (ranks, threads) = (pool.ranks, pool.threads);
    let s = |n: u32| if n == 1 { "" } else { "s" };
    let together = match pool.device {
        DeviceKind::Cpu => format!("{ranks} rank{} × {threads} thread{}", s(ranks), s(threads)),
        DeviceKind::Cuda => format!("{ranks} GPU{}", s(ranks)),
    };
    let Arrangement { zero, shard, sequence, recompute, recompute_every, schedule, chunks, .. } =
        way.arrangement;
    let recompute = match recompute_every {
        1 => recompute_word(recompute).to_string(),
        every => format!("{} of one block in {every}", recompute_word(recompute)),
    };
    let schedule = match chunks {
        1 => schedule_word(schedule).to_string(),
        chunks => format!("{} over {chunks} chunks", schedule_word(schedule)),
    };
    let mut values = vec![
        ("ranks", together),
        ("zero", zero_word(zero).to_string()),
        ("shard", shard.to_string()),
        ("recompute", recompute),
        ("schedule", schedule),
        ("sequence", if sequence { "parallel" } else { "whole" }.to_string()),
        ("precision", precision_word(way.arrangement.precision).to_string()),
    ];
    for axis in Axis::ALL {
        values.push((axis.word(), way.arrangement.layout.degree(axis).to_string()));
    }
    values
}
