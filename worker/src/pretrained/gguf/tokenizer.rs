//! The tokenizer in a GGUF file, from the `tokenizer.json` of transformers.

use super::writer::MetadataValue;
use super::{GgufError, pre_tokenizer};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Where the tokens of a model come from.
#[derive(Clone, Debug, Default)]
pub(in crate::pretrained) enum Vocabulary {
    /// Unknown: llama.cpp takes and gives numbers of tokens.
    #[default]
    Numbers,
    /// Token `N` is the byte `N`.
    Bytes,
    /// The files of a tokenizer.
    Files {
        /// Content of `tokenizer.json`.
        tokenizer: Value,
        /// Content of `tokenizer_config.json`, with the special tokens, or null.
        config: Value,
        /// Content of `chat_template.jinja`, if it is not in `config`.
        chat_template: Option<String>,
    },
}

/// Types of tokens, by their numbers in llama.cpp.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// The character that stands for a space in vocabularies of SentencePiece.
const SPACE: char = '▁';

/// Score of tokens that no merge makes: below that of every merge.
const LEAST_SCORE: f32 = -1e9;

/// Key of a value in the file, without `tokenizer.ggml.`.
type Keys = Vec<(String, MetadataValue)>;

/// The tokens of a file.
struct TokenTable {
    texts: Vec<String>,
    types: Vec<i32>,
}

/// Returns the keys of the tokenizer of a model with `size` tokens, whose `config.json` has the content
/// `config`. Notes say where llama.cpp will read a text otherwise.
///
/// `Err` if the tokenizer is damaged. One of a kind that llama.cpp lacks is left out, with a note.
pub(super) fn keys(
    vocabulary: &Vocabulary,
    config: &Value,
    size: u32,
    notes: &mut Vec<String>,
) -> Result<Keys, GgufError> {
    let (tokenizer, settings, template) = match vocabulary {
        Vocabulary::Numbers => return Ok(numbers()),
        Vocabulary::Bytes => return Ok(bytes(size)),
        Vocabulary::Files { tokenizer, config, chat_template } => (tokenizer, config, chat_template),
    };
    let model = &tokenizer["model"];
    let is_bpe = model["type"].as_str().unwrap_or("BPE") == "BPE" && model["merges"].is_array();
    let is_pieces = model["byte_fallback"].as_bool().unwrap_or(false);
    if !is_bpe || !(is_pieces || has_step(&tokenizer["pre_tokenizer"], "ByteLevel")) {
        notes.push(
            "the tokenizer is left out: llama.cpp has byte-level BPE and BPE with byte fallback; it takes and \
             gives numbers of tokens of this model"
                .into(),
        );
        return Ok(numbers());
    }
    let ids = ids(tokenizer)?;
    let tokens = tokens(tokenizer, &ids, size)?;
    let mut out = Vec::new();
    if is_pieces {
        pieces(tokenizer, &ids, &tokens, &mut out)?;
    } else {
        byte_level(tokenizer, &mut out, notes)?;
    }
    let unused = tokens.types.iter().position(|kind| *kind == UNUSED);
    let silent = unused.and_then(|id| u32::try_from(id).ok()).or_else(|| ids.get("\u{100}").copied());
    put(&mut out, "tokens", MetadataValue::Texts(tokens.texts));
    put(&mut out, "token_type", MetadataValue::I32s(tokens.types));
    special(tokenizer, settings, config, &ids, size, &mut out);
    // llama.cpp takes the token 11 where a byte-level vocabulary names none, and ends at it.
    let has_end = out.iter().any(|(key, _)| key.ends_with("eos_token_id"));
    if let Some(silent) = silent.filter(|_| !has_end && !is_pieces) {
        put(&mut out, "eos_token_id", MetadataValue::U32(silent));
        notes.push(format!(
            "the tokenizer has no end of text; token {silent}, which no text has, is named as it"
        ));
    }
    let template = template.as_deref().or_else(|| settings["chat_template"].as_str());
    if let Some(template) = template {
        out.push(("tokenizer.chat_template".into(), MetadataValue::Text(template.to_owned())));
    }
    Ok(out)
}

