//! The search space of a recipe: its tunable keys as dimensions, and recipes with chosen values.

use super::params;
use super::scale::{Dimension, Scale};
use super::space::SearchSpace;
use super::value::TrialValue;
use crate::planning::plan::Plan;
use crate::training::decision::Decision;
use dtrain_recipes::{
    ForeignCommand, Model, ParamValue, Precision, Recipe, Samples, Tokens, Tunable, Warmup,
};
use serde::{Deserialize, Serialize};

/// The tunable values of a recipe, as a search space.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecipeSearchSpace {
    keys: Vec<TunableKey>,
    space: SearchSpace,
}

/// A key of a recipe that a study can search.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum TunableKey {
    LearningRate,
    Batch,
    WarmupSteps,
    WarmupTokens,
    Precision,
    Seed,
    /// A param, by its name in the recipe.
    Param(String),
}

/// Name of the param that is the seed of a command.
const SEED: &str = "seed";

/// Number of seeds, after the one of a recipe, that a dimension of seeds can take beyond the first.
const SEEDS: i64 = 900;

/// Name of the dimension of the learning rate.
pub(super) const LEARNING_RATE: &str = "train.learning_rate";

/// Name of the dimension of the batch size.
pub(super) const BATCH: &str = "train.batch";

impl RecipeSearchSpace {
    /// Builds the search space of a recipe from the keys that it marks as tunable.
    ///
    /// A learning rate left open is searched within the bounds that the planner recommends, if any; the
    /// planner decides everything else that is open. Params with a range are searched. A batch between bounds
    /// is searched in doublings of the lower bound, so that every batch splits like the lowest. Keys with one
    /// value only are not searched.
    pub fn of(recipe: &Recipe, learning_rate: Option<&Decision<f64>>) -> Self {
        let found = [
            rate(&recipe.train.learning_rate, learning_rate).map(|scale| (TunableKey::LearningRate, scale)),
            batch(&recipe.train.batch).map(|scale| (TunableKey::Batch, scale)),
            warmup(&recipe.train.warmup),
            precision(&recipe.train.precision).map(|scale| (TunableKey::Precision, scale)),
        ];
        let found = found.into_iter().flatten().filter(|(_, scale)| is_open(scale));
        let named = found.map(|(key, scale)| {
            let dimension = Dimension::new(key.name(), scale);
            (key, dimension)
        });
        let (mut keys, mut dimensions): (Vec<_>, Vec<_>) = named.unzip();
        for (name, dimension) in params::dimensions(recipe, dimensions.len()) {
            keys.push(TunableKey::Param(name));
            dimensions.push(dimension);
        }
        Self { keys, space: SearchSpace::new(dimensions) }
    }

    /// Returns the search space with the seed as one more dimension, and the first seed that no trial has
    /// used. The seed is `train.seed`, or for a command without `{train.seed}` the param `seed`. `None` where
    /// a command takes neither, or the seed is searched already.
    pub fn with_seed(&self, recipe: &Recipe) -> Option<(Self, i64)> {
        let (key, name, seed) = match recipe.model {
            Model::Command(ref command) if !takes_seed(command) => {
                let ParamValue::Whole(seed) = recipe.params.get(SEED)? else { return None };
                (TunableKey::Param(SEED.to_owned()), format!("params.{SEED}"), *seed)
            }
            _ => (TunableKey::Seed, TunableKey::Seed.name().to_owned(), whole(recipe.train.seed)),
        };
        if self.keys.contains(&key) {
            return None;
        }
        let first = seed.checked_add(1)?;
        let seeds = Scale::Integers { low: first, high: first.checked_add(SEEDS)? };
        let mut more = self.clone();
        more.keys.push(key);
        more.space = SearchSpace::new([self.space.dimensions(), &[Dimension::new(name, seeds)]].concat());
        Some((more, first))
    }

    /// Returns the search space, whose dimensions are named by the keys of the recipe.
    pub fn space(&self) -> &SearchSpace {
        &self.space
    }

    /// Returns the recipe with `values` pinned; values outside the space change nothing.
    pub fn recipe_with(&self, recipe: &Recipe, values: &[TrialValue]) -> Recipe {
        let mut recipe = recipe.clone();
        for (key, value) in self.keys.iter().zip(values) {
            key.pin(&mut recipe, value);
        }
        let params = self.keys.iter().zip(values).filter_map(|(key, value)| match key {
            TunableKey::Param(name) => Some((name, value)),
            _ => None,
        });
        params::pin(&mut recipe, params);
        recipe
    }

    /// Returns `true` if trials may differ in their batch size, so that equal steps are not equal training.
    pub fn has_batches(&self) -> bool {
        self.keys.contains(&TunableKey::Batch)
    }

