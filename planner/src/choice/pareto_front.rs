//! Pareto front over step time, memory and device cost.
//!
//! It has every nondominated point, also those too similar to tell apart; [`notable_points`] selects the ones
//! to show.

#[cfg(test)]
mod tests;

use crate::price::candidate_cost::CandidateCost;

/// Largest number of points on a Pareto front to show beside the choice.
const NAMED: usize = 8;

/// Smallest relative difference of time or cost for which a point is worth showing beside another.
const LEAST: f64 = 0.05;

/// A point of a Pareto front: an item with its cost.
#[derive(Clone, Debug, PartialEq)]
pub struct ParetoPoint<T> {
    /// Cost of the item.
    pub cost: CandidateCost,
    /// The item that has this cost, such as a candidate.
    pub what: T,
}

/// A set of nondominated points: no other point is at least as good as any of them in all dimensions. Of
/// points with equal costs, the first one inserted is kept.
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
    /// Inserts a point unless a kept one dominates it, and removes the points that it dominates. The time per
    /// insertion grows with the number of points kept, not of those inserted.
    pub fn insert(&mut self, cost: CandidateCost, what: T) {
        if let Some(better) = self.points.iter().position(|point| point.cost.is_no_worse_than(&cost)) {
            // A point that dominated one will likely dominate the next: move it forward.
            self.points.swap(better, better / 2);
            return;
        }
        self.points.retain(|point| !cost.is_no_worse_than(&point.cost));
        self.points.push(ParetoPoint { cost, what });
    }

    /// Returns `true` if no kept point has at most this time and at most this memory, so that a new one with
    /// them may enter the front.
    pub fn may_gain(&self, step_seconds: f64, memory_fraction: f64) -> bool {
        let is_within = |cost: &CandidateCost| {
            cost.step_seconds <= step_seconds && cost.memory_fraction <= memory_fraction
        };
        !self.points.iter().any(|point| is_within(&point.cost))
    }

    /// Returns `true` if the front has no points.
    pub fn is_empty(&self) -> bool {
        self.points.is_empty()
    }

    /// Returns the points of the front, fastest first.
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

/// Returns the Pareto front of `points`, fastest first.
pub fn pareto_front<T>(points: impl IntoIterator<Item = (CandidateCost, T)>) -> Vec<ParetoPoint<T>> {
    let mut front = ParetoFront::default();
    for (cost, what) in points {
        front.insert(cost, what);
    }
    front.into_points()
}

/// Returns the indices of the points of `front` to show beside `choice`: each differs from the choice and
/// from every other by more than `resolution` in time or cost, or by more than twice that in memory. If there
/// are too many, larger differences are required.
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
