//! What any layout wrote, any other reads, to the last bit.
//!
//! Random models under random pairs of layouts. Ranks are tables here: what a rank holds is cut out of the truth, it
//! writes what the worker would write, and reads what the worker would read.

use super::*;
use crate::comm::part;
use dtrain_protocol::order::mix;
use dtrain_protocol::split::{self, holders};
use dtrain_protocol::{Arrangement, Axis, Channel};
use dtrain_recipes::ZeroStage;
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// Pairs of layouts that are tried.
const PAIRS: u64 = 10_000;

/// Blocks of every model, and what each may have: a name, and the number of dimensions.
const BLOCKS: u64 = 4;
const NAMES: [(&str, usize); 8] = [
    ("scale", 0),
    ("norm.weight", 1),
    ("attention.q.bias", 1),
    ("attention.q.weight", 2),
    ("ffn.down.weight", 2),
    ("convolution.weight", 3),
    ("experts.up.weight", 3),
    ("experts.down.weight", 3),
];

const KINDS: [TensorKind; 3] = [TensorKind::Parameter, TensorKind::FirstMoment, TensorKind::SecondMoment];

/// A parameter of a model: name, global shape, and the block it belongs to.
#[derive(Clone, Debug)]
struct Parameter {
    name: String,
    shape: Vec<u64>,
    block: Place,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    First,
    Block(u64),
    Last,
    /// A tied embedding.
    FirstAndLast,
}

/// How ranks hold a model.
#[derive(Clone, Debug)]
struct Way {
    arrangement: Arrangement,
    /// The stage of each block, in any order.
    stages: Vec<u32>,
}

/// What a rank holds of a parameter, or of one of its moments.
#[derive(Clone, Debug)]
struct Part<'a> {
    name: &'a str,
    kind: TensorKind,
    region: Region,
    held: Held,
    /// Whether another stage writes it.
    is_copy: bool,
}

/// What a rank holds: the values of its parts.
type Memory = Vec<Vec<f32>>;

/// Random numbers that follow from a seed.
struct Dice {
    seed: u64,
    thrown: u64,
}

impl Dice {
    /// A number below `sides`.
    fn below(&mut self, sides: u64) -> u64 {
        self.thrown += 1;
        mix(self.seed, self.thrown) % sides
    }

    fn model(&mut self) -> Vec<Parameter> {
        let mut shape = |dimensions: usize| (0..dimensions).map(|_| 1 + self.below(7)).collect::<Vec<_>>();
        let (embedding, head) = (shape(2), shape(2));
        let mut model = Vec::new();
        for index in 0..BLOCKS {
            let (short, dimensions) = NAMES[self.below(NAMES.len() as u64) as usize];
            let shape = (0..dimensions).map(|_| 1 + self.below(7)).collect();
            model.push(Parameter {
                name: format!("blocks.{index}.{short}"),
                shape,
                block: Place::Block(index),
            });
        }
        let is_tied = self.below(2) == 0;
        let block = if is_tied { Place::FirstAndLast } else { Place::First };
        model.push(Parameter { name: "embedding.weight".into(), shape: embedding, block });
        if !is_tied {
            model.push(Parameter { name: "head.weight".into(), shape: head, block: Place::Last });
        }
        model
    }

    /// Up to eight ranks, along any axes.
    fn way(&mut self) -> Way {
        let mut degrees = [1u32; 5];
        let mut ranks = 1 + self.below(8);
        for prime in [2, 3, 5, 7] {
            while ranks.is_multiple_of(prime) {
                ranks /= prime;
                degrees[self.below(5) as usize] *= prime as u32;
            }
        }
        let [tensor, context, expert, data, pipeline] =
            degrees.map(|degree| NonZeroU32::new(degree).expect("degrees start at one"));
        let layout = Layout { tensor, context, expert, data, pipeline };
        let arrangement = Arrangement { layout, ..Arrangement::SINGLE };
        let mut shards: Vec<_> =
            (1..=8).filter(|shard| arrangement.replicas().is_multiple_of(*shard)).collect();
        shards.retain(|shard| shards_evenly(&Arrangement { shard: *shard, ..arrangement }));
        let shard = shards[self.below(shards.len() as u64) as usize];
        let zero = [ZeroStage::Zero0, ZeroStage::Zero1, ZeroStage::Zero2, ZeroStage::Zero3];
        let zero = zero[self.below(4) as usize];
        let stages = (0..BLOCKS).map(|_| self.below(u64::from(pipeline.get())) as u32).collect();
        Way { arrangement: Arrangement { zero, shard, ..arrangement }, stages }
    }
}

