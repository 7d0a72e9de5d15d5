//! The plan: candidates in order, what each will cost, and where the numbers come from. Immutable, with a digest.

use crate::choice::alternatives::Alternative;
use crate::choice::tradeoffs::Tradeoffs;
use crate::engine::Engine;
use crate::layout::candidate::{Candidate, RejectedGroup};
use crate::price::estimate::Estimate;
use crate::rates::calibrate::{Factors, StepObservation};
use crate::rates::probing::precision_to_measure;
use crate::training::batch_size::EPOCHS_MOST;
use crate::training::learning_rate::Decision;
use crate::training::learning_rate_correction::Correction;
use crate::training::training_schedule::TrainingSchedule;
use dtrain_protocol::{HostFacts, Rates, old_names};
use dtrain_recipes::{Model, Precision, Recipe, Samples};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Version of the format of a stored plan; a newer one is refused, and an older one is upgraded when it is read.
pub const FORMAT: u32 = 2;

/// Everything a plan is made from. The same request gives the same plan.
#[derive(Clone, Debug)]
pub struct PlanRequest<'a> {
    /// What to train.
    pub recipe: &'a Recipe,
    /// The host that trains.
    pub host: &'a HostFacts,
    /// Another engine that the choice will be written for; what that cannot run is no candidate.
    pub engine: Option<&'static dyn Engine>,
    /// Its measured speeds for this model; `None` falls back to the data sheet.
    pub rates: Option<&'a Rates>,
    /// Earlier trials on the same host with the same model.
    pub observations: &'a [StepObservation],
    /// What studies found of the learning-rate rule for such a training ([`training_digest`]), oldest first.
    pub corrections: &'a [Correction],
    /// Folder that relative data paths start from.
    pub data_root: PathBuf,
    /// Samples in the training data, when somebody counted them.
    pub train_samples: Option<u64>,
    /// Samples in the validation data, when somebody counted them.
    pub valid_samples: Option<u64>,
    /// Seed of the search.
    pub seed: u64,
    /// Version of the program that plans.
    pub program: &'a str,
}

/// Candidates in order, what each will cost, and where the numbers come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// [`FORMAT`].
    pub format: u32,
    /// What is trained.
    pub recipe: Recipe,
    /// The values of the recipe that are not defaults, by dotted path, as TOML; nothing in a plan of an older program.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
    /// Folder that relative data paths start from.
    pub data_root: PathBuf,
    /// The host it was made for.
    pub host: HostFacts,
    /// Name of the engine that it was made for, as in [`crate::engine::engine_by_name`]; `None`: dtrain's own worker, and a plan
    /// of an older program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// The rates it was made from; `None`: the data sheet.
    pub rates: Option<RatesStamp>,
    /// Correction from earlier trials.
    pub factors: Factors,
    /// Seed of the search.
    pub seed: u64,
    /// Version of the program that planned.
    pub program: String,
    /// Samples in the training data, when they were counted.
    pub train_samples: Option<u64>,
    /// Samples in the validation data, when they were counted.
    pub valid_samples: Option<u64>,
    /// Samples of one optimizer step.
    pub batch: Decision<u64>,
    /// Peak learning rate.
    pub learning_rate: Decision<f64>,
    /// Candidates that fit, the one to train first. Never empty.
    pub choices: Vec<RankedCandidate>,
    /// Number of candidates that were priced.
    pub priced: u64,
    /// The choice beside what nothing betters in time, memory and money; nothing in a plan of an older program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tradeoffs: Option<Tradeoffs<Candidate>>,
    /// The best of every axis value that was not chosen.
    pub alternatives: Vec<Alternative>,
    /// What was left out, by reason, the most frequent first.
    pub rejected: Vec<RejectedGroup>,
}

/// How often a training sees its data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Epochs {
    /// Times that each sample is seen.
    pub passes: f64,
    /// Samples of the training data.
    pub samples: u64,
    /// Whether these are so many that the last ones teach hardly anything.
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

/// Why a stored plan cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PlanReadError {
    /// A newer program wrote it.
    #[error("it has format {format}; this version reads up to {FORMAT}")]
    Newer {
        /// Its format.
        format: u64,
    },
    /// It is not a plan: a field is missing, or has another type.
    #[error("it is not a plan: {0}")]
    Json(#[from] serde_json::Error),
    /// It names nothing to train.
    #[error("it has no choices")]
    Empty,
}

/// Which rates a plan was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RatesStamp {
    /// [`rates_digest`].
    pub digest: String,
    /// Milliseconds since the Unix epoch.
    pub measured_at_ms: u64,
}

/// A candidate with its price and the length of its run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankedCandidate {
    /// The candidate.
    pub candidate: Candidate,
    /// What it will cost; `None` for a foreign command, which nobody here can price, and in a plan for hosts elsewhere or for
    /// another engine, whose times and memory are told by other causes and categories.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<Estimate>,
    /// Steps, warm-up, checkpoints, validations.
    pub run_length: TrainingSchedule,
    /// Whether it cannot be told apart from the fastest.
    pub is_tied: bool,
}

impl RankedCandidate {
    /// What a choice of a model of ours will cost. Panics for a foreign command, and in a plan for hosts elsewhere or for
    /// another engine.
    pub fn price(&self) -> &Estimate {
        self.estimate.as_ref().expect("models of ours are priced")
    }
}

impl Plan {
    /// The candidate to train.
    pub fn best(&self) -> &RankedCandidate {
        self.choices.first().expect("a plan has at least one choice")
    }

    /// Whether it was made for hosts that are only known from a data sheet.
    pub fn is_estimated(&self) -> bool {
        self.host.cores == 0
    }

    /// Reads a plan from JSON, as a file or the history stores it, of this format or an older one. The only way to read one.
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

    /// How often the training sees each sample of its data, where steps and samples are known.
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

    /// blake3 of the plan in canonical JSON, in hex.
    pub fn digest(&self) -> String {
        digest(self)
    }
}

/// blake3 of the canonical JSON of a model, in hex: rates are measured for one model.
pub fn model_digest(model: &Model) -> String {
    digest(model)
}

/// What the rates of a recipe on `host` are kept under: the model's digest, where products are measured in f32, and otherwise
/// that of the model and the precision.
pub fn rates_key(recipe: &Recipe, host: &HostFacts) -> String {
    match precision_to_measure(recipe, host) {
        Precision::F32 => model_digest(&recipe.model),
        precision => digest(&(&recipe.model, precision)),
    }
}

/// blake3 of what a learning rate depends on beside batch and tokens: the model, the optimizer and the data, in hex.
pub fn training_digest(recipe: &Recipe) -> String {
    digest(&(&recipe.model, &recipe.train.optimizer, &recipe.data))
}

/// blake3 of the canonical JSON of measured rates, in hex.
pub fn rates_digest(rates: &Rates) -> String {
    digest(rates)
}

// Fields are written in the order of their declaration and maps are ordered, so the text is canonical.
pub(super) fn digest<T: Serialize>(value: &T) -> String {
    let text = serde_json::to_vec(value).expect("plans, models and rates have string keys only");
    blake3::hash(&text).to_hex().to_string()
}
