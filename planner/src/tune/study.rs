//! A search over trials, as a function: what happened goes in, what to do next comes out.

use super::event::{Judgement, Next, Proposal, Source, StudyEvent};
use super::gaussian::Belief;
use super::lessons::Lessons;
use super::model::Model;
use super::outcome::Outcome;
use super::pruner::Pruner;
use super::sampler::{Asked, Sampler};
use super::search::Finish;
use super::space::{Space, filled};
use super::standing::{Seen, Standing, Status};
use super::value::Value;
use serde::{Deserialize, Serialize};

/// What is searched and how. Everything a proposal depends on is here and in the log of what happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Study {
    /// The dimensions.
    pub space: Space,
    /// How the next trial is chosen.
    pub sampler: Sampler,
    /// Which trials go on when they report.
    #[serde(default)]
    pub pruner: Pruner,
    /// Of everything that is left to chance.
    pub seed: u64,
    /// What is tried before the sampler is asked, such as what the plan recommends.
    pub first: Vec<Vec<Value>>,
    /// Trials in all, without those that were lost; `None`: until everything has been tried. It may be raised later.
    #[serde(default)]
    pub trials: Option<u64>,
}

/// What a study found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recommended {
    /// The number of the trial.
    pub trial: u64,
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
pub(super) const NINETY_PERCENT: f64 = 1.645;

/// Trials that ran to their end beyond which what was measured is believed: the best of so many is more than luck, and a
/// Gaussian process would see only some of them.
const BELIEVED_MOST: usize = 300;

impl Study {
    /// A study of a space with the usual sampler, no pruner and no limit.
    pub fn new(space: Space, seed: u64) -> Self {
        let (sampler, pruner) = (Sampler::Auto, Pruner::None);
        Self { space, sampler, pruner, seed, first: Vec::new(), trials: None }
    }

    /// What to do with a free slot after everything in the log.
    ///
    /// A function: the same log gives the same answer to the last bit, whether or not the study was interrupted.
    pub fn next(&self, log: &[StudyEvent]) -> Next {
        self.next_where(log, &|_| true)
    }

    /// As [`Study::next`], but nothing is proposed that is not `allowed`. A sampler gives up after a bounded number of draws that
    /// are not; the study is then exhausted.
    pub fn next_where(&self, log: &[StudyEvent], allowed: &dyn Fn(&[Value]) -> bool) -> Next {
        self.next_from(&Standing::of(self, log), allowed)
    }

    /// As [`Study::next_where`], of a log that was folded before.
    pub fn next_from(&self, standing: &Standing, allowed: &dyn Fn(&[Value]) -> bool) -> Next {
        if let Some((trial, until)) = standing.promotable(&self.pruner) {
            return Next::Resume { trial, until };
        }
        let launched = u64::try_from(standing.trials().len()).expect("trials are counted in 64 bits");
        let over = |finish| if standing.running() == 0 { Next::Finished(finish) } else { Next::Wait };
        if self.trials.is_some_and(|most| launched - standing.lost() >= most) {
            return over(Finish::Budget);
        }
        match self.proposed(standing, launched, allowed) {
            Some((values, source)) => Next::Launch(Proposal { trial: launched, values, source }),
            None => over(Finish::Exhausted),
        }
    }

    /// What to do with a trial after its newest report.
    pub fn judge(&self, log: &[StudyEvent], trial: u64) -> Judgement {
        Standing::of(self, log).trial(trial).judgement
    }

    fn proposed(
        &self,
        standing: &Standing,
        trial: u64,
        allowed: &dyn Fn(&[Value]) -> bool,
    ) -> Option<(Vec<Value>, Source)> {
        let given = self.first.iter().find(|values| !standing.is_tried(values) && allowed(values));
        if let Some(values) = given {
            return Some((values.clone(), Source::Given));
        }
        let is_open = |seen: &&Seen| !standing.is_tried(&seen.values) && allowed(&seen.values);
        if let Some(lost) = standing.trials().iter().filter(|seen| seen.is_lost()).find(is_open) {
            return Some((lost.values.clone(), lost.source));
        }
        let asked = Asked { space: &self.space, seed: self.seed, trial, standing, allowed };
        self.sampler.next(&asked)
    }

    /// The trial whose cost is believed lowest; `None` while none ran to its end. What was measured is believed where fewer than
    /// two trials ran to their end, or more than 300, and of trials that are not in this space.
    pub fn recommend(&self, log: &[StudyEvent]) -> Option<Recommended> {
        self.recommend_from(&Standing::of(self, log))
    }

    /// As [`Study::recommend`], of a log that was folded before.
    pub fn recommend_from(&self, standing: &Standing) -> Option<Recommended> {
        self.ranked(standing).into_iter().next()
    }

    /// The trials that ran to their end, the one first that is recommended.
    pub fn ranked(&self, standing: &Standing) -> Vec<Recommended> {
        let numbered = (0..).zip(standing.trials());
        let done: Vec<(u64, &Seen, f64)> =
            numbered.filter_map(|(trial, seen)| Some((trial, seen, measured(seen)?))).collect();
        let is_modelled = done.len() <= BELIEVED_MOST;
        let model = is_modelled.then(|| Model::of(&self.space, &Lessons::of(standing))).flatten();
        let judged = done.into_iter().map(|(trial, seen, measured)| {
            let place = model.as_ref().zip(seen.place.as_ref());
            let belief = place.map(|(model, place)| model.cost(&filled(place)));
            let Belief { mean, variance } = belief.unwrap_or(Belief { mean: measured, variance: 0.0 });
            let reach = NINETY_PERCENT * variance.sqrt();
            let values = seen.values.clone();
            Recommended { trial, values, measured, mean, low: mean - reach, high: mean + reach }
        });
        // Without noise, what was measured tells apart what the process would blur.
        let is_exact = model.as_ref().is_some_and(Model::is_exact);
        let cost = |one: &Recommended| if is_exact { one.measured } else { one.mean };
        let mut judged: Vec<Recommended> = judged.collect();
        judged.sort_by(|a, b| cost(a).total_cmp(&cost(b)));
        judged
    }
}

/// What a trial that ran to its end measured.
fn measured(seen: &Seen) -> Option<f64> {
    match seen.status {
        Status::Ended(Outcome::Done { value }) => Some(value).filter(|value| value.is_finite()),
        _ => None,
    }
}
