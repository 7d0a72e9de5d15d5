//! Resharding: the elements, and the chunks of files, that a rank reads from a checkpoint of any layout.
//!
//! The worker reads only these, and a host with an incomplete checkpoint fetches only these chunks.

use super::header::ByteRanges;
use super::{CHUNK_BYTES, FileEntry, Manifest, Slice, Tensor, TensorKind};
use crate::sharding::{region, vector_shard_range};
use crate::{Arrangement, Assignment, Channel, StepId};
use dtrain_recipes::{Model, ZeroStage};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The elements that a rank reads of one tensor in a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorRead {
    /// Index of the tensor in the manifest's list.
    pub tensor: usize,
    /// Elements of the tensor to read.
    pub slice: Slice,
}

/// A set of chunks of one checkpoint file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkSet(Vec<bool>);

impl ChunkSet {
    /// Returns an empty set of chunks of `file`.
    pub fn none(file: &FileEntry) -> Self {
        Self(vec![false; usize::try_from(file.bytes.div_ceil(CHUNK_BYTES)).unwrap_or(0)])
    }

    /// Returns the set of all chunks of `file`.
    pub fn all(file: &FileEntry) -> Self {
        let Self(none) = Self::none(file);
        Self(vec![true; none.len()])
    }

    /// Adds the chunks that overlap with the byte range `bytes` of the file.
    pub fn add(&mut self, bytes: &Range<u64>) {
        if bytes.is_empty() {
            return;
        }
        let [first, last] = [bytes.start, bytes.end - 1].map(|at| usize::try_from(at / CHUNK_BYTES));
        if let (Ok(first), Ok(last)) = (first, last)
            && let Some(touched) = self.0.get_mut(first..=last)
        {
            touched.fill(true);
        }
    }

    /// Returns `true` if the set contains chunk `index`.
    pub fn has(&self, index: u64) -> bool {
        usize::try_from(index).ok().and_then(|index| self.0.get(index)).is_some_and(|has| *has)
    }

    /// Returns the indices of the chunks in the set, ascending.
    pub fn indices(&self) -> impl Iterator<Item = u64> + '_ {
        (0u64..).zip(&self.0).filter(|(_, has)| **has).map(|(index, _)| index)
    }
}

impl Manifest {
    /// Returns the elements that the rank of `assignment` reads to resume from this checkpoint, in the order
    /// of the manifest.
    ///
    /// Names and shapes are not checked: a tensor unknown to the model is either not read, or refused by the
    /// rank.
    pub fn reads(&self, assignment: &Assignment) -> Vec<TensorRead> {
        let Assignment { arrangement, rank, .. } = assignment;
        let (layout, rank) = (&arrangement.layout, *rank);
        let replicas = layout.group(rank, Channel::Replicas.axes());
        let replica = replicas.iter().take_while(|other| **other != rank).count();
        let (is_beginning, is_local) = (self.step == StepId(0), arrangement.sync.local.is_some());
        let are_replicas_alike = self.layout.data.get() == arrangement.replicas();
        let slice = |tensor: &Tensor| {
            let Tensor { name, kind, shape, .. } = tensor;
            let held = || is_held(assignment, name).then(|| region(name, shape, layout, layout.coord(rank)));
            match kind {
                TensorKind::Parameter => held().map(Slice::all),
                _ if is_beginning => None,
                TensorKind::FirstMoment | TensorKind::SecondMoment => held().map(|region| {
                    // Under DiLoCo, the first replica stores its moments whole.
                    let all = region.elements();
                    let own = if is_local { 0..all } else { owned(arrangement, assignment, name, all) };
                    Slice::of(region, own)
                }),
                TensorKind::OuterMomentum => held().filter(|_| is_local).map(Slice::all),
                TensorKind::Factor => {
                    held().filter(|_| !arrangement.sync.is_exact()).map(|_| Slice::whole(shape))
                }
                TensorKind::LossScale => Some(Slice::whole(shape)),
                TensorKind::Own { replica: of, .. } => {
                    let is_mine = are_replicas_alike && usize::try_from(*of) == Ok(replica);
                    held().filter(|_| is_mine).map(Slice::all)
                }
            }
        };
        let all = self.tensors.iter().enumerate();
        all.filter_map(|(tensor, about)| slice(about).map(|slice| TensorRead { tensor, slice })).collect()
    }

