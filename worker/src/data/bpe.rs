//! Byte-level BPE, trained on the training text and applied once; both results are kept in the cache.
//!
//! Cached files are named by what they were made from: contents, vocabulary size, and the version of the method.
//! They are written under a temporary name and renamed, so a reader sees all or nothing; a lock lets one rank of a
//! host do the work while the others wait for it.

use super::DataError;
use super::files::{self, DataFile};
use super::tokens::{Segment, Tokens};
use crate::comm::Progress;
use dtrain_protocol::inputs::fingerprint;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

/// Changes when the same text would be cut into other tokens.
const METHOD: &str = "byte-level bpe, method 1";

/// The tokenizer is trained on at most this much text.
const TRAIN_BYTES: usize = 64 << 20;

/// Text is read in pieces of at most this length, cut behind a line.
const PIECE_BYTES: u64 = 256 << 10;

/// How often a rank that waits for the tokenizer of another looks whether it is there.
const TURN: Duration = Duration::from_millis(20);

/// Pieces that are tokenized side by side.
const PIECES: usize = 32;

/// A trained tokenizer and where its tokens are cached.
pub(super) struct Bpe {
    pub(super) tokenizer: tokenizers::Tokenizer,
    vocab: u32,
    key: String,
    cache: PathBuf,
}

impl Bpe {
    /// The tokenizer of `files`: from the cache, otherwise trained now.
    pub(super) fn of(
        files: &[Arc<DataFile>],
        vocab: u32,
        cache: &Path,
        progress: &Progress,
    ) -> Result<Self, DataError> {
        if vocab < 257 {
            let detail = format!("a vocabulary of {vocab} has no room for merges: 256 bytes come first");
            return Err(DataError::Tokenizer(detail));
        }
        fs::create_dir_all(cache).map_err(kept("making", cache))?;
        let key = key(&format!("{METHOD} {vocab}"), files)?;
        let path = cache.join(format!("bpe-{key}.json"));
        let _lock = lock(cache, &key, progress)?;
        if !path.exists() {
            let json = train(files, vocab)?.to_string(false).map_err(failed("writing the tokenizer"))?;
            write_whole(&path, |to| to.write_all(json.as_bytes()).map_err(kept("writing", &path)))?;
        }
        let json = fs::read(&path).map_err(kept("reading", &path))?;
        Self::parse(&json, vocab, cache)
            .map_err(|error| DataError::Tokenizer(format!("{}: {error}; remove it", path.display())))
    }

    /// A tokenizer that was trained before.
    pub(super) fn parse(json: &[u8], vocab: u32, cache: &Path) -> Result<Self, DataError> {
        let tokenizer = parse(json)?;
        let found = tokenizer.get_vocab_size(true);
        if found > vocab as usize {
            return Err(DataError::Tokenizer(format!("it has {found} tokens, expected at most {vocab}")));
        }
        fs::create_dir_all(cache).map_err(kept("making", cache))?;
        let key = key_of(&tokenizer)?;
        Ok(Self { tokenizer, vocab, key, cache: cache.to_owned() })
    }

    /// The tokens of `files`, end to end: from the cache, otherwise made now.
    pub(super) fn tokens(&self, files: &[Arc<DataFile>], progress: &Progress) -> Result<Tokens, DataError> {
        let name = key(&self.key, files)?;
        let path = self.cache.join(format!("bpe-{}-{name}.tokens", self.key));
        let _lock = lock(&self.cache, &self.key, progress)?;
        if !path.exists() {
            write_whole(&path, |to| self.tokenize(files, to, &path, progress))?;
        }
        let file = Arc::new(DataFile::open(&path, &self.cache)?);
        Ok(Tokens::new(vec![Segment::raw(file, self.width())?]))
    }

    /// Bytes of one token.
    fn width(&self) -> u64 {
        if self.vocab <= 1 << 16 { 2 } else { 4 }
    }

