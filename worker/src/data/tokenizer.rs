//! Tokenizers: text to tokens and back.

use super::cache::failed;
use super::corpus::CorpusReader;
use super::files::DataFile;
use super::tokenize::{PreparationObserver, Tokenization};
use super::tokens::{self, TokenFiles, TokenSegment};
use super::{DataError, DataSet, Sequences, bpe, files};
use dtrain_recipes::{Data, Documents, Separator, Tokenizer, ValidationSource};
use std::path::Path;
use std::sync::Arc;

/// End-of-text token of a tokenizer trained on JSON records or rows.
pub(super) const END_OF_TEXT: &str = "<|endoftext|>";

/// Common names of the end-of-text token; the first one in the vocabulary is taken.
const ENDS_OF_TEXT: [&str; 6] =
    [END_OF_TEXT, "<|end_of_text|>", "<｜end▁of▁sentence｜>", "</s>", "<eos>", "[EOS]"];

/// Common names of the beginning-of-text token; the first one in the vocabulary is taken.
const BEGINS_OF_TEXT: [&str; 7] =
    ["<s>", "<|begin_of_text|>", "<|startoftext|>", "<｜begin▁of▁sentence｜>", "<bos>", "[BOS]", "[CLS]"];

/// A tokenizer: converts text to tokens and back.
#[derive(Clone, Debug)]
pub enum TextTokenizer {
    /// One token for each byte.
    Bytes,
    /// Parts of words, according to a `tokenizer.json`.
    Subword(Box<Subword>),
}

/// A tokenizer parsed from JSON.
#[derive(Clone, Debug)]
pub struct Subword {
    tokenizer: tokenizers::Tokenizer,
    /// The original JSON: the library does not write every tokenizer as it was, and prints a warning about
    /// some.
    json: String,
}

impl TextTokenizer {
    /// Parses the tokenizer of a checkpoint or of a `tokenizer.json`.
    pub fn parse(json: &[u8]) -> Result<Self, DataError> {
        let tokenizer = bpe::parse(json)?;
        Ok(Self::Subword(Box::new(Subword { tokenizer, json: String::from_utf8_lossy(json).into_owned() })))
    }

    /// Returns the JSON in the format of Hugging Face tokenizers; `None` for bytes.
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
    /// that is not a token has no text.
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

    /// Returns `true` if the number is a token. Numbers may be skipped, and a model's vocabulary may be
    /// larger than its tokenizer's.
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

    /// Returns one more than the largest token.
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

    /// Returns the part of a cache key that identifies the tokenizer.
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

    /// Returns the tokens that follow each document of a corpus.
    fn separator(&self, wanted: &Separator, text: &CorpusSettings<'_>) -> Result<Vec<u32>, DataError> {
        let end = || ENDS_OF_TEXT.iter().find_map(|name| self.token(name));
        match (wanted, text.documents, text.tokenizer) {
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

    /// Fails if the tokenizer has a token beyond the model's vocabulary.
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

/// Returns the tokenizer in the file that `data.tokenizer` names, with its file.
pub(super) fn named(name: &str, root: &Path) -> Result<(TextTokenizer, Arc<DataFile>), DataError> {
    let file = Arc::new(files::only(name, root)?);
    let tokenizer = TextTokenizer::parse(&file.read_up_to(0, file.bytes)?).map_err(|error| {
        let detail = format!("expected the tokenizer.json of a Hugging Face tokenizer; {error}");
        DataError::content(&file.name, "the whole", detail)
    })?;
    Ok((tokenizer, file))
}

/// The settings of a text corpus in a recipe.
pub(super) struct CorpusSettings<'a> {
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) documents: &'a Documents,
    pub(super) separator: &'a Separator,
}

impl<'a> CorpusSettings<'a> {
    fn corpus(&self) -> CorpusReader<'a> {
        CorpusReader { documents: self.documents }
    }

