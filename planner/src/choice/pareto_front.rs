//! Time, memory and money against each other: what nothing betters in all three at once.
//!
//! It keeps every such point, also those that nobody could tell apart; [`notable_points`] chooses what people are shown.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

/// Most points that are named.
const NAMED: usize = 8;

/// Least difference of time or money that is worth naming, relative to the other.
const LEAST: f64 = 0.05;

/// What a way to train takes of the three things that are weighed against each other: less is better in each.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CandidateCost {
    /// Seconds of a step.
    pub step_seconds: f64,
    /// Share of the memory that a rank may use which is full at the peak of the heaviest; the rest is headroom.
    pub memory_fraction: f64,
    /// Seconds of all devices that work, in a step: money, but for the price of a device.
    pub device_seconds: f64,
}

impl CandidateCost {
    /// The cost of a step of `step_seconds` on `devices`.
    pub fn of(step_seconds: f64, memory_fraction: f64, devices: u32) -> Self {
        Self { step_seconds, memory_fraction, device_seconds: step_seconds * f64::from(devices) }
    }

    /// Whether it takes no more than `other` of anything.
    fn is_no_worse_than(&self, other: &Self) -> bool {
        self.step_seconds <= other.step_seconds
            && self.memory_fraction <= other.memory_fraction
            && self.device_seconds <= other.device_seconds
    }

    /// Whether it has something to say for itself beside `other`, where times that differ by less than `least` of the longer
    /// and shares of memory by less than twice that are alike.
    fn differs_enough(&self, other: &Self, least: f64) -> bool {
        self.step_seconds < (1.0 - least) * other.step_seconds
            || self.device_seconds < (1.0 - least) * other.device_seconds
            || self.memory_fraction < other.memory_fraction - 2.0 * least
    }
}

/// A way to train with what it takes.
#[derive(Clone, Debug, PartialEq)]
pub struct ParetoPoint<T> {
    /// What it takes.
    pub cost: CandidateCost,
    /// The way.
    pub what: T,
}

/// The points that nothing betters: no other point takes no more of anything. Of points that take exactly the same, the one
/// that was noted first is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct ParetoFront<T> {
    points: Vec<ParetoPoint<T>>,
}

impl<T> Default for ParetoFront<T> {
    fn default() -> Self {
        Self { points: Vec::new() }
    }
}

impl<T> ParetoFront<T> {
    /// Takes note of a point. The time it takes grows with the points that are kept, not with those that were noted.
    pub fn insert(&mut self, cost: CandidateCost, what: T) {
        if let Some(better) = self.points.iter().position(|point| point.cost.is_no_worse_than(&cost)) {
            // What bettered one will better the next: it is asked earlier.
            self.points.swap(better, better / 2);
            return;
        }
        self.points.retain(|point| !cost.is_no_worse_than(&point.cost));
        self.points.push(ParetoPoint { cost, what });
    }

    /// Whether no point takes at most so many seconds and at most that share of memory.
    pub fn may_gain(&self, step_seconds: f64, memory_fraction: f64) -> bool {
        let is_within = |cost: &CandidateCost| {
            cost.step_seconds <= step_seconds && cost.memory_fraction <= memory_fraction
        };
        !self.points.iter().any(|point| is_within(&point.cost))
    }

    /// Whether there is no point.
    pub fn is_empty(&self) -> bool {
        self.points.is_empty()
    }

    /// The points, fastest first.
    pub fn into_points(self) -> Vec<ParetoPoint<T>> {
        let mut points = self.points;
        let key = |point: &ParetoPoint<T>| {
            let CandidateCost { step_seconds, memory_fraction, device_seconds } = point.cost;
            [step_seconds, memory_fraction, device_seconds]
        };
        let order = |a: &ParetoPoint<T>, b: &ParetoPoint<T>| {
            let pairs = key(a).into_iter().zip(key(b)).map(|(a, b)| a.total_cmp(&b));
            pairs.fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then)
        };
        points.sort_by(order);
        points
    }
}

/// The front of some points.
pub fn pareto_front<T>(points: impl IntoIterator<Item = (CandidateCost, T)>) -> Vec<ParetoPoint<T>> {
    let mut front = ParetoFront::default();
    for (cost, what) in points {
        front.insert(cost, what);
    }
    front.into_points()
}

/// Indices of the points of a front that people should know of beside `choice`: each differs from it and from every
/// other by more than `resolution` of time or money or as much memory again. Where that were many, the differences must be larger.
pub fn notable_points(choice: &CandidateCost, front: &[CandidateCost], resolution: f64) -> Vec<usize> {
    let mut least = resolution.max(LEAST);
    loop {
        let mut named: Vec<usize> = Vec::new();
        for (index, cost) in front.iter().enumerate() {
            let others = named.iter().map(|index| &front[*index]).chain([choice]);
            if others.into_iter().all(|other| cost.differs_enough(other, least)) {
                named.push(index);
            }
        }
        if named.len() <= NAMED || least > 0.5 {
            return named;
        }
        least *= 1.25;
    }
}
