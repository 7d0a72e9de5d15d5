//! The answer of a plan or an estimate: one form of at most 24 lines of 80 columns, for all of them.
//!
//! [`Answer::of_plan`], [`Answer::of_datasheet_plan`], [`Answer::of_worker_plan`], [`Answer::of_mixed_plan`]
//! and [`Answer::of_row`] fill in the fields, [`Answer::text`] formats them. Full explanations are beside the plans: [`crate::explain`],
//! [`crate::what_if::explain`]. `docs/glossary.md` defines the words and abbreviations.

mod datasheet;
mod form;
pub mod layout_words;
mod local;
mod mixed;
pub mod numbers;
mod reason;
mod row;
mod worker;

#[cfg(test)]
mod tests;

pub use form::{COLUMNS, INDENT, LINES, ROWS};
pub use reason::Reason;

/// The answer of a plan or an estimate. Texts are clauses, each list the most important first.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Model, devices and engine.
    pub subject: String,
    /// The layout that runs, or the command.
    pub runs: Vec<String>,
    /// Time of a step; `None` where the work of a step is unknown.
    pub step: Option<StepAnswer>,
    /// Length and cost of the whole training; empty where it is unknown.
    pub total: Vec<String>,
    /// Length of the training with failures and checkpoints; `None` where it is unknown.
    pub failures: Option<String>,
    /// Memory of the fullest device; `None` where it is unknown.
    pub memory: Option<MemoryAnswer>,
    /// Batch and learning rate, each with the rule that it follows.
    pub training: Vec<TrainingValue>,
    /// Params of a command with their values.
    pub params: Vec<String>,
    /// Properties of the machines or the training that were assumed.
    pub assumptions: Vec<Assumption>,
    /// Measurements or data that the numbers rest on.
    pub confidence: Vec<String>,
    /// Word for one device in the table: `GPU` or `rank`.
    pub device: &'static str,
    /// The choice and the best other layouts, the choice first.
    pub candidates: Vec<AnswerCandidate>,
    /// Reasons for the choice, the most telling first.
    pub reasons: Vec<Reason>,
    /// Changes that would help most.
    pub improvements: Vec<String>,
}

/// Time of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepAnswer {
    /// Predicted seconds.
    pub seconds: f64,
    /// Ends of the 80 % interval of the seconds.
    pub interval: Option<(f64, f64)>,
    /// Tokens or samples per second, with the unit.
    pub throughput: Option<(f64, &'static str)>,
    /// Model FLOPs utilization (MFU), as a share.
    pub utilization: Option<f64>,
    /// Measured seconds, of a published run.
    pub measured: Option<f64>,
}

/// Memory of the fullest device.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryAnswer {
    /// Predicted peak bytes.
    pub peak: f64,
    /// Bytes that the device has; `None` if they are unknown.
    pub available: Option<f64>,
    /// Bytes below which the peak stays with a chance of 90 %; `None` if the prediction is exact.
    pub high: Option<f64>,
    /// The fullest device, in words.
    pub holder: String,
    /// Measured peak bytes, of a published run.
    pub measured: Option<f64>,
}

/// A value of the training with its rule.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingValue {
    /// The value with its name, such as `batch 128`.
    pub value: String,
    /// The rule that gives the value, in words.
    pub rule: String,
}

/// A property that was assumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assumption {
    /// The property with its value, such as `network of 400 Gbit/s per GPU`.
    pub what: String,
    /// The flag or key that corrects it; `None` if nothing does.
    pub correction: Option<String>,
    /// True if only the time with failures depends on it.
    pub is_minor: bool,
}

/// A row of the table of layouts.
#[derive(Clone, Debug, PartialEq)]
pub struct AnswerCandidate {
    /// Seconds per step.
    pub seconds: f64,
    /// Peak bytes of the fullest device.
    pub bytes: f64,
    /// Number of devices in use.
    pub devices: u32,
    /// The layout in the short notation of [`layout_words::abbreviated`].
    pub layout: String,
}

impl Answer {
    /// Returns an answer without content.
    fn empty() -> Self {
        Self {
            subject: String::new(),
            runs: Vec::new(),
            step: None,
            total: Vec::new(),
            failures: None,
            memory: None,
            training: Vec::new(),
            params: Vec::new(),
            assumptions: Vec::new(),
            confidence: Vec::new(),
            device: "GPU",
            candidates: Vec::new(),
            reasons: Vec::new(),
            improvements: Vec::new(),
        }
    }
}

impl TrainingValue {
    /// Returns the value of a decision, with the first clause of its reason as the rule.
    fn of(value: String, reason: &str) -> Self {
        let rule = reason.split(';').next().unwrap_or_default();
        Self { value, rule: rule.trim().into() }
    }
}
