//! How certain the fitted constants are, together: the covariance of their logarithms.

use super::Constants;
use super::fitted::{FittedConstant, with_constants};
use crate::analytic::hardware::GpuSpec;
use crate::analytic::{StepInputs, StepTimes};
use serde::{Deserialize, Serialize};

/// The covariance of the logarithms of the fitted constants, as the fit left it (`data/covariance.toml`).
#[derive(Clone, Debug, Default)]
pub struct Covariance {
    constants: Vec<FittedConstant>,
    /// The lower factor `L` of the covariance `L·Lᵀ`, a row each.
    factor: Vec<Vec<f64>>,
}

/// The file.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct CovarianceFile {
    /// Names of constants.
    pub names: Vec<String>,
    /// The lower factor of their covariance, a row each, as long as it is deep.
    pub factor: Vec<Vec<f64>>,
}

/// Step of a derivative, in the logarithm of a constant.
const STEP: f64 = 1e-3;

impl Covariance {
    /// The covariance of a page.
    ///
    /// # Errors
    /// Where a name is of no constant, or the factor is no triangle of that size.
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

    /// How the logarithm of the step time of `case` on `gpu` moves with each direction in which the constants are uncertain, a
    /// standard deviation in each: its squares sum up to the variance that the constants leave.
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
