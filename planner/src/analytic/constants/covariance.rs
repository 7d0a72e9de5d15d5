//! The joint uncertainty of the fitted constants: the covariance of their logarithms.

use super::Constants;
use super::fitted::{FittedConstant, with_constants};
use crate::analytic::{StepInputs, StepTimes};
use crate::hardware::GpuSpec;
use serde::{Deserialize, Serialize};

/// Covariance of the logarithms of the fitted constants, as estimated by the fit (`data/covariance.toml`).
#[derive(Clone, Debug, Default)]
pub struct Covariance {
    constants: Vec<FittedConstant>,
    /// Rows of the lower Cholesky factor `L` of the covariance `L·Lᵀ`.
    factor: Vec<Vec<f64>>,
}

/// Contents of the file `data/covariance.toml`.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct CovarianceFile {
    /// Names of the fitted constants, in the order of the rows of the factor.
    pub names: Vec<String>,
    /// Rows of the lower Cholesky factor; row `i` has `i + 1` entries.
    pub factor: Vec<Vec<f64>>,
}

/// Change of the logarithm of a constant in numeric derivatives.
const STEP: f64 = 1e-3;

impl Covariance {
    /// Builds the covariance from the contents of its file.
    ///
    /// # Errors
    /// If a name is unknown, or the factor is not a triangle of that size.
    pub fn of(page: CovarianceFile) -> Result<Self, String> {
        let wrong = |name: &String| format!("there is no constant `{name}`");
        let named = |name: &String| FittedConstant::named(name).ok_or_else(|| wrong(name));
        let constants: Vec<FittedConstant> = page.names.iter().map(named).collect::<Result<_, _>>()?;
        let is_triangle = page.factor.iter().enumerate().all(|(i, row)| row.len() == i + 1);
        if !is_triangle || page.factor.len() != constants.len() {
            return Err(format!("the factor of {} constants is no triangle of that size", constants.len()));
        }
        Ok(Self { constants, factor: page.factor })
    }

    /// Returns the change of ln(step time) of `case` on `gpu` for one standard deviation along each uncertain
    /// direction of the constants. The sum of their squares is the variance due to the constants.
    pub fn directions(&self, case: &StepInputs<'_>, gpu: &GpuSpec) -> Vec<f64> {
        let here = StepTimes::of(case).total().ln();
        let slope = |constant: &FittedConstant| {
            if !constant.concerns(case, gpu) {
                return 0.0;
            }
            let mut moved: Constants = case.constants.clone();
            constant.set(&mut moved, constant.of(case.constants) * STEP.exp());
            (StepTimes::of(&with_constants(case, gpu, &moved)).total().ln() - here) / STEP
        };
        let slopes: Vec<f64> = self.constants.iter().map(slope).collect();
        let direction = |j: usize| (j..slopes.len()).map(|i| slopes[i] * self.factor[i][j]).sum();
        (0..slopes.len()).map(direction).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_of_another_size_is_refused() {
        let page =
            |factor| CovarianceFile { names: vec!["general.wave".into(), "general.link".into()], factor };
        assert!(Covariance::of(page(vec![vec![0.1], vec![0.0, 0.1]])).is_ok());
        assert!(Covariance::of(page(vec![vec![0.1]])).is_err_and(|error| error.contains("2 constants")));
        let unknown = CovarianceFile { names: vec!["general.frob".into()], factor: vec![vec![0.1]] };
        assert!(Covariance::of(unknown).is_err_and(|error| error.contains("general.frob")));
    }
}
