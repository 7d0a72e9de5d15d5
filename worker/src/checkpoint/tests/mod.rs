//! Small checkpoints: some ranks write, others read.

mod damage;
mod reshard;

use super::*;
use dtrain_protocol::checkpoint::{CHUNK_BYTES, FORMAT, merge};
use dtrain_protocol::{
    AttemptId, Layout, Manifest, Rank, Region, SavedFile, Slice, StepId, TensorKind, TrialId,
};
use proptest::prelude::*;
use std::fs;
use std::ops::Range;
use std::path::Path;

/// A tensor with all its elements.
#[derive(Clone, Debug)]
struct Whole {
    name: String,
    kind: TensorKind,
    shape: Vec<u64>,
    values: Vec<f32>,
}

fn whole(name: &str, kind: TensorKind, shape: &[u64]) -> Whole {
    let elements: u64 = shape.iter().product();
    let seed = (31 * name.len() + kind.suffix().len()) as u64;
    let value = |i: u64| f32::from_bits(dtrain_protocol::shuffle::splitmix64(seed, i) as u32);
    Whole { name: name.into(), kind, shape: shape.to_vec(), values: (0..elements).map(value).collect() }
}

fn model() -> Vec<Whole> {
    let mut all = Vec::new();
    for kind in [TensorKind::Parameter, TensorKind::FirstMoment, TensorKind::SecondMoment] {
        for (name, shape) in
            [("a.weight", &[7u64, 5][..]), ("b.bias", &[3]), ("scalar", &[]), ("empty", &[0, 4])]
        {
            all.push(whole(name, kind, shape));
        }
    }
    all
}

/// Saves every rank's share and commits the result, as the agent does.
fn write(folder: &Path, tensors: &[Whole], ranks: u32) -> Vec<SavedFile> {
    let holders: Vec<_> = (0..ranks).map(Rank).collect();
    let held =
        |tensor: &Whole| TensorShard { range: 0..tensor.values.len() as u64, holders: holders.clone() };
    let held: Vec<_> = tensors.iter().map(held).collect();
    let mut saved = Vec::new();
    for rank in &holders {
        let mut shares = write_shares(&held, *rank);
        if rank.0 == 0 {
            // A tensor without elements is in no rank's share, and still has a name.
            let empty = (0..tensors.len()).filter(|index| tensors[*index].values.is_empty());
            shares.extend(empty.map(|index| (index, 0..0)));
        }
        let slice = |(index, range): &(usize, Range<u64>)| range_of(&tensors[*index], range.clone());
        let slices: Vec<_> = shares.iter().map(slice).collect();
        let pieces = shares.iter().zip(&slices).map(|((index, range), slice)| {
            let Whole { name, kind, values, .. } = &tensors[*index];
            NamedPiece { name, kind: *kind, slice, values: &values[range.start as usize..range.end as usize] }
        });
        saved.push(save(folder, *rank, &pieces.collect::<Vec<_>>()).expect("saved"));
    }
    commit(folder, saved.clone());
    saved
}

/// Returns a range of a whole tensor.
fn range_of(tensor: &Whole, range: Range<u64>) -> Slice {
    Slice::of(Region::whole(&tensor.shape), range)
}

fn manifest(saved: Vec<SavedFile>) -> Manifest {
    let (tensors, files) = merge(saved).expect("every element once");
    Manifest {
        format: FORMAT,
        trial: TrialId("t".into()),
        attempt: AttemptId(1),
        step: StepId(5),
        layout: Layout::SINGLE,
        program: "test".into(),
        cursor: 40,
        seed: Some(1),
        tensors,
        files,
    }
}

fn commit(folder: &Path, saved: Vec<SavedFile>) {
    put_manifest(folder, &serde_json::to_vec(&manifest(saved)).expect("json"));
}

fn put_manifest(folder: &Path, json: &[u8]) {
    fs::write(folder.join("manifest.json"), json).expect("written");
    fs::write(folder.join("COMMIT"), blake3::hash(json).to_hex().as_str()).expect("written");
}

fn read(reader: &TensorReader, tensor: &Whole, range: Range<u64>) -> Result<Vec<f32>, CheckpointError> {
    let mut values = vec![0.0; (range.end - range.start) as usize];
    reader.read(&tensor.name, tensor.kind, &range_of(tensor, range), &mut values).map(|()| values)
}

fn same(a: &[f32], b: &[f32]) -> bool {
    a.iter().map(|v| v.to_bits()).eq(b.iter().map(|v| v.to_bits()))
}

