//! The Gauss-Newton method with Levenberg-Marquardt damping.

use crate::linear_algebra::Cholesky;
use argmin::core::{CostFunction, Error, Hessian, IterState, KV, Problem, Solver};
use argmin::core::{TerminationReason, TerminationStatus};

/// Gradient and approximate Hessian of a sum of squares.
#[derive(Clone, Debug)]
pub struct NormalEquations {
    /// Gradient of the sum of squares.
    pub slope: Vec<f64>,
    /// Gauss-Newton approximation of the Hessian, row-major.
    pub curvature: Vec<f64>,
}

/// State of the solver between iterations.
pub(super) type GaussNewtonState = IterState<Vec<f64>, (), (), (), (), f64>;

/// The Gauss-Newton solver; it has converged when a step gains less than `GAIN`.
#[derive(Clone, Debug)]
pub(super) struct GaussNewton {
    damping: f64,
    has_converged: bool,
}

/// Decrease of the loss in one step below which the search ends.
const GAIN: f64 = 1e-7;

/// Damping beyond which the solver gives up.
const STUCK: f64 = 1e9;

impl GaussNewton {
    /// Creates a solver that begins with small steps.
    pub(super) fn new() -> Self {
        Self { damping: 0.1, has_converged: false }
    }
}

impl<O> Solver<O, GaussNewtonState> for GaussNewton
where
    O: CostFunction<Param = Vec<f64>, Output = f64> + Hessian<Param = Vec<f64>, Hessian = NormalEquations>,
{
    fn name(&self) -> &'static str {
        "Gauss-Newton"
    }

    fn init(
        &mut self,
        problem: &mut Problem<O>,
        mut state: GaussNewtonState,
    ) -> Result<(GaussNewtonState, Option<KV>), Error> {
        let start = state.take_param().ok_or_else(|| Error::msg("the search has no start"))?;
        let cost = problem.cost(&start)?;
        Ok((state.param(start).cost(cost), None))
    }

    fn next_iter(
        &mut self,
        problem: &mut Problem<O>,
        mut state: GaussNewtonState,
    ) -> Result<(GaussNewtonState, Option<KV>), Error> {
        let at = state.take_param().ok_or_else(|| Error::msg("the search is nowhere"))?;
        let cost = state.cost;
        let NormalEquations { slope, curvature } = problem.hessian(&at)?;
        let size = at.len();
        while self.damping < STUCK {
            let mut damped = curvature.clone();
            for i in 0..size {
                damped[i * size + i] *= 1.0 + self.damping;
            }
            if let Some(factor) = Cholesky::of(damped, size) {
                let step = factor.solve(&slope);
                let to: Vec<f64> = at.iter().zip(&step).map(|(at, step)| at - step).collect();
                let lower = problem.cost(&to)?;
                if lower < cost {
                    self.damping = (self.damping / 5.0).max(1e-9);
                    self.has_converged = cost - lower < GAIN;
                    return Ok((state.param(to).cost(lower), None));
                }
            }
            self.damping *= 4.0;
        }
        self.has_converged = true;
        Ok((state.param(at).cost(cost), None))
    }

    fn terminate(&mut self, _: &GaussNewtonState) -> TerminationStatus {
        if self.has_converged {
            TerminationStatus::Terminated(TerminationReason::SolverConverged)
        } else {
            TerminationStatus::NotTerminated
        }
    }
}