    /// Returns the names of the files that hold the elements in `reads`.
    pub fn files_of(&self, reads: &[TensorRead]) -> BTreeSet<&str> {
        let mut files = BTreeSet::new();
        for TensorRead { tensor, slice } in reads {
            let Tensor { shape, pieces, .. } = &self.tensors[*tensor];
            let has_some = |piece: &&super::StoredSlice| {
                piece.slice(shape).is_ok_and(|stored| stored.overlaps(slice).next().is_some())
            };
            let unknown = pieces.iter().filter(|piece| !files.contains(piece.file.as_str()));
            let found: Vec<_> = unknown.filter(has_some).map(|piece| piece.file.as_str()).collect();
            files.extend(found);
        }
        files
    }

    /// Adds to `chunks` of each file those that hold the elements in `reads`; `places` has the entries in the
    /// headers of these files.
    ///
    /// `Err` names a file whose header lacks an entry.
    pub fn add_chunks(
        &self,
        reads: &[TensorRead],
        places: &BTreeMap<String, ByteRanges>,
        chunks: &mut BTreeMap<String, ChunkSet>,
    ) -> Result<(), String> {
        for TensorRead { tensor, slice } in reads {
            let Tensor { shape, pieces, .. } = &self.tensors[*tensor];
            for piece in pieces {
                let Some(chunks) = chunks.get_mut(&piece.file) else { continue };
                let stored = piece.slice(shape)?;
                let mut runs = stored.overlaps(slice).peekable();
                if runs.peek().is_none() {
                    continue;
                }
                let Some(places) = places.get(&piece.file) else {
                    return Err(format!("{}: its head is not known", piece.file));
                };
                let words = |(at, detail)| format!("{} at byte {at}: {detail}", piece.file);
                let begin = piece.byte_range(places).map_err(words)?.start;
                for run in runs {
                    chunks.add(&(begin + 4 * run.first..begin + 4 * (run.first + run.length)));
                }
            }
        }
        Ok(())
    }

    /// Returns the files without tensors, which every rank reads whole.
    pub fn files_beside(&self) -> impl Iterator<Item = &FileEntry> {
        let pieces = self.tensors.iter().flat_map(|tensor| &tensor.pieces);
        let hold: BTreeSet<&str> = pieces.map(|piece| piece.file.as_str()).collect();
        self.files.iter().filter(move |file| !hold.contains(file.name.as_str()))
    }
}

/// Returns the range of the elements of the parameter `name` on the rank for which it also has the moments.
fn owned(arrangement: &Arrangement, assignment: &Assignment, name: &str, elements: u64) -> Range<u64> {
    if arrangement.zero == ZeroStage::Zero0 {
        return 0..elements;
    }
    let group = arrangement.shard_group(assignment.rank, Arrangement::replication(name));
    let place = group.iter().take_while(|member| **member != assignment.rank).count();
    vector_shard_range(elements, place as u64, group.len() as u64)
}

/// Returns `true` if the rank of `assignment` holds the parameter `name`. A parameter with an unknown place
/// is held by every rank.
fn is_held(assignment: &Assignment, name: &str) -> bool {
    let Assignment { model, chunks, .. } = assignment;
    let blocks = model.blocks();
    let has = |block: u32| chunks.iter().any(|chunk| chunk.contains(&block));
    let is_first = chunks.iter().any(|chunk| chunk.start == 0);
    let is_last = chunks.iter().any(|chunk| chunk.end == blocks);
    let number = |prefix: &str| name.strip_prefix(prefix)?.split('.').next()?.parse::<u32>().ok();
    match model {
        Model::Decoder(decoder) => match (number("blocks."), name.split('.').next()) {
            (Some(block), _) => has(block),
            (None, Some("embedding")) => is_first || (decoder.tied && is_last),
            (None, Some("positions")) => is_first,
            (None, Some("norm" | "head")) => is_last,
            (None, _) => true,
        },
        Model::Mlp(_) => number("layers.").is_none_or(|layer| has(layer) || (layer == blocks && is_last)),
        Model::Cnn(cnn) => match (name.split('.').next(), number("stages.")) {
            (Some("head"), _) => is_last,
            (Some("stem"), _) => is_first,
            (_, Some(stage)) => {
                let place = name.split('.').nth(2).and_then(|block| block.parse::<u32>().ok());
                place.is_none_or(|place| has(stage * cnn.blocks + place))
            }
            (_, None) => true,
        },
        Model::Custom(_) => match name.strip_prefix("own.").and_then(|rest| rest.split('.').next()) {
            Some("first") => is_first,
            Some("head") => is_last,
            Some("blocks") => number("own.blocks.").is_none_or(has),
            Some(_) | None => true,
        },
        Model::Command(_) => false,
    }
}
