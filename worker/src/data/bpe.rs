//! Byte-level BPE tokenizers: trained on the training text, and stored in the cache.

use super::cache::{cache_error, failed, key, lock, write_whole};
use super::corpus::CorpusReader;
use super::files::DataFile;
use super::{DataError, cache};
use crate::comm::WorkCounter;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use tokenizers::AddedToken;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

/// Version of the training method, which must change whenever the same text would give another tokenizer.
const METHOD: &str = "byte-level bpe, method 1";

/// End-of-text token that a tokenizer trained on JSON records or rows gets.
pub(super) const END_OF_TEXT: &str = "<|endoftext|>";

/// Limit on the length of the text that a tokenizer is trained on, in bytes.
const TRAIN_BYTES: usize = 64 << 20;

/// Returns a tokenizer of `vocab` tokens for `files`, as JSON: from the cache, otherwise trained now.
pub(super) fn train_tokenizer(
    files: &[Arc<DataFile>],
    corpus: &CorpusReader<'_>,
    vocab: u32,
    folder: &Path,
    progress: &WorkCounter,
) -> Result<Vec<u8>, DataError> {
    if vocab < 257 {
        let detail = format!("a vocabulary of {vocab} has no room for merges: 256 bytes come first");
        return Err(DataError::Tokenizer(detail));
    }
    crate::files::make_folder(folder).map_err(cache_error("making", folder))?;
    let key = key(&method(corpus, vocab), files)?;
    let path = folder.join(file_name(&key));
    let _lock = lock(folder, &key, progress)?;
    if !path.exists() {
        let json = train(files, corpus, vocab)?.to_string(false).map_err(failed("writing the tokenizer"))?;
        write_whole(&path, |to| to.write_all(json.as_bytes()).map_err(cache_error("writing", &path)))?;
    }
    let json = fs::read(&path).map_err(cache_error("reading", &path))?;
    match parse(&json) {
        Ok(_) => Ok(json),
        Err(error) => Err(DataError::Tokenizer(format!("{}: {error}; remove it", path.display()))),
    }
}

/// Returns the name of the cached file that [`train_tokenizer`] uses or writes for `files`.
pub(super) fn name(
    files: &[Arc<DataFile>],
    corpus: &CorpusReader<'_>,
    vocab: u32,
) -> Result<String, DataError> {
    Ok(file_name(&key(&method(corpus, vocab), files)?))
}

fn file_name(key: &str) -> String {
    format!("{}{key}.json", cache::PREFIX)
}

fn method(corpus: &CorpusReader<'_>, vocab: u32) -> String {
    if corpus.documents.is_files() {
        format!("{METHOD} {vocab}")
    } else {
        format!("{METHOD} {vocab} {END_OF_TEXT} {:?}", corpus.documents)
    }
}

/// Parses a tokenizer from JSON, and removes its padding and truncation, because a corpus is read whole.
pub(super) fn parse(json: &[u8]) -> Result<tokenizers::Tokenizer, DataError> {
    let mut tokenizer = tokenizers::Tokenizer::from_bytes(json).map_err(failed("reading"))?;
    tokenizer.with_padding(None).with_truncation(None).map_err(failed("reading"))?;
    Ok(tokenizer)
}

/// Trains a tokenizer of `vocab` tokens on the text of `files`. If each document is a JSON record or a
/// row, the tokenizer gets an end-of-text token.
fn train(
    files: &[Arc<DataFile>],
    corpus: &CorpusReader<'_>,
    vocab: u32,
) -> Result<tokenizers::Tokenizer, DataError> {
    let mut texts = Vec::new();
    let mut bytes = 0;
    for piece in corpus.pieces(files) {
        let text = piece?.text()?;
        bytes += text.len();
        if bytes > TRAIN_BYTES {
            break;
        }
        texts.push(text);
    }
    let byte_level = ByteLevel::new(false, true, true);
    let mut tokenizer = tokenizers::Tokenizer::new(BPE::default());
    tokenizer.with_pre_tokenizer(Some(byte_level)).with_decoder(Some(byte_level));
    let mut trainer = BpeTrainer::builder()
        .vocab_size(vocab as usize)
        .min_frequency(2)
        .show_progress(false)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect());
    if !corpus.documents.is_files() {
        trainer = trainer.special_tokens(vec![AddedToken::from(END_OF_TEXT, true)]);
    }
    let mut trainer = TrainerWrapper::BpeTrainer(trainer.build());
    tokenizer.train(&mut trainer, texts.into_iter()).map_err(failed("training"))?;
    Ok(tokenizer)
}
