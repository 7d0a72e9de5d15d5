//! Tokenizers as people have them: without a token for a new line, with numbers that are left out.

use dtrain_tests::TestEnv;
use std::process::Output;

const RECIPE: &str = r#"
name = "words"
[model]
kind = "decoder"
layers = 1
hidden = 16
heads = 2
context = 16
vocab = 64
[data]
train = "text.txt"
valid = "5%"
tokenizer = "tokenizer.json"
[objective]
stop = { steps = 2 }
[train]
batch = 2
learning_rate = 1e-3
[cluster]
ranks = 1
"#;

/// A tokenizer of words between spaces; `model` says which.
fn tokenizer(model: &str) -> String {
    format!(
        r#"{{"version":"1.0","truncation":null,"padding":null,"normalizer":null,"post_processor":null,"decoder":null,
        "added_tokens":[],"pre_tokenizer":{{"type":"Whitespace"}},"model":{model}}}"#
    )
}

/// A house with a recipe whose text has the words of this model.
fn house(model: &str) -> TestEnv {
    let house = TestEnv::default();
    house.file("tokenizer.json", tokenizer(model));
    house.file("text.txt", "the the the quick the fox\n".repeat(500));
    house.file("recipe.toml", RECIPE);
    house
}

const WORDS: &str =
    r#"{"type":"WordLevel","unk_token":"[UNK]","vocab":{"[UNK]":0,"the":1,"quick":2,"fox":9}}"#;

/// Numbers 3 and 7 to 63 have no token.
const HOLES: &str = r#"{"type":"BPE","unk_token":"?","vocab":{"?":0,"t":1,"h":2,"e":4,"th":5,"the":6},
    "merges":["t h","th e"]}"#;

fn printed(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

#[test]
fn a_model_of_words_writes_text_without_a_prompt() {
    let house = house(WORDS);
    let said = printed(&house.expect(0, ["run", "recipe.toml"]));
    assert!(said.contains("sample:") && !said.contains("panicked"), "{said}");
    for prompt in [&[][..], &["--prompt", ""], &["--prompt", "  "]] {
        let sample = ["model", "sample", "last", "--tokens", "20"];
        let output = house.expect(0, sample.iter().chain(prompt));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let words = ["the", "quick", "fox", "[UNK]"];
        assert!(text.split_whitespace().count() >= 20, "every token has a text: {text}");
        assert!(text.split_whitespace().all(|word| words.contains(&word)), "{text}");
    }
}

#[test]
fn a_tokenizer_that_leaves_numbers_out_trains_and_the_library_prints_nothing() {
    let house = house(HOLES);
    let said = printed(&house.expect(0, ["run", "recipe.toml"]));
    assert!(said.contains("sample:") && !said.contains("OrderedVocab"), "{said}");
    let output = house.expect(0, ["data", "recipe.toml", "--prepare", "--json"]);
    serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("nothing but JSON");
    assert!(!printed(&house.expect(0, ["model", "sample", "last"])).contains("OrderedVocab"));
}

#[test]
fn a_prompt_that_has_no_token_is_refused_in_words() {
    let house = house(r#"{"type":"BPE","vocab":{"t":0,"h":1,"e":2},"merges":[]}"#);
    house.expect(0, ["run", "recipe.toml", "--quiet"]);
    let said = printed(&house.expect(2, ["model", "sample", "last", "--prompt", "xyz"]));
    assert!(said.contains("tokenizer") && said.contains("xyz") && !said.contains("panicked"), "{said}");
}