impl Way {
    fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        (0..self.arrangement.layout.world()).map(Rank)
    }

    /// What `rank` holds of `model`.
    fn parts<'a>(&self, model: &'a [Parameter], rank: Rank) -> Vec<Part<'a>> {
        let Arrangement { layout, zero, .. } = self.arrangement;
        let coord = layout.coord(rank);
        let stage = coord.along(Axis::Pipeline);
        let (is_first, is_last) = (stage == 0, stage + 1 == layout.pipeline.get());
        let mut parts = Vec::new();
        for Parameter { name, shape, block } in model {
            let is_here = match block {
                Place::First => is_first,
                Place::Block(block) => self.stages[*block as usize] == stage,
                Place::Last => is_last,
                Place::FirstAndLast => is_first || is_last,
            };
            for kind in KINDS.into_iter().filter(|_| is_here) {
                let region = split::region(name, shape, &layout, coord);
                let is_sharded = match kind {
                    TensorKind::Parameter => zero == ZeroStage::Zero3,
                    TensorKind::FirstMoment | TensorKind::SecondMoment => zero != ZeroStage::Zero0,
                };
                let held = self.held(name, region.elements(), rank, is_sharded);
                let is_copy = matches!(block, Place::FirstAndLast) && !is_first;
                parts.push(Part { name, kind, region, held, is_copy });
            }
        }
        parts
    }

    fn held(&self, name: &str, elements: u64, rank: Rank, is_sharded: bool) -> Held {
        let same = holders(name, &self.arrangement.layout, rank);
        if !is_sharded {
            return Held { range: 0..elements, holders: same };
        }
        let (index, ranks) = place(&self.arrangement, name, rank);
        let range = part(elements as usize, index, ranks);
        let has_it = |other: &Rank| place(&self.arrangement, name, *other) == (index, ranks);
        Held {
            range: range.start as u64..range.end as u64,
            holders: same.into_iter().filter(has_it).collect(),
        }
    }
}

/// Place of `rank` in the group among which it shards a parameter, and the size of that: of neighbouring replicas
/// those that hold the same.
fn place(arrangement: &Arrangement, name: &str, rank: Rank) -> (u32, u32) {
    let layout = &arrangement.layout;
    let replicas = layout.group(rank, Channel::Replicas.axes());
    let neighbours = replicas.chunks(arrangement.shard as usize).find(|ranks| ranks.contains(&rank));
    let same = holders(name, layout, rank);
    let group: Vec<_> =
        neighbours.expect("it is a replica").iter().filter(|rank| same.contains(rank)).collect();
    let index = group.iter().position(|member| **member == rank).expect("it holds what it holds");
    (index as u32, group.len() as u32)
}

/// Whether all who hold an expert shard it among as many: otherwise their shards are not the same.
fn shards_evenly(arrangement: &Arrangement) -> bool {
    let name = "experts.up.weight";
    (0..arrangement.layout.world()).map(Rank).all(|rank| {
        let ranks = |rank| place(arrangement, name, rank).1;
        holders(name, &arrangement.layout, rank).into_iter().all(|other| ranks(other) == ranks(rank))
    })
}

/// Every value of a tensor.
fn truth(name: &str, kind: TensorKind, shape: &[u64]) -> Vec<f32> {
    let seed = name.bytes().fold(kind as u64, |hash, byte| mix(hash, u64::from(byte)));
    (0..shape.iter().product()).map(|i| f32::from_bits(mix(seed, i) as u32)).collect()
}

