//! Values of a plan that emitters read.

use super::EmitError;
use crate::engine::{Engine, TrainingSpec};
use crate::layout::batch_split::BatchSplit;
use crate::planning::plan::{Plan, RankedCandidate};
use dtrain_protocol::{Arrangement, Axis, DeviceKind};
use dtrain_recipes::{
    Data, DataFormat, Decoder, Model, Optimizer, Tokenizer, Train, Url, ValidationSource, ZeroStage,
};

/// The best choice of a plan for a decoder, prepared for emitters.
pub struct DecoderPlan<'a> {
    /// Engine to emit configuration for.
    pub(crate) engine: &'static dyn Engine,
    /// Plan to emit.
    pub(crate) plan: &'a Plan,
    /// Choice of the plan to emit.
    pub(crate) choice: &'a RankedCandidate,
    /// Model of the plan.
    pub(crate) model: &'a Decoder,
    /// Arrangement of the plan's best choice.
    pub(crate) arrangement: &'a Arrangement,
    /// Split of the batch in the plan's best choice.
    pub(crate) split: &'a BatchSplit,
}

impl<'a> DecoderPlan<'a> {
    /// Reads a plan for `engine`. `Err` if its model is not a decoder, its replicas are unequal, or the
    /// engine cannot run it.
    pub(crate) fn of(plan: &'a Plan, engine: &'static dyn Engine) -> Result<Self, EmitError> {
        Self::of_choice(plan, plan.best(), engine)
    }

    /// Reads a choice of a plan for `engine`. `Err` as for the best choice.
    pub(crate) fn of_choice(
        plan: &'a Plan,
        choice: &'a RankedCandidate,
        engine: &'static dyn Engine,
    ) -> Result<Self, EmitError> {
        let kind = match &plan.recipe.model {
            Model::Decoder(model) => return Self::of_decoder(plan, choice, engine, model),
            Model::Mlp(_) => "mlp",
            Model::Cnn(_) => "cnn",
            Model::Custom(_) => "custom",
            Model::Command(_) => "command",
        };
        Err(EmitError::OtherModel { engine: engine.title(), kind })
    }

    fn of_decoder(
        plan: &'a Plan,
        choice: &'a RankedCandidate,
        engine: &'static dyn Engine,
        model: &'a Decoder,
    ) -> Result<Self, EmitError> {
        let candidate = &choice.candidate;
        let (arrangement, split) = (&candidate.arrangement, &candidate.split);
        let source = Self { engine, plan, choice, model, arrangement, split };
        let shares = split.shares(arrangement.layout.expert);
        if !shares.is_empty() {
            let what = format!("replicas do {shares:?} micro-batches each");
            return Err(source.unsupported(what, "remove layout.shares"));
        }
        let micro_batches = split.micro_batches().get();
        let training = TrainingSpec::of(model, &plan.recipe.train);
        if let Some(reason) = engine.unsupported_layout(&training, arrangement, micro_batches) {
            let what = format!("{} ({}, {micro_batches} micro-batches)", reason.what, arrangement.layout);
            return Err(source.unsupported(what, reason.instead));
        }
        Ok(source)
    }

    /// Returns an error about the setting `what` of the plan, with an alternative.
    fn unsupported(&self, what: impl Into<String>, instead: &'static str) -> EmitError {
        EmitError::CannotSay { engine: self.engine.title(), what: what.into(), instead }
    }

    /// Returns the degree of parallelism along `axis`.
    pub(crate) fn degree(&self, axis: Axis) -> u32 {
        self.arrangement.layout.degree(axis)
    }

    /// Returns the number of ranks that read samples of their own: the engines' data-parallel size, expert
    /// axis included.
    pub(crate) fn readers(&self) -> u32 {
        self.arrangement.layout.readers()
    }

    /// Returns the number of replicas that keep the same shard; 1 if all replicas share one copy of the
    /// state.
    pub(crate) fn copies(&self) -> u32 {
        self.arrangement.replicas() / self.shard()
    }

