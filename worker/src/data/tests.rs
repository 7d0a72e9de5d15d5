//! Every format, what comes out of it, and what is said when it is wrong.

use super::*;
use dtrain_recipes::{Activation, Cnn, Decoder, Mlp, Norm, Positions, Tokenizer, Valid};
use std::fs;
use std::sync::Arc;

fn decoder(context: u32, vocab: u32) -> Model {
    Model::Decoder(Decoder {
        layers: 1,
        hidden: 8,
        heads: 1,
        kv_heads: 1,
        ffn: 8,
        vocab,
        context,
        positions: Positions::Rotary,
        norm: Norm::Rms,
        activation: Activation::Swiglu,
        tied: false,
        bias: false,
    })
}

fn mlp(inputs: u32, classes: u32) -> Model {
    Model::Mlp(Mlp { inputs, hidden: vec![4], classes, activation: Activation::Relu })
}

fn cnn(channels: u32, height: u32, width: u32, classes: u32) -> Model {
    Model::Cnn(Cnn { channels, height, width, stages: vec![4], blocks: 1, classes })
}

fn text() -> DataFormat {
    DataFormat::Text { tokenizer: Tokenizer::Bytes }
}

fn data(format: DataFormat, train: &[&str], valid: Valid) -> Data {
    Data { format, train: train.iter().map(|s| (*s).to_owned()).collect(), valid, fraction: 1.0 }
}

fn files(names: &[&str]) -> Valid {
    Valid::Files(names.iter().map(|s| (*s).to_owned()).collect())
}

/// A folder with these files.
fn folder(contents: &[(&str, &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, bytes) in contents {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("below the folder")).expect("made");
        fs::write(path, bytes).expect("written");
    }
    folder
}

fn opened(root: &tempfile::TempDir, data: &Data, model: &Model) -> Result<DataSet, DataError> {
    open(data, root.path(), model, &root.path().join("cache"))
}

/// All inputs and targets of a source, sample by sample.
fn tokens(source: &dyn Source) -> Vec<(Vec<u32>, Vec<u32>)> {
    (0..source.len())
        .map(|index| match source.read(&[index]).expect("read") {
            Batch::Tokens { inputs, targets, .. } => (inputs, targets),
            Batch::Rows { .. } => panic!("tokens are expected"),
        })
        .collect()
}

fn rows(source: &dyn Source) -> (Vec<f32>, Vec<u32>) {
    match source.read(&(0..source.len()).collect::<Vec<_>>()).expect("read") {
        Batch::Rows { values, classes, .. } => (values, classes),
        Batch::Tokens { .. } => panic!("rows are expected"),
    }
}

/// Opening these files fails, or reading all of them does, and the message has every part of `expected`.
fn check_error(contents: &[(&str, &[u8])], data: &Data, model: &Model, expected: &[&str]) {
    let root = folder(contents);
    let result = opened(&root, data, model).and_then(|set| {
        set.train.read(&(0..set.train.len()).collect::<Vec<_>>())?;
        set.valid.read(&(0..set.valid.len()).collect::<Vec<_>>())
    });
    let error = result.map(drop).expect_err(&expected.join(" … ")).to_string();
    for part in expected {
        assert!(error.contains(part), "expected `{part}` in: {error}");
    }
}

#[test]
fn text_is_joined_in_the_order_of_its_names_and_cut_into_windows() {
    let root =
        folder(&[("b.txt", b"56789"), ("sub/c.txt", b"ab"), ("a.txt", b"01234"), ("sub/no.md", b"zz")]);
    let set =
        opened(&root, &data(text(), &["**/*.txt"], Valid::Fraction(0.3)), &decoder(3, 256)).expect("opened");
    // 12 bytes are 3 samples of 3 and their targets; a third of them, at least one, is for validation.
    let text = |tokens: &[u32]| TextTokenizer::Bytes.decode(tokens);
    let train: Vec<_> = tokens(&*set.train).iter().map(|(i, t)| (text(i), text(t))).collect();
    assert_eq!(train, [("012".into(), "123".into()), ("345".to_owned(), "456".to_owned())]);
    let valid: Vec<_> = tokens(&*set.valid).iter().map(|(i, t)| (text(i), text(t))).collect();
    assert_eq!(valid, [("678".to_owned(), "789".to_owned())]);
    // A batch is its samples side by side, in the order asked for.
    let Batch::Tokens { inputs, samples: 2, length: 3, .. } = set.train.read(&[1, 0]).expect("read") else {
        panic!("two samples of three tokens");
    };
    assert_eq!(text(&inputs), "345012");
    assert_eq!(set.tokenizer.expect("text has one").encode("é"), [0xC3, 0xA9]);
}

