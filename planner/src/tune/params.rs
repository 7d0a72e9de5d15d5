//! The params of a recipe as dimensions of a search space.

use super::scale::{Dimension, Scale};
use super::value::TrialValue;
use dtrain_recipes::params::resolve_params;
use dtrain_recipes::{ParamDomain, ParamValue, Recipe};

/// Returns the params of a recipe that have a range of more than one value, each after those it depends on:
/// the name in the recipe, and a dimension named `params.x`. `before` is the number of dimensions before
/// them.
///
/// Conditions on params with a fixed value are evaluated here; a param that cannot exist is left out.
pub(super) fn dimensions(recipe: &Recipe, before: usize) -> Vec<(String, Dimension)> {
    let mut found = DimensionCollector { recipe, before, dimensions: Vec::new() };
    for name in recipe.ranges.keys() {
        found.find(name, recipe.ranges.len());
    }
    found.dimensions
}

/// Sets params of the recipe to the given values, and also sets the params that depend on them.
pub(super) fn pin<'a>(recipe: &mut Recipe, values: impl Iterator<Item = (&'a String, &'a TrialValue)>) {
    let mut is_any = false;
    for (name, value) in values {
        is_any = true;
        recipe.ranges.remove(name);
        match param(value) {
            Some(value) => recipe.params.insert(name.clone(), value),
            None => recipe.params.remove(name),
        };
    }
    if is_any {
        recipe.params.retain(|name, _| !recipe.ranges.contains_key(name));
        recipe.params = resolve_params(std::mem::take(&mut recipe.params), &recipe.ranges);
    }
}

/// Converts the value of a dimension into that of a param; `None` where the param does not exist.
fn param(value: &TrialValue) -> Option<ParamValue> {
    match value {
        TrialValue::Inactive => None,
        TrialValue::Flag(flag) => Some(ParamValue::Flag(*flag)),
        TrialValue::Whole(whole) => Some(ParamValue::Whole(*whole)),
        TrialValue::Real(real) => Some(ParamValue::Real(*real)),
        TrialValue::Word(word) => Some(ParamValue::Text(word.clone())),
    }
}

/// Converts the value of a param into that of a dimension.
pub(super) fn value(param: &ParamValue) -> TrialValue {
    match param {
        ParamValue::Flag(flag) => TrialValue::Flag(*flag),
        ParamValue::Whole(whole) => TrialValue::Whole(*whole),
        ParamValue::Real(real) => TrialValue::Real(*real),
        ParamValue::Text(text) => TrialValue::Word(text.clone()),
    }
}

/// Source of the value of a param: fixed, or a dimension of the search.
enum ParamSource {
    Dimension(usize),
    Fixed(ParamValue, Conditions),
}

type Conditions = Vec<(usize, Vec<TrialValue>)>;

/// Collects the dimensions of the params, each once.
struct DimensionCollector<'a> {
    recipe: &'a Recipe,
    before: usize,
    dimensions: Vec<(String, Dimension)>,
}

impl DimensionCollector<'_> {
    /// Returns the source of the value of the param `name`, and first adds the dimensions it depends on;
    /// `None` when the param cannot exist. Follows conditions `deep` levels at most, so a cycle ends.
    fn find(&mut self, name: &str, deep: usize) -> Option<ParamSource> {
        if let Some(place) = self.dimensions.iter().position(|(known, _)| known == name) {
            return Some(ParamSource::Dimension(self.before + place));
        }
        let Some(range) = self.recipe.ranges.get(name) else {
            return self.recipe.params.get(name).map(|value| ParamSource::Fixed(value.clone(), Vec::new()));
        };
        let mut when = Vec::new();
        for (on, wanted) in &range.when {
            match self.find(on, deep.checked_sub(1)?)? {
                ParamSource::Dimension(place) => when.push((place, wanted.iter().map(value).collect())),
                ParamSource::Fixed(value, also) if wanted.contains(&value) => when.extend(also),
                ParamSource::Fixed(..) => return None,
            }
        }
        let Some(scale) = scale(&range.within) else { return Some(ParamSource::Fixed(range.value(), when)) };
        let dimension = Dimension { when, ..Dimension::new(format!("params.{name}"), scale) };
        self.dimensions.push((name.to_owned(), dimension));
        Some(ParamSource::Dimension(self.before + self.dimensions.len() - 1))
    }
}

