//! Tokenization: text is streamed through all cores into one cached file of tokens.

use super::cache::{self, cache_error, key, lock, write_whole};
use super::corpus::CorpusReader;
use super::document::DocumentPiece;
use super::files::DataFile;
use super::preparation::{PreparationObserver, PreparationStep, TokenizationProgress};
use super::tokens::{TokenFiles, TokenSegment};
use super::{DataError, TextTokenizer};
use dtrain_recipes::Documents;
use rayon::prelude::*;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

/// Bytes of text that are tokenized in parallel, per thread; the total is at least four times as many.
const BATCH_BYTES: usize = 1 << 20;

/// The settings of the tokenization of a corpus.
pub(super) struct Tokenization<'a> {
    pub(super) tokenizer: &'a TextTokenizer,
    pub(super) corpus: CorpusReader<'a>,
    /// Tokens that are added after each document.
    pub(super) separator: Vec<u32>,
    /// Number of bytes of a stored token.
    pub(super) width: u64,
}

impl Tokenization<'_> {
    /// Returns the name of the cached file with the tokens of `files`, and the key of its lock.
    pub(super) fn name(&self, files: &[Arc<DataFile>]) -> Result<(String, String), DataError> {
        let tokenizer = self.tokenizer.key()?;
        let method = match (self.corpus.documents, self.separator.as_slice()) {
            (Documents::Files, []) => tokenizer.clone(),
            (documents, separator) => format!("{tokenizer} {documents:?} {separator:?}"),
        };
        let name = format!("{}{tokenizer}-{}.tokens", cache::PREFIX, key(&method, files)?);
        Ok((name, tokenizer))
    }

    /// Returns the tokens of `files`, end to end: from the cache `folder`, otherwise tokenized now.
    pub(super) fn tokens(
        &self,
        files: &[Arc<DataFile>],
        folder: &Path,
        watch: &PreparationObserver<'_>,
    ) -> Result<TokenFiles, DataError> {
        crate::files::make_folder(folder).map_err(cache_error("making", folder))?;
        let (name, tokenizer) = self.name(files)?;
        let path = folder.join(name);
        let _lock = lock(folder, &tokenizer, watch.progress)?;
        if !path.exists() {
            write_whole(&path, |to| self.write(files, to, &path, watch))?;
        }
        let file = Arc::new(DataFile::open(&path, folder)?);
        Ok(TokenFiles::new(vec![TokenSegment::raw(file, self.width)?]))
    }

    /// Tokenizes `files` and writes the tokens to `to`: a thread of its own reads, all threads tokenize,
    /// and this one writes.
    fn write(
        &self,
        files: &[Arc<DataFile>],
        to: &mut dyn Write,
        path: &Path,
        watch: &PreparationObserver<'_>,
    ) -> Result<(), DataError> {
        let mut done = TokenizationProgress::default();
        let (batches, next) = sync_channel(1);
        let corpus = self.corpus;
        std::thread::scope(|scope| {
            scope.spawn(move || read(corpus, files, &batches));
            for batch in next {
                let batch: Vec<DocumentPiece> = batch?;
                done.bytes += batch.iter().map(|piece| piece.bytes.len() as u64).sum::<u64>();
                done.documents += batch.iter().filter(|piece| piece.is_last).count() as u64;
                let encoded: Vec<(Vec<u8>, u64)> =
                    batch.into_par_iter().map(|piece| self.encode(piece)).collect::<Result<_, _>>()?;
                for (bytes, tokens) in encoded {
                    to.write_all(&bytes).map_err(cache_error("writing", path))?;
                    done.tokens += tokens;
                }
                watch.progress.advance();
                (watch.tell)(PreparationStep::Tokenizing(done));
            }
            if done.tokens == 0 {
                let what = "no text".to_owned();
                return Err(DataError::TooFew { what, hint: "name files that have some in `data.train`" });
            }
            Ok(())
        })
    }

    /// Returns the tokens of a piece of text, `width` bytes each, and their number.
    fn encode(&self, piece: DocumentPiece) -> Result<(Vec<u8>, u64), DataError> {
        let is_last = piece.is_last;
        let mut tokens = match self.tokenizer {
            TextTokenizer::Bytes => piece.bytes.into_iter().map(u32::from).collect(),
            TextTokenizer::Subword(_) => self.tokenizer.encode(&piece.text()?)?,
        };
        if is_last {
            tokens.extend(&self.separator);
        }
        let width = usize::try_from(self.width).expect("1, 2 or 4");
        let bytes = tokens.iter().flat_map(|token| token.to_le_bytes().into_iter().take(width)).collect();
        Ok((bytes, tokens.len() as u64))
    }
}

/// Sends the pieces of text in `files` to `to`, in batches; ends after an error, or when the receiver is
/// gone.
fn read(
    corpus: CorpusReader<'_>,
    files: &[Arc<DataFile>],
    to: &SyncSender<Result<Vec<DocumentPiece>, DataError>>,
) {
    let most = BATCH_BYTES * rayon::current_num_threads().max(4);
    let (mut batch, mut bytes) = (Vec::new(), 0);
    for piece in corpus.pieces(files) {
        match piece {
            Ok(piece) => {
                bytes += piece.bytes.len();
                batch.push(piece);
            }
            Err(error) => {
                // The receiver is gone after an error in another piece, which is the one that is reported.
                drop(to.send(Ok(std::mem::take(&mut batch))));
                drop(to.send(Err(error)));
                return;
            }
        }
        if bytes >= most {
            bytes = 0;
            if to.send(Ok(std::mem::take(&mut batch))).is_err() {
                return;
            }
        }
    }
    drop(to.send(Ok(batch)));
}