    /// Returns the number of replicas among which state is sharded; 1 without ZeRO.
    pub(crate) fn shard(&self) -> u32 {
        if self.arrangement.zero == ZeroStage::Zero0 { 1 } else { self.arrangement.shard }
    }

    /// Returns the `[train]` section of the recipe.
    pub(crate) fn train(&self) -> &'a Train {
        &self.plan.recipe.train
    }

    /// Returns the optimizer settings of the recipe.
    pub(crate) fn optimizer(&self) -> &'a Optimizer {
        &self.train().optimizer
    }

    /// Returns the peak learning rate.
    pub(crate) fn rate(&self) -> f64 {
        self.choice.candidate.learning_rate
    }

    /// Returns the final learning rate, rounded to 12 digits to hide binary fractions.
    pub(crate) fn rate_last(&self) -> f64 {
        let text = format!("{:.11e}", self.rate() * self.train().final_fraction);
        text.parse().expect("it was just written")
    }

    /// Returns the number of steps of the learning-rate schedule.
    pub(crate) fn steps(&self) -> u64 {
        self.choice.run_length.schedule_steps
    }

    /// Returns the number of warm-up steps.
    pub(crate) fn warmup(&self) -> u64 {
        self.choice.run_length.warmup.value
    }

    /// Returns the training data of the recipe, which every decoder has.
    pub(crate) fn data(&self) -> &'a Data {
        self.plan.recipe.data.as_ref().expect("only a foreign command has no data")
    }

    /// Returns the fraction of the data that is held out for validation; `None` if validation has files of
    /// its own.
    pub(crate) fn valid_fraction(&self) -> Option<f64> {
        match self.data().valid {
            ValidationSource::Fraction(fraction) => Some(fraction),
            ValidationSource::Files(_) => None,
        }
    }

    /// Returns the paths of the training files, joined to the recipe's folder; URLs are unchanged.
    pub(crate) fn train_files(&self) -> Vec<String> {
        let root = &self.plan.data_root;
        let place = |name: &String| {
            if Url::is_url(name) { name.clone() } else { root.join(name).display().to_string() }
        };
        self.data().train.iter().map(place).collect()
    }

    /// Returns the notes common to all engines: origin of the plan, stop conditions, data.
    pub(crate) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.arrangement.device == DeviceKind::Cpu {
            notes.push(format!(
                "the plan was made for the CPUs of {}: on other devices speed and memory differ; plan where you train",
                self.plan.host.name
            ));
        }
        if self.plan.is_estimated() {
            notes.push(format!(
                "the plan is an estimate for {}, from data sheets: nothing was measured there",
                self.plan.host.name
            ));
        }
        let stop = &self.plan.recipe.objective.stop;
        if self.choice.run_length.steps.is_none() || stop.time.is_some() {
            let steps = self.steps();
            notes.push(format!(
                "time ends the recipe; {steps} steps are as many as dtrain foresees within it, on its own worker"
            ));
        }
        if let Some(target) = stop.target {
            notes.push(format!("the recipe ends early when its metric reaches {target}; nothing here does"));
        }
        notes.push(format!("data: {}", self.data_words()));
        notes
    }

    fn data_words(&self) -> String {
        let how = match &self.data().format {
            DataFormat::Text { tokenizer: Tokenizer::Bytes, .. } => "text whose bytes are the tokens".into(),
            DataFormat::Text { tokenizer: Tokenizer::File(file), .. } => {
                format!("text and the tokenizer {file}")
            }
            DataFormat::Text { tokenizer: Tokenizer::Bpe(size), .. } => {
                format!("text and a byte-level BPE of {size} tokens trained on it")
            }
            DataFormat::Chat { .. } => "conversations".into(),
            DataFormat::Tokens { .. } => "shards of tokens".into(),
            DataFormat::Idx { .. } | DataFormat::Csv { .. } | DataFormat::Parquet { .. } => "a table".into(),
            DataFormat::Images { .. } => "folders of images".into(),
        };
        format!("the recipe reads {how}, from {}; set the line marked SET", self.data().train.join(" "))
    }
}
