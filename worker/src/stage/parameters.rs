//! Which parameters a stage has, and which part uses which.

use crate::model::{Part, Spec, initial::Initial};
use std::ops::Range;

/// A trainable parameter of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Global name, such as `blocks.3.ffn.up.weight`.
    pub name: String,
    /// Dimensions, row-major.
    pub shape: Vec<usize>,
    /// Whether weight decay applies: matrices, but not norms and biases.
    pub decays: bool,
    /// The part of this stage it belongs to; of a tied embedding the first.
    pub unit: usize,
    /// Its place in the flat order of all parameters of this stage.
    pub range: Range<usize>,
}

/// A part with the parameters it uses.
pub(super) struct Unit {
    pub(super) part: Part,
    /// Short name and index of each parameter.
    pub(super) uses: Vec<(String, usize)>,
    /// Whether gradients flow into its input: false when nothing before it is trained.
    pub(super) input_tracked: bool,
}

/// Numbers the parameters of all parts; a name that was seen before (a tied embedding) is the same parameter.
pub(super) fn assemble(parts: Vec<(Part, Vec<Spec>)>) -> (Vec<Unit>, Vec<Parameter>, Vec<Initial>) {
    let (mut units, mut parameters, mut initials) = (Vec::new(), Vec::<Parameter>::new(), Vec::new());
    let from_another_stage = !matches!(parts.first(), Some((Part::Embedding, _)));
    for (part, specs) in parts {
        let input_tracked = from_another_stage || !parameters.is_empty();
        let mut uses = Vec::with_capacity(specs.len());
        for spec in specs {
            let known = parameters.iter().position(|parameter| parameter.name == spec.name);
            let index = known.unwrap_or_else(|| {
                let start = parameters.last().map_or(0, |parameter| parameter.range.end);
                parameters.push(Parameter {
                    name: spec.name.clone(),
                    decays: spec.shape.len() > 1,
                    unit: units.len(),
                    range: start..start + spec.shape.iter().product::<usize>(),
                    shape: spec.shape.clone(),
                });
                initials.push(spec.initial);
                parameters.len() - 1
            });
            uses.push((spec.short().to_owned(), index));
        }
        units.push(Unit { part, uses, input_tracked });
    }
    (units, parameters, initials)
}