#[test]
fn a_fraction_uses_the_first_samples_and_leaves_validation_alone() {
    let bytes: Vec<u8> = (0..=200).collect();
    let root = folder(&[("t", &bytes)]);
    let mut data = data(text(), &["t"], Valid::Fraction(0.1));
    let all = opened(&root, &data, &decoder(10, 256)).expect("opened");
    data.fraction = 0.5;
    let half = opened(&root, &data, &decoder(10, 256)).expect("opened");
    assert_eq!((all.train.len(), all.valid.len(), half.train.len()), (18, 2, 9));
    assert_eq!(tokens(&*all.train)[..9], tokens(&*half.train)[..]);
    assert_eq!(tokens(&*all.valid), tokens(&*half.valid));
    data.fraction = 1e-9;
    assert_eq!(opened(&root, &data, &decoder(10, 256)).expect("opened").train.len(), 1, "at least one");
    assert!(half.fill_a_batch(9).is_ok());
    let error = half.fill_a_batch(10).expect_err("too few").to_string();
    assert!(error.contains("9 samples") && error.contains("takes 10"), "{error}");
}

#[test]
fn validation_may_have_files_of_its_own() {
    let root = folder(&[("t", b"0123456789"), ("v", b"abcd")]);
    let set = opened(&root, &data(text(), &["t"], files(&["v"])), &decoder(3, 256)).expect("opened");
    assert_eq!((set.train.len(), set.valid.len()), (3, 1));
    assert_eq!(tokens(&*set.valid)[0].0, b"abc".map(u32::from));
}

fn u16s(tokens: impl IntoIterator<Item = u16>) -> Vec<u8> {
    tokens.into_iter().flat_map(u16::to_le_bytes).collect()
}

fn llm_c(magic: u32, version: u32, count: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes: Vec<u8> = [magic, version, count].iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.resize(1024, 0);
    bytes.extend(payload);
    bytes
}

#[test]
fn shards_of_three_kinds_are_read_and_joined() {
    let raw = u16s([1, 2, 3]);
    let gpt2 = llm_c(20_240_520, 1, 3, &u16s([4, 5, 6]));
    let wide: Vec<u8> = [70_000u32, 8, 9, 10].iter().flat_map(|token| token.to_le_bytes()).collect();
    let llama3 = llm_c(20_240_801, 7, 4, &wide);
    let root = folder(&[("a.bin", &raw), ("b.bin", &gpt2), ("c.bin", &llama3), ("v.bin", &u16s(0..7))]);
    let data = data(DataFormat::Tokens, &["[a-c].bin"], files(&["v.bin"]));
    let set = opened(&root, &data, &decoder(3, 100_000)).expect("opened");
    let samples = tokens(&*set.train);
    assert_eq!(samples[0], (vec![1, 2, 3], vec![2, 3, 4]));
    assert_eq!(samples[1], (vec![4, 5, 6], vec![5, 6, 70_000]));
    assert_eq!(samples[2], (vec![70_000, 8, 9], vec![8, 9, 10]));
    assert_eq!((samples.len(), set.valid.len()), (3, 2));
    assert!(set.tokenizer.is_none());
}

#[test]
fn wrong_shards_are_told_with_file_and_offset() {
    let shards = |valid| data(DataFormat::Tokens, &["a.bin"], valid);
    let half = || shards(Valid::Fraction(0.5));
    let odd = [&u16s(0..30)[..], &[1]].concat();
    check_error(&[("a.bin", &odd)], &half(), &decoder(2, 99), &["a.bin", "61 bytes", "u16"]);
    let cut = llm_c(20_240_520, 1, 9, &u16s(0..8));
    check_error(
        &[("a.bin", &cut)],
        &half(),
        &decoder(2, 99),
        &["a.bin", "byte 8", "9 tokens", "1042", "1040"],
    );
    check_error(
        &[("a.bin", &u16s(90..110))],
        &half(),
        &decoder(2, 105),
        &["a.bin", "byte 30", "token 105", "vocabulary of 105", "at least 106"],
    );
    check_error(
        &[("a.bin", &u16s(0..4))],
        &half(),
        &decoder(8, 99),
        &["4 tokens", "takes 9", "model.context"],
    );
    check_error(&[("a.bin", &u16s(0..4))], &half(), &decoder(3, 99), &["1 samples", "validation"]);
    check_error(&[("a.bin", b"")], &half(), &decoder(2, 99), &["a.bin", "empty"]);
    let later = llm_c(20_240_520, 1, 40, &u16s((0..40).map(|i| if i == 33 { 500 } else { 1 })));
    check_error(&[("a.bin", &later)], &half(), &decoder(2, 99), &["token 500", "byte 1090"]);
}