    fn tokenize(
        &self,
        files: &[Arc<DataFile>],
        to: &mut dyn Write,
        path: &Path,
        progress: &Progress,
    ) -> Result<(), DataError> {
        let mut pieces = files.iter().flat_map(|file| Pieces { file, at: 0 });
        loop {
            let texts = pieces.by_ref().take(PIECES).collect::<Result<Vec<_>, _>>()?;
            if texts.is_empty() {
                return Ok(());
            }
            progress.advance();
            let encodings = self.tokenizer.encode_batch_fast(texts, false).map_err(failed("tokenizing"))?;
            for token in encodings.iter().flat_map(|encoding| encoding.get_ids()) {
                let bytes = &token.to_le_bytes()[..if self.width() == 2 { 2 } else { 4 }];
                to.write_all(bytes).map_err(kept("writing", path))?;
            }
        }
    }
}

/// Names of the files in `cache` that these files would be read from, with the tokenizer that is trained on the first of them or one
/// of `trained`, as JSON. Makes none.
pub(super) fn names(
    files: &[&[Arc<DataFile>]],
    vocab: u32,
    cache: &Path,
    trained: &[Vec<u8>],
) -> Result<Vec<String>, DataError> {
    let Some(train) = files.first() else { return Ok(Vec::new()) };
    let own = format!("bpe-{}.json", key(&format!("{METHOD} {vocab}"), train)?);
    let json = fs::read(cache.join(&own)).ok();
    let mut names = vec![own];
    for json in json.iter().chain(trained) {
        let tokenizer = key_of(&parse(json)?)?;
        for files in files {
            names.push(format!("bpe-{tokenizer}-{}.tokens", key(&tokenizer, files)?));
        }
    }
    Ok(names)
}

/// The files of a cache, but for locks, which whoever waits for one has open, and for what a process is writing.
pub(super) fn all(cache: &Path) -> Vec<PathBuf> {
    let is_ours = |path: &PathBuf| {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        let writer = ending.strip_prefix("new-").and_then(|id| id.parse::<u32>().ok());
        let is_written = writer.is_some_and(|id| Path::new("/proc").join(id.to_string()).exists());
        key_in(path).is_some() && (matches!(ending, "json" | "tokens") || (writer.is_some() && !is_written))
    };
    let entries = fs::read_dir(cache).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(is_ours).collect()
}

/// The key in the name of a cached file, whose lock is called after it.
fn key_in(path: &Path) -> Option<&str> {
    let key = path.file_name()?.to_str()?.strip_prefix("bpe-")?.get(..32)?;
    key.bytes().all(|byte| byte.is_ascii_hexdigit()).then_some(key)
}

/// Removes a file of a cache; `Ok(false)` while somebody makes or opens it.
pub(super) fn discard(path: &Path) -> Result<bool, DataError> {
    let (Some(key), Some(cache)) = (key_in(path), path.parent()) else { return Ok(false) };
    let lock = cache.join(format!("bpe-{key}.lock"));
    let file = File::create(&lock).map_err(kept("making", &lock))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => fs::remove_file(path).map(|()| true).map_err(kept("removing", path)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(kept("locking", &lock)(error.into())),
    }
}

/// What the tokens of a tokenizer are filed under.
fn key_of(tokenizer: &tokenizers::Tokenizer) -> Result<String, DataError> {
    let json = tokenizer.to_string(false).map_err(failed("writing"))?;
    Ok(blake3::hash(json.as_bytes()).to_hex()[..32].to_owned())
}

/// A tokenizer from its JSON.
pub(super) fn parse(json: &[u8]) -> Result<tokenizers::Tokenizer, DataError> {
    tokenizers::Tokenizer::from_bytes(json).map_err(failed("reading"))
}

