//! Number of parameters that one rank holds.

use super::StepInputs;

/// Number of parameters that one rank holds; experts are counted apart, as they have fewer replicas.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LocalParameters {
    /// Number of parameters outside experts.
    pub(super) dense: f64,
    /// Number of parameters of experts.
    pub(super) experts: f64,
}

impl LocalParameters {
    /// Counts the parameters that a rank holds of a stage of `layers` layers; with `is_end`, also those of a
    /// vocabulary table, as on the first and the last stage.
    pub(super) fn of(case: &StepInputs<'_>, layers: f64, is_end: bool) -> Self {
        let model = case.model;
        let table = if is_end { model.embedding() / case.config.tensor() } else { 0.0 };
        let layer = Self::of_layer(case);
        Self { dense: layers * (layer.dense + model.router()) + table, experts: layers * layer.experts }
    }

    /// Counts the parameters that a rank holds of one layer, without the router.
    pub(super) fn of_layer(case: &StepInputs<'_>) -> Self {
        let (model, config) = (case.model, &case.config);
        let t = config.tensor();
        match model.experts {
            Some(experts) => Self {
                dense: (model.attention() + model.shared()) / t,
                experts: model.expert() * experts.count / (config.expert() * config.expert_tensor()),
            },
            None => Self { dense: (model.attention() + model.feed_forward()) / t, experts: 0.0 },
        }
    }

    /// Returns the number of all parameters, with experts.
    pub(super) fn all(self) -> f64 {
        self.dense + self.experts
    }
}
