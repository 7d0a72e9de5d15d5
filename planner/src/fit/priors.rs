//! Priors of the constants of the cost model.

use crate::analytic::Constants;
use crate::analytic::constants::fitted::FittedConstant;
use std::collections::BTreeMap;

/// Log-normal prior of one constant of the cost model.
#[derive(Clone, Debug)]
pub struct ConstantPrior {
    /// Constant that the prior is about.
    pub constant: FittedConstant,
    /// Typical value of the constant.
    pub mean: f64,
    /// Standard deviation of the logarithm of the constant.
    pub spread: f64,
}

/// Priors of all fitted constants, sorted by name.
#[derive(Clone, Debug)]
pub struct ConstantPriors(pub Vec<ConstantPrior>);

impl ConstantPriors {
    /// Parses priors from TOML: `key = [mean, spread]`, in a table per style or section of constants.
    ///
    /// # Errors
    /// If the TOML is malformed, or names an unknown constant.
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

    /// Returns `constants` with the fitted ones set to the values at their z-scores.
    pub fn constants(&self, z_scores: &[f64], constants: &Constants) -> Constants {
        let mut moved = constants.clone();
        for (prior, z_score) in self.0.iter().zip(z_scores) {
            prior.constant.set(&mut moved, prior.value(*z_score));
        }
        moved
    }

    /// Returns the z-score of each fitted constant in `constants`.
    pub fn z_scores(&self, constants: &Constants) -> Vec<f64> {
        self.0.iter().map(|prior| prior.z_score(prior.constant.of(constants))).collect()
    }
}

impl ConstantPrior {
    /// Returns the value of the constant at a z-score.
    pub fn value(&self, z_score: f64) -> f64 {
        self.mean * (z_score * self.spread).exp()
    }

    /// Returns the z-score of a value of the constant.
    pub fn z_score(&self, value: f64) -> f64 {
        (value / self.mean).ln() / self.spread
    }
}
