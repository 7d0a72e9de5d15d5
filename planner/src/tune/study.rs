//! A search over trials, as a function: what ended goes in, what to try next comes out.

use super::gaussian::Belief;
use super::model::Model;
use super::outcome::Ended;
use super::sampler::Sampler;
use super::space::{Space, Value};
use serde::{Deserialize, Serialize};

/// What is searched and how. Everything a proposal depends on is here and in the trials that ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Study {
    /// The dimensions.
    pub space: Space,
    /// How the next trial is chosen.
    pub sampler: Sampler,
    /// Of everything that is left to chance.
    pub seed: u64,
    /// What is tried before the sampler is asked, such as what the plan recommends.
    pub first: Vec<Vec<Value>>,
}

/// What to try next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Proposal {
    /// Number of the trial in its study, from 0: how many ended before it.
    pub index: u64,
    /// A value for every dimension of the space.
    pub values: Vec<Value>,
    /// Why it is tried.
    pub source: Source,
}

/// Why something is tried.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// It was asked for.
    Given,
    /// By chance.
    Random,
    /// To fill the space evenly.
    Sobol,
    /// It promises most.
    Model {
        /// By how much it is expected to lower the best cost, in the units of the trials.
        improvement: f64,
    },
}

/// What a study found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recommended {
    /// Which of the trials that ended, by its place among them.
    pub trial: usize,
    /// What it tried.
    pub values: Vec<Value>,
    /// What it measured.
    pub measured: f64,
    /// What is believed of its cost once luck is discounted: the middle.
    pub mean: f64,
    /// End of the interval that would hold the cost of a place picked beforehand with 90 %: the low one. It is
    /// somewhat too narrow for the best of many, which luck has favoured.
    pub low: f64,
    /// The high one.
    pub high: f64,
}

/// Standard deviations on either side of the middle that hold 90 % of a bell curve.
const NINETY_PERCENT: f64 = 1.645;

impl Study {
    /// A study of a space by a Gaussian process.
    pub fn new(space: Space, seed: u64) -> Self {
        Self { sampler: Sampler::gaussian(&space), space, seed, first: Vec::new() }
    }

    /// What to try after the trials that ended, in the order in which they ended; `None` when everything has been tried.
    ///
    /// A function: the same trials give the same proposal to the last bit, whether or not the study was interrupted.
    pub fn propose(&self, ended: &[Ended]) -> Option<Proposal> {
        let index = u64::try_from(ended.len()).expect("trials are counted in 64 bits");
        let is_settled = |values: &Vec<Value>| ended.iter().any(|t| t.is_settled() && t.values == *values);
        let given = self.first.iter().find(|values| !is_settled(values)).map(|v| (v.clone(), Source::Given));
        let (values, source) = given.or_else(|| self.sampler.next(&self.space, self.seed, ended))?;
        Some(Proposal { index, values, source })
    }

    /// The trial whose cost is believed lowest; `None` while none ran to its end. With fewer than two, or none in this
    /// space, what was measured is believed.
    pub fn recommend(&self, ended: &[Ended]) -> Option<Recommended> {
        let model = Model::of(&self.space, ended);
        let done = ended.iter().enumerate().filter_map(|(trial, ended)| Some((trial, ended, ended.value()?)));
        let judged = done.map(|(trial, ended, measured)| {
            let point = self.space.point(&ended.values);
            let belief = model.as_ref().zip(point).map(|(model, point)| model.cost(&point));
            let Belief { mean, variance } = belief.unwrap_or(Belief { mean: measured, variance: 0.0 });
            let reach = NINETY_PERCENT * variance.sqrt();
            let values = ended.values.clone();
            Recommended { trial, values, measured, mean, low: mean - reach, high: mean + reach }
        });
        judged.min_by(|a, b| a.mean.total_cmp(&b.mean))
    }
}
