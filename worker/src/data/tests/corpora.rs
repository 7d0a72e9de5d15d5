//! Tokenizers in files, JSON records, compressed files.

use super::*;
use std::io::Write;

/// A tokenizer of words: `a`, `b`, `c`, `<|endoftext|>`, and any other. It would truncate texts to two
/// words.
const WORDS: &[u8] = br#"{
    "version": "1.0",
    "truncation": { "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0 }, "padding": null, "normalizer": null, "post_processor": null,
    "decoder": null, "pre_tokenizer": { "type": "Whitespace" },
    "added_tokens": [{ "id": 4, "content": "<|endoftext|>", "single_word": false, "lstrip": false, "rstrip": false,
                       "normalized": false, "special": true }],
    "model": { "type": "WordLevel", "unk_token": "?", "vocab": { "a": 0, "b": 1, "c": 2, "?": 3 } }
}"#;

fn words() -> Tokenizer {
    Tokenizer::File("words.json".into())
}

fn lines(tokenizer: Tokenizer, separator: Separator) -> DataFormat {
    DataFormat::Text { tokenizer, documents: Documents::JsonLines("text".into()), separator }
}

fn lines_of_bytes() -> DataFormat {
    lines(Tokenizer::Bytes, Separator::Auto)
}

pub(super) fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    to.write_all(bytes).expect("written");
    to.finish().expect("finished")
}

fn zst(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).expect("compressed")
}

#[test]
fn a_tokenizer_from_a_file_reads_text_and_ends_each_file() {
    let contents: [(&str, &[u8]); 3] = [("words.json", WORDS), ("1.txt", b"a b\nc"), ("2.txt", b"c d a")];
    let root = folder(&contents);
    let data = data(read_as(words()), &["*.txt"], ValidationSource::Fraction(0.1));
    let set = opened(&root, &data, &decoder(1, 8)).expect("the model may have more tokens");
    assert_eq!(inputs(&set), [0, 1, 2, 4, 2, 3, 0]);
    assert!(set.files.iter().any(|file| file.name == "words.json"), "{:?}", set.files);
    let tokenizer = set.tokenizer.as_ref().expect("it has one");
    assert_eq!((tokenizer.vocabulary(), tokenizer.decode(&[0, 1]).expect("text").as_str()), (5, "a b"));
    assert!(tokenizer.json().is_some(), "checkpoints keep it");
    check_error(&contents, &data, &decoder(1, 4), &["5 tokens", "vocabulary of 4", "`model.vocab` to 5"]);
    let broken: [(&str, &[u8]); 2] = [("words.json", b"{}"), ("1.txt", b"a")];
    check_error(&broken, &data, &decoder(1, 8), &["words.json", "tokenizer.json"]);
}

#[test]
fn another_tokenizer_is_other_data() {
    let print = |tokenizer: &[u8]| {
        let root = folder(&[("words.json", tokenizer), ("t", b"a b c")]);
        let data = data(read_as(words()), &["t"], ValidationSource::Fraction(0.5));
        opened(&root, &data, &decoder(1, 8)).expect("opened").inputs().fingerprint()
    };
    let other = String::from_utf8_lossy(WORDS).replace("\"a\": 0, \"b\": 1", "\"a\": 1, \"b\": 0");
    assert_ne!(print(WORDS), print(other.as_bytes()));
}

#[test]
fn shards_may_name_their_tokenizer() {
    let shard: Vec<u8> = [0u16, 1, 2, 3].into_iter().flat_map(u16::to_le_bytes).collect();
    let root = folder(&[("words.json", WORDS), ("t.bin", &shard)]);
    let format = DataFormat::Tokens { tokenizer: Some("words.json".into()) };
    let data = data(format, &["t.bin"], ValidationSource::Fraction(0.5));
    let set = opened(&root, &data, &decoder(1, 5)).expect("opened");
    assert_eq!(set.tokenizer.expect("named").encode("c b").expect("tokens"), [2, 1]);
    assert!(opened(&root, &data, &decoder(1, 4)).is_err(), "the tokenizer has five tokens");
}

#[test]
fn json_lines_are_documents_with_a_separator_behind_each() {
    let text = b"{\"text\": \"a b\", \"id\": 1}\n\n  {\"text\": \"c\"}\r\n{\"text\": \"a\"}";
    let root = folder(&[("words.json", WORDS), ("t.jsonl", text)]);
    let tokens_with = |format| {
        let data = data(format, &["t.jsonl"], ValidationSource::Fraction(0.1));
        inputs(&opened(&root, &data, &decoder(1, 256)).expect("opened"))
    };
    assert_eq!(tokens_with(lines(words(), Separator::Auto)), [0, 1, 4, 2, 4, 0]);
    assert_eq!(tokens_with(lines(words(), Separator::None)), [0, 1, 2]);
    assert_eq!(tokens_with(lines(words(), Separator::Text("b".into()))), [0, 1, 1, 2, 1, 0]);
    let bytes = |text: &[u8]| text.iter().map(|byte| u32::from(*byte)).collect::<Vec<_>>();
    assert_eq!(tokens_with(lines(Tokenizer::Bytes, Separator::Auto)), bytes(b"a b\nc\na"));
    assert_eq!(tokens_with(lines(Tokenizer::Bytes, Separator::Text("--".into()))), bytes(b"a b--c--a-"));
}

