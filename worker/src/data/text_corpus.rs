//! Text as a data set: a corpus, tokenized with the tokenizer of the recipe.

use super::corpus::CorpusReader;
use super::files::{self, DataFile};
use super::packing::pack;
use super::preparation::PreparationObserver;
use super::tokenize::Tokenization;
use super::tokenizer::{TextTokenizer, named};
use super::tokens::{TokenFiles, TokenSegment};
use super::{DataError, DataSet, Sequences, bpe};
use dtrain_recipes::{Data, Documents, Separator, Tokenizer, ValidationSource};
use std::path::Path;
use std::sync::Arc;

/// The settings of a recipe that determine how its text becomes tokens.
pub(super) struct CorpusSettings<'a> {
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) documents: &'a Documents,
    pub(super) separator: &'a Separator,
}

impl<'a> CorpusSettings<'a> {
    fn corpus(&self) -> CorpusReader<'a> {
        CorpusReader { documents: self.documents }
    }

    /// Returns `true` if the tokens are read from the text files themselves, without a cached copy.
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
        let separator = tokenizer.separator(self.separator, self.documents, self.tokenizer)?;
        Ok(Tokenization { tokenizer, corpus: self.corpus(), separator, width })
    }

    /// Opens the training files and, if the recipe names some, the validation files.
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

    /// Returns the names of the files in `cache` from which the text would be read with the tokenizer of
    /// the recipe or one of `trained`, as JSON. Creates none of them.
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

    /// Opens the text as a data set; `trained` is the tokenizer of a checkpoint, used instead of training
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
        let (train, valid) = pack(data, open(&train_files)?, valid, model)?;
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
