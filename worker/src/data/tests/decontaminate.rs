//! Files that are named for training and for validation.

use super::*;
use std::os::unix::fs::symlink;

/// Returns the notes about the data, and the opened data set.
fn read(root: &tempfile::TempDir, data: &Data, model: &Model) -> (Vec<String>, DataSet) {
    let set = opened(root, data, model).expect("opened");
    (notes(data, root.path()).expect("notes"), set)
}

#[test]
fn a_validation_file_that_the_training_pattern_finds_is_not_trained_on() {
    let root =
        folder(&[("a.txt", b"0123456"), ("valid.txt", b"abc"), ("copy.txt", b"abc"), ("b.txt", b"xyz")]);
    symlink(root.path().join("valid.txt"), root.path().join("link.txt")).expect("a link");
    let data = data(text(), &["*.txt"], files(&["valid.txt"]));
    let (notes, set) = read(&root, &data, &decoder(1, 256));
    let text: Vec<u32> = tokens(&*set.train).into_iter().flat_map(|(inputs, _)| inputs).collect();
    assert_eq!(text, b"0123456xy".map(u32::from), "of `valid.txt`, its link and its copy, nothing");
    assert_eq!(set.valid.len(), 2);
    assert_eq!(
        notes,
        ["in both the training and the validation data, so only validated on: copy.txt, link.txt, valid.txt"]
    );
    let listed = crate::data::files(&data, root.path()).expect("found");
    assert_eq!(listed.iter().map(|file| &*file.name).collect::<Vec<_>>(), ["a.txt", "b.txt", "valid.txt"]);
    let whole = set.inputs().files;
    assert_eq!(whole.len(), 3, "a checkpoint records what was read: {whole:?}");
}

#[test]
fn where_all_are_validated_on_they_are_trained_on_too_and_it_is_told() {
    let root = folder(&[("valid.txt", b"abc"), ("copy.txt", b"abc")]);
    let (notes, set) = read(&root, &data(text(), &["*.txt"], files(&["valid.txt"])), &decoder(1, 256));
    assert_eq!((set.train.len(), set.valid.len()), (5, 2));
    let [note] = notes.as_slice() else { panic!("{notes:?}") };
    assert!(
        note.contains("all training files are in both") && note.ends_with(": copy.txt, valid.txt"),
        "{note}"
    );
}

#[test]
fn files_that_are_only_alike_are_trained_on() {
    let mut long = vec![b'a'; 200_000];
    let first = long.clone();
    long[100_000] = b'b';
    let root = folder(&[("train.txt", &first), ("valid.txt", &long)]);
    let (notes, set) = read(&root, &data(text(), &["train.txt"], files(&["valid.txt"])), &decoder(1000, 256));
    assert!(notes.is_empty() && set.train.len() == 199, "{notes:?}");
}

#[test]
fn files_of_every_format_are_kept_apart() {
    let shard: Vec<u8> = (0..9u16).flat_map(u16::to_le_bytes).collect();
    let root = folder(&[("a.bin", &[&shard[..], &shard].concat()), ("v.bin", &shard)]);
    let (_, set) = read(
        &root,
        &data(DataFormat::Tokens { tokenizer: None }, &["*.bin"], files(&["v.bin"])),
        &decoder(2, 9),
    );
    assert_eq!((set.train.len(), set.valid.len()), (8, 4));

    let root = folder(&[("t.csv", b"x,kind\n1,0\n2,1\n"), ("v.csv", b"x,kind\n3,1\n")]);
    let tables = data(DataFormat::Csv(Columns::of("kind")), &["*.csv"], files(&["v.csv"]));
    let (_, set) = read(&root, &tables, &mlp(1, 2));
    assert_eq!((set.train.len(), set.valid.len()), (2, 1));
    assert_eq!(set.shared().expect("read"), Some(0));

    let image = |pixel: u8| [&[0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2][..], &[pixel, pixel]].concat();
    let labels = |class: u8| vec![0, 0, 8, 1, 0, 0, 0, 1, class];
    let root = folder(&[
        ("a.idx", &image(1)),
        ("b.idx", &image(2)),
        ("c.idx", &image(255)),
        ("al", &labels(0)),
        ("bl", &labels(1)),
        ("cl", &labels(2)),
    ]);
    let format = DataFormat::Idx { labels: vec!["?l".into()], valid_labels: vec!["bl".into()] };
    let (_, set) = read(&root, &data(format, &["*.idx"], files(&["b.idx"])), &mlp(2, 3));
    assert_eq!((rows(&*set.train).1, rows(&*set.valid).1), (vec![0, 2], vec![1]), "images keep their labels");
}

#[test]
fn rows_that_are_in_both_are_counted() {
    let root = folder(&[("t.csv", b"x,kind\n1,0\n2,1\n3,1\n"), ("v.csv", b"x,kind\n3,1\n3,0\n9,1\n")]);
    let tables = data(DataFormat::Csv(Columns::of("kind")), &["t.csv"], files(&["v.csv"]));
    assert_eq!(opened(&root, &tables, &mlp(1, 2)).expect("opened").shared().expect("read"), Some(2));
}

#[test]
fn a_model_may_be_measured_on_what_it_was_trained_on() {
    let root = folder(&[("a.txt", b"0123456"), ("valid.txt", b"abc")]);
    let data = data(text(), &["*.txt"], files(&["valid.txt"]));
    let names = ["a.txt".to_owned()];
    let (preprocessing, cache) = (Preprocessing::default(), root.path().join("cache"));
    let fixed = TrainedEncoding { preprocessing: &preprocessing, tokenizer: None };
    let measured = labelled(&data, (&names, &[]), root.path(), &decoder(1, 256), &cache, &fixed);
    assert_eq!(measured.expect("opened").len(), 6);
}