fn put(out: &mut Keys, key: &str, value: MetadataValue) {
    out.push((format!("tokenizer.ggml.{key}"), value));
}

fn put_text(out: &mut Keys, key: &str, value: &str) {
    put(out, key, MetadataValue::Text(value.to_owned()));
}

/// Returns the keys of a model without a tokenizer; llama.cpp reads the count of tokens from
/// `{architecture}.vocab_size`.
fn numbers() -> Keys {
    let mut out = Vec::new();
    put_text(&mut out, "model", "no_vocab");
    out
}

/// Returns the keys of a model of bytes: byte-level BPE without merges.
fn bytes(size: u32) -> Keys {
    let mut texts: Vec<String> = byte_characters().map(String::from).take(size as usize).collect();
    let mut types = vec![NORMAL; texts.len()];
    pad(&mut texts, &mut types, size);
    let mut out = Vec::new();
    put_text(&mut out, "model", "gpt2");
    put_text(&mut out, "pre", "gpt-2");
    put(&mut out, "tokens", MetadataValue::Texts(texts));
    put(&mut out, "token_type", MetadataValue::I32s(types));
    put(&mut out, "merges", MetadataValue::Texts(Vec::new()));
    // The byte 0, which no text has; llama.cpp would take another byte otherwise.
    put(&mut out, "bos_token_id", MetadataValue::U32(0));
    put(&mut out, "eos_token_id", MetadataValue::U32(0));
    put(&mut out, "add_bos_token", MetadataValue::Bool(false));
    put(&mut out, "add_eos_token", MetadataValue::Bool(false));
    out
}

/// Returns the character that byte-level vocabularies have for each byte: printable ones stand for
/// themselves, and the others, in their order, for the characters from 256 on.
fn byte_characters() -> impl Iterator<Item = char> {
    let is_printable = |byte: u8| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut others = '\u{100}'..;
    (0..=u8::MAX)
        .filter_map(move |byte| if is_printable(byte) { Some(char::from(byte)) } else { others.next() })
}

/// Returns whether a pre-tokenizer, or one of its steps, is of the type `kind`.
fn has_step(step: &Value, kind: &str) -> bool {
    let steps = step["pretokenizers"].as_array();
    step["type"] == kind || steps.is_some_and(|steps| steps.iter().any(|step| has_step(step, kind)))
}

fn added(tokenizer: &Value) -> impl Iterator<Item = &Value> {
    tokenizer["added_tokens"].as_array().into_iter().flatten()
}

/// Returns the number of each token, those that were added included.
fn ids(tokenizer: &Value) -> Result<BTreeMap<&str, u32>, GgufError> {
    let wrong = |text: &str| GgufError::Tokenizer(format!("the token {text:?} has no number"));
    let number =
        |text: &str, id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| wrong(text));
    let vocabulary = tokenizer["model"]["vocab"].as_object();
    let vocabulary = vocabulary.ok_or_else(|| GgufError::Tokenizer("it has no `vocab`".into()))?;
    let mut ids = BTreeMap::new();
    for (text, id) in vocabulary {
        ids.insert(text.as_str(), number(text, id)?);
    }
    for token in added(tokenizer) {
        let text = token["content"]
            .as_str()
            .ok_or_else(|| GgufError::Tokenizer("an added token has no text".into()))?;
        ids.insert(text, number(text, &token["id"])?);
    }
    Ok(ids)
}

