//! The plan: ranked candidates with their estimates and the sources of the numbers. Immutable, with a digest.

use crate::choice::alternative::Alternative;
use crate::choice::tradeoffs::Tradeoffs;
use crate::engine::Engine;
use crate::hardware::HostGroup;
use crate::layout::candidate::Candidate;
use crate::layout::rejection::RejectedGroup;
use crate::price::estimate::Estimate;
use crate::rates::calibrate::{Factors, StepObservation};
use crate::rates::measured_precision::precision_to_measure;
use crate::training::batch_size::EPOCHS_MOST;
use crate::training::decision::Decision;
use crate::training::learning_rate::RULE_VERSION;
use crate::training::learning_rate_correction::Correction;
use crate::training::training_schedule::TrainingSchedule;
use dtrain_protocol::{HostFacts, Rates, old_names};
use dtrain_recipes::{Model, Precision, Recipe, Samples};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Version of the format of stored plans. A newer one is refused, an older one is upgraded when it is read.
pub const FORMAT: u32 = 2;

/// Inputs of the planner; equal requests give equal plans.
#[derive(Clone, Debug)]
pub struct PlanRequest<'a> {
    /// Recipe to plan.
    pub recipe: &'a Recipe,
    /// Facts about the hosts that train.
    pub host: &'a HostFacts,
    /// Data sheets of hosts that are not at hand; `None` for those that the names of the GPUs in `host` lead to.
    pub group: Option<HostGroup>,
    /// Another engine for which the plan will be emitted, which rejects candidates that it cannot run; `None`
    /// for dtrain's own worker.
    pub engine: Option<&'static dyn Engine>,
    /// Measured speeds of the host for the recipe's model; `None` falls back to the data sheet.
    pub rates: Option<&'a Rates>,
    /// Measured step times of earlier trials on the same host with the same model.
    pub observations: &'a [StepObservation],
    /// Corrections of the learning-rate rule from studies of the same training ([`training_digest`]), oldest
    /// first.
    pub corrections: &'a [Correction],
    /// Folder against which relative data paths in the recipe are resolved.
    pub data_root: PathBuf,
    /// Number of training samples; `None` where they were not counted.
    pub train_samples: Option<u64>,
    /// Number of validation samples; `None` where they were not counted.
    pub valid_samples: Option<u64>,
    /// Seed of the search for candidates.
    pub seed: u64,
    /// Version of the program that makes the plan.
    pub program: &'a str,
}

impl<'a> PlanRequest<'a> {
    /// Creates a request for dtrain's worker without anything measured or counted, seed 0, and relative data
    /// paths in the current folder.
    pub fn new(recipe: &'a Recipe, host: &'a HostFacts) -> Self {
        Self {
            recipe,
            host,
            group: None,
            engine: None,
            rates: None,
            observations: &[],
            corrections: &[],
            data_root: PathBuf::new(),
            train_samples: None,
            valid_samples: None,
            seed: 0,
            program: "",
        }
    }
}

/// A plan: ranked candidates with their estimates, and the inputs and decisions of the planner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Version of the plan's format, see [`FORMAT`].
    pub format: u32,
    /// Recipe that was planned.
    pub recipe: Recipe,
    /// Settings of the recipe that differ from the defaults: TOML values by dotted path; empty in a plan of
    /// an older program.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
    /// Folder against which relative data paths in the recipe are resolved.
    pub data_root: PathBuf,
    /// Facts about the hosts that the plan was made for.
    pub host: HostFacts,
    /// Name of the engine that the plan was made for, as in [`crate::engine::engine_by_name`]; `None` for
    /// dtrain's own worker, and in a plan of an older program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// Identity of the measured rates that the plan was made from; `None` where it was made from the data
    /// sheet.
    pub rates: Option<RatesStamp>,
    /// Correction factors of the predicted times, from earlier trials.
    pub factors: Factors,
    /// Seed of the search for candidates.
    pub seed: u64,
    /// Version of the program that made the plan.
    pub program: String,
    /// Number of training samples; `None` where they were not counted.
    pub train_samples: Option<u64>,
    /// Number of validation samples; `None` where they were not counted.
    pub valid_samples: Option<u64>,
    /// Samples of one optimizer step, with the range worth trying.
    pub batch: Decision<u64>,
    /// Peak learning rate, with the range worth trying.
    pub learning_rate: Decision<f64>,
    /// Candidates that fit in memory, the recommended one first. Never empty.
    pub choices: Vec<RankedCandidate>,
    /// Number of candidates that were priced for the plan.
    pub priced: u64,
    /// The choice beside the Pareto front over time, memory and cost; `None` in a plan of an older program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tradeoffs: Option<Tradeoffs<Candidate>>,
    /// Best candidate of each axis value that was not chosen.
    pub alternatives: Vec<Alternative>,
    /// Rejected candidates by reason, the most frequent first.
    pub rejected: Vec<RejectedGroup>,
}

/// Number of epochs in a training, and whether it is too high.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Epochs {
    /// Number of times that the training sees each sample.
    pub passes: f64,
    /// Number of training samples.
    pub samples: u64,
    /// True if there are so many epochs that the last ones hardly improve the model.
    pub is_many: bool,
}

impl fmt::Display for Epochs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} epochs of {}", self.passes, Samples(self.samples))?;
        if self.is_many {
            write!(
                f,
                "; more than {EPOCHS_MOST:.0} teach a decoder hardly anything: use more data, or stop earlier, such as with \
                 objective.stop.epochs = {EPOCHS_MOST:.0}"
            )?;
        }
        Ok(())
    }
}