/// What every rank holds, cut out of the truth.
fn begin(model: &[Parameter], way: &Way) -> Vec<Memory> {
    let cut = |part: Part<'_>| {
        let all = truth(part.name, part.kind, &part.region.shape);
        let elements = part.region.runs().flat_map(|run| run.global..run.global + run.length);
        let range = part.held.range;
        let owned = elements.skip(range.start as usize).take((range.end - range.start) as usize);
        owned.map(|at| all[at as usize]).collect()
    };
    way.ranks().map(|rank| way.parts(model, rank).into_iter().map(cut).collect()).collect()
}

/// Every rank writes its share of what it holds; the result is committed.
fn write_all(folder: &Path, model: &[Parameter], way: &Way, memories: &[Memory]) {
    let write = |(rank, memory): (Rank, &Memory)| {
        let parts = way.parts(model, rank);
        // Weights and moments are shared on their own, as they may be held by others.
        let of = |part: &Part<'_>| {
            let range = if part.is_copy { 0..0 } else { part.held.range.clone() };
            Held { range, holders: part.held.holders.clone() }
        };
        let shares = shares(&parts.iter().map(of).collect::<Vec<_>>(), rank);
        let slice =
            |(index, range): &(usize, Range<u64>)| Slice::of(parts[*index].region.clone(), range.clone());
        let slices: Vec<_> = shares.iter().map(slice).collect();
        let pieces = shares.iter().zip(&slices).map(|((index, range), slice)| {
            let Part { name, kind, held, .. } = &parts[*index];
            let [begin, end] = [range.start, range.end].map(|at| (at - held.range.start) as usize);
            NamedPiece { name, kind: *kind, slice, values: &memory[*index][begin..end] }
        });
        save(folder, rank, &pieces.collect::<Vec<_>>()).expect("saved")
    };
    commit(folder, way.ranks().zip(memories).map(write).collect());
}

/// Every rank reads what it holds.
fn read_all(folder: &Path, model: &[Parameter], way: &Way) -> Vec<Memory> {
    let reader = Reader::open(folder).expect("opened");
    let read = |part: Part<'_>| {
        let slice = Slice::of(part.region, part.held.range);
        let mut values = vec![0.0; slice.elements() as usize];
        reader.read(part.name, part.kind, &slice, &mut values).expect("read");
        values
    };
    way.ranks().map(|rank| way.parts(model, rank).into_iter().map(read).collect()).collect()
}

fn alike(a: &[Memory], b: &[Memory]) -> bool {
    let of = |memories: &[Memory]| memories.iter().map(Vec::len).collect::<Vec<_>>();
    of(a) == of(b) && a.iter().flatten().zip(b.iter().flatten()).all(|(a, b)| same(a, b))
}

/// One layout writes, another reads and writes, and the first reads again.
fn there_and_back(folder: &Path, seed: u64) {
    let mut dice = Dice { seed, thrown: 0 };
    let (model, there, back) = (dice.model(), dice.way(), dice.way());
    let (first, second) = (folder.join(format!("{seed}.a")), folder.join(format!("{seed}.b")));
    let begun = begin(&model, &there);
    write_all(&first, &model, &there, &begun);
    let read = read_all(&first, &model, &back);
    assert!(
        alike(&read, &begin(&model, &back)),
        "{back:?} reads something else than {there:?} wrote: {model:?}"
    );
    write_all(&second, &model, &back, &read);
    let read = read_all(&second, &model, &there);
    assert!(alike(&read, &begun), "{there:?} finds something else after {back:?}: {model:?}");
    for folder in [first, second] {
        fs::remove_dir_all(folder).expect("removed");
    }
}

