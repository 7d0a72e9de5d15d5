//! Parameters that one rank holds.

use super::StepInputs;

/// Parameters on one rank; experts have fewer replicas than the rest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LocalParameters {
    /// All but experts.
    pub(super) dense: f64,
    /// Experts.
    pub(super) experts: f64,
}

impl LocalParameters {
    /// Counts a stage of `layers`; the first and the last stage also hold a vocabulary table.
    pub(super) fn of(case: &StepInputs<'_>, layers: f64, is_end: bool) -> Self {
        let model = case.model;
        let table = if is_end { model.embedding() / case.config.tensor() } else { 0.0 };
        let layer = Self::of_layer(case);
        Self { dense: layers * (layer.dense + model.router()) + table, experts: layers * layer.experts }
    }

    /// Counts a layer, router aside.
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

    /// Returns the sum of both.
    pub(super) fn all(self) -> f64 {
        self.dense + self.experts
    }
}