#[test]
fn records_of_json_are_read_as_programs_write_them() {
    let expected: Vec<u32> = "a [\"b\"], {\nc\na".bytes().map(u32::from).collect();
    let first = r#"{"loss": NaN, "text": "a [\"b\"], {", "x": [-Infinity, {"text": "no"}]}"#;
    let lines = format!("\u{feff}{first}\n{{\"text\": \"c\"}}\n{{\"text\": \"a\"}}");
    let list = format!("\u{feff}\n[\n {first},{{\n  \"text\":\"c\"}} , {{\"text\": \"a\"}}\n]\n");
    for text in [lines, list] {
        let root = folder(&[("t.json", text.as_bytes())]);
        let format = lines_of_bytes();
        let data = data(format, &["t.json"], ValidationSource::Fraction(0.1));
        assert_eq!(inputs(&opened(&root, &data, &decoder(1, 256)).expect("opened")), expected, "{text}");
    }
}

#[test]
fn a_record_that_takes_much_memory_is_refused() {
    let bytes = [b"[{\"text\": \"".to_vec(), vec![b'a'; 65 << 20], b"\"}]".to_vec()].concat();
    let data = data(lines_of_bytes(), &["t.json.zst"], ValidationSource::Fraction(0.5));
    for (text, column) in [(&bytes[..], "column 2"), (&bytes[1..bytes.len() - 1], "column 1")] {
        let zst = zst(text);
        assert!(zst.len() < 1 << 20);
        check_error(&[("t.json.zst", &zst)], &data, &decoder(1, 256), &["line 1", column, "64 MiB"]);
    }
}

#[test]
fn a_long_record_is_one_document_in_pieces() {
    let text = "all work and no play\n".repeat(40_000);
    let record = serde_json::to_string(&serde_json::json!({ "text": text })).expect("JSON");
    let root = folder(&[("t.jsonl", record.as_bytes()), ("words.json", WORDS)]);
    let data = data(lines(words(), Separator::Auto), &["t.jsonl"], ValidationSource::Fraction(0.1));
    let set = opened(&root, &data, &decoder(100, 8)).expect("opened");
    let ends = inputs(&set).into_iter().filter(|token| *token == 4).count();
    assert!(set.train.len() > 1000 && ends <= 1, "{ends} ends of one text");
}

#[test]
fn a_tokenizer_that_is_trained_on_json_lines_has_an_end_of_text() {
    let text = "{\"text\": \"the cat sat on the mat\"}\n".repeat(50);
    let root = folder(&[("t.jsonl", text.as_bytes())]);
    let data =
        data(lines(Tokenizer::Bpe(280), Separator::Auto), &["t.jsonl"], ValidationSource::Fraction(0.1));
    let set = opened(&root, &data, &decoder(4, 280)).expect("opened");
    let end = set.tokenizer.as_ref().expect("trained").encode("<|endoftext|>").expect("tokens");
    assert_eq!(end.len(), 1);
    assert!(inputs(&set).iter().filter(|token| **token == end[0]).count() > 40);
    let cache = root.path().join("cache");
    let names = cached(&data, root.path(), &cache, &[]).expect("names");
    assert_eq!(names.len(), 2);
    assert!(names.iter().all(|name| cache.join(name).exists()), "{names:?}");
}

#[test]
fn wrong_json_lines_are_told_with_their_line() {
    let data = data(lines(Tokenizer::Bytes, Separator::Auto), &["t.jsonl"], ValidationSource::Fraction(0.5));
    let check = |text: &[u8], expected: &[&str]| {
        check_error(&[("t.jsonl", text)], &data, &decoder(1, 256), expected);
    };
    check(b"{\"text\": \"a\"}\n\n{\"text\": \"b\"\n", &["t.jsonl, line 3", "JSON object"]);
    check(b"{\"body\": \"a\", \"id\": 1}\n", &["line 1", "no field `text`", "body, id", "`data.field`"]);
    check(b"{\"text\": 7}\n", &["line 1", "`text` is a number"]);
    check(b"[1]\n", &["line 1, column 2", "found a number", "`data.format"]);
    check(b"{\"text\": \"a\"}\n[1]\n", &["line 2", "found a list"]);
    check(b"\n {\"a\": NaN, \"text\": nope}\n", &["t.jsonl, line 2, column 22: expected a JSON object"]);
    check(b"{\n\"text\": \"a\"\n}\n", &["line 1", "stand in a list"]);
    check(b"[{\"text\": \"a\"},\n {\"text\": 7}]", &["line 2, column 2", "`text` is a number"]);
    check(b"[{\"text\": \"a\"},\n {\"text\":\n oops}]", &["line 3, column 2", "JSON object"]);
    check(b"[{\"text\": \"a\"}", &["line 1, column 15", "the end of the list"]);
    check(b"[{\"text\": \"a\"}]\n{\"text\": \"b\"}", &["line 2, column 1", "behind the end"]);
    check(b"\n\n", &["no text", "data.train"]);
    check(b"{\"text\": \"\xff\"}\n", &["line 1"]);
}

