//! Tests of merging the files of ranks: complete checkpoints are accepted, others refused.

use super::*;

/// Returns a file with some elements of `tensor`.
fn saved(
    tensor: (&str, TensorKind, &[u64]),
    file: &str,
    sides: &[Range<u64>],
    range: Range<u64>,
) -> SavedFile {
    let (name, kind, shape) = tensor;
    let piece = StoredSlice {
        file: file.into(),
        key: name.into(),
        sides: sides.to_vec(),
        begin: range.start,
        end: range.end,
    };
    let tensor = Tensor { name: name.into(), kind, shape: shape.to_vec(), pieces: vec![piece] };
    let file = FileEntry { name: file.into(), bytes: 0, chunks: Vec::new() };
    SavedFile { file, tensors: vec![tensor] }
}

const W: (&str, TensorKind, &[u64]) = ("w", TensorKind::Parameter, &[2, 3]);

/// Asserts that merging fails with this text.
fn check_refused(expected: &str, saved: impl IntoIterator<Item = SavedFile>) {
    let error = merge(saved).expect_err(expected).to_string();
    assert!(error.contains(expected), "expected `{expected}` in: {error}");
}

#[test]
fn pieces_of_all_ranks_must_cover_each_element_once() {
    let of = |file, range| saved(W, file, &[], range);
    let (tensors, files) = merge([of("b", 4..6), of("a", 0..4)]).expect("they cover");
    assert_eq!((tensors.len(), files.len(), tensors[0].pieces[0].file.as_str()), (1, 2, "a"));
    check_refused("tensor w: element [1, 1] lies in no piece", [of("a", 0..4)]);
    check_refused("tensor w: element [1, 0] lies in 2 pieces", [of("a", 0..4), of("b", 3..6)]);
    check_refused("tensor w: element [1, 1] lies in no piece", [of("a", 0..4), of("b", 5..6)]);
    check_refused("element [0, 0] lies in 2 pieces", [of("a", 0..6), of("b", 0..6)]);
    check_refused("elements 0..7 of a region of 6", [of("a", 0..7)]);
    check_refused("elements 4..3", [of("a", Range { start: 4, end: 3 })]);
}

#[test]
fn regions_and_ranges_inside_them_cover_together() {
    let of = |file, columns: Range<u64>, range| saved(W, file, &[0..2, columns], range);
    assert!(merge([of("a", 0..2, 0..4), of("b", 2..3, 0..2)]).is_ok());
    assert!(merge([of("a", 0..2, 0..3), of("b", 0..2, 3..4), of("c", 2..3, 0..2)]).is_ok());
    check_refused("element [0, 1] lies in 2 pieces", [of("a", 0..2, 0..4), of("b", 1..3, 0..4)]);
    check_refused("element [1, 1] lies in no piece", [of("a", 0..2, 0..3), of("b", 2..3, 0..2)]);
    check_refused("does not fit into shape", [of("a", 0..4, 0..8)]);
    check_refused("does not fit into shape", [saved(W, "a", &[0..2, 0..3, 0..1], 0..6)]);
}

#[test]
fn moments_come_with_their_parameters() {
    let of = |name, kind, shape: &[u64]| saved((name, kind, shape), "a", &[], 0..shape.iter().product());
    let (parameter, first) = (TensorKind::Parameter, TensorKind::FirstMoment);
    assert!(merge([of("v", parameter, &[3]), of("v", first, &[3])]).is_ok());
    check_refused("tensor v: it is missing, but v#first_moment", [of("v", first, &[3])]);
    let other = [of("v", parameter, &[3]), of("u", parameter, &[3]), of("v", first, &[3])];
    check_refused("tensor u#first_moment: it is missing, but u has shape [3]", other);
    let other = [of("v", parameter, &[3]), of("v", first, &[4])];
    check_refused("tensor v#first_moment: it has shape [4], but v has shape [3]", other);
    let adapter = ["q.lora_a", "q.lora_b"].map(|name| of(name, parameter, &[3]));
    let moment = ["q.lora_a", "q.lora_b"].map(|name| of(name, first, &[3]));
    let frozen = || of("v", parameter, &[3]);
    assert!(merge(adapter.clone().into_iter().chain(moment.clone()).chain([frozen()])).is_ok());
    let other = adapter.into_iter().chain(moment.into_iter().take(1)).chain([frozen()]);
    check_refused("tensor q.lora_b#first_moment: it is missing, but q.lora_b has shape [3]", other);
}

#[test]
fn what_the_first_version_wrote_is_read() {
    let tensor = r#"{"name":"w","kind":"parameter","shape":[2,3],"pieces":[
        {"file":"a","key":"w[0..4]","begin":0,"end":4},{"file":"b","key":"w[4..6]","begin":4,"end":6}]}"#;
    let tensor: Tensor = serde_json::from_str(tensor).expect("a tensor");
    let whole = Region::whole(&[2, 3]);
    let expected = [Slice::of(whole.clone(), 0..4), Slice::of(whole, 4..6)];
    assert_eq!(tensor.slices(), Ok(expected.to_vec()));
}

#[test]
fn folder_names_are_read_back() {
    let name = folder_name(StepId(120), AttemptId(7));
    assert_eq!(name, "step-000000120.a7");
    assert_eq!(parse_folder_name(&name), Some((StepId(120), AttemptId(7))));
    assert_eq!(parse_folder_name(&format!("{name}.partial")), Some((StepId(120), AttemptId(7))));
    assert_eq!(parse_folder_name("step-x.a1"), None);
}