    /// Returns the name of each dimension among the params of a trial.
    pub fn param_names(&self) -> impl Iterator<Item = String> {
        self.keys.iter().zip(self.space.dimensions()).map(|(key, dimension)| match key {
            TunableKey::WarmupSteps => format!("{}.steps", dimension.name),
            TunableKey::WarmupTokens => format!("{}.tokens", dimension.name),
            _ => dimension.name.clone(),
        })
    }

    /// Returns `values` as settings of a recipe: dotted keys with values in TOML.
    pub fn settings(&self, values: &[TrialValue]) -> Vec<(String, String)> {
        let keys = self.keys.iter().zip(self.space.dimensions());
        let text = |((key, dimension), value): ((&TunableKey, &Dimension), &TrialValue)| {
            let value = match (key, value) {
                (_, TrialValue::Inactive) => return None,
                (TunableKey::WarmupSteps, TrialValue::Whole(steps)) => format!("\"{steps} steps\""),
                (TunableKey::WarmupTokens, TrialValue::Whole(tokens)) => format!("\"{tokens} tokens\""),
                (_, TrialValue::Flag(flag)) => flag.to_string(),
                (_, TrialValue::Whole(count)) => count.to_string(),
                (_, TrialValue::Real(number)) => format!("{number:?}"),
                // JSON escapes are valid TOML escapes.
                (_, TrialValue::Word(word)) => serde_json::Value::from(word.as_str()).to_string(),
            };
            Some((dimension.name.clone(), value))
        };
        keys.zip(values).filter_map(text).collect()
    }

    /// Returns the values nearest to those of a plan, as a natural first trial; `None` when a dimension has
    /// no such value.
    pub fn planned_values(&self, plan: &Plan) -> Option<Vec<TrialValue>> {
        self.collect_values(|key, dimension| match key {
            TunableKey::Param(name) => given_value(&plan.recipe, name, dimension),
            _ => key.planned_value(plan, dimension),
        })
    }

    /// Returns the values that the recipe gives its params; `None` when other keys are searched as well.
    pub fn given_values(&self, recipe: &Recipe) -> Option<Vec<TrialValue>> {
        self.collect_values(|key, dimension| match key {
            TunableKey::Param(name) => given_value(recipe, name, dimension),
            _ => None,
        })
    }

    /// Collects one value for each dimension; `None` when a value is missing or not in the space.
    fn collect_values(
        &self,
        value: impl Fn(&TunableKey, &Dimension) -> Option<TrialValue>,
    ) -> Option<Vec<TrialValue>> {
        let pairs = self.keys.iter().zip(self.space.dimensions());
        let values: Vec<TrialValue> =
            pairs.map(|(key, dimension)| value(key, dimension)).collect::<Option<_>>()?;
        self.space.coordinates(&values).map(|_| values)
    }
}

/// Returns `true` if a command has the placeholder `{train.seed}`.
fn takes_seed(command: &ForeignCommand) -> bool {
    command.argv.iter().chain(command.env.values()).any(|text| text.contains("{train.seed}"))
}

/// Returns the value that the recipe gives a param; [`TrialValue::Inactive`] where the param does not exist.
fn given_value(recipe: &Recipe, name: &str, dimension: &Dimension) -> Option<TrialValue> {
    let Some(param) = recipe.params.get(name) else { return Some(TrialValue::Inactive) };
    let value = params::value(param);
    match dimension.coordinate(&value) {
        Some(_) if dimension.is_categorical() => Some(value),
        _ => dimension.nearest(param.number()?),
    }
}

impl TunableKey {
    fn name(&self) -> &str {
        match self {
            Self::LearningRate => LEARNING_RATE,
            Self::Batch => BATCH,
            Self::WarmupSteps | Self::WarmupTokens => "train.warmup",
            Self::Precision => "train.precision",
            Self::Seed => "train.seed",
            Self::Param(name) => name,
        }
    }

