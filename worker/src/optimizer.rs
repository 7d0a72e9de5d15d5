//! Optimizers: AdamW, SGD with momentum, Lion and LAMB.
//!
//! Moments are stored beside the weights: flat vectors on the host, tensors elsewhere; those of shards are
//! in host memory on every device. The learning rate and the time come from outside, so a resumed run needs
//! the moments alone.

mod device;
mod host;
mod lamb;

use crate::network::ModelParameter;
use crate::ops::kernels::UpdateCoefficients;
use crate::snapshot::Snapshot;
use crate::stage::Stage;
use crate::zero::ZeroShards;
use burn::tensor::Tensor;
use dtrain_recipes::{Optimizer as Rule, OptimizerKind};
use std::ops::Range;
use std::sync::Arc;

/// An optimizer, with its moments for the parameters of one stage.
pub struct StageOptimizer {
    rule: Rule,
    parameters: Vec<ModelParameter>,
    /// Owned part of each parameter, as a range from the parameter's first value.
    owned: Vec<Range<usize>>,
    /// True if values and gradients are updated in host memory, whatever the device.
    here: bool,
    moments: Vec<Moments>,
}

/// The scalars of one optimizer step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WeightUpdate {
    /// Learning rate.
    pub rate: f64,
    /// Factor of every gradient, from clipping and the loss scale.
    pub scale: f32,
    /// Number of the step, from 1.
    pub t: u64,
}

/// The moments of the owned part of one parameter; created at the first step.
#[derive(Clone, Debug, Default)]
enum Moments {
    #[default]
    None,
    Host(Arc<Vec<f32>>, Arc<Vec<f32>>),
    Device(Box<[Tensor<1>; 2]>),
}

impl StageOptimizer {
    /// Creates an optimizer that owns all of `parameters`.
    pub fn new(rule: &Rule, parameters: &[ModelParameter]) -> Self {
        let owned = parameters.iter().map(|parameter| 0..parameter.range.len()).collect();
        let moments = vec![Moments::None; parameters.len()];
        Self { rule: *rule, parameters: parameters.to_vec(), owned, here: false, moments }
    }

    /// Creates an optimizer for the parts of `parameters` that this rank owns, in host memory.
    pub fn sharded(rule: &Rule, parameters: &[ModelParameter], shards: &ZeroShards) -> Self {
        let owned = (0..parameters.len()).map(|index| shards.owned(index)).collect();
        Self { owned, here: true, ..Self::new(rule, parameters) }
    }

    /// Applies the gradients of `stage` to its values; for stages whose state is not sharded.
    ///
    /// `scale` is the factor of every gradient, from clipping; `t` is the number of the step, from 1.
    pub fn step(&mut self, stage: &mut Stage, learning_rate: f64, scale: f32, t: u64) {
        let step = WeightUpdate { rate: learning_rate, scale, t };
        (0..self.parameters.len()).for_each(|index| self.apply(index, stage, step));
    }

    /// Applies the gradient of parameter `index` to the owned part of its values. LAMB treats that part as
    /// the whole tensor, see `StageOptimizer::directions`.
    pub fn apply(&mut self, index: usize, stage: &mut Stage, step: WeightUpdate) {
        let len = self.owned[index].len();
        if len == 0 {
            return;
        }
        let numbers = self.numbers(&self.parameters[index], step);
        let kind = self.rule.kind;
        let moments = &mut self.moments[index];
        if self.here || stage.is_on_host() {
            let (first, second) = moments.host(len, kind);
            stage.update(index, |values, gradient| {
                host::step(kind, numbers, values, gradient, first, second);
            });
        } else {
            stage.update_tensor(index, |value, gradient| {
                let (first, second) = moments.device(&value);
                let (value, first, second) = device::step(kind, numbers, value, gradient, first, second);
                *moments = Moments::Device(Box::new([first, second]));
                value
            });
        }
    }

    /// Returns the first and second moment of the owned part of parameter `index`. `None` for a moment that
    /// the optimizer lacks; zeros before the first step.
    pub fn moments(&self, index: usize) -> (Option<Vec<f32>>, Option<Vec<f32>>) {
        let len = self.owned[index].len();
        let (first, second) = match &self.moments[index] {
            Moments::None => (vec![0.0; len], vec![0.0; len]),
            Moments::Host(first, second) => (first.to_vec(), second.to_vec()),
            Moments::Device(both) => {
                let vector = |t: &Tensor<1>| t.to_data().try_to_vec().expect("moments are f32");
                (vector(&both[0]), vector(&both[1]))
            }
        };
        (Some(first), has_second(self.rule.kind).then_some(second))
    }

