//! The software of one engine, with its cost profile.

use super::constants::Constants;
use super::software_profile::SoftwareProfile;
use crate::engine::SoftwareStyle;

/// Cost profile of one engine.
#[derive(Clone, Copy, Debug)]
pub struct Software {
    /// Style of the engine.
    pub style: SoftwareStyle,
    /// Profile of the style, with corrections for this engine.
    pub profile: SoftwareProfile,
}

impl Software {
    /// Returns an engine with the unchanged profile of its style.
    pub fn of(style: SoftwareStyle, constants: &Constants) -> Self {
        Self { style, profile: constants.profile(style) }
    }

    /// Limits the `rate` of a link (bytes/s) to the rate that the engine's transfers reach.
    pub fn reaches(&self, rate: f64) -> f64 {
        self.profile.through_host.map_or(rate, |most| rate.min(most))
    }
}
