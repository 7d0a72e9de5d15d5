//! Text to tokens and back.

use super::tokens::{self, Segment, Tokens};
use super::{DataError, DataSet, Sequences, bpe, files};
use crate::comm::Progress;
use dtrain_recipes::{Data, Tokenizer, Valid};
use std::path::Path;
use std::sync::Arc;

/// How text becomes tokens and back.
#[derive(Clone, Debug)]
pub enum TextTokenizer {
    /// Each byte is a token.
    Bytes,
    /// Byte-level BPE.
    Bpe(Box<tokenizers::Tokenizer>),
}

impl TextTokenizer {
    /// The tokenizer that a checkpoint has, from its JSON.
    pub fn parse(json: &[u8]) -> Result<Self, DataError> {
        Ok(Self::Bpe(Box::new(bpe::parse(json)?)))
    }

    /// Its JSON, in the format of Hugging Face tokenizers; `None` where bytes are the tokens.
    pub fn json(&self) -> Option<String> {
        match self {
            Self::Bytes => None,
            Self::Bpe(bpe) => Some(bpe.to_string(false).expect("a tokenizer can be written as JSON")),
        }
    }

    /// The tokens of `text`.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        match self {
            Self::Bytes => text.bytes().map(u32::from).collect(),
            Self::Bpe(bpe) => {
                let encoding = bpe.encode_fast(text, false);
                encoding.expect("every byte is in the vocabulary").get_ids().to_vec()
            }
        }
    }

    /// The text of `tokens`; what is not valid UTF-8 (such as half a character) becomes `U+FFFD`.
    pub fn decode(&self, tokens: &[u32]) -> String {
        match self {
            Self::Bytes => {
                let bytes: Vec<u8> =
                    tokens.iter().map(|token| u8::try_from(*token).unwrap_or(b'?')).collect();
                String::from_utf8_lossy(&bytes).into_owned()
            }
            Self::Bpe(bpe) => bpe.decode(tokens, false).expect("decoding bytes does not fail"),
        }
    }
}

/// Names of the files in `cache` that text files would be read from; see [`bpe::names`].
pub(super) fn cached(
    data: &Data,
    vocab: u32,
    root: &Path,
    cache: &Path,
    trained: &[Vec<u8>],
) -> Result<Vec<String>, DataError> {
    let train = files::find(&data.train, root)?;
    let valid = match &data.valid {
        Valid::Fraction(_) => None,
        Valid::Files(patterns) => Some(files::find(patterns, root)?),
    };
    let all: Vec<&[Arc<files::DataFile>]> =
        std::iter::once(&train).chain(&valid).map(Vec::as_slice).collect();
    bpe::names(&all, vocab, cache, trained)
}

/// Opens text files; `trained` is the tokenizer of a checkpoint, in place of one that is trained on them.
pub(super) fn open(
    data: &Data,
    tokenizer: &Tokenizer,
    root: &Path,
    model: Sequences,
    cache: &Path,
    trained: Option<&[u8]>,
    progress: &Progress,
) -> Result<DataSet, DataError> {
    let train_files = files::find(&data.train, root)?;
    let valid_files = match &data.valid {
        Valid::Fraction(_) => None,
        Valid::Files(patterns) => Some(files::find(patterns, root)?),
    };
    let bytes = |files: &[Arc<files::DataFile>]| {
        Ok::<_, DataError>(Tokens::new(
            files.iter().map(|f| Segment::raw(Arc::clone(f), 1)).collect::<Result<_, _>>()?,
        ))
    };
    let (train, valid, tokenizer) = match tokenizer {
        Tokenizer::Bytes => {
            let valid = valid_files.as_deref().map(bytes).transpose()?;
            (bytes(&train_files)?, valid, TextTokenizer::Bytes)
        }
        Tokenizer::Bpe(vocab) if *vocab > model.vocab => {
            let detail =
                format!("the tokenizer has {vocab} tokens, the model a vocabulary of {}", model.vocab);
            return Err(DataError::Unfit(detail));
        }
        Tokenizer::Bpe(vocab) => {
            let bpe = match trained {
                Some(json) => bpe::Bpe::parse(json, *vocab, cache)?,
                None => bpe::Bpe::of(&train_files, *vocab, cache, progress)?,
            };
            let valid = valid_files.as_ref().map(|files| bpe.tokens(files, progress)).transpose()?;
            (bpe.tokens(&train_files, progress)?, valid, TextTokenizer::Bpe(Box::new(bpe.tokenizer)))
        }
    };
    let (train, valid) = tokens::cut(data, train, valid, model)?;
    let files = files::recorded(train_files.iter().chain(valid_files.iter().flatten()))?;
    Ok(DataSet { train, valid, files, tokenizer: Some(tokenizer) })
}
