//! The table of a rank's checkpoint reads matches the parts that the rank holds.

use super::*;
use crate::session::assignment_of_tests as assignment;
use dtrain_protocol::{
    AttemptId, FileEntry, Layout, Manifest, Slice, StepId, StoredSlice, Tensor, TensorKind, TrialId,
};
use proptest::prelude::*;
use std::num::NonZeroU32;

const KINDS: [TensorKind; 3] = [TensorKind::Parameter, TensorKind::FirstMoment, TensorKind::SecondMoment];

/// Returns the manifest of a checkpoint of all parameters of `model`, in one file.
fn manifest(model: &Model) -> Manifest {
    let mut tensors: Vec<Tensor> = Vec::new();
    let specs =
        parts(&*model::build(model, 0).unwrap(), 0..model.blocks()).into_iter().flat_map(|(_, specs)| specs);
    for spec in specs {
        if tensors.iter().any(|tensor| tensor.name == spec.name) {
            continue;
        }
        let shape: Vec<u64> = spec.shape.iter().map(|side| *side as u64).collect();
        for kind in KINDS.into_iter().filter(|kind| !spec.is_frozen || *kind == TensorKind::Parameter) {
            let name = spec.name.clone();
            let key = format!("{name}{}", kind.suffix());
            let pieces = vec![StoredSlice::of(&Slice::whole(&shape), "a", key)];
            tensors.push(Tensor { name, kind, shape: shape.clone(), pieces });
        }
    }
    Manifest {
        format: dtrain_protocol::checkpoint::FORMAT,
        trial: TrialId("t".into()),
        attempt: AttemptId(1),
        step: StepId(5),
        layout: Layout::SINGLE,
        program: "test".into(),
        cursor: 0,
        seed: None,
        tensors,
        files: vec![FileEntry { name: "a".into(), bytes: 0, chunks: Vec::new() }],
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn a_rank_is_said_to_read_what_it_holds_and_nothing_else(
        which in 0usize..6,
        [tensor, context, expert, data, pipeline] in prop::array::uniform5(1u32..3),
        zero in prop::sample::select(vec![ZeroStage::Zero0, ZeroStage::Zero1, ZeroStage::Zero3]),
        (rank, cut) in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
    ) {
        let model = models().swap_remove(which);
        let n = |degree| NonZeroU32::new(degree).expect("degrees start at one");
        let layout = Layout {
            tensor: n(tensor), context: n(context), expert: n(expert), data: n(data), pipeline: n(pipeline),
        };
        let arrangement = Arrangement { layout, ..Arrangement::SINGLE };
        let shard = if arrangement.replicas() > 1 && data > 1 { arrangement.replicas() } else { 1 };
        let arrangement = Arrangement { zero, shard, ..arrangement };
        let rank = Rank(rank.index(layout.world() as usize) as u32);
        // The stages of an interleaved pipeline: every other block, perhaps none at one end.
        let blocks = model.blocks();
        let cut = cut.index(blocks as usize + 1) as u32;
        let stage = layout.coord(rank).along(dtrain_protocol::Axis::Pipeline);
        let chunks = match (pipeline, stage) {
            (1, _) => vec![0..cut, cut..blocks],
            (_, 0) => std::iter::once(0..cut).collect(),
            _ => std::iter::once(cut..blocks).collect(),
        };
        let chunks: Vec<_> = chunks.into_iter().filter(|chunk| pipeline > 1 || !chunk.is_empty()).collect();

        let mut assignment = assignment(0, 1, std::path::Path::new("/"));
        (assignment.model, assignment.arrangement, assignment.rank) = (model.clone(), arrangement, rank);
        assignment.chunks.clone_from(&chunks);
        let manifest = manifest(&model);
        let read: Vec<_> = manifest.reads(&assignment).into_iter().map(|reading| {
            let Tensor { name, kind, .. } = &manifest.tensors[reading.tensor];
            (name.clone(), *kind, reading.slice)
        }).collect();

        let parts = chunks.iter().map(|chunk| parts(&*model::build(&model, 0).unwrap(), chunk.clone())).collect();
        let ChunkParameters { trained, frozen, .. } = assemble(parts, &layout, layout.coord(rank));
        let parameters = trained.parameters;
        let shards = ZeroShards::of(&arrangement, rank, &parameters);
        let mut held = Vec::new();
        for (index, ModelParameter { name, region, range, .. }) in parameters.iter().enumerate() {
            for kind in KINDS {
                let own = if kind == TensorKind::Parameter { 0..range.len() } else { shards.owned(index) };
                let slice = Slice::of(region.clone(), own.start as u64..own.end as u64);
                held.push((name.clone(), kind, slice));
            }
        }
        held.extend(frozen.parameters.into_iter().map(|ModelParameter { name, region, .. }| {
            (name, TensorKind::Parameter, Slice::all(region))
        }));
        let order = |one: &(String, TensorKind, Slice)| (one.0.clone(), one.1);
        let (mut read, mut held) = (read, held);
        read.sort_by_key(order);
        held.sort_by_key(order);
        prop_assert_eq!(read, held);
    }
}

#[test]
fn the_weights_to_begin_with_have_no_moments() {
    let model = Model::Decoder(gpt());
    let mut alone = assignment(0, 1, std::path::Path::new("/"));
    (alone.model, alone.chunks) = (model.clone(), std::iter::once(0..model.blocks()).collect());
    let trained = manifest(&model);
    let begun = Manifest { step: StepId(0), ..trained.clone() };
    assert_eq!(trained.reads(&alone).len(), trained.tensors.len());
    assert_eq!(3 * begun.reads(&alone).len(), begun.tensors.len());
}