/// Returns the scale of the dimension for the range `within`; `None` when it has one value only. Choices that
/// are all numbers are ordered, others are not.
fn scale(within: &ParamDomain) -> Option<Scale> {
    match within {
        ParamDomain::Choices(all) => {
            let mut values: Vec<TrialValue> = Vec::new();
            for one in all.iter().map(value) {
                if !values.contains(&one) {
                    values.push(one);
                }
            }
            let is_ordered = all.iter().all(|one| one.number().is_some());
            if is_ordered {
                values.sort_by(|a, b| a.number().unwrap_or(0.0).total_cmp(&b.number().unwrap_or(0.0)));
            }
            (values.len() > 1).then_some(if is_ordered {
                Scale::Levels(values)
            } else {
                Scale::Names(values)
            })
        }
        ParamDomain::Log(ParamValue::Whole(low), ParamValue::Whole(high)) => {
            (low < high).then_some(Scale::Counts { low: *low, high: *high })
        }
        ParamDomain::Uniform(ParamValue::Whole(low), ParamValue::Whole(high)) => {
            (low < high).then_some(Scale::Integers { low: *low, high: *high })
        }
        ParamDomain::Log(low, high) => {
            let (low, high) = low.number().zip(high.number())?;
            (low < high).then_some(Scale::Log { low, high })
        }
        ParamDomain::Uniform(low, high) => {
            let (low, high) = low.number().zip(high.number())?;
            (low < high).then_some(Scale::Uniform { low, high })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use crate::tune::{RecipeSearchSpace, SearchSpace};
    use dtrain_recipes::ParamRange;
    use std::collections::BTreeMap;

    fn text(word: &str) -> ParamValue {
        ParamValue::Text(word.into())
    }

    fn range(within: ParamDomain, when: &[(&str, ParamValue)]) -> ParamRange {
        let when = when.iter().map(|(name, value)| ((*name).to_owned(), vec![value.clone()])).collect();
        ParamRange { within, default: None, when }
    }

    fn recipe() -> Recipe {
        let (whole, real) = (ParamValue::Whole, ParamValue::Real);
        let mut recipe = fixtures::recipe();
        recipe.train.learning_rate = dtrain_recipes::Tunable::Pinned(1e-3);
        let optimizers = ParamDomain::Choices(["sgd", "adam"].map(text).to_vec());
        let momentum = range(ParamDomain::Uniform(whole(0), real(0.99)), &[("optimizer", text("sgd"))]);
        let nesterov = ParamDomain::Choices([false, true].map(ParamValue::Flag).to_vec());
        let never = range(ParamDomain::Uniform(whole(0), whole(9)), &[("fixed", text("other"))]);
        let one = range(ParamDomain::Choices(vec![whole(4)]), &[("optimizer", text("adam"))]);
        recipe.ranges = BTreeMap::from([
            ("depth".into(), range(ParamDomain::Uniform(whole(-1), whole(3)), &[("one", whole(4))])),
            ("lr".into(), range(ParamDomain::Log(real(1e-5), real(1e-2)), &[("fixed", text("on"))])),
            ("momentum".into(), momentum),
            ("nesterov".into(), range(nesterov, &[("optimizer", text("sgd"))])),
            ("never".into(), never),
            ("one".into(), one),
            ("optimizer".into(), range(optimizers, &[])),
            ("width".into(), range(ParamDomain::Choices([64, 16].map(whole).to_vec()), &[])),
        ]);
        recipe.params.insert("fixed".into(), text("on"));
        recipe.params = resolve_params(recipe.params, &recipe.ranges);
        recipe
    }

    #[test]
    fn params_come_after_those_they_depend_on() {
        let searched = RecipeSearchSpace::of(&recipe(), None);
        let names: Vec<&str> = searched.space().dimensions().iter().map(|one| one.name.as_str()).collect();
        let wanted = ["optimizer", "depth", "lr", "momentum", "nesterov", "width"];
        assert_eq!(names, wanted.map(|name| format!("params.{name}")));
        let when = |k: usize| searched.space().dimensions()[k].when.clone();
        let word = |word: &str| vec![(0, vec![TrialValue::Word(word.into())])];
        assert_eq!(when(1), word("adam"), "as what it depends on, which has one value");
        assert_eq!((when(2), when(3)), (Vec::new(), word("sgd")));
        let scales = [1, 5].map(|k| searched.space().dimensions()[k].scale.clone());
        assert_eq!(scales[0], Scale::Integers { low: -1, high: 3 });
        assert_eq!(scales[1], Scale::Levels([16, 64].map(TrialValue::Whole).to_vec()), "in their order");
    }

    #[test]
    fn a_recipe_takes_the_params_that_were_found() {
        let recipe = recipe();
        let searched = RecipeSearchSpace::of(&recipe, None);
        let pinned = |at: f64| searched.recipe_with(&recipe, &searched.space().values(&[at; 6])).params;
        let sgd = pinned(0.1);
        assert_eq!(
            sgd.keys().collect::<Vec<_>>(),
            ["fixed", "lr", "momentum", "nesterov", "optimizer", "width"]
        );
        assert_eq!(
            (&sgd["momentum"], &sgd["nesterov"]),
            (&ParamValue::Real(0.099), &ParamValue::Flag(false))
        );
        let adam = pinned(0.9);
        assert_eq!(adam.keys().collect::<Vec<_>>(), ["depth", "fixed", "lr", "one", "optimizer", "width"]);
        assert_eq!((&adam["one"], &adam["depth"]), (&ParamValue::Whole(4), &ParamValue::Whole(3)));
        let space: &SearchSpace = searched.space();
        assert_eq!(
            searched.given_values(&recipe).and_then(|values| space.coordinates(&values)).map(|p| p.len()),
            Some(6)
        );
    }
}
