//! Tokenizers: convert text to tokens and back.

use super::DataError;
use super::bpe::{self, END_OF_TEXT};
use super::cache::failed;
use super::files::{self, DataFile};
use dtrain_recipes::{Documents, Separator, Tokenizer};
use std::path::Path;
use std::sync::Arc;

/// Common names of the end-of-text token; the first of them in the vocabulary is used.
const ENDS_OF_TEXT: [&str; 6] =
    [END_OF_TEXT, "<|end_of_text|>", "<｜end▁of▁sentence｜>", "</s>", "<eos>", "[EOS]"];

/// Common names of the beginning-of-text token; the first of them in the vocabulary is used.
const BEGINS_OF_TEXT: [&str; 7] =
    ["<s>", "<|begin_of_text|>", "<|startoftext|>", "<｜begin▁of▁sentence｜>", "<bos>", "[BOS]", "[CLS]"];

/// A tokenizer, which converts text to tokens and back.
#[derive(Clone, Debug)]
pub enum TextTokenizer {
    /// Every byte of the text is a token.
    Bytes,
    /// Parts of words are tokens, as a `tokenizer.json` says.
    Subword(Box<Subword>),
}

/// A tokenizer of parts of words, parsed from JSON.
#[derive(Clone, Debug)]
pub struct Subword {
    tokenizer: tokenizers::Tokenizer,
    /// The original JSON: the library does not write every tokenizer as it was, and prints a warning
    /// about some of them.
    json: String,
}

impl TextTokenizer {
    /// Parses a tokenizer from the JSON of a checkpoint or of a `tokenizer.json`.
    pub fn parse(json: &[u8]) -> Result<Self, DataError> {
        let tokenizer = bpe::parse(json)?;
        Ok(Self::Subword(Box::new(Subword { tokenizer, json: String::from_utf8_lossy(json).into_owned() })))
    }

    /// Returns the tokenizer as JSON in the format of Hugging Face tokenizers; `None` for bytes.
    pub fn json(&self) -> Option<String> {
        match self {
            Self::Bytes => None,
            Self::Subword(subword) => Some(subword.json.clone()),
        }
    }

    /// Returns the tokens of `text`; `Err` if the tokenizer has none for a part of it.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        match self {
            Self::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Self::Subword(subword) => {
                let encoding = subword.tokenizer.encode_fast(text, false).map_err(failed("tokenizing"))?;
                Ok(encoding.get_ids().to_vec())
            }
        }
    }

    /// Returns the text of `tokens`; invalid UTF-8 (such as half a character) becomes `U+FFFD`. A number
    /// that is not a token adds no text.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, DataError> {
        match self {
            Self::Bytes => {
                let bytes: Vec<u8> =
                    tokens.iter().map(|token| u8::try_from(*token).unwrap_or(b'?')).collect();
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
            Self::Subword(subword) => subword.tokenizer.decode(tokens, false).map_err(failed("decoding")),
        }
    }

    /// Returns `true` if `token` is a token of the tokenizer. Numbers may be skipped, and a model's
    /// vocabulary may be larger than its tokenizer's.
    pub fn has(&self, token: u32) -> bool {
        match self {
            Self::Bytes => token < 256,
            Self::Subword(subword) => subword.tokenizer.id_to_token(token).is_some(),
        }
    }

    /// Returns a token that a text can begin with: the beginning-of-text token, otherwise the end-of-text
    /// token, otherwise the first word; `None` if there are no tokens.
    pub fn first_token(&self) -> Option<u32> {
        let special = BEGINS_OF_TEXT.iter().chain(&ENDS_OF_TEXT).find_map(|name| self.token(name));
        match self {
            Self::Bytes => Some(u32::from(b'\n')),
            Self::Subword(subword) => special.or_else(|| {
                let is_word = |text: &str| !text.is_empty() && text.chars().all(char::is_alphanumeric);
                let tokens = subword.tokenizer.get_vocab(true).into_iter();
                tokens.map(|(text, token)| (!is_word(&text), token)).min().map(|(_, token)| token)
            }),
        }
    }

    /// Returns the size of the vocabulary: one more than the largest token.
    pub fn vocabulary(&self) -> u32 {
        match self {
            Self::Bytes => 256,
            // Numbers may be skipped, so the largest is more than the number of tokens.
            Self::Subword(subword) => {
                let largest = subword.tokenizer.get_vocab(true).into_values().max();
                largest.map_or(0, |largest| largest.saturating_add(1))
            }
        }
    }

    /// Returns the tokenizer of parts of words; `None` for bytes.
    pub(super) fn subword(&self) -> Option<&tokenizers::Tokenizer> {
        match self {
            Self::Bytes => None,
            Self::Subword(subword) => Some(&subword.tokenizer),
        }
    }

    /// Returns the part of a cache key that identifies this tokenizer.
    pub(super) fn key(&self) -> Result<String, DataError> {
        let json = match self {
            Self::Bytes => "bytes".to_owned(),
            Self::Subword(subword) => subword.json.clone(),
        };
        Ok(blake3::hash(json.as_bytes()).to_hex()[..32].to_owned())
    }

    fn token(&self, text: &str) -> Option<u32> {
        match self {
            Self::Bytes => None,
            Self::Subword(subword) => subword.tokenizer.token_to_id(text),
        }
    }

    /// Returns the separator: the tokens that follow each document of a corpus.
    pub(super) fn separator(
        &self,
        wanted: &Separator,
        documents: &Documents,
        source: &Tokenizer,
    ) -> Result<Vec<u32>, DataError> {
        let end = || ENDS_OF_TEXT.iter().find_map(|name| self.token(name));
        match (wanted, documents, source) {
            (Separator::None, ..) => Ok(Vec::new()),
            (Separator::Text(text), ..) => match self.token(text) {
                Some(token) => Ok(vec![token]),
                None => self.encode(text),
            },
            (Separator::Auto, Documents::JsonLines(_) | Documents::Parquet(_), _) => {
                end().map_or_else(|| self.encode("\n"), |end| Ok(vec![end]))
            }
            (Separator::Auto, Documents::Files, Tokenizer::File(_)) => Ok(end().into_iter().collect()),
            (Separator::Auto, Documents::Files, Tokenizer::Bytes | Tokenizer::Bpe(_)) => Ok(Vec::new()),
        }
    }

    /// Fails if the tokenizer has a token that is not below `vocab`, the size of the model's vocabulary.
    pub(super) fn fits(&self, vocab: u32) -> Result<(), DataError> {
        let found = self.vocabulary();
        if found <= vocab {
            return Ok(());
        }
        Err(DataError::Unfit(format!(
            "the tokenizer has {found} tokens, the model a vocabulary of {vocab}; set `model.vocab` to {found} or more"
        )))
    }
}

/// Returns the tokenizer in the file called `name`, the value of `data.tokenizer`, and the file itself.
pub(super) fn named(name: &str, root: &Path) -> Result<(TextTokenizer, Arc<DataFile>), DataError> {
    let file = Arc::new(files::only(name, root)?);
    let tokenizer = TextTokenizer::parse(&file.read_up_to(0, file.bytes)?).map_err(|error| {
        let detail = format!("expected the tokenizer.json of a Hugging Face tokenizer; {error}");
        DataError::content(&file.name, "the whole", detail)
    })?;
    Ok((tokenizer, file))
}
