//! Resharding: any layout reads the checkpoint of any other, to the last bit.
//!
//! Random models under random pairs of layouts. Ranks are tables here: a rank's values are cut out of the
//! reference, it writes and reads like the worker.

mod cut;
mod dice;
mod way;

use super::*;
use dice::Dice;
use dtrain_protocol::shuffle::splitmix64;
use dtrain_protocol::{Arrangement, Axis};
use dtrain_recipes::ZeroStage;
use std::collections::BTreeMap;
use way::Way;

/// Pairs of layouts that are tried.
const PAIRS: u64 = 10_000;

/// Blocks of every model.
const BLOCKS: u64 = 4;

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

/// The part of a parameter, or of one of its moments, that a rank holds.
#[derive(Clone, Debug)]
struct Part<'a> {
    name: &'a str,
    kind: TensorKind,
    region: Region,
    held: TensorShard,
    /// True if another stage writes it.
    is_copy: bool,
}

/// The values of a rank's parts.
type Memory = Vec<Vec<f32>>;

/// Returns every value of a tensor, as the reference.
fn truth(name: &str, kind: TensorKind, shape: &[u64]) -> Vec<f32> {
    let seed =
        name.bytes().chain(kind.suffix().bytes()).fold(0, |hash, byte| splitmix64(hash, u64::from(byte)));
    (0..shape.iter().product()).map(|i| f32::from_bits(splitmix64(seed, i) as u32)).collect()
}

/// Returns the values of every rank, cut out of the reference.
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

/// Writes every rank's share and commits the result.
fn write_all(folder: &Path, model: &[Parameter], way: &Way, memories: &[Memory]) {
    let write = |(rank, memory): (Rank, &Memory)| {
        let parts = way.parts(model, rank);
        // Weights and moments are shared separately, because other ranks may hold them.
        let of = |part: &Part<'_>| {
            let range = if part.is_copy { 0..0 } else { part.held.range.clone() };
            TensorShard { range, holders: part.held.holders.clone() }
        };
        let shares = write_shares(&parts.iter().map(of).collect::<Vec<_>>(), rank);
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

/// Reads every rank's parts.
fn read_all(folder: &Path, model: &[Parameter], way: &Way) -> Vec<Memory> {
    let reader = TensorReader::open(folder).expect("opened");
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

/// Writes in one layout, reads and writes in another, and reads again in the first.
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
    // In memory, because every file is synced.
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