#[test]
fn names_that_match_nothing_are_told_with_the_folder() {
    let shards = |train: &str| data(DataFormat::Tokens, &[train], Valid::Fraction(0.5));
    check_error(&[("a", b"x")], &shards("*.bin"), &decoder(2, 99), &["no file matches `*.bin` in /"]);
    check_error(&[("a", b"x")], &shards("b.bin"), &decoder(2, 99), &["no file matches `b.bin`"]);
    check_error(&[("d/a", b"x")], &shards("d"), &decoder(2, 99), &["folder", "d/*"]);
    check_error(&[("a", b"x")], &shards("a[.bin"), &decoder(2, 99), &["`a[.bin`", "pattern"]);
}

#[test]
fn a_root_that_looks_like_a_pattern_is_still_a_folder() {
    let outer = folder(&[("run [1]*/a.txt", b"0123456789")]);
    let root = outer.path().join("run [1]*");
    let data = data(text(), &["*.txt"], Valid::Fraction(0.5));
    let set = open(&data, &root, &decoder(3, 256), outer.path()).expect("opened");
    assert_eq!(set.train.len() + set.valid.len(), 3);
}

#[test]
fn the_fingerprint_depends_on_names_and_contents_only() {
    let print = |contents: &[(&str, &[u8])], pattern: &str| {
        let root = folder(contents);
        opened(&root, &data(text(), &[pattern], Valid::Fraction(0.5)), &decoder(2, 256))
            .expect("opened")
            .fingerprint
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
    // Sparse: 80 MiB that take no room.
    file.set_len(80 << 20).expect("length");
    let print = || {
        let file = files::DataFile::open(&path, root.path()).expect("opened");
        files::fingerprint(&[Arc::new(file)]).expect("read")
    };
    use std::os::unix::fs::FileExt;
    let zeros = print();
    file.write_at(b"x", 0).expect("written");
    let first = print();
    file.write_at(b"x", (80 << 20) - 1).expect("written");
    let last = print();
    assert!(zeros != first && first != last);
}

fn words(count: usize) -> String {
    let word = |i: usize| ["the ", "cat ", "sat on ", "a mat.\n", "größer ", "tokens "][i * i % 6];
    (0..count).map(word).collect()
}

#[test]
fn bpe_is_trained_once_and_gives_the_text_back() {
    let (train, valid) = (words(4000), words(300));
    let root = folder(&[("t.txt", train.as_bytes()), ("v.txt", valid.as_bytes())]);
    let bpe = DataFormat::Text { tokenizer: Tokenizer::Bpe(300) };
    let data = data(bpe, &["t.txt"], files(&["v.txt"]));
    let set = opened(&root, &data, &decoder(8, 300)).expect("opened");
    let tokenizer = set.tokenizer.expect("text has one");
    let tokens_of_text = tokenizer.encode(&train);
    assert!(tokens_of_text.len() * 2 < train.len(), "frequent words become one token");
    assert_eq!(tokenizer.decode(&tokens_of_text), train);
    assert_eq!(
        tokenizer.decode(&tokenizer.encode("ein 🦀, neu")),
        "ein 🦀, neu",
        "bytes never seen are tokens too"
    );
    let first: Vec<u32> = tokens(&*set.train).into_iter().flat_map(|(inputs, _)| inputs).collect();
    assert_eq!(first[..], tokens_of_text[..first.len()]);

    let kept = |root: &tempfile::TempDir| {
        let mut kept: Vec<_> = fs::read_dir(root.path().join("cache"))
            .expect("kept")
            .map(|e| e.expect("entry").path())
            .collect();
        kept.retain(|path| path.extension().is_none_or(|e| e != "lock"));
        kept.sort();
        kept
    };
    assert_eq!(kept(&root).len(), 3, "a tokenizer and two files of tokens: {:?}", kept(&root));
    let contents: Vec<_> = kept(&root).iter().map(|path| fs::read(path).expect("read")).collect();
    // Several ranks at once in a fresh place make the same.
    let again = folder(&[("t.txt", train.as_bytes()), ("v.txt", valid.as_bytes())]);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| opened(&again, &data, &decoder(8, 300)).map(drop).expect("opened"));
        }
    });
    assert_eq!(contents, kept(&again).iter().map(|path| fs::read(path).expect("read")).collect::<Vec<_>>());
}