/// Returns the tokens in the order of their numbers. Those that the model has no row for are left out, and
/// rows without a token get a name of their own.
fn tokens(tokenizer: &Value, ids: &BTreeMap<&str, u32>, size: u32) -> Result<TokenTable, GgufError> {
    let mut texts = vec![String::new(); size as usize];
    let mut types = vec![UNUSED; size as usize];
    let unknown = tokenizer["model"]["unk_token"].as_str();
    let is_pieces = tokenizer["model"]["byte_fallback"].as_bool().unwrap_or(false);
    let extra: BTreeMap<&str, bool> = added(tokenizer)
        .filter_map(|token| Some((token["content"].as_str()?, token["special"].as_bool().unwrap_or(false))))
        .collect();
    for (text, id) in ids {
        let Some(place) = texts.get_mut(*id as usize) else { continue };
        if !place.is_empty() {
            return Err(GgufError::Tokenizer(format!("{place:?} and {text:?} are both token {id}")));
        }
        let kind = match extra.get(text) {
            _ if is_pieces && Some(*text) == unknown => UNKNOWN,
            Some(special) if *special || looks_special(text) => CONTROL,
            Some(_) => USER_DEFINED,
            None if is_pieces && is_byte_piece(text) => BYTE,
            None => NORMAL,
        };
        types[*id as usize] = kind;
        *place = (*text).to_owned();
        // llama.cpp looks for these in the text as it is.
        if kind == USER_DEFINED && text.contains(SPACE) {
            let plain = text.replace(SPACE, " ");
            if !ids.contains_key(plain.as_str()) {
                *place = plain;
            }
        }
    }
    pad(&mut texts, &mut types, size);
    // llama.cpp refuses a vocabulary that has a text twice.
    let mut seen = BTreeSet::new();
    match texts.iter().find(|text| !seen.insert(text.as_str())) {
        Some(twice) => Err(GgufError::Tokenizer(format!("it has {twice:?} twice"))),
        None => Ok(TokenTable { texts, types }),
    }
}

/// Names the tokens up to `size` that have no text.
fn pad(texts: &mut Vec<String>, types: &mut Vec<i32>, size: u32) {
    texts.resize(size as usize, String::new());
    types.resize(size as usize, UNUSED);
    let empty = texts.iter_mut().enumerate().filter(|(_, text)| text.is_empty());
    empty.for_each(|(id, text)| *text = format!("[PAD{id}]"));
}

/// Returns whether an added token is one of control, though its tokenizer does not call it special.
fn looks_special(text: &str) -> bool {
    let is_between = |start: &str, end: &str| text.starts_with(start) && text.ends_with(end);
    matches!(text, "<pad>" | "<mask>" | "<2mass>" | "[@BOS@]")
        || is_between("<|", "|>")
        || is_between("<｜", "｜>")
        || is_between("<unused", ">")
}

/// Returns whether a token stands for a byte, such as `<0x0A>`.
fn is_byte_piece(text: &str) -> bool {
    let digits = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
}

/// Returns the two sides of each merge.
fn merges(tokenizer: &Value) -> Result<Vec<[&str; 2]>, GgufError> {
    let all = tokenizer["model"]["merges"].as_array().into_iter().flatten();
    let sides = all.map(|merge| match merge {
        Value::String(text) => text.split_once(' ').map(|(a, b)| [a, b]),
        Value::Array(sides) => match sides.as_slice() {
            [Value::String(a), Value::String(b)] => Some([a.as_str(), b.as_str()]),
            _ => None,
        },
        _ => None,
    });
    sides.collect::<Option<_>>().ok_or_else(|| GgufError::Tokenizer("a merge does not have two sides".into()))
}

/// Adds the keys of a byte-level vocabulary.
fn byte_level(tokenizer: &Value, out: &mut Keys, notes: &mut Vec<String>) -> Result<(), GgufError> {
    put_text(out, "model", "gpt2");
    let name = pre_tokenizer::name(tokenizer);
    if name.is_none() {
        notes.push(
            "llama.cpp has no name for the way in which the tokenizer cuts a text into words; `default` is \
             written, and it may give other tokens for a text than training did"
                .into(),
        );
    }
    put_text(out, "pre", name.unwrap_or("default"));
    // A side has no space in a byte-level vocabulary; in a damaged one it is written as such a vocabulary would.
    let side = |side: &str| side.replace(' ', "\u{120}");
    let merges = merges(tokenizer)?.into_iter().map(|[a, b]| format!("{} {}", side(a), side(b))).collect();
    put(out, "merges", MetadataValue::Texts(merges));
    Ok(())
}