/// Error while reading a stored plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanReadError {
    /// A newer program wrote the plan, in a format that this one does not know.
    #[error("it has format {format}; this version reads up to {FORMAT}")]
    Newer {
        /// Format version of the plan.
        format: u64,
    },
    /// The JSON is not a plan: a field is missing, or has another type.
    #[error("it is not a plan: {0}")]
    Json(#[from] serde_json::Error),
    /// The plan has no candidate.
    #[error("it has no choices")]
    Empty,
}

/// Identity of the rates that a plan was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RatesStamp {
    /// Digest of the rates, as [`rates_digest`] computes it.
    pub digest: String,
    /// Time at which the rates were measured, in milliseconds since the Unix epoch.
    pub measured_at_ms: u64,
}

/// A candidate in the ranking of a plan, with its estimate and training schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankedCandidate {
    /// The candidate that is ranked.
    pub candidate: Candidate,
    /// Predicted cost of the candidate; `None` for a foreign command, whose work is unknown, and in a plan
    /// of a decoder for other hosts or for another engine, whose estimates have other causes and categories.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<Estimate>,
    /// Steps of the training, with its warm-up, checkpoint and validation intervals.
    pub run_length: TrainingSchedule,
    /// True if the candidate ties with the fastest one.
    pub is_tied: bool,
}

impl RankedCandidate {
    /// Returns the estimate of a candidate for dtrain's own worker. Panics for a foreign command, and in a
    /// plan for other hosts or for another engine.
    pub fn price(&self) -> &Estimate {
        self.estimate.as_ref().expect("models of ours are priced")
    }
}

impl Plan {
    /// Returns the recommended candidate of the plan.
    pub fn best(&self) -> &RankedCandidate {
        self.choices.first().expect("a plan has at least one choice")
    }

    /// Returns `true` if the plan was made for hosts known only from data sheets.
    pub fn is_estimated(&self) -> bool {
        self.host.cores == 0
    }

    /// Reads a plan from JSON, as a file or the history stores it, of the current format or an older one. It
    /// is the only way to read a plan.
    ///
    /// `Err` when a newer program wrote it, or when it is not a plan.
    pub fn read(json: &Value) -> Result<Self, PlanReadError> {
        let format = json.get("format").and_then(Value::as_u64);
        if let Some(format) = format.filter(|format| *format > FORMAT.into()) {
            return Err(PlanReadError::Newer { format });
        }
        let plan = if format == Some(FORMAT.into()) {
            Self::deserialize(json)?
        } else {
            let mut json = json.clone();
            old_names::plan(&mut json);
            Self::deserialize(&json)?
        };
        if plan.choices.is_empty() { Err(PlanReadError::Empty) } else { Ok(plan) }
    }

    /// Returns the number of epochs that the plan trains; `None` where steps or samples are unknown.
    pub fn epochs(&self) -> Option<Epochs> {
        #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
        let ratio = |seen: u64, samples: u64| seen as f64 / samples as f64;
        let steps = self.best().run_length.schedule_steps;
        let samples = self.train_samples.filter(|samples| *samples > 0)?;
        let passes = ratio(steps * self.batch.value, samples);
        // A batch is rounded, and so are its epochs.
        let is_many = self.recipe.model.reads_tokens() && passes > 1.5 * EPOCHS_MOST;
        Some(Epochs { passes, samples, is_many })
    }

    /// Returns the blake3 digest of the plan in canonical JSON, in hex.
    pub fn digest(&self) -> String {
        digest(self)
    }
}

/// Returns the blake3 digest of a model in canonical JSON, in hex; rates are stored under it.
pub fn model_digest(model: &Model) -> String {
    digest(model)
}

/// Returns the key of the rates of a recipe on `host`: the model's digest where products are measured in f32,
/// otherwise the digest of the model and the precision.
pub fn rates_key(recipe: &Recipe, host: &HostFacts) -> String {
    match precision_to_measure(recipe, host) {
        Precision::F32 => model_digest(&recipe.model),
        precision => digest(&(&recipe.model, precision)),
    }
}

/// Returns the key of the step times that trials of a recipe measure: the model's digest for dtrain's own
/// worker, otherwise the digest of the model and the training engine.
pub fn observation_key(recipe: &Recipe) -> String {
    if recipe.engine.is_dtrain() {
        model_digest(&recipe.model)
    } else {
        digest(&(&recipe.model, recipe.engine))
    }
}

/// Returns the blake3 digest, in hex, of the inputs of a learning rate besides batch and tokens: model,
/// optimizer, data and rule, and whether training starts from weights.
pub fn training_digest(recipe: &Recipe) -> String {
    let train = &recipe.train;
    digest(&(RULE_VERSION, &recipe.model, &train.optimizer, &recipe.data, train.from.is_some()))
}

/// Returns the blake3 digest of measured rates in canonical JSON, in hex.
pub fn rates_digest(rates: &Rates) -> String {
    digest(rates)
}

// Fields are written in the order of their declaration and maps are ordered, so the text is canonical.
pub(super) fn digest<T: Serialize>(value: &T) -> String {
    let text = serde_json::to_vec(value).expect("plans, models and rates have string keys only");
    blake3::hash(&text).to_hex().to_string()
}