#[test]
fn text_that_bpe_cannot_read_is_told_with_its_place() {
    let bpe =
        |vocab| data(DataFormat::Text { tokenizer: Tokenizer::Bpe(vocab) }, &["t"], Valid::Fraction(0.5));
    let bad = [&words(50).into_bytes()[..], b"\xff\n"].concat();
    let place = format!("byte {}", bad.len() - 2);
    check_error(&[("t", &bad)], &bpe(300), &decoder(4, 300), &["t, ", &place, "UTF-8", "bytes"]);
    check_error(&[("t", b"abc")], &bpe(300), &decoder(4, 299), &["300 tokens", "vocabulary of 299"]);
    check_error(&[("t", b"abc")], &bpe(256), &decoder(4, 256), &["256", "no room"]);
}

fn idx(dimensions: &[u32], payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, dimensions.len() as u8];
    bytes.extend(dimensions.iter().flat_map(|length| length.to_be_bytes()));
    bytes.extend(payload);
    bytes
}

fn idx_data(valid: Valid) -> Data {
    let valid_labels = if matches!(valid, Valid::Files(_)) { vec!["vl".into()] } else { Vec::new() };
    data(DataFormat::Idx { labels: vec!["l*".into()], valid_labels }, &["i*"], valid)
}

#[test]
fn images_of_several_files_are_scaled_and_labelled() {
    let root = folder(&[
        ("i1", &idx(&[2, 2, 3], &[0, 51, 102, 153, 204, 255, 255, 0, 0, 0, 0, 0])),
        ("l1", &idx(&[2], &[3, 1])),
        ("i2", &idx(&[2, 2, 3], &[9; 12])),
        ("l2", &idx(&[2], &[2, 0])),
    ]);
    let set = opened(&root, &idx_data(Valid::Fraction(0.25)), &cnn(1, 2, 3, 4)).expect("opened");
    let (values, classes) = rows(&*set.train);
    assert_eq!(classes, [3, 1, 2]);
    assert_eq!(values[..6], [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]);
    assert_eq!(rows(&*set.valid).1, [0]);
    assert!(
        opened(&root, &idx_data(Valid::Fraction(0.25)), &mlp(6, 4)).is_ok(),
        "an mlp takes images as rows"
    );
}

#[test]
fn images_may_have_channels_and_validation_files() {
    let image: Vec<u8> = (0..12).collect();
    let root = folder(&[
        ("i", &idx(&[1, 3, 2, 2], &image)),
        ("l", &idx(&[1], &[1])),
        ("v", &idx(&[1, 3, 2, 2], &image)),
        ("vl", &idx(&[1], &[0])),
    ]);
    let set = opened(&root, &idx_data(files(&["v"])), &cnn(3, 2, 2, 2)).expect("opened");
    assert_eq!((rows(&*set.train).1, rows(&*set.valid).1), (vec![1], vec![0]));
}

#[test]
fn wrong_images_are_told_with_file_and_offset() {
    let half = idx_data(Valid::Fraction(0.5));
    let good = idx(&[2, 2, 2], &[0; 8]);
    let labels = idx(&[2], &[0, 1]);
    let check = |images: &[u8], labels: &[u8], expected: &[&str]| {
        check_error(&[("i", images), ("l", labels)], &half, &cnn(1, 2, 2, 2), expected);
    };
    check(b"\x1f\x8b\x08zzzzzz", &labels, &["i, byte 0", "gunzip"]);
    check(b"hello world", &labels, &["i, byte 0", "68656c6c", "00000803"]);
    check(&good[..good.len() - 1], &labels, &["i, byte 4", "[2, 2, 2]"]);
    check(&idx(&[u32::MAX; 3], &[0; 8]), &labels, &["i, byte 4"]);
    check(&idx(&[2, 2, 3], &[0; 12]), &labels, &["i, byte 8", "2 × 3", "1 channels of 2 × 2"]);
    check(&good, &idx(&[3], &[0, 1, 1]), &["l, byte 4", "2 images", "3 labels"]);
    check(&good, &idx(&[2], &[0, 2]), &["l, byte 9", "label 2", "2 classes"]);
    check(&good, &good, &["l, byte 0", "00000801"]);
    check_error(
        &[("i", &good), ("l", &labels), ("l2", &labels)],
        &half,
        &cnn(1, 2, 2, 2),
        &["1 image files", "2 label"],
    );
}

fn csv(valid: Valid) -> Data {
    data(DataFormat::Csv { target: "kind".into() }, &["t.csv"], valid)
}