/// Adds the keys of a vocabulary of SentencePiece. llama.cpp merges by the scores of what comes out, so
/// that a token's score is the negative rank of the first merge that makes it.
fn pieces(
    tokenizer: &Value,
    ids: &BTreeMap<&str, u32>,
    tokens: &TokenTable,
    out: &mut Keys,
) -> Result<(), GgufError> {
    let mut scores = vec![LEAST_SCORE; tokens.texts.len()];
    for (rank, [a, b]) in merges(tokenizer)?.into_iter().enumerate() {
        let made = ids.get(format!("{a}{b}").as_str()).and_then(|id| scores.get_mut(*id as usize));
        if let Some(score) = made.filter(|score| **score == LEAST_SCORE) {
            #[expect(clippy::cast_precision_loss, reason = "a vocabulary has fewer than 2^24 merges")]
            {
                *score = -(rank as f32);
            }
        }
    }
    // A space before the first word is a step of the normalizer, or of the pre-tokenizer in newer files.
    let normalizers = &tokenizer["normalizer"];
    let steps = normalizers["normalizers"].as_array();
    let is_prepended = |step: &Value| step["type"] == "Prepend";
    let before = &tokenizer["pre_tokenizer"];
    let is_scheme =
        before["type"] == "Metaspace" && before["prepend_scheme"].as_str().unwrap_or("always") != "never";
    let has_prefix =
        is_prepended(normalizers) || steps.is_some_and(|all| all.iter().any(is_prepended)) || is_scheme;
    put_text(out, "model", "llama");
    put_text(out, "pre", "default");
    put(out, "scores", MetadataValue::F32s(scores));
    put(out, "add_space_prefix", MetadataValue::Bool(has_prefix));
    Ok(())
}

/// Adds the numbers of special tokens, and whether a text begins and ends with one. The settings of the
/// tokenizer come first, then what its post-processor adds, then the model's configuration, then the usual
/// names.
fn special(
    tokenizer: &Value,
    settings: &Value,
    config: &Value,
    ids: &BTreeMap<&str, u32>,
    size: u32,
    out: &mut Keys,
) {
    let [first, last] = added_around(&tokenizer["post_processor"]);
    for (kind, key, around, usual) in [
        ("bos", "bos", first, &[][..]),
        ("eos", "eos", last, &["<|endoftext|>", "</s>", "<eos>"][..]),
        ("unk", "unknown", None, &[][..]),
        ("pad", "padding", None, &[][..]),
    ] {
        let setting = &settings[format!("{kind}_token")];
        let named = setting.as_str().or_else(|| setting["content"].as_str()).or(around);
        let named = named.and_then(|text| ids.get(text).copied());
        let unknown = tokenizer["model"]["unk_token"].as_str().filter(|_| kind == "unk");
        let of_config = || {
            let id = &config[format!("{kind}_token_id")];
            // Some models have several ends of text.
            id.as_u64().or_else(|| id[0].as_u64()).and_then(|id| u32::try_from(id).ok())
        };
        let of_names = || usual.iter().copied().chain(unknown).find_map(|text| ids.get(text).copied());
        if let Some(id) = named.or_else(of_config).or_else(of_names).filter(|id| *id < size) {
            put(out, &format!("{key}_token_id"), MetadataValue::U32(id));
        }
    }
    // llama.cpp has other defaults for each kind of tokenizer.
    for (kind, around) in [("bos", first), ("eos", last)] {
        let adds = settings[format!("add_{kind}_token")].as_bool().unwrap_or(around.is_some());
        put(out, &format!("add_{kind}_token"), MetadataValue::Bool(adds));
    }
}

/// Returns the special tokens that a post-processor puts before and after a text.
fn added_around(processor: &Value) -> [Option<&str>; 2] {
    if let Some(steps) = processor["processors"].as_array() {
        let each = steps.iter().map(added_around);
        return each.fold([None, None], |[a, b], [first, last]| [a.or(first), b.or(last)]);
    }
    let single = processor["single"].as_array().map_or(&[][..], Vec::as_slice);
    [
        single.first().and_then(|step| step["SpecialToken"]["id"].as_str()),
        single.last().and_then(|step| step["SpecialToken"]["id"].as_str()),
    ]
}
