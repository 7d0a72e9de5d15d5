//! Which of the layouts that a search found is to be trained with.
//!
//! A search that takes the least of many estimates takes those that are too low: the more layouts it looks at, the surer. So the
//! choice is not the least estimate but the least of what a step takes in eight of ten cases: layouts of a kind that nobody
//! published must be faster by as much as they are uncertain.

use super::{OutlookError, TIE, refusal};
use crate::analytic::doubt::{Doubt, of_time};
use crate::analytic::search::{Choice, Found, Question};
use crate::analytic::{Config, Unknown};
use crate::choice::tie::Simplicity;

/// Standard deviations above the estimate: one step in five takes longer.
const PESSIMISTIC: f64 = 0.8416;

/// A layout with what a step of it takes in eight of ten cases.
#[derive(Clone, Debug)]
pub(super) struct Uncertain {
    pub(super) choice: Choice,
    pub(super) doubt: Doubt,
    /// Seconds that one step in five exceeds.
    pub(super) seconds: f64,
}

/// The layout to train with, those that cannot be told apart from it in order of preference, and the others, fastest first.
#[derive(Clone, Debug)]
pub(super) struct Preferred {
    pub(super) chosen: Uncertain,
    pub(super) ties: Vec<Uncertain>,
    pub(super) others: Vec<Uncertain>,
}

/// The layouts that were found, in order.
pub(super) fn preferred(question: &Question, found: &Found) -> Result<Preferred, OutlookError> {
    let mut all = uncertain(question, found);
    let Some(fastest) = all.first() else { return Err(refusal(question, found)) };
    let within = (1.0 + TIE) * fastest.seconds;
    let is_bettered = |one: &Uncertain| {
        let betters = |other: &Uncertain| {
            let (seconds, bytes) = ((other.seconds, one.seconds), (other.choice.bytes, one.choice.bytes));
            seconds.0 <= seconds.1 && bytes.0 <= bytes.1 && (seconds.0 < seconds.1 || bytes.0 < bytes.1)
        };
        all.iter().any(betters)
    };
    let mut ties: Vec<Uncertain> =
        all.iter().filter(|one| one.seconds <= within && !is_bettered(one)).cloned().collect();
    let order = |one: &Uncertain| {
        Simplicity::of(&one.choice.config.arrangement, one.choice.bytes / question.cluster.memory)
    };
    ties.sort_by(|a, b| order(a).cmp(&order(b)).then(a.seconds.total_cmp(&b.seconds)));
    all.retain(|one| one.seconds > within);
    let mut ties = distinct(ties);
    let chosen = ties.remove(0);
    Ok(Preferred { chosen, ties, others: distinct(all) })
}

/// All layouts that were kept, fastest first.
fn uncertain(question: &Question, found: &Found) -> Vec<Uncertain> {
    let champions = found.champions.iter().map(|(_, _, choice)| choice);
    let mut all: Vec<Uncertain> = Vec::new();
    for choice in found.best.iter().chain(champions) {
        if all.iter().any(|known| known.choice.config == choice.config) {
            continue;
        }
        let doubt = of_time(&question.at(&choice.config), question.cluster.gpu, Unknown::default());
        let seconds = choice.seconds * (PESSIMISTIC * doubt.deviation()).exp();
        all.push(Uncertain { choice: *choice, doubt, seconds });
    }
    all.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    all
}

/// The first of those that differ in nothing but among how many replicas they shard, and which ranks are neighbours.
fn distinct(all: Vec<Uncertain>) -> Vec<Uncertain> {
    let mut kept: Vec<Uncertain> = Vec::new();
    let same = |a: &Config, b: &Config| {
        let alike = |config: &Config| {
            let arrangement = config.arrangement;
            (
                config.degrees(),
                config.micro_batch,
                arrangement.schedule,
                arrangement.chunks,
                arrangement.recompute,
            )
        };
        alike(a) == alike(b)
    };
    for one in all {
        if !kept.iter().any(|known| same(&known.choice.config, &one.choice.config)) {
            kept.push(one);
        }
    }
    kept
}
