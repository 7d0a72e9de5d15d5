//! Text: windows of it, and its tokenizers.

use super::*;

#[test]
fn text_is_joined_in_the_order_of_its_names_and_cut_into_windows() {
    let root =
        folder(&[("b.txt", b"56789"), ("sub/c.txt", b"ab"), ("a.txt", b"01234"), ("sub/no.md", b"zz")]);
    let set = opened(&root, &data(text(), &["**/*.txt"], ValidationSource::Fraction(0.3)), &decoder(3, 256))
        .expect("opened");
    // 12 bytes are 3 samples of 3 and their targets; a third of them, at least one, is for validation.
    let text = |tokens: &[u32]| TextTokenizer::Bytes.decode(tokens).expect("text");
    let train: Vec<_> = tokens(&*set.train).iter().map(|(i, t)| (text(i), text(t))).collect();
    assert_eq!(train, [("012".into(), "123".into()), ("345".to_owned(), "456".to_owned())]);
    let valid: Vec<_> = tokens(&*set.valid).iter().map(|(i, t)| (text(i), text(t))).collect();
    assert_eq!(valid, [("678".to_owned(), "789".to_owned())]);
    // A batch is its samples side by side, in the order asked for.
    let Batch::Tokens { inputs, samples: 2, length: 3, .. } = set.train.read(&[1, 0]).expect("read") else {
        panic!("two samples of three tokens");
    };
    assert_eq!(text(&inputs), "345012");
    assert_eq!(set.tokenizer.expect("text has one").encode("é").expect("tokens"), [0xC3, 0xA9]);
}

#[test]
fn a_fraction_uses_the_first_samples_and_leaves_validation_alone() {
    let bytes: Vec<u8> = (0..=200).collect();
    let root = folder(&[("t", &bytes)]);
    let mut data = data(text(), &["t"], ValidationSource::Fraction(0.1));
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

fn words(count: usize) -> String {
    let word = |i: usize| ["the ", "cat ", "sat on ", "a mat.\n", "größer ", "tokens "][i * i % 6];
    (0..count).map(word).collect()
}

#[test]
fn bpe_is_trained_once_and_gives_the_text_back() {
    let (train, valid) = (words(4000), words(300));
    let root = folder(&[("t.txt", train.as_bytes()), ("v.txt", valid.as_bytes())]);
    let bpe = read_as(Tokenizer::Bpe(300));
    let data = data(bpe, &["t.txt"], files(&["v.txt"]));
    let set = opened(&root, &data, &decoder(8, 300)).expect("opened");
    let tokenizer = set.tokenizer.expect("text has one");
    let tokens_of_text = tokenizer.encode(&train).expect("tokens");
    assert!(tokens_of_text.len() * 2 < train.len(), "frequent words become one token");
    assert_eq!(tokenizer.decode(&tokens_of_text).expect("text"), train);
    assert_eq!(
        tokenizer.decode(&tokenizer.encode("ein 🦀, neu").expect("tokens")).expect("text"),
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
    let mut names = cached(&data, root.path(), &root.path().join("cache"), &[]).expect("the data is there");
    names.sort();
    let found = |path: &std::path::PathBuf| path.file_name().expect("a file").to_str().map(str::to_owned);
    assert_eq!(
        names.into_iter().map(Some).collect::<Vec<_>>(),
        kept(&root).iter().map(found).collect::<Vec<_>>()
    );
    let mut all = all_cached(&root.path().join("cache"));
    all.sort();
    assert_eq!(all, kept(&root));
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
    let bpe = |vocab| data(read_as(Tokenizer::Bpe(vocab)), &["t"], ValidationSource::Fraction(0.5));
    let bad = [&words(50).into_bytes()[..], b"\xff\n"].concat();
    let place = format!("byte {}", bad.len() - 2);
    check_error(&[("t", &bad)], &bpe(300), &decoder(4, 300), &["t, ", &place, "UTF-8", "bytes"]);
    check_error(&[("t", b"abc")], &bpe(300), &decoder(4, 299), &["300 tokens", "vocabulary of 299"]);
    check_error(&[("t", b"abc")], &bpe(256), &decoder(4, 256), &["256", "no room"]);
}

#[test]
fn ranks_that_make_tokens_or_wait_for_them_show_that_they_work() {
    let text = words(4000);
    let root = folder(&[("t.txt", text.as_bytes())]);
    let bpe = read_as(Tokenizer::Bpe(300));
    let data = data(bpe, &["t.txt"], ValidationSource::Fraction(0.1));
    let model = decoder(8, 300);
    let cache = root.path().join("cache");
    let open = |progress: &WorkCounter| {
        open_with(&data, root.path(), &model, &cache, None, progress, &|_| ()).map(drop)
    };
    let (first, again) = (WorkCounter::default(), WorkCounter::default());
    open(&first).expect("opened");
    assert!(first.count() > 0, "text was made into tokens");
    open(&again).expect("opened");
    assert_eq!(again.count(), 0, "they were there");

    // Another rank makes a tokenizer.
    let locks = fs::read_dir(&cache).expect("kept").map(|entry| entry.expect("an entry").path());
    let locks = locks.filter(|path| path.extension().is_some_and(|extension| extension == "lock"));
    let locks: Vec<_> = locks.map(|path| fs::File::open(path).expect("a lock")).collect();
    locks.iter().for_each(|lock| lock.lock().expect("free"));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| open(&again));
        while again.count() < 3 {
            std::thread::yield_now();
        }
        drop(locks);
        waiting.join().expect("no panic").expect("opened");
    });
}
