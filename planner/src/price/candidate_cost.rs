//! Cost of a candidate: time, memory and busy devices.

use serde::{Deserialize, Serialize};

/// Cost of a candidate in three dimensions (step time, memory, device time); less is better in each.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CandidateCost {
    /// Seconds of a training step.
    pub step_seconds: f64,
    /// Peak memory of the heaviest rank as a fraction of what it may use; the rest is headroom.
    pub memory_fraction: f64,
    /// Busy seconds of all devices in a step, which are proportional to the cost in money.
    pub device_seconds: f64,
}

impl CandidateCost {
    /// Returns the cost of a candidate whose steps take `step_seconds` on `devices` devices.
    pub fn of(step_seconds: f64, memory_fraction: f64, devices: u32) -> Self {
        Self { step_seconds, memory_fraction, device_seconds: step_seconds * f64::from(devices) }
    }

    /// Returns `true` if the cost is no worse than `other` in any dimension.
    pub(crate) fn is_no_worse_than(&self, other: &Self) -> bool {
        self.step_seconds <= other.step_seconds
            && self.memory_fraction <= other.memory_fraction
            && self.device_seconds <= other.device_seconds
    }

    /// Returns `true` if the cost is clearly better than `other` in at least one dimension. Times that differ
    /// by less than `least` of the longer, and memory fractions by less than twice that, count as equal.
    pub(crate) fn differs_enough(&self, other: &Self, least: f64) -> bool {
        self.step_seconds < (1.0 - least) * other.step_seconds
            || self.device_seconds < (1.0 - least) * other.device_seconds
            || self.memory_fraction < other.memory_fraction - 2.0 * least
    }
}
