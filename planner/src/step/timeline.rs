//! One step of every stage, side by side: what it does when, and what a rank of it holds.

mod tracks;

#[cfg(test)]
mod tests;

use crate::layout::candidate::Candidate;
use crate::layout::space::{CandidateId, CandidateSpace};
use crate::planning::plan::Plan;
use crate::price::cost_model::{CostInputs, CostModel};
use crate::price::estimate::Causes;
use crate::price::memory::MemoryBreakdown;
use dtrain_protocol::{Pass, Rates};
use serde::Serialize;
pub(crate) use tracks::{ChunkTimes, stage_tracks};

/// One step of every stage, from the first to the last, and where its time goes.
#[derive(Clone, Debug, PartialEq)]
pub struct StepProfile {
    /// Bytes of a rank of each stage at its peak.
    pub memory: Vec<MemoryBreakdown>,
    /// What each stage does when.
    pub timeline: Timeline,
    /// Where the time of the step goes.
    pub causes: Causes,
}

/// What each stage does when, in one step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timeline {
    /// Seconds of the step.
    pub step_seconds: f64,
    /// The stages, from the first to the last.
    pub lanes: Vec<StageTrack>,
}

/// What one stage does, from the beginning of a step to its end without a gap.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StageTrack {
    /// In order; each begins where the one before ends.
    pub spans: Vec<Span>,
}

/// Something that takes a while.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Span {
    /// What is done.
    pub doing: Activity,
    /// Seconds from the beginning of the step.
    pub begin: f64,
    /// Seconds that it takes, above 0.
    pub seconds: f64,
    /// The pass that it belongs to; `None` for what is done once in a step.
    pub pass: Option<Pass>,
}

/// What a stage does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// A forward.
    Forward,
    /// A backward, or the part of it that the stage before waits for.
    Backward,
    /// Gradients of weights by themselves.
    Weights,
    /// Communication that nothing hides.
    Communication,
    /// The optimizer.
    Optimizer,
    /// Reading samples, accumulating gradients.
    Overhead,
    /// Nothing: it waits for others.
    Idle,
}

impl Activity {
    /// All of them, in the order in which they are told.
    pub const ALL: [Self; 7] = [
        Self::Forward,
        Self::Backward,
        Self::Weights,
        Self::Communication,
        Self::Optimizer,
        Self::Overhead,
        Self::Idle,
    ];

    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Weights => "gradients of weights",
            Self::Communication => "communication",
            Self::Optimizer => "optimizer",
            Self::Overhead => "overhead",
            Self::Idle => "idle",
        }
    }
}

impl StageTrack {
    /// Seconds in all.
    pub fn seconds(&self) -> f64 {
        self.spans.last().map_or(0.0, |span| span.begin + span.seconds)
    }

    /// Seconds of what is done.
    pub fn of(&self, doing: Activity) -> f64 {
        self.spans.iter().filter(|span| span.doing == doing).map(|span| span.seconds).sum()
    }

    /// Something that is done once in a step.
    pub(crate) fn add(&mut self, doing: Activity, seconds: f64) {
        self.put(doing, seconds, None);
    }

    /// Nothing is done until `end`. What is below a billionth of it is rounding.
    pub(crate) fn until(&mut self, end: f64) {
        let idle = end - self.seconds();
        if idle > 1e-9 * end {
            self.put(Activity::Idle, idle, None);
        }
    }

    /// Makes everything take `factor` times as long.
    pub(crate) fn scale(&mut self, factor: f64) {
        for span in &mut self.spans {
            span.begin *= factor;
            span.seconds *= factor;
        }
    }

    fn put(&mut self, doing: Activity, seconds: f64, pass: Option<Pass>) {
        if seconds > 0.0 {
            self.spans.push(Span { doing, begin: self.seconds(), seconds, pass });
        }
    }
}

/// One step of a candidate of a plan, with the `rates` that the plan was made from; `None` where its stages would wait for each
/// other forever, which no planned candidate does.
pub fn step_profile(plan: &Plan, candidate: &Candidate, rates: Option<&Rates>) -> Option<StepProfile> {
    let space = CandidateSpace::single(candidate)?;
    let case = CostInputs {
        model: &plan.recipe.model,
        optimizer: &plan.recipe.train.optimizer,
        host: &plan.host,
        engine: None,
        rates,
        factors: plan.factors,
    };
    CostModel::new(case, &space).step_profile(CandidateId { option: 0, micro: 0 })
}
