//! Shards of tokens.

use super::*;

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
    let data = data(DataFormat::Tokens { tokenizer: None }, &["[a-c].bin"], files(&["v.bin"]));
    let set = opened(&root, &data, &decoder(3, 100_000)).expect("opened");
    let samples = tokens(&*set.train);
    assert_eq!(samples[0], (vec![1, 2, 3], vec![2, 3, 4]));
    assert_eq!(samples[1], (vec![4, 5, 6], vec![5, 6, 70_000]));
    assert_eq!(samples[2], (vec![70_000, 8, 9], vec![8, 9, 10]));
    assert_eq!((samples.len(), set.valid.len()), (3, 2));
    assert!(set.tokenizer.is_none());
}

#[test]
fn what_is_no_shard_is_not_read_as_raw_tokens() {
    let shards = data(DataFormat::Tokens { tokenizer: None }, &["a.bin"], ValidationSource::Fraction(0.5));
    let check = |bytes: &[u8], expected: &[&str]| {
        check_error(
            &[("a.bin", bytes)],
            &shards,
            &decoder(3, 65_536),
            &[&["a.bin, byte 0"], expected].concat(),
        );
    };
    let words = "It was a dark and stormy night; the rain fell in torrents.\n".repeat(4);
    check(words.as_bytes(), &["this is text", "`data.format = \"text\"`"]);
    check(b"\x93NUMPY\x01\0 and some numbers ", &["NumPy", ".tofile"]);
    check(b"\x1f\x8b\x08\0\0\0\0\0", &["gzip", "gunzip"]);
}

#[test]
fn a_shard_of_an_unknown_kind_is_not_read_as_raw_tokens() {
    let shards = data(DataFormat::Tokens { tokenizer: None }, &["a.bin"], ValidationSource::Fraction(0.5));
    let tokens = u16s((0..64).map(|i| i % 9));
    for (magic, version) in [(20_240_520, 2), (20_240_801, 8), (20_240_522, 1), (20_260_131, 3)] {
        let found = format!("llm.c shard {magic} of version {version}");
        let expected = ["a.bin", "byte 0", found.as_str(), "20240520 version 1 (u16)"];
        check_error(
            &[("a.bin", &llm_c(magic, version, 64, &tokens))],
            &shards,
            &decoder(2, 65_536),
            &expected,
        );
    }
    // Tokens that only begin like a date.
    let raw: Vec<u8> = [20_260_131u32.to_le_bytes().to_vec(), u16s((0..2000).map(|i| i % 300))].concat();
    let root = folder(&[("a.bin", &raw)]);
    let set = opened(&root, &shards, &decoder(2, 65_536)).expect("raw tokens");
    assert_eq!(self::tokens(&*set.train)[0].0, [9507, 309]);
}

#[test]
fn wrong_shards_are_told_with_file_and_offset() {
    let shards = |valid| data(DataFormat::Tokens { tokenizer: None }, &["a.bin"], valid);
    let half = || shards(ValidationSource::Fraction(0.5));
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
