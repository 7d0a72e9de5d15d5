//! Cost of a candidate: time, memory and busy devices.

use serde::{Deserialize, Serialize};

/// Cost of a candidate in three dimensions; less is better in each.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CandidateCost {
    /// Seconds of a step.
    pub step_seconds: f64,
    /// Peak memory of the heaviest rank as a share of what it may use; the rest is headroom.
    pub memory_fraction: f64,
    /// Busy seconds of all devices in a step: the cost in money, but for the price of a device.
    pub device_seconds: f64,
}

impl CandidateCost {
    /// Returns the cost of a step of `step_seconds` on `devices`.
    pub fn of(step_seconds: f64, memory_fraction: f64, devices: u32) -> Self {
        Self { step_seconds, memory_fraction, device_seconds: step_seconds * f64::from(devices) }
    }

    /// Returns `true` if it is no worse than `other` in any dimension.
    pub(crate) fn is_no_worse_than(&self, other: &Self) -> bool {
        self.step_seconds <= other.step_seconds
            && self.memory_fraction <= other.memory_fraction
            && self.device_seconds <= other.device_seconds
    }

    /// Returns `true` if it is clearly better than `other` in a dimension. Times that differ by less than
    /// `least` of the longer, and memory shares by less than twice that, count as equal.
    pub(crate) fn differs_enough(&self, other: &Self, least: f64) -> bool {
        self.step_seconds < (1.0 - least) * other.step_seconds
            || self.device_seconds < (1.0 - least) * other.device_seconds
            || self.memory_fraction < other.memory_fraction - 2.0 * least
    }
}
