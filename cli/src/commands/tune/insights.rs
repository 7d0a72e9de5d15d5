//! Further results of a study: useful batch sizes, and the error of the planner's learning-rate rule.

use super::confirm::PairedComparison;
use super::study_config::StudyConfig;
use crate::command_error::CommandError;
use crate::context::Context;
use crate::render::number::{counted, plain};
use crate::trials::{self, history_failure};
use dtrain_planner::training::learning_rate;
use dtrain_planner::tune::{BetterSetting, Optimum, Recommendation, StudySolver, optima};
use dtrain_planner::{Correction, training_digest};
use dtrain_protocol::TrialId;
use dtrain_recipes::Model;
use dtrain_runner::ledger::{History, NoiseScale};
use serde::Serialize;

/// Insights of a study beyond its best setting.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct StudyInsights {
    /// Gradient noise scale of the best trial; `None` if not measured, as with a single replica.
    #[serde(skip_serializing_if = "Option::is_none")]
    noise_scale: Option<NoiseScale>,
    /// Best learning rate for each batch size, in ascending order of batch size.
    learning_rates: Vec<BatchLearningRate>,
}

/// Best learning rate for one batch size, beside the one by the planner's rule.
#[derive(Clone, Debug, Serialize)]
struct BatchLearningRate {
    #[serde(flatten)]
    measured: Optimum,
    /// Learning rate by the planner's rule, for this batch size and the number of tokens of a trial.
    rule: f64,
    /// True if the measured learning rate is stored and corrects later plans.
    is_kept: bool,
}

impl StudyInsights {
    /// Derives the insights of a study; stores corrections of the learning-rate rule for later plans.
    pub(super) fn of(
        context: &Context,
        history: &mut History,
        kept: &StudyConfig,
        (search, confirmed): (&StudySolver, Option<&PairedComparison>),
        best: &Recommendation,
        name: &str,
    ) -> Result<Self, CommandError> {
        if matches!(kept.base_recipe.model, Model::Command(_)) {
            return Ok(Self::default());
        }
        let tried = history.study_trials(name).map_err(|error| history_failure(&error))?;
        let id = tried.into_iter().find(|tried| tried.number == best.trial).and_then(|tried| tried.trial);
        let activity = |id: &TrialId| trials::activity(context, id);
        let trial = id
            .map(|id| history.trial(&id, &activity))
            .transpose()
            .map_err(|error| history_failure(&error))?;
        let Some(trial) = trial else { return Ok(Self::default()) };
        let mut learning_rates = rates(kept, search, trial.row.batch);
        // A result that other seeds did not confirm may be chance.
        let is_doubtful = confirmed.is_some_and(|one| one.comparison.verdict != BetterSetting::First);
        learning_rates.iter_mut().for_each(|rate| {
            rate.is_kept = rate.measured.is_inside && rate.measured.is_better && !is_doubtful;
        });
        let certain = learning_rates.iter().filter(|rate| rate.is_kept);
        let corrections: Vec<Correction> = certain.map(|rate| rate.correction(name)).collect();
        history
            .save_corrections(name, &training_digest(&kept.base_recipe), &corrections)
            .map_err(|error| history_failure(&error))?;
        Ok(Self { noise_scale: trial.noise_scale, learning_rates })
    }

    /// Formats the insights as text, one line each.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.learning_rates.iter().map(BatchLearningRate::line).collect();
        lines.extend(self.noise_scale.map(|scale| {
            format!(
                "noise scale: {} samples ({} to {}); a batch well below it costs hardly more samples, one well above it \
                 saves hardly any steps",
                plain(scale.samples),
                plain(scale.low),
                plain(scale.high)
            )
        }));
        lines
    }
}

impl BatchLearningRate {
    fn ratio(&self) -> f64 {
        self.measured.rate / self.rule
    }

    fn correction(&self, study: &str) -> Correction {
        Correction { batch: self.measured.batch, ratio: self.ratio(), study: study.to_owned() }
    }

    fn line(&self) -> String {
        let Optimum { batch, rate, trials, is_better, is_inside } = &self.measured;
        let trials = counted(u64::try_from(*trials).unwrap_or(u64::MAX), "trial");
        let measured = format!("batch {batch}: learning rate {} is best of {trials}", plain(*rate));
        let (times, rule) = (plain(self.ratio()), plain(self.rule));
        match (is_inside, is_better) {
            _ if self.is_kept => format!("{measured}, {times} times the rule's {rule}; later plans use it"),
            (true, true) => {
                format!("{measured}, {times} times the rule's {rule}, which other seeds do not confirm")
            }
            (true, false) => format!("{measured}, not distinguishable from the rule's {rule}"),
            (false, _) => {
                format!("{measured}, at an end of what was tried: a wider range may hold a better one")
            }
        }
    }
}

/// Returns the best learning rate for each batch size. If the batch is not searched, all trials have size
/// `batch`.
fn rates(kept: &StudyConfig, search: &StudySolver, batch: u64) -> Vec<BatchLearningRate> {
    let recipe = &kept.base_recipe;
    let samples = |batch: u64| kept.samples.unwrap_or(kept.steps.unwrap_or(0) * batch);
    let rule = |batch: u64| {
        #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
        let tokens = (samples(batch) * recipe.model.sample_tokens()) as f64;
        let rule = learning_rate::recommended_peak(&recipe.model, &recipe.train, batch, tokens);
        learning_rate::for_stale_gradients(rule, recipe.sync.staleness).value
    };
    let found = optima(&kept.study.space, search.study_state(), batch, &rule);
    found
        .into_iter()
        .map(|measured| BatchLearningRate { rule: rule(measured.batch), measured, is_kept: false })
        .collect()
}
