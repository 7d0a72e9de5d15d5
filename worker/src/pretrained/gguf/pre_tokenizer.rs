//! Pre-tokenizers of byte-level BPE: how a text is cut into words before merges, and llama.cpp's names of
//! these ways.
//!
//! llama.cpp has the expressions compiled in, and a file has only a name. Its converter finds the name by a
//! hash of the tokens of a long text, which is known for published vocabularies only. Here the expressions
//! themselves are compared, so that a vocabulary of one's own gets the name too.

use serde_json::Value;

/// The expression of `ByteLevel` of the tokenizers library, which is that of GPT-2.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// The expression of Llama 3, with up to three digits a word.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The expression of Qwen2, with one digit a word.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The expression of Mistral's tekken.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The expression of GPT-4o.
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Steps of a pre-tokenizer, whether the vocabulary is looked up before merges (`ignore_merges`), and
/// llama.cpp's name for both.
const KNOWN: [(&[&str], bool, &str); 8] = [
    (&[GPT2], false, "gpt-2"),
    (&[LLAMA3], true, "llama-bpe"),
    (&[LLAMA3], false, "smaug-bpe"),
    (&[QWEN2], false, "qwen2"),
    (&[TEKKEN], true, "tekken"),
    (&[GPT4O], false, "gpt-4o"),
    (&[r"\p{N}", GPT2], false, "smollm"),
    (&[r"\d", GPT2], false, "smollm"),
];

/// Returns llama.cpp's name for the pre-tokenizer in the content of a `tokenizer.json`; `None` if it has
/// none.
pub(super) fn name(tokenizer: &Value) -> Option<&'static str> {
    let mut steps = Vec::new();
    collect(tokenizer.get("pre_tokenizer")?, &mut steps)?;
    let looks_up = tokenizer["model"]["ignore_merges"].as_bool().unwrap_or(false);
    let found = KNOWN.iter().find(|(known, looks, _)| *known == steps && *looks == looks_up);
    found.map(|(_, _, name)| *name)
}

/// Appends the expressions of a pre-tokenizer to `steps`; `None` if it has a step of another kind.
fn collect<'a>(step: &'a Value, steps: &mut Vec<&'a str>) -> Option<()> {
    let flag = |key: &str, default: bool| step.get(key).and_then(Value::as_bool).unwrap_or(default);
    match step["type"].as_str()? {
        "Sequence" => step["pretokenizers"].as_array()?.iter().try_for_each(|step| collect(step, steps)),
        "ByteLevel" if flag("add_prefix_space", true) => None,
        "ByteLevel" => {
            if flag("use_regex", true) {
                steps.push(GPT2);
            }
            Some(())
        }
        "Digits" if flag("individual_digits", false) => {
            steps.push(r"\p{N}");
            Some(())
        }
        "Split" if matches!(step["behavior"].as_str()?, "Isolated" | "Removed") => {
            // The older form removes what is between the words.
            if flag("invert", false) != (step["behavior"] == "Removed") {
                return None;
            }
            steps.push(step["pattern"]["Regex"].as_str()?);
            Some(())
        }
        _ => None,
    }
}