#[test]
fn compressed_files_are_read_like_others() {
    let lines: Vec<u8> = (0..70_000u32).flat_map(|i| format!("line {i}\n").into_bytes()).collect();
    let (gz_text, zst_text) = (gz(&lines), zst(&lines));
    let read = |name: &str, contents: &[u8]| {
        let root = folder(&[(name, contents)]);
        let set = opened(&root, &data(text(), &[name], ValidationSource::Fraction(0.1)), &decoder(64, 256));
        tokens(&*set.expect("opened").train)
    };
    let plain = read("t.txt", &lines);
    assert!(plain == read("t.txt.gz", &gz_text) && plain == read("t.txt.zst", &zst_text));
    // Two members, as `cat` joins them.
    let (first, second) = lines.split_at(lines.len() / 2);
    assert!(plain == read("t.txt.gz", &[gz(first), gz(second)].concat()));
    assert!(plain == read("t.txt.zst", &[zst(first), zst(second)].concat()));

    let cut = &gz_text[..gz_text.len() / 2];
    let of = |name: &str| data(text(), &[name], ValidationSource::Fraction(0.5));
    check_error(&[("t.gz", cut)], &of("t.gz"), &decoder(4, 256), &["t.gz", "decompressing failed"]);
    let hidden = read("t.txt", &gz_text);
    assert!(plain == hidden && plain == read("t.txt", &zst_text), "the first bytes say how it is compressed");
    check_error(&[("t.zst", b"plain")], &of("t.zst"), &decoder(4, 256), &["t.zst", "decompressing failed"]);
}

#[test]
fn compressed_tables_and_images_are_read_like_others() {
    let table = b"x,kind\n1,0\n2,1\n3,0\n4,1\n";
    let root = folder(&[("t.csv.gz", &gz(table)), ("t.csv.zst", &zst(table)), ("t.csv", table)]);
    let read = |name: &str| {
        let data = data(DataFormat::Csv(Columns::of("kind")), &[name], ValidationSource::Fraction(0.5));
        rows(&*opened(&root, &data, &mlp(1, 2)).expect("opened").train)
    };
    assert!(read("t.csv") == read("t.csv.gz") && read("t.csv") == read("t.csv.zst"));

    let images = [&[0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2][..], &[0, 255, 51, 102]].concat();
    let labels = [0, 0, 8, 1, 0, 0, 0, 2, 1, 0];
    let root = folder(&[("i.idx.gz", &gz(&images)), ("l.idx.zst", &zst(&labels))]);
    let format = DataFormat::Idx { labels: vec!["l.idx.zst".into()], valid_labels: Vec::new() };
    let set = opened(&root, &data(format, &["i.idx.gz"], ValidationSource::Fraction(0.5)), &cnn(1, 1, 2, 2))
        .expect("opened");
    assert_eq!(rows(&*set.train), (vec![0.0, 1.0], vec![1]));
    assert_eq!(rows(&*set.valid), (vec![0.2, 0.4], vec![0]));
}

#[test]
fn a_corpus_is_described() {
    let text = b"{\"text\": \"one\"}\n{\"text\": \"two\"}\n{\"text\": \"one\"}\n";
    let root = folder(&[("a.jsonl.gz", &gz(text)), ("b.jsonl", b"{\"text\": \"two\"}")]);
    let read = data(lines(Tokenizer::Bytes, Separator::Auto), &["*.jsonl*"], ValidationSource::Fraction(0.5));
    let facts = corpus(&read, root.path(), 2).expect("read").expect("text");
    let samples = vec!["one".to_owned(), "two".to_owned()];
    let expected = CorpusFacts { documents: 4, bytes: 12, duplicates: 2, shared: None, samples };
    assert_eq!(facts, expected);
    let apart = Data { train: vec!["*.gz".into()], valid: files(&["b.jsonl"]), ..read.clone() };
    assert_eq!(corpus(&apart, root.path(), 2).expect("read").expect("text").shared, Some(1), "two");
    let names: Vec<String> =
        crate::data::files(&read, root.path()).expect("found").into_iter().map(|file| file.name).collect();
    assert_eq!(names, ["a.jsonl.gz", "b.jsonl"]);
    let table = folder(&[("t.csv", b"x,kind\n1,0\n2,1\n3,1\n")]);
    let read = csv(ValidationSource::Fraction(0.3));
    assert_eq!(corpus(&read, table.path(), 2).expect("no text"), None);
    let set = opened(&table, &read, &mlp(1, 3)).expect("opened");
    assert_eq!(set.classes().expect("read"), Some(vec![1, 2]));
    assert_eq!(set.shared().expect("read"), Some(0));
}