#[test]
fn tables_are_standardised_by_what_is_trained_on() {
    let table = b"x, kind ,y\n1,b,7\n3,a,7\n1,b,7\n3,c,7\n100,a,8\n";
    let root = folder(&[("t.csv", table)]);
    let set = opened(&root, &csv(Valid::Fraction(0.2)), &mlp(2, 3)).expect("opened");
    let (values, classes) = rows(&*set.train);
    assert_eq!(
        values,
        [-1.0, 0.0, 1.0, 0.0, -1.0, 0.0, 1.0, 0.0],
        "mean 2, deviation 1; a constant becomes 0"
    );
    assert_eq!(classes, [1, 0, 1, 2], "names in alphabetical order");
    assert_eq!(rows(&*set.valid), (vec![98.0, 1.0], vec![0]), "the last row is scaled by the others");
}

#[test]
fn integer_classes_are_used_as_they_are_and_validation_follows_the_training_names() {
    let root = folder(&[("t.csv", b"x,kind\n1,2\n2,0\n"), ("v.csv", b"x,kind\n5,1\n")]);
    let set = opened(&root, &csv(files(&["v.csv"])), &mlp(1, 3)).expect("opened");
    assert_eq!((rows(&*set.train).1, rows(&*set.valid).1), (vec![2, 0], vec![1]));
    let root = folder(&[("t.csv", b"x,kind\n1,no\n2,yes\n"), ("v.csv", b"x,kind\n5,yes\n")]);
    let set = opened(&root, &csv(files(&["v.csv"])), &mlp(1, 2)).expect("opened");
    assert_eq!(rows(&*set.valid).1, [1]);
}

#[test]
fn wrong_tables_are_told_with_their_line() {
    let half = csv(Valid::Fraction(0.5));
    let check =
        |table: &[u8], expected: &[&str]| check_error(&[("t.csv", table)], &half, &mlp(2, 2), expected);
    check(b"x,y,class\n1,2,0\n", &["t.csv, line 1", "no column `kind`", "x, y, class"]);
    check(b"x,kind\n1,0\n2,1\n", &["line 1", "1 columns besides `kind`", "2 inputs", "model.inputs = 1"]);
    check(b"x,y,kind\n1,2,0\n1,two,1\n", &["line 3", "column `y`", "`two`"]);
    check(b"x,y,kind\n1,nan,0\n1,2,1\n", &["line 2", "finite"]);
    check(b"x,y,kind\n1,2,0\n1,2\n", &["t.csv, line 3"]);
    check(b"x,y,kind\n1,2,0\n1,2,2\n", &["line 3", "2 classes", "class 2"]);
    check(b"x,y,kind\n1,2,a\n1,2,b\n1,2,c\n", &["line 4", "`c`", "number 2 of 3"]);
    check(b"x,y,kind\n", &["line 2", "no row"]);
    check(b"x,y,kind\n1,2,0\n", &["1 samples"]);
    let valid = csv(files(&["v.csv"]));
    let train: &[u8] = b"x,y,kind\n1,2,a\n1,3,b\n";
    check_error(
        &[("t.csv", train), ("v.csv", b"y,x,kind\n1,2,a\n")],
        &valid,
        &mlp(2, 2),
        &["v.csv, line 1", "y, x"],
    );
    check_error(
        &[("t.csv", train), ("v.csv", b"x,y,kind\n1,2,z\n")],
        &valid,
        &mlp(2, 2),
        &["v.csv, line 2", "`z`"],
    );
}

#[test]
fn a_model_and_data_that_do_not_fit_are_told() {
    check_error(
        &[("t.csv", b"x,kind\n1,0\n")],
        &csv(Valid::Fraction(0.5)),
        &decoder(2, 9),
        &["decoder reads tokens"],
    );
    check_error(
        &[("t", b"abc")],
        &data(text(), &["t"], Valid::Fraction(0.5)),
        &mlp(2, 2),
        &["rows of numbers"],
    );
}

#[test]
fn batches_read_ahead_come_in_order_and_end_with_the_first_error() {
    let root = folder(&[("t", &(0..100).collect::<Vec<u8>>())]);
    let set = opened(&root, &data(text(), &["t"], Valid::Fraction(0.1)), &decoder(3, 60)).expect("opened");
    let source: Arc<dyn Source> = Arc::from(set.train);
    let mut ahead = Prefetch::new(Arc::clone(&source), (0..30).map(|index| vec![index]));
    for index in 0..19 {
        assert_eq!(ahead.next().expect("more").expect("read"), source.read(&[index]).expect("read"));
    }
    assert!(ahead.next().expect("the error").is_err(), "token 60 is outside of the vocabulary");
    assert!(ahead.next().is_none());
    // One that nobody reads to its end does not hang.
    drop(Prefetch::new(source, std::iter::repeat(vec![0])));
}
