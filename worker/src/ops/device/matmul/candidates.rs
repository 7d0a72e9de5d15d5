//! Candidates of autotuning: the matrix product kernels of cubek, which comes with burn.

use super::gemm_shape::GemmShape;
use cubecl::client::Client;
use cubecl::ir::features::Tma;
use cubek::matmul::definition::MatmulElems;
use cubek::matmul::multi_level::Strategy;
use cubek::matmul::multi_level::components::tile::TileMatmulKind;
use cubek::matmul::multi_level::definition::adjust_dtypes;
use cubek::matmul::multi_level::routines::TileSizeSelection;
use cubek::matmul::multi_level::routines::batch::double_buffering::DoubleBufferingArgs;
use cubek::matmul::multi_level::routines::batch::double_unit::DoubleUnitSelectionArgs;
use cubek::matmul::multi_level::routines::batch::ordered_double_buffering::OrderedSelectionArgs;
use cubek::matmul::multi_level::routines::batch::simple::SimpleArgs;
use cubek::matmul::multi_level::routines::batch::simple_unit::SimpleUnitSelectionArgs;
use cubek::matmul::multi_level::routines::batch::specialized::SpecializedStrategy;
use cubek::matmul::routine::BlueprintStrategy::Inferred;

/// The instructions by which a kernel uses the tensor cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TensorCoreTile {
    /// `wmma` instructions, on whole matrices in fragments.
    Cmma,
    /// `mma.sync` instructions, on registers.
    Mma,
}

impl TensorCoreTile {
    fn kind(self) -> TileMatmulKind {
        match self {
            Self::Cmma => TileMatmulKind::Cmma,
            Self::Mma => TileMatmulKind::Mma,
        }
    }
}

/// The algorithm of a matrix product kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// One stage of shared memory; each group of units has one row of tiles, or several.
    Simple { tile: TensorCoreTile, has_rows: bool },
    /// Two stages of shared memory: one is filled while the other is used.
    Double { tile: TensorCoreTile, is_specialized: bool },
    /// Two stages of shared memory, with the left factor loaded in order.
    Ordered { tile: TensorCoreTile, rows: u32 },
    /// Some units only load from memory, while the others compute.
    Specialized { tile: TensorCoreTile },
    /// [`Kind::Simple`], with factors loaded by the tensor memory accelerator.
    SimpleTma { tile: TensorCoreTile, has_rows: bool },
    /// [`Kind::Specialized`], with factors loaded by the tensor memory accelerator.
    SpecializedTma { tile: TensorCoreTile },
    /// No tensor cores, and one stage of shared memory.
    Unit { has_large_tiles: bool },
    /// No tensor cores, and two stages of shared memory.
    DoubleUnit { has_large_tiles: bool },
    /// Neither tensor cores nor shared memory.
    Direct,
    /// One unit for each value of the result, which works on every device.
    Naive,
}

/// A kernel that may compute a matrix product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MatmulKernel {
    /// Name of the kernel in the table of chosen kernels.
    pub(super) name: &'static str,
    kind: Kind,
}

use Kind::{
    Direct, Double, DoubleUnit, Naive, Ordered, Simple, SimpleTma, Specialized, SpecializedTma, Unit,
};
use TensorCoreTile::{Cmma, Mma};

const fn candidate(name: &'static str, kind: Kind) -> MatmulKernel {
    MatmulKernel { name, kind }
}

/// All candidate kernels in the order in which they are tried: the one that works everywhere comes first,
/// because other results are compared with its result; then from the fastest on, measured on an H100 with the
/// matrices of GPT-2 and of a Llama of 1.1 billion parameters in bf16.
pub(super) const CANDIDATES: [MatmulKernel; 26] = [
    candidate("simple-cmma", Simple { tile: Cmma, has_rows: false }),
    candidate("specialized-tma-mma", SpecializedTma { tile: Mma }),
    candidate("ordered-8-mma", Ordered { tile: Mma, rows: 8 }),
    candidate("simple-tma-mma", SimpleTma { tile: Mma, has_rows: false }),
    candidate("simple-tma-rows-mma", SimpleTma { tile: Mma, has_rows: true }),
    candidate("double-mma", Double { tile: Mma, is_specialized: false }),
    candidate("simple-tma-rows-cmma", SimpleTma { tile: Cmma, has_rows: true }),
    candidate("ordered-8-cmma", Ordered { tile: Cmma, rows: 8 }),
    candidate("specialized-mma", Specialized { tile: Mma }),
    candidate("simple-rows-mma", Simple { tile: Mma, has_rows: true }),
    candidate("ordered-4-mma", Ordered { tile: Mma, rows: 4 }),
    candidate("simple-rows-cmma", Simple { tile: Cmma, has_rows: true }),
    candidate("double-cmma", Double { tile: Cmma, is_specialized: false }),
    candidate("simple-mma", Simple { tile: Mma, has_rows: false }),
    candidate("specialized-tma-cmma", SpecializedTma { tile: Cmma }),
    candidate("simple-tma-cmma", SimpleTma { tile: Cmma, has_rows: false }),
    candidate("ordered-4-cmma", Ordered { tile: Cmma, rows: 4 }),
    candidate("double-specialized-mma", Double { tile: Mma, is_specialized: true }),
    candidate("double-specialized-cmma", Double { tile: Cmma, is_specialized: true }),
    candidate("specialized-cmma", Specialized { tile: Cmma }),
    candidate("double-unit", DoubleUnit { has_large_tiles: true }),
    candidate("unit", Unit { has_large_tiles: true }),
    candidate("double-unit-small", DoubleUnit { has_large_tiles: false }),
    candidate("unit-small", Unit { has_large_tiles: false }),
    candidate("direct", Direct),
    candidate("naive", Naive),
];

