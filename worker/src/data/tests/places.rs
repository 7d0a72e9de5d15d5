//! Names and cache keys of files in various folders.

use super::*;

#[test]
fn names_that_match_nothing_are_told_with_the_folder() {
    let shards =
        |train: &str| data(DataFormat::Tokens { tokenizer: None }, &[train], ValidationSource::Fraction(0.5));
    check_error(&[("a", b"x")], &shards("*.bin"), &decoder(2, 99), &["no file matches `*.bin` in /"]);
    check_error(&[("a", b"x")], &shards("b.bin"), &decoder(2, 99), &["no file matches `b.bin`"]);
    check_error(&[("d/a", b"x")], &shards("d"), &decoder(2, 99), &["folder", "d/*"]);
    check_error(&[("a", b"x")], &shards("a[.bin"), &decoder(2, 99), &["`a[.bin`", "pattern"]);
}

#[test]
fn a_root_that_looks_like_a_pattern_is_still_a_folder() {
    let outer = folder(&[("run [1]*/a.txt", b"0123456789")]);
    let root = outer.path().join("run [1]*");
    let data = data(text(), &["*.txt"], ValidationSource::Fraction(0.5));
    let set = open(&data, &root, &decoder(3, 256), outer.path()).expect("opened");
    assert_eq!(set.train.len() + set.valid.len(), 3);
}

#[test]
fn the_fingerprint_depends_on_names_and_contents_only() {
    let print = |contents: &[(&str, &[u8])], pattern: &str| {
        let root = folder(contents);
        opened(&root, &data(text(), &[pattern], ValidationSource::Fraction(0.5)), &decoder(2, 256))
            .expect("opened")
            .inputs()
            .fingerprint()
    };
    let one = print(&[("a", b"0123456789")], "a");
    assert_eq!(one, print(&[("a", b"0123456789"), ("b", b"x")], "a"), "another folder, the same data");
    assert_ne!(one, print(&[("a", b"0123456788")], "a"));
    assert_ne!(one, print(&[("b", b"0123456789")], "b"));
    assert_ne!(
        print(&[("a", b"01234"), ("b", b"56789")], "*"),
        print(&[("a", b"012345"), ("b", b"6789")], "*")
    );
}

#[test]
fn of_a_long_file_the_fingerprint_reads_both_ends() {
    let root = tempfile::tempdir().expect("a folder");
    let path = root.path().join("long");
    let file = fs::File::create(&path).expect("made");
    // Sparse: 80 MiB that take no space.
    file.set_len(80 << 20).expect("length");
    let print = || {
        let file = files::DataFile::open(&path, root.path()).expect("opened");
        files::recorded(&[Arc::new(file)]).expect("read")
    };
    use std::os::unix::fs::FileExt;
    let zeros = print();
    file.write_at(b"x", 0).expect("written");
    let first = print();
    file.write_at(b"x", (80 << 20) - 1).expect("written");
    let last = print();
    assert!(zeros != first && first != last);
}