    /// Returns `true` if tokens are read from the files themselves, without a cached copy.
    fn is_in_place<'f>(&self, mut files: impl Iterator<Item = &'f Arc<DataFile>>) -> bool {
        matches!((self.tokenizer, self.documents), (Tokenizer::Bytes, Documents::Files))
            && matches!(self.separator, Separator::Auto | Separator::None)
            && !files.any(|file| file.is_compressed())
    }

    fn preparation<'t>(&self, tokenizer: &'t TextTokenizer) -> Result<Tokenization<'t>, DataError>
    where
        'a: 't,
    {
        // A trained tokenizer may have fewer tokens than requested.
        let least = if let Tokenizer::Bpe(vocab) = self.tokenizer { *vocab } else { 0 };
        let vocabulary = tokenizer.vocabulary().max(least);
        let width = match vocabulary {
            0..=256 => 1,
            257..=65_536 => 2,
            _ => 4,
        };
        let separator = tokenizer.separator(self.separator, self)?;
        Ok(Tokenization { tokenizer, corpus: self.corpus(), separator, width })
    }

    /// Opens the training files and, if there are any, the validation files.
    fn files(
        data: &Data,
        root: &Path,
    ) -> Result<(Vec<Arc<DataFile>>, Option<Vec<Arc<DataFile>>>), DataError> {
        let valid = match &data.valid {
            ValidationSource::Fraction(_) => None,
            ValidationSource::Files(patterns) => Some(files::find(patterns, root)?),
        };
        Ok((files::find(&data.train, root)?, valid))
    }

    /// Returns the names of the files in `cache` that the text would be read from, with the tokenizer of
    /// the recipe or one of `trained`, as JSON. Creates none.
    pub(super) fn cached(
        &self,
        data: &Data,
        root: &Path,
        cache: &Path,
        trained: &[Vec<u8>],
    ) -> Result<Vec<String>, DataError> {
        let (train, valid) = Self::files(data, root)?;
        if self.is_in_place(train.iter().chain(valid.iter().flatten())) {
            return Ok(Vec::new());
        }
        let mut names = Vec::new();
        let mut tokenizers =
            trained.iter().map(|json| TextTokenizer::parse(json)).collect::<Result<Vec<_>, _>>()?;
        match self.tokenizer {
            Tokenizer::Bytes => tokenizers.push(TextTokenizer::Bytes),
            Tokenizer::File(name) => tokenizers.push(named(name, root)?.0),
            Tokenizer::Bpe(vocab) => {
                let name = bpe::name(&train, &self.corpus(), *vocab)?;
                if let Ok(json) = std::fs::read(cache.join(&name)) {
                    tokenizers.push(TextTokenizer::parse(&json)?);
                }
                names.push(name);
            }
        }
        for tokenizer in &tokenizers {
            let preparation = self.preparation(tokenizer)?;
            for files in std::iter::once(&train).chain(&valid) {
                names.push(preparation.name(files)?.0);
            }
        }
        Ok(names)
    }

    /// Opens the text as a data set; `trained` is the tokenizer of a checkpoint, used in place of training
    /// one.
    pub(super) fn open(
        &self,
        data: &Data,
        root: &Path,
        model: Sequences,
        cache: &Path,
        trained: Option<&[u8]>,
        watch: &PreparationObserver<'_>,
    ) -> Result<DataSet, DataError> {
        let (train_files, valid_files) = Self::files(data, root)?;
        let mut more = Vec::new();
        let tokenizer = match self.tokenizer {
            Tokenizer::Bytes => TextTokenizer::Bytes,
            Tokenizer::File(name) => {
                let (tokenizer, file) = named(name, root)?;
                more.push(file);
                tokenizer
            }
            Tokenizer::Bpe(vocab) if *vocab > model.vocab => {
                let detail =
                    format!("the tokenizer has {vocab} tokens, the model a vocabulary of {}", model.vocab);
                return Err(DataError::Unfit(detail));
            }
            Tokenizer::Bpe(vocab) => match trained {
                Some(json) => TextTokenizer::parse(json)?,
                None => TextTokenizer::parse(&bpe::train_tokenizer(
                    &train_files,
                    &self.corpus(),
                    *vocab,
                    cache,
                    watch.progress,
                )?)?,
            },
        };
        if !matches!(tokenizer, TextTokenizer::Bytes) {
            tokenizer.fits(model.vocab)?;
        }
        let is_in_place = self.is_in_place(train_files.iter().chain(valid_files.iter().flatten()));
        let preparation = self.preparation(&tokenizer)?;
        let open = |files: &[Arc<DataFile>]| {
            if is_in_place {
                let bytes =
                    files.iter().map(|file| Ok(TokenSegment::text(Arc::clone(file), file.text_begin()?)));
                Ok(TokenFiles::new(bytes.collect::<Result<_, DataError>>()?))
            } else {
                preparation.tokens(files, cache, watch)
            }
        };
        let valid = valid_files.as_deref().map(open).transpose()?;
        let (train, valid) = tokens::cut(data, open(&train_files)?, valid, model)?;
        let files = files::recorded(train_files.iter().chain(valid_files.iter().flatten()).chain(&more))?;
        Ok(DataSet {
            train,
            valid,
            files,
            tokenizer: Some(tokenizer),
            preprocessing: None,
            warnings: Vec::new(),
        })
    }
}
