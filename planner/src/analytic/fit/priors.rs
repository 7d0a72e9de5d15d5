//! What is known of constants before any row is seen.

use crate::analytic::Constants;
use crate::analytic::constants::fitted::FittedConstant;
use std::collections::BTreeMap;

/// The prior of one constant.
#[derive(Clone, Debug)]
pub struct ConstantPrior {
    /// The constant.
    pub constant: FittedConstant,
    /// Its usual value.
    pub mean: f64,
    /// Standard deviation of its logarithm.
    pub spread: f64,
}

/// The priors of all constants that are fitted, in the order of their names.
#[derive(Clone, Debug)]
pub struct ConstantPriors(pub Vec<ConstantPrior>);

impl ConstantPriors {
    /// The priors of a TOML page: `key = [mean, spread]` in a table for each file or section of constants.
    ///
    /// # Errors
    /// Where the page is no such TOML, or names a constant that does not exist.
    pub fn read(page: &str) -> Result<Self, String> {
        let tables: BTreeMap<String, BTreeMap<String, [f64; 2]>> =
            toml::from_str(page).map_err(|error| error.to_string())?;
        let keys = tables.into_iter().flat_map(|(table, keys)| {
            keys.into_iter().map(move |(key, prior)| (format!("{table}.{key}"), prior))
        });
        let prior = |(name, [mean, spread]): (String, [f64; 2])| {
            let constant =
                FittedConstant::named(&name).ok_or_else(|| format!("there is no constant `{name}`"))?;
            if mean > 0.0 && spread > 0.0 {
                return Ok(ConstantPrior { constant, mean, spread });
            }
            Err(format!("the prior of `{name}` needs a mean and a spread above 0; found {mean}, {spread}"))
        };
        keys.map(prior).collect::<Result<_, _>>().map(Self)
    }

    /// `constants` with the values at `z_scores`: deviations from the means, in spreads.
    pub fn constants(&self, z_scores: &[f64], constants: &Constants) -> Constants {
        let mut moved = constants.clone();
        for (prior, z_score) in self.0.iter().zip(z_scores) {
            prior.constant.set(&mut moved, prior.value(*z_score));
        }
        moved
    }

    /// Where `constants` are.
    pub fn z_scores(&self, constants: &Constants) -> Vec<f64> {
        self.0.iter().map(|prior| prior.z_score(prior.constant.of(constants))).collect()
    }
}

impl ConstantPrior {
    /// The value so many spreads from the mean.
    pub fn value(&self, z_score: f64) -> f64 {
        self.mean * (z_score * self.spread).exp()
    }

    /// How many spreads `value` is from the mean.
    pub fn z_score(&self, value: f64) -> f64 {
        (value / self.mean).ln() / self.spread
    }
}