    /// Pins a key of the section `train`; params are pinned together elsewhere.
    fn pin(&self, recipe: &mut Recipe, value: &TrialValue) {
        let train = &mut recipe.train;
        match (self, value) {
            (Self::LearningRate, TrialValue::Real(rate)) => train.learning_rate = Tunable::Pinned(*rate),
            (Self::Batch, TrialValue::Whole(samples)) => {
                train.batch = Tunable::Pinned(Samples(count(*samples)));
            }
            (Self::WarmupSteps, TrialValue::Whole(steps)) => {
                train.warmup = Tunable::Pinned(Warmup::Steps(count(*steps)));
            }
            (Self::WarmupTokens, TrialValue::Whole(tokens)) => {
                train.warmup = Tunable::Pinned(Warmup::Tokens(Tokens(count(*tokens))));
            }
            (Self::Seed, TrialValue::Whole(seed)) => train.seed = count(*seed),
            (Self::Precision, TrialValue::Word(word)) => {
                train.precision = Precision::from_name(word).map_or(train.precision.clone(), Tunable::Pinned);
            }
            _ => {}
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    fn planned_value(&self, plan: &Plan, dimension: &Dimension) -> Option<TrialValue> {
        let warmup = plan.best().run_length.warmup.value;
        match self {
            Self::LearningRate => dimension.nearest(plan.learning_rate.value),
            Self::Batch => dimension.nearest(plan.batch.value as f64),
            Self::WarmupSteps => dimension.nearest(warmup as f64),
            Self::WarmupTokens => {
                dimension.nearest((warmup * plan.batch.value * plan.recipe.model.sample_tokens()) as f64)
            }
            Self::Precision => Some(precision_value(plan.best().candidate.arrangement.precision)),
            Self::Seed => Some(TrialValue::Whole(whole(plan.recipe.train.seed))),
            Self::Param(_) => None,
        }
    }
}

fn precision_value(precision: Precision) -> TrialValue {
    TrialValue::Word(precision.name().into())
}

/// Returns `true` if a scale has more than one value.
fn is_open(scale: &Scale) -> bool {
    match scale {
        Scale::Log { low, high } | Scale::Uniform { low, high } => low < high,
        Scale::Counts { low, high } | Scale::Integers { low, high } => low < high,
        Scale::Levels(all) | Scale::Names(all) => all.len() > 1,
    }
}

fn rate(choice: &Tunable<f64>, recommended: Option<&Decision<f64>>) -> Option<Scale> {
    match choice {
        Tunable::Auto => recommended.map(|Decision { low, high, .. }| Scale::Log { low: *low, high: *high }),
        Tunable::Pinned(_) => None,
        Tunable::Among(rates) => {
            let mut rates = rates.clone();
            rates.sort_by(f64::total_cmp);
            rates.dedup();
            Some(Scale::Levels(rates.into_iter().map(TrialValue::Real).collect()))
        }
        Tunable::Log { low, high } => Some(Scale::Log { low: *low, high: *high }),
    }
}

fn batch(choice: &Tunable<Samples>) -> Option<Scale> {
    match choice {
        Tunable::Auto | Tunable::Pinned(_) => None,
        Tunable::Among(batches) => Some(counts(batches.iter().map(|samples| samples.0).collect())),
        Tunable::Log { low, high } => {
            let doublings = std::iter::successors(Some(low.0.max(1)), |batch| batch.checked_mul(2));
            Some(counts(doublings.take_while(|batch| *batch <= high.0).collect()))
        }
    }
}

fn warmup(choice: &Tunable<Warmup>) -> Option<(TunableKey, Scale)> {
    let counted = |warmup: &Warmup| match warmup {
        Warmup::Steps(steps) => (TunableKey::WarmupSteps, *steps),
        Warmup::Tokens(tokens) => (TunableKey::WarmupTokens, tokens.0),
    };
    match choice {
        Tunable::Auto | Tunable::Pinned(_) => None,
        Tunable::Among(all) => {
            let (key, _) = counted(all.first()?);
            // Steps and tokens cannot be compared: only choices in the unit of the first are searched.
            let alike = all.iter().map(counted).filter(|(other, _)| *other == key);
            let alike = counts(alike.map(|(_, count)| count).collect());
            Some((key, alike))
        }
        Tunable::Log { low, high } => {
            let ((key, low), (_, high)) = (counted(low), counted(high));
            Some((key, Scale::Counts { low: whole(low.max(1)), high: whole(high) }))
        }
    }
}

fn precision(choice: &Tunable<Precision>) -> Option<Scale> {
    match choice {
        Tunable::Auto | Tunable::Pinned(_) | Tunable::Log { .. } => None,
        Tunable::Among(all) => {
            let named =
                Precision::ALL.iter().filter(|one| all.contains(one)).map(|one| precision_value(*one));
            Some(Scale::Names(named.collect()))
        }
    }
}

/// Returns a scale whose levels are the counts `all` in ascending order.
fn counts(mut all: Vec<u64>) -> Scale {
    all.sort_unstable();
    all.dedup();
    Scale::Levels(all.into_iter().map(|count| TrialValue::Whole(whole(count))).collect())
}

/// Converts a count into the integer of a trial's value.
fn whole(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Converts the integer of a trial's value into a count.
fn count(whole: i64) -> u64 {
    u64::try_from(whole).unwrap_or(0)
}

#[cfg(test)]
mod tests;