/// Names of the kernels that are used without tuning: the first one that the device can run.
pub(super) const DEFAULTS: [&str; 3] = ["simple-cmma", "unit", "naive"];

/// Returns the candidate kernel called `name`.
pub(super) fn named(name: &str) -> Option<MatmulKernel> {
    CANDIDATES.iter().copied().find(|candidate| candidate.name == name)
}

impl MatmulKernel {
    /// Returns `true` if the device has the features that the kernel needs, and the kernel may be fast for
    /// `problem`.
    pub(super) fn is_possible(self, client: &Client, problem: &GemmShape) -> bool {
        let has_tma = || client.properties().features.tma.contains(Tma::Base);
        match self.kind {
            Simple { tile, .. } | Double { tile, .. } | Ordered { tile, .. } | Specialized { tile } => {
                has_tile(client, tile, problem)
            }
            SimpleTma { tile, .. } | SpecializedTma { tile } => {
                problem.is_aligned() && has_tma() && has_tile(client, tile, problem)
            }
            // Slower than tensor cores where the device has them, and NVRTC compiles some of them for a
            // minute.
            Unit { .. } | DoubleUnit { .. } => !has_tile(client, Cmma, problem),
            Direct => !has_tile(client, Cmma, problem) || problem.is_small(),
            Naive => !has_tile(client, Cmma, problem) && problem.is_small(),
        }
    }

    pub(super) fn strategy(self) -> Strategy {
        let simple = |tile: TensorCoreTile, multi_rows| SimpleArgs { tile_matmul: tile.kind(), multi_rows };
        let specialized = |tile: TensorCoreTile| SpecializedStrategy { tile_matmul: tile.kind() };
        let tile_size = |is_large| {
            if is_large { TileSizeSelection::MaxTileSize } else { TileSizeSelection::MinTileSize }
        };
        match self.kind {
            Simple { tile: Cmma, has_rows } => Strategy::SimpleCyclicCmma(Inferred(simple(Cmma, has_rows))),
            Simple { tile: Mma, has_rows } => Strategy::SimpleCyclicMma(Inferred(simple(Mma, has_rows))),
            Double { tile, is_specialized } => {
                let args = DoubleBufferingArgs { specialized: is_specialized, tile_matmul: tile.kind() };
                match tile {
                    Cmma => Strategy::DoubleCyclicCmma(Inferred(args)),
                    Mma => Strategy::DoubleCyclicMma(Inferred(args)),
                }
            }
            Ordered { tile, rows } => {
                let args = OrderedSelectionArgs {
                    partition_k: Some(2),
                    row_count: Some(rows),
                    rows_per_plane: Some(2),
                    tile_matmul: tile.kind(),
                };
                match tile {
                    Cmma => Strategy::OrderedDoubleCmma(Inferred(args)),
                    Mma => Strategy::OrderedDoubleMma(Inferred(args)),
                }
            }
            Specialized { tile: Cmma } => Strategy::SpecializedCyclicCmma(Inferred(specialized(Cmma))),
            Specialized { tile: Mma } => Strategy::SpecializedCyclicMma(Inferred(specialized(Mma))),
            SimpleTma { tile: Cmma, has_rows } => Strategy::SimpleTmaCmma(Inferred(simple(Cmma, has_rows))),
            SimpleTma { tile: Mma, has_rows } => Strategy::SimpleTmaMma(Inferred(simple(Mma, has_rows))),
            SpecializedTma { tile: Cmma } => Strategy::SpecializedTmaCmma(Inferred(specialized(Cmma))),
            SpecializedTma { tile: Mma } => Strategy::SpecializedTmaMma(Inferred(specialized(Mma))),
            Unit { has_large_tiles } => {
                let tile_size = tile_size(has_large_tiles);
                Strategy::SimpleUnit(Inferred(SimpleUnitSelectionArgs { tile_size }))
            }
            DoubleUnit { has_large_tiles } => {
                let tile_size = tile_size(has_large_tiles);
                Strategy::DoubleUnit(Inferred(DoubleUnitSelectionArgs { tile_size }))
            }
            Direct => Strategy::Gemm(Inferred(Default::default())),
            Naive => Strategy::Naive,
        }
    }
}

/// Returns `true` if the device has tensor cores for the values of a product; f32 values are rounded to
/// TF32 for them.
fn has_tile(client: &Client, tile: TensorCoreTile, problem: &GemmShape) -> bool {
    let mut elements = MatmulElems::from_globals(&problem.elements());
    let kind = tile.kind();
    adjust_dtypes(client, &mut elements, kind.requires_accelerator());
    let sizes =
        kind.supported_sizes(client, elements.lhs_register, elements.rhs_register, elements.acc_register);
    !sizes.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_candidate_has_a_name_of_its_own_and_the_defaults_are_among_them() {
        let names: HashSet<_> = CANDIDATES.iter().map(|candidate| candidate.name).collect();
        assert_eq!(names.len(), CANDIDATES.len());
        let strategies: HashSet<_> = CANDIDATES.iter().map(|one| one.strategy().to_string()).collect();
        assert_eq!(strategies.len(), CANDIDATES.len(), "each is another kernel: {strategies:?}");
        assert!(DEFAULTS.iter().all(|name| named(name).is_some()));
        assert_eq!(named("no such kernel"), None);
    }
}
