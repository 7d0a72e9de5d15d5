//! The software of one training engine, with its cost profile.

use super::constants::Constants;
use super::software_profile::SoftwareProfile;
use crate::engine::{Engine, Overlaps, SoftwareStyle, TrainingSpec};
use dtrain_recipes::{OptimizerKind, Precision};

/// Cost profile of the software of one engine.
#[derive(Clone, Copy, Debug)]
pub struct Software {
    /// Style of software that the engine follows.
    pub style: SoftwareStyle,
    /// Cost profile of the style, with corrections for this engine.
    pub profile: SoftwareProfile,
    /// Number of f32 values per parameter that the optimizer keeps.
    pub moments: f64,
}

impl Software {
    /// Returns an engine of the given style, with the unchanged profile of that style.
    pub fn of(style: SoftwareStyle, constants: &Constants) -> Self {
        Self { style, profile: constants.profile(style), moments: 2.0 }
    }

    /// Returns the software of `engine` when it runs `training` in `precision`: the profile of its style
    /// without the overlap that the engine lacks.
    pub fn of_engine(
        engine: &dyn Engine,
        training: &TrainingSpec,
        precision: Precision,
        constants: &Constants,
    ) -> Self {
        let mut software = Self::of(engine.style(), constants);
        let Overlaps { data, tensor, experts } = engine.overlaps(training, precision);
        software.moments = match training.optimizer {
            OptimizerKind::Adamw | OptimizerKind::Lamb => 2.0,
            OptimizerKind::Lion | OptimizerKind::Sgd => 1.0,
        };
        let profile = &mut software.profile;
        profile.has_master_copy = engine.has_master_copy().unwrap_or(profile.has_master_copy);
        for (overlaps, hidden) in [
            (data, &mut profile.hidden_data),
            (tensor, &mut profile.hidden_tensor),
            (experts, &mut profile.hidden_expert),
        ] {
            if !overlaps {
                *hidden = 0.0;
            }
        }
        software
    }

    /// Returns the rate that the engine's transfers reach over a link of `rate` bytes/s.
    pub fn reaches(&self, rate: f64) -> f64 {
        self.profile.through_host.map_or(rate, |most| rate.min(most))
    }
}