#[test]
fn ten_thousand_pairs_of_layouts_read_what_the_other_wrote() {
    // In memory: every file is synced.
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder");
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let folder = folder.path();
            scope.spawn(move || {
                for seed in (thread..PAIRS).step_by(threads as usize) {
                    let tried = std::panic::catch_unwind(|| there_and_back(folder, seed));
                    assert!(tried.is_ok(), "pair {seed} fails");
                }
            });
        }
    });
    println!("{PAIRS} pairs of layouts");
}

#[test]
fn the_pairs_reach_what_is_rare() {
    let mut reached = BTreeMap::<&str, u64>::new();
    for seed in 0..PAIRS {
        let mut dice = Dice { seed, thrown: 0 };
        let (model, way) = (dice.model(), dice.way());
        let Arrangement { layout, zero, shard, .. } = way.arrangement;
        let degree = |axis| layout.degree(axis) > 1;
        let mut count = |what, is_so: bool| *reached.entry(what).or_default() += u64::from(is_so);
        count("three axes", Axis::ALL.into_iter().filter(|axis| degree(*axis)).count() == 3);
        count("eight ranks", layout.world() == 8);
        count(
            "shards among some replicas",
            zero != ZeroStage::Zero0 && 1 < shard && shard < way.arrangement.replicas(),
        );
        count(
            "shards of tensor-parallel ranks",
            zero == ZeroStage::Zero3 && shard > 1 && degree(Axis::Tensor),
        );
        count("a tied embedding on two stages", degree(Axis::Pipeline) && model.len() as u64 == BLOCKS + 1);
        count("a scalar", model.iter().any(|parameter| parameter.shape.is_empty()));
        let experts = model.iter().find(|parameter| parameter.name.contains("experts"));
        count("experts along their axis", degree(Axis::Expert) && experts.is_some());
        count(
            "fewer experts than ranks",
            experts.is_some_and(|e| e.shape[0] < u64::from(layout.expert.get())),
        );
    }
    assert_eq!(reached.len(), 8);
    assert!(reached.values().all(|times| *times >= 20), "{reached:?}");
}

/// A matrix of many chunks, cut along the columns by those who write and along the rows by those who read.
#[test]
fn columns_are_read_as_rows_across_chunks() {
    let folder = tempfile::tempdir().expect("a folder");
    let matrix = whole("w", TensorKind::Parameter, &[1100, 3000]);
    let part = |dimension: usize, index: u32, parts: u32| {
        let mut region = Region::whole(&matrix.shape);
        region.sides[dimension] = split::share(matrix.shape[dimension], index, parts);
        Slice::all(region)
    };
    let expected = |slice: &Slice| -> Vec<f32> {
        let runs = slice.region().runs();
        runs.flat_map(|run| &matrix.values[run.global as usize..][..run.length as usize]).copied().collect()
    };
    let write = |rank: u32| {
        let slice = part(1, rank, 2);
        let values = expected(&slice);
        let piece = NamedPiece { name: "w", kind: TensorKind::Parameter, slice: &slice, values: &values };
        save(folder.path(), Rank(rank), &[piece]).expect("saved")
    };
    let saved: Vec<_> = (0..2).map(write).collect();
    assert!(saved.iter().all(|saved| saved.file.chunks.len() == 2));
    commit(folder.path(), saved);
    let reader = Reader::open(folder.path()).expect("opened");
    for index in 0..3 {
        let slice = part(0, index, 3);
        let mut values = vec![0.0; slice.elements() as usize];
        reader.read("w", TensorKind::Parameter, &slice, &mut values).expect("read");
        assert!(same(&values, &expected(&slice)), "rows of rank {index}");
    }
}

/// A pair whose first layout is tensor 2 × data 2.
fn cut_model() -> (Vec<Parameter>, Way) {
    let n = |degree| NonZeroU32::new(degree).expect("degrees start at one");
    let layout = Layout { tensor: n(2), data: n(2), ..Layout::SINGLE };
    let parameter = |name: &str, shape: &[u64]| Parameter {
        name: name.into(),
        shape: shape.to_vec(),
        block: Place::Block(0),
    };
    let model =
        vec![parameter("blocks.0.ffn.up.weight", &[6, 8]), parameter("blocks.0.ffn.down.weight", &[8, 6])];
    let arrangement = Arrangement { layout, ..Arrangement::SINGLE };
    (model, Way { arrangement, stages: vec![0; BLOCKS as usize] })
}

