//! Parameters of a stage, and the parts of the model that use them.

use super::weight_decay::has_weight_decay;
use crate::network::{Initializer, ModelParameter, ModelPart, ParameterSpec};
use dtrain_protocol::{Coord, Layout, sharding};
use std::ops::Range;

/// A part of the model, with the parameters that it uses.
pub(super) struct ParameterGroup {
    pub(super) part: ModelPart,
    /// Index among the blocks of its chunk; 0 for other parts.
    pub(super) place: u32,
    /// Short name and index of each trained parameter.
    pub(super) uses: Vec<(String, usize)>,
    /// Short name and index of each frozen parameter, counted among the frozen ones.
    pub(super) frozen: Vec<(String, usize)>,
    /// True if the input needs a gradient: false if nothing before it is trained.
    pub(super) input_tracked: bool,
}

/// The parts of all chunks of a stage, with their parameters numbered.
#[derive(Default)]
pub(super) struct ChunkParameters {
    pub(super) units: Vec<ParameterGroup>,
    pub(super) chunks: Vec<Range<usize>>,
    pub(super) trained: FlatParameters,
    pub(super) frozen: FlatParameters,
}

/// The parameters of a stage in flat order, with their initial values.
#[derive(Default)]
pub(super) struct FlatParameters {
    pub(super) parameters: Vec<ModelParameter>,
    pub(super) initials: Vec<Initializer>,
}

/// Numbers the parameters of all parts of all chunks, cut for the rank at `coord`; a repeated name (a tied
/// embedding) is the same parameter.
pub(super) fn assemble(
    chunks: Vec<Vec<(ModelPart, Vec<ParameterSpec>)>>,
    layout: &Layout,
    coord: Coord,
) -> ChunkParameters {
    let mut all = ChunkParameters::default();
    for parts in chunks {
        let begin = all.units.len();
        let is_fed = !matches!(parts.first(), Some((ModelPart::First, _)));
        let mut place = 0;
        for (part, specs) in parts {
            let input_tracked = is_fed || !all.trained.parameters.is_empty();
            let (mut uses, mut frozen) = (Vec::new(), Vec::new());
            for spec in &specs {
                let (of_unit, numbered) = if spec.is_frozen {
                    (&mut frozen, &mut all.frozen)
                } else {
                    (&mut uses, &mut all.trained)
                };
                let index = numbered.number(spec, all.units.len(), (layout, coord));
                of_unit.push((spec.short().to_owned(), index));
            }
            all.units.push(ParameterGroup { part, place, uses, frozen, input_tracked });
            place += u32::from(matches!(part, ModelPart::Block(_)));
        }
        all.chunks.push(begin..all.units.len());
    }
    all
}

impl FlatParameters {
    /// Returns the number of a unit's parameter; a new name gets the next number.
    fn number(&mut self, spec: &ParameterSpec, unit: usize, (layout, coord): (&Layout, Coord)) -> usize {
        if let Some(known) = self.parameters.iter().position(|parameter| parameter.name == spec.name) {
            return known;
        }
        let shape: Vec<_> = spec.shape.iter().map(|side| *side as u64).collect();
        let region = sharding::region(&spec.name, &shape, layout, coord);
        #[expect(clippy::cast_possible_truncation, reason = "sides of what lies in memory")]
        let shape: Vec<_> = region.local_shape().into_iter().map(|side| side as usize).collect();
        let start = self.parameters.last().map_or(0, |parameter| parameter.range.end);
        self.parameters.push(ModelParameter {
            name: spec.name.clone(),
            has_weight_decay: has_weight_decay(&spec.shape),
            unit,
            range: start..start + shape.iter().product::<usize>(),
            shape,
            region,
        });
        self.initials.push(spec.initial.clone());
        self.parameters.len() - 1
    }
}
