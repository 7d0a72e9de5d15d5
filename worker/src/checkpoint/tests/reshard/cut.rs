//! Tensors that writers and readers cut along other dimensions, and wrong reports of ranks.

use super::*;
use dtrain_protocol::sharding;
use std::num::NonZeroU32;

/// A matrix of many chunks, cut along the columns by those who write and along the rows by those who read.
#[test]
fn columns_are_read_as_rows_across_chunks() {
    let folder = tempfile::tempdir().expect("a folder");
    let matrix = whole("w", TensorKind::Parameter, &[1100, 3000]);
    let part = |dimension: usize, index: u32, parts: u32| {
        let mut region = Region::whole(&matrix.shape);
        region.sides[dimension] = sharding::shard_range(matrix.shape[dimension], index, parts);
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
    let reader = TensorReader::open(folder.path()).expect("opened");
    for index in 0..3 {
        let slice = part(0, index, 3);
        let mut values = vec![0.0; slice.elements() as usize];
        reader.read("w", TensorKind::Parameter, &slice, &mut values).expect("read");
        assert!(same(&values, &expected(&slice)), "rows of rank {index}");
    }
}

/// Creates a pair whose first layout is tensor 2 × data 2.
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
    let reader = TensorReader::open(folder.path()).expect("opened");
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

/// Expects that merging the ranks' reports fails with this message, after `change` to that of rank 1.
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