    /// Returns a snapshot of both moments of elements `range` of the owned part of parameter `index`;
    /// `None` as in [`StageOptimizer::moments`].
    pub(crate) fn snapshot(&self, index: usize, range: Range<usize>) -> [Option<Snapshot>; 2] {
        let (first, second) = match &self.moments[index] {
            Moments::None => {
                let zeros = Snapshot::Copy(vec![0.0; range.len()]);
                (zeros.clone(), zeros)
            }
            Moments::Host(first, second) => {
                let part = |moment: &Arc<Vec<f32>>| Snapshot::Vector(Arc::clone(moment), range.clone());
                (part(first), part(second))
            }
            Moments::Device(both) => {
                let part = |moment: &Tensor<1>| Snapshot::tensor(moment, range.clone(), false);
                (part(&both[0]), part(&both[1]))
            }
        };
        [Some(first), has_second(self.rule.kind).then_some(second)]
    }

    /// Replaces the moments of parameter `index` by values as from [`StageOptimizer::moments`]. A moment that
    /// the optimizer lacks is ignored, a missing one is zero. Panics on a wrong length.
    pub fn set_moments(&mut self, index: usize, first: Option<Vec<f32>>, second: Option<Vec<f32>>) {
        let len = self.owned[index].len();
        let checked = |moment: Option<Vec<f32>>| {
            let moment = moment.unwrap_or_else(|| vec![0.0; len]);
            assert_eq!(moment.len(), len, "moments of `{}`", self.parameters[index].name);
            moment
        };
        let second = if has_second(self.rule.kind) { checked(second) } else { Vec::new() };
        self.moments[index] = Moments::Host(Arc::new(checked(first)), Arc::new(second));
    }

    /// Returns the bytes of all moments; 0 before the first step.
    pub fn bytes(&self) -> u64 {
        let values = |moments: &Moments| match moments {
            Moments::None => 0,
            Moments::Host(first, second) => first.capacity() + second.capacity(),
            Moments::Device(both) => both.iter().map(|moment| moment.shape().num_elements()).sum(),
        };
        4 * self.moments.iter().map(values).sum::<usize>() as u64
    }

    /// Returns the owned part of parameter `index`, as a range from the parameter's first value.
    pub fn owned(&self, index: usize) -> Range<usize> {
        self.owned[index].clone()
    }

    fn numbers(
        &self,
        parameter: &ModelParameter,
        WeightUpdate { rate, scale, t }: WeightUpdate,
    ) -> UpdateCoefficients {
        let Rule { beta1, beta2, epsilon, weight_decay, .. } = self.rule;
        let correction = |beta: f64| (1.0 / (1.0 - beta.powf(t as f64))) as f32;
        UpdateCoefficients {
            beta1: beta1 as f32,
            beta2: beta2 as f32,
            epsilon: epsilon as f32,
            rate: rate as f32,
            decay: if parameter.has_weight_decay { weight_decay as f32 } else { 0.0 },
            scale,
            correction1: correction(beta1),
            correction2: correction(beta2),
        }
    }
}

impl Moments {
    /// Returns both moments of `len` values in host memory, created if there are none yet.
    fn host(&mut self, len: usize, kind: OptimizerKind) -> (&mut [f32], &mut [f32]) {
        if let Self::None = self {
            let second = if has_second(kind) { vec![0.0; len] } else { Vec::new() };
            *self = Self::Host(Arc::new(vec![0.0; len]), Arc::new(second));
        }
        match self {
            // Copies only if a checkpoint still reads the moments.
            Self::Host(first, second) => {
                (Arc::make_mut(first).as_mut_slice(), Arc::make_mut(second).as_mut_slice())
            }
            Self::None | Self::Device(..) => unreachable!("moments of a stage on the host are vectors"),
        }
    }

    /// Returns both moments on the device of `value`, moved there if needed. `self` becomes empty, so that
    /// they may be changed in place.
    fn device(&mut self, value: &Tensor<1>) -> (Tensor<1>, Tensor<1>) {
        let beside =
            |v: &[f32]| if v.is_empty() { value.zeros_like() } else { Tensor::from_data(v, &value.device()) };
        match std::mem::take(self) {
            Self::None => (value.zeros_like(), value.zeros_like()),
            Self::Host(first, second) => (beside(&first), beside(&second)),
            Self::Device(both) => {
                let [first, second] = *both;
                (first, second)
            }
        }
    }
}

/// Returns `true` if the optimizer `kind` has a second moment.
fn has_second(kind: OptimizerKind) -> bool {
    match kind {
        OptimizerKind::Adamw | OptimizerKind::Lamb => true,
        OptimizerKind::Sgd | OptimizerKind::Lion => false,
    }
}

#[cfg(test)]
mod tests;
