//! Results of a training run, tensor by tensor, and the difference between two runs.

use super::world::Trace;
use super::{LOSS, NORM, farthest};
use dtrain_protocol::{Assignment, TensorKind};
use dtrain_recipes::OptimizerKind;
use dtrain_tests::Tensors;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Largest difference of a gradient after one step, and of a weight after the last, each relative to the L2 norm of the whole
/// tensor: what the order of additions in f32 may do.
const GRADIENT: f64 = 1e-5;
const WEIGHT: f64 = 1e-4;

/// Most tensors that are named where some part too far.
const NAMED: usize = 5;

/// What a training told, and what it saved after its first step and after its last.
#[derive(PartialEq)]
pub(super) struct Trained {
    pub(super) trace: Trace,
    first: Tensors,
    last: Tensors,
    /// What the first moment is divided by to give the gradient of the first step.
    scale: f64,
}

impl Trained {
    /// A training by `one` of its assignments.
    pub(super) fn of(one: &Assignment, trace: Trace, first: Tensors, last: Tensors) -> Self {
        let training = &one.training;
        assert_eq!(training.optimizer.kind, OptimizerKind::Adamw, "its first moment begins as the gradient");
        let clipped = training.clip.map_or(1.0, |most| (most / trace.norms[0]).min(1.0));
        let scale = (1.0 - training.optimizer.beta1) * clipped;
        Self { trace, first, last, scale }
    }

    /// The gradient of every tensor in the first step, before clipping.
    fn gradients(&self) -> BTreeMap<&str, Vec<f64>> {
        values(&self.first, TensorKind::FirstMoment, self.scale)
    }

    /// Every weight after the last step.
    fn weights(&self) -> BTreeMap<&str, Vec<f64>> {
        values(&self.last, TensorKind::Parameter, 1.0)
    }

    /// What is not the same to the last bit, in words; `None` where everything is.
    pub(super) fn other_bits(&self, again: &Self) -> Option<String> {
        if self == again {
            return None;
        }
        let differ = |a: &Tensors, b: &Tensors| {
            let all: BTreeSet<_> = a.keys().chain(b.keys()).collect();
            let differ = all.iter().filter(|key| a.get(**key) != b.get(**key));
            let names: Vec<_> = differ.map(|(name, kind)| format!("{name}{}", kind.suffix())).collect();
            format!("{} of {} tensors ({})", names.len(), all.len(), first_of(&names).join(", "))
        };
        let same = if self.trace == again.trace { "the same" } else { "other" };
        let (first, last) = (differ(&self.first, &again.first), differ(&self.last, &again.last));
        Some(format!("{same} figures; other bits in {first} after one step, in {last} after the last"))
    }
}

/// The tensors of one kind, divided by `scale`.
fn values(tensors: &Tensors, kind: TensorKind, scale: f64) -> BTreeMap<&str, Vec<f64>> {
    let of_kind = tensors.iter().filter(|((_, found), _)| *found == kind);
    let values = of_kind.map(|((name, _), bytes)| {
        let value =
            |bytes: &[u8]| f64::from(f32::from_le_bytes(bytes.try_into().expect("four bytes"))) / scale;
        (name.as_str(), bytes.chunks_exact(4).map(value).collect())
    });
    values.collect()
}

/// How far a training parts from that of one rank.
pub(super) struct Parted {
    figures: [f64; 3],
    gradients: Vec<Distance>,
    weights: Vec<Distance>,
}

/// The difference of a tensor, relative to its norm, and its name.
type Distance = (f64, String);

impl Parted {
    /// How far `found` parts from `expected`.
    pub(super) fn of(expected: &Trained, found: &Trained) -> Self {
        let (one, other) = (&expected.trace, &found.trace);
        Self {
            figures: [
                farthest(&one.losses, &other.losses),
                farthest(&one.norms, &other.norms),
                farthest(&one.validations, &other.validations),
            ],
            gradients: distances(&expected.gradients(), &found.gradients()),
            weights: distances(&expected.weights(), &found.weights()),
        }
    }

    /// Whether nothing parts farther than rounding explains.
    pub(super) fn is_close(&self) -> bool {
        self.is_within([LOSS, NORM, LOSS, GRADIENT, WEIGHT])
    }

    /// Whether nothing parts as far as `limits`, in the order of [`Parted::largest`].
    pub(super) fn is_within(&self, limits: [f64; 5]) -> bool {
        self.largest().iter().zip(limits).all(|(found, limit)| *found < limit)
    }

    /// The largest difference of the losses, the norms, the validations, the gradients and the weights.
    pub(super) fn largest(&self) -> [f64; 5] {
        let [loss, norm, validation] = self.figures;
        let of = |distances: &[Distance]| distances.first().map_or(f64::INFINITY, |farthest| farthest.0);
        [loss, norm, validation, of(&self.gradients), of(&self.weights)]
    }
}

impl fmt::Display for Parted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&words(self.largest()))?;
        for (distances, what, most) in
            [(&self.gradients, "gradient", GRADIENT), (&self.weights, "weight", WEIGHT)]
        {
            let beyond = distances.iter().take_while(|(distance, _)| *distance >= most);
            let beyond: Vec<_> =
                beyond.map(|(distance, name)| format!("\n    {what} {name}: {distance:.1e}")).collect();
            f.write_str(&first_of(&beyond).concat())?;
        }
        Ok(())
    }
}

/// What [`Parted::largest`] gives, in words.
pub(super) fn words([loss, norm, validation, gradient, weight]: [f64; 5]) -> String {
    format!(
        "gradients part by {gradient:.1e} at most, weights by {weight:.1e}, losses by {loss:.1e}, \
         norms by {norm:.1e}, validations by {validation:.1e}"
    )
}

fn first_of<T>(all: &[T]) -> &[T] {
    &all[..all.len().min(NAMED)]
}

/// How far each tensor is from the expected one; the farthest first.
fn distances(expected: &BTreeMap<&str, Vec<f64>>, found: &BTreeMap<&str, Vec<f64>>) -> Vec<Distance> {
    assert!(
        expected.keys().eq(found.keys()),
        "the same tensors: {:?} and {:?}",
        expected.keys(),
        found.keys()
    );
    let distance = |((name, expected_values), found_values): ((&&str, &Vec<f64>), &Vec<f64>)| {
        assert_eq!(expected_values.len(), found_values.len(), "{name}");
        let own = expected.get(yardstick(name).as_str()).unwrap_or(expected_values);
        let difference = norm(expected_values.iter().zip(found_values).map(|(a, b)| a - b));
        let relative = if difference == 0.0 { 0.0 } else { difference / norm(own.iter().copied()) };
        (if relative.is_nan() { f64::INFINITY } else { relative }, (*name).to_owned())
    };
    let mut all: Vec<_> = expected.iter().zip(found.values()).map(distance).collect();
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    all
}

/// The tensor whose norm the difference of the tensor called `name` is relative to: itself, but for the bias of the keys.
///
/// That bias adds one number to all scores of a query, and softmax ignores it: its gradient is zero, and what is computed is
/// rounding alone. The bias of the queries has the same shape.
fn yardstick(name: &str) -> String {
    name.replace("attention.k.bias", "attention.q.bias")
}

/// The L2 norm.
fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum::<f64>().sqrt()
}