#[test]
fn a_corrupted_piece_of_a_cut_tensor_is_named_with_its_file_and_offset() {
    let folder = tempfile::tempdir().expect("a folder");
    let (model, way) = cut_model();
    write_all(folder.path(), &model, &way, &begin(&model, &way));
    // The ranks 0 and 2 hold the first columns of `up`; the second of them has the later rows.
    let name = "rank-00002.safetensors";
    let path = folder.path().join(name);
    let mut bytes = fs::read(&path).expect("read");
    let last = bytes.len() - 1;
    bytes[last] ^= 16;
    fs::write(&path, bytes).expect("written");
    let reader = Reader::open(folder.path()).expect("opened");
    let parts = way.parts(&model, Rank(1));
    let read = |part: &Part<'_>| {
        let mut values = vec![0.0; part.region.elements() as usize];
        reader.read(part.name, part.kind, &Slice::all(part.region.clone()), &mut values)
    };
    assert!(parts.iter().all(|part| read(part).is_ok()), "the other columns lie in other files");
    let broken = way
        .parts(&model, Rank(0))
        .iter()
        .find_map(|part| read(part).err().map(|e| (part.name.to_owned(), part.kind, e)));
    match broken {
        Some((name, kind, CheckpointError::Corrupt { tensor, file, offset: 0, .. })) => {
            assert_eq!((tensor, file), (format!("{name}{}", kind.suffix()), "rank-00002.safetensors".into()));
        }
        other => panic!("{other:?}"),
    }
}

/// Merging what the ranks saved fails and says this, after `change` to what rank 1 says.
fn check_unmerged(expected: &str, change: impl FnOnce(&mut SavedFile)) {
    let folder = tempfile::tempdir().expect("a folder");
    let (model, way) = cut_model();
    let memories = begin(&model, &way);
    write_all(folder.path(), &model, &way, &memories);
    let manifest: Manifest =
        serde_json::from_slice(&fs::read(folder.path().join("manifest.json")).expect("read")).expect("json");
    let of = |file: &dtrain_protocol::FileEntry| SavedFile {
        file: file.clone(),
        tensors: manifest
            .tensors
            .iter()
            .filter_map(|tensor| {
                let pieces: Vec<_> =
                    tensor.pieces.iter().filter(|piece| piece.file == file.name).cloned().collect();
                (!pieces.is_empty()).then(|| dtrain_protocol::Tensor { pieces, ..tensor.clone() })
            })
            .collect(),
    };
    let mut saved: Vec<_> = manifest.files.iter().map(of).collect();
    assert!(merge(saved.clone()).is_ok());
    change(&mut saved[1]);
    let error = merge(saved).expect_err(expected).to_string();
    assert!(error.contains(expected), "expected `{expected}` in: {error}");
}

#[test]
fn what_is_not_covered_once_is_not_committed() {
    check_unmerged("blocks.0.ffn.up.weight: element [0, 4] lies in 2 pieces", |saved| {
        let again =
            saved.tensors.iter().find(|tensor| tensor.name.contains("up")).expect("it has some").clone();
        saved.tensors.push(again);
    });
    check_unmerged("blocks.0.ffn.up.weight: element [0, 4] lies in no piece", |saved| {
        saved.tensors.retain(|tensor| !tensor.name.contains("up"));
    });
    check_unmerged("blocks.0.ffn.up.weight: element [0, 3] lies in 2 pieces", |saved| {
        let shifted =
            saved.tensors.iter_mut().find(|tensor| tensor.name.contains("up")).expect("it has some");
        shifted.pieces[0].sides[1] = 3..7;
    });
}