fn train(files: &[Arc<DataFile>], vocab: u32) -> Result<tokenizers::Tokenizer, DataError> {
    let mut texts = Vec::new();
    let mut bytes = 0;
    for piece in files.iter().flat_map(|file| Pieces { file, at: 0 }) {
        let piece = piece?;
        bytes += piece.len();
        if bytes > TRAIN_BYTES {
            break;
        }
        texts.push(piece);
    }
    let byte_level = ByteLevel::new(false, true, true);
    let mut tokenizer = tokenizers::Tokenizer::new(BPE::default());
    tokenizer.with_pre_tokenizer(Some(byte_level)).with_decoder(Some(byte_level));
    let trainer = BpeTrainer::builder()
        .vocab_size(vocab as usize)
        .min_frequency(2)
        .show_progress(false)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    let mut trainer = TrainerWrapper::BpeTrainer(trainer);
    tokenizer.train(&mut trainer, texts.into_iter()).map_err(failed("training"))?;
    Ok(tokenizer)
}

/// The text of a file piece by piece, each cut behind a line when it has one.
struct Pieces<'a> {
    file: &'a DataFile,
    at: u64,
}

impl Iterator for Pieces<'_> {
    type Item = Result<String, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        (self.at < self.file.bytes).then(|| self.piece())
    }
}

impl Pieces<'_> {
    fn piece(&mut self) -> Result<String, DataError> {
        let begin = self.at;
        let mut bytes = self.file.read_up_to(begin, PIECE_BYTES)?;
        let is_last = begin + bytes.len() as u64 == self.file.bytes;
        if let (false, Some(line)) = (is_last, bytes.iter().rposition(|byte| *byte == b'\n')) {
            bytes.truncate(line + 1);
        }
        if let Err(error) = std::str::from_utf8(&bytes) {
            let is_cut = !is_last && error.error_len().is_none() && error.valid_up_to() > 0;
            if !is_cut {
                self.at = self.file.bytes;
                let place = format!("byte {}", begin + error.valid_up_to() as u64);
                let detail = "this is not UTF-8; convert the file, or use `tokenizer = \"bytes\"`";
                return Err(DataError::content(&self.file.name, place, detail));
            }
            bytes.truncate(error.valid_up_to());
        }
        self.at += bytes.len() as u64;
        Ok(String::from_utf8(bytes).expect("it was just checked"))
    }
}

/// A name for what is made from `files` by `method`.
///
/// Of a long file only blocks are hashed, so its time of change counts too.
fn key(method: &str, files: &[Arc<DataFile>]) -> Result<String, DataError> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(method.as_bytes());
    hasher.update(fingerprint(&files::recorded(files)?).as_bytes());
    for file in files.iter().filter(|file| file.bytes > files::WHOLE_BYTES) {
        hasher.update(&file.modified.to_le_bytes());
    }
    Ok(hasher.finalize().to_hex()[..32].to_owned())
}

/// Held by the one that does the work; released when the file is closed.
///
/// Who waits for it is no less at work than the one that holds it, and which of them is looked at is chance.
fn lock(cache: &Path, key: &str, progress: &Progress) -> Result<File, DataError> {
    let path = cache.join(format!("bpe-{key}.lock"));
    let file = File::create(&path).map_err(kept("making", &path))?;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(TURN),
            Err(error) => return Err(kept("locking", &path)(error.into())),
        }
        progress.advance();
    }
}

/// Writes a file durably under a temporary name of this process, then renames it.
fn write_whole(
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let temporary = path.with_extension(format!("new-{}", std::process::id()));
    let mut to =
        BufWriter::with_capacity(1 << 20, File::create(&temporary).map_err(kept("making", &temporary))?);
    fill(&mut to)?;
    let file = to.into_inner().map_err(|error| kept("writing", &temporary)(error.into_error()))?;
    file.sync_all().map_err(kept("syncing", &temporary))?;
    fs::rename(&temporary, path).map_err(kept("renaming", &temporary))
}

fn kept(action: &str, path: &Path) -> impl Fn(std::io::Error) -> DataError + use<> {
    let what = format!("{action} {}", path.display());
    move |error| DataError::Tokenizer(format!("{what}: {error}"))
}

fn failed(action: &'static str) -> impl Fn(tokenizers::Error) -> DataError {
    move |error| DataError::Tokenizer(format!("{action}: {error}"))
}
