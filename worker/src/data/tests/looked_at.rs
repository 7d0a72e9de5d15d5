//! Files that are not what their names say.

use super::*;

fn check(name: &str, bytes: &[u8], expected: &[&str]) {
    for tokenizer in [Tokenizer::Bytes, Tokenizer::Bpe(300)] {
        let data = data(read_as(tokenizer), &[name], ValidationSource::Fraction(0.5));
        check_error(&[(name, bytes)], &data, &decoder(1, 300), &[&[name, "byte 0"], expected].concat());
    }
}

#[test]
fn text_in_other_encodings_and_what_is_no_text_is_named() {
    let utf16: Vec<u8> = "\u{feff}der Text".encode_utf16().flat_map(u16::to_le_bytes).collect();
    check("a.txt", &utf16, &["UTF-16", "iconv"]);
    check("a.txt", b"%PDF-1.7 and so on", &["PDF", "pdftotext"]);
    check("letter", b"PK\x03\x04\x14\0\x06\0", &["ZIP", ".docx"]);
    check("corpus.txt", b"\xfd7zXZ\0\0\x04", &["xz", "unxz"]);
    let mut tar = vec![b'a'; 600];
    tar[257..262].copy_from_slice(b"ustar");
    let zst = zstd::encode_all(&tar[..], 1).expect("compressed");
    check("corpus.tar.zst", &zst, &["tar archive"]);
}

#[test]
fn a_byte_order_mark_is_no_part_of_a_text() {
    let root = folder(&[("a.txt", "\u{feff}abc".as_bytes()), ("b.txt", "\u{feff}def".as_bytes())]);
    let format = DataFormat::Text {
        tokenizer: Tokenizer::Bytes,
        documents: Documents::Files,
        separator: Separator::Text("-".into()),
    };
    for (format, expected) in [(text(), &b"abcde"[..]), (format, b"abc-def")] {
        let data = data(format, &["*.txt"], ValidationSource::Fraction(0.1));
        let set = opened(&root, &data, &decoder(1, 256)).expect("opened");
        assert_eq!(inputs(&set), expected.iter().map(|byte| u32::from(*byte)).collect::<Vec<_>>());
    }
}

#[test]
fn what_a_name_does_not_say_is_told() {
    let gz = super::corpora::gz(b"words");
    let json = b"{\"text\": \"a\"}\n";
    let root = folder(&[
        ("plain.txt", b"words"),
        ("dump", b"words"),
        ("dump2", b"words"),
        ("packed.txt", &gz),
        ("latin.txt", b"gr\xfcn"),
        ("records.txt", json),
        ("records.json", json),
        ("list.json", b"[{\"text\": \"a\"}]"),
        ("lines.jsonl", json),
    ]);
    let told = |format: DataFormat, names: &[&str]| {
        notes(&data(format, names, ValidationSource::Fraction(0.5)), root.path()).expect("notes")
    };
    assert!(told(text(), &["plain.txt"]).is_empty());
    let expect = |format: DataFormat, names: &[&str], expected: &[&str]| {
        let found = told(format, names);
        assert!(found.len() == 1 && expected.iter().all(|part| found[0].contains(part)), "{found:?}");
    };
    expect(text(), &["dump*"], &["read as text", "`data.format`", ": dump, dump2"]);
    expect(text(), &["packed.txt"], &["gzip", ": packed.txt"]);
    expect(text(), &["latin.txt"], &["not UTF-8", "Latin-1"]);
    expect(text(), &["records.txt"], &["JSON", "`data.format = \"jsonl\"`"]);
    let records = || DataFormat::Text {
        tokenizer: Tokenizer::Bytes,
        documents: Documents::JsonLines("text".into()),
        separator: Separator::Auto,
    };
    expect(records(), &["records.json"], &["read as JSON lines", "`text`"]);
    expect(records(), &["list.json"], &["a list of JSON objects"]);
    assert!(told(records(), &["lines.jsonl"]).is_empty());
}