fn check_whole(folder: &Path, tensors: &[Whole]) {
    let reader = TensorReader::open(folder).expect("opened");
    for tensor in tensors {
        let values = read(&reader, tensor, 0..tensor.values.len() as u64).expect("read");
        assert!(same(&values, &tensor.values), "{} {:?}", tensor.name, tensor.kind);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn what_some_ranks_wrote_others_read_in_any_ranges(
        ranks in 1u32..7,
        cuts in prop::collection::vec((0u64..=35, 0u64..=35), 1..8),
    ) {
        let folder = tempfile::tempdir().expect("a folder");
        let tensors = model();
        write(folder.path(), &tensors, ranks);
        let reader = TensorReader::open(folder.path()).expect("opened");
        for (begin, end) in cuts {
            for tensor in &tensors {
                let elements = tensor.values.len() as u64;
                let range = begin.min(end).min(elements)..begin.max(end).min(elements);
                let expected = &tensor.values[range.start as usize..range.end as usize];
                prop_assert!(same(&read(&reader, tensor, range).expect("read"), expected));
            }
        }
    }
}

#[test]
fn the_files_are_plain_safetensors() {
    let folder = tempfile::tempdir().expect("a folder");
    let tensors = model();
    write(folder.path(), &tensors, 1);
    let bytes = fs::read(folder.path().join("rank-00000.safetensors")).expect("read");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("valid");
    let weight = file.tensor("a.weight").expect("a whole weight has its plain name");
    assert_eq!(weight.shape(), [7, 5]);
    assert_eq!(weight.data(), bytemuck::cast_slice::<f32, u8>(&tensors[0].values));
    assert!(file.tensor("a.weight#first_moment").is_ok());
}

#[test]
fn a_block_of_a_matrix_is_a_matrix_and_a_part_of_it_tells_its_range() {
    let folder = tempfile::tempdir().expect("a folder");
    let matrix = whole("w", TensorKind::Parameter, &[4, 6]);
    let columns = |columns| Region { shape: vec![4, 6], sides: vec![0..4, columns] };
    let slices = [Slice::all(columns(0..2)), Slice::of(columns(2..6), 0..7), Slice::of(columns(2..6), 7..16)];
    let values = slices.clone().map(|slice| {
        let whole = Slice::whole(&matrix.shape);
        let runs: Vec<_> = slice.overlaps(&whole).collect();
        let run = |run: &dtrain_protocol::checkpoint::SliceOverlap| {
            matrix.values[run.second as usize..(run.second + run.length) as usize].to_vec()
        };
        runs.iter().flat_map(run).collect::<Vec<_>>()
    });
    let pieces = slices.iter().zip(&values).map(|(slice, values)| NamedPiece {
        name: "w",
        kind: TensorKind::Parameter,
        slice,
        values,
    });
    let saved = save(folder.path(), Rank(0), &pieces.collect::<Vec<_>>()).expect("saved");
    commit(folder.path(), vec![saved]);
    let bytes = fs::read(folder.path().join("rank-00000.safetensors")).expect("read");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("valid");
    let shape = |key| file.tensor(key).map(|entry| entry.shape().to_vec()).ok();
    assert_eq!(shape("w[0..4,0..2]"), Some(vec![4, 2]));
    assert_eq!(shape("w[0..4,2..6][0..7]"), Some(vec![7]));
    assert_eq!(shape("w[0..4,2..6][7..16]"), Some(vec![9]));
    check_whole(folder.path(), &[matrix]);
}

#[test]
fn what_the_first_version_wrote_is_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let tensors = model();
    let saved = write(folder.path(), &tensors, 3);
    let mut json = serde_json::to_value(manifest(saved)).expect("json");
    json["format"] = 1.into();
    json.as_object_mut().expect("a table").remove("seed").expect("it tells the seed");
    assert!(!json.to_string().contains("sides"), "whole tensors in ranges are written as they were");
    put_manifest(folder.path(), json.to_string().as_bytes());
    check_whole(folder.path(), &tensors);
}

#[test]
fn tensors_over_many_chunks_come_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let tensors = [whole("large", TensorKind::Parameter, &[1 + 5 * CHUNK_BYTES / 8])];
    let saved = write(folder.path(), &tensors, 2);
    assert!(saved.iter().all(|file| file.file.chunks.len() == 2), "each of two files has two chunks");
    check_whole(folder.path(), &tensors);
    let reader = TensorReader::open(folder.path()).expect("opened");
    let middle = CHUNK_BYTES / 4 - 1030..CHUNK_BYTES / 4 + 30;
    let expected = &tensors[0].values[middle.start as usize..middle.end as usize];
    assert!(same(&read(&reader, &tensors[0], middle).expect("read"), expected));
}
