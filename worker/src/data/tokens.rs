//! Token files: raw shards, llm.c shards and the bytes of text files, joined end to end.

use super::files::{self, DataFile};
use super::packing::pack;
use super::{DataError, DataSet, Sequences, file_type, tokenizer};
use dtrain_recipes::{Data, ValidationSource};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Number of bytes before the tokens in an llm.c shard: 256 numbers `i32`.
const LLM_C_HEADER: u64 = 1024;

/// Magic number, version, and bytes of one token of each known kind of llm.c shard.
const LLM_C: [(u32, u32, u64); 2] = [(20_240_520, 1, 2), (20_240_801, 7, 4)];

/// A run of consecutive tokens in one file.
#[derive(Debug)]
pub(super) struct TokenSegment {
    file: Arc<DataFile>,
    /// Offset in the file of the first token, in bytes.
    begin: u64,
    tokens: u64,
    /// Number of bytes of one token: 1, 2 or 4, little-endian.
    width: u64,
}

impl TokenSegment {
    /// Creates a segment of all bytes of `file`, with `width` bytes for each token.
    pub(super) fn raw(file: Arc<DataFile>, width: u64) -> Result<Self, DataError> {
        if !file.bytes.is_multiple_of(width) {
            let detail = format!(
                "{} bytes are no whole number of tokens of {width} bytes; expected raw little-endian u16 \
                 (nanoGPT) or an llm.c shard",
                file.bytes
            );
            return Err(DataError::content(&file.name, "the end", detail));
        }
        Ok(Self { begin: 0, tokens: file.bytes / width, width, file })
    }

    /// Creates a segment of the text in `file` from byte `begin` on, with one byte for each token.
    pub(super) fn text(file: Arc<DataFile>, begin: u64) -> Self {
        Self { begin, tokens: file.bytes - begin, width: 1, file }
    }

    /// Creates a segment of a token shard: an llm.c shard if it has that header, otherwise raw `u16`.
    fn shard(file: Arc<DataFile>) -> Result<Self, DataError> {
        let head = file.read_up_to(0, 12)?;
        let word = |index: usize| {
            head.get(4 * index..4 * index + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        };
        let known =
            LLM_C.iter().find(|(magic, version, _)| (word(0), word(1)) == (Some(*magic), Some(*version)));
        let (Some((.., width)), Some(tokens)) = (known, word(2)) else {
            return match (word(0), word(1)) {
                (Some(magic), Some(version)) if is_unknown_header(&file, magic, version)? => {
                    Err(unknown_header(&file, magic, version))
                }
                _ => {
                    expect_numbers(&file)?;
                    Self::raw(file, 2)
                }
            };
        };
        let (tokens, width) = (u64::from(tokens), *width);
        let expected = LLM_C_HEADER + tokens * width;
        if file.bytes != expected || tokens == 0 {
            let detail = format!(
                "the llm.c header announces {tokens} tokens of {width} bytes, {expected} bytes in all; the \
                file has {} (truncated copy?)",
                file.bytes
            );
            return Err(DataError::content(&file.name, "byte 8", detail));
        }
        Ok(Self { file, begin: LLM_C_HEADER, tokens, width })
    }
}

/// Fails if a file is recognizably something other than raw numbers.
fn expect_numbers(file: &DataFile) -> Result<(), DataError> {
    let head = file.read_up_to(0, file_type::HEAD_BYTES)?;
    let detail = if file_type::is_text(&head) {
        "this is text, expected token numbers; set `data.format = \"text\"`".to_owned()
    } else {
        match file_type::named(&head) {
            Some(named) => format!("expected token numbers; {named}"),
            None => return Ok(()),
        }
    };
    Err(DataError::content(&file.name, "byte 0", detail))
}

/// Returns `true` if a file begins like an llm.c shard of an unknown version. Such a header has a date as
/// its first number, a small version, and zeros after the numbers that it uses; no text has such tokens.
fn is_unknown_header(file: &DataFile, magic: u32, version: u32) -> Result<bool, DataError> {
    /// Dates that the header of an llm.c shard may have: from 2024 to 2099.
    const DATES: std::ops::Range<u32> = 20_240_101..21_000_101;
    /// Number of bytes of a header that may be non-zero: 16 numbers.
    const USED: u64 = 64;
    if LLM_C.iter().any(|(known, ..)| *known == magic) {
        return Ok(true);
    }
    let (month, day) = (magic / 100 % 100, magic % 100);
    let is_date = DATES.contains(&magic) && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !is_date || version > 1000 || file.bytes < LLM_C_HEADER {
        return Ok(false);
    }
    Ok(file.read_up_to(USED, LLM_C_HEADER - USED)?.iter().all(|byte| *byte == 0))
}

fn unknown_header(file: &DataFile, magic: u32, version: u32) -> DataError {
    let known = LLM_C.map(|(magic, version, width)| format!("{magic} version {version} (u{})", 8 * width));
    let detail = format!(
        "this is an llm.c shard {magic} of version {version}, expected {}; write its tokens as raw little-endian u16, \
         or with a version of llm.c that writes one of these",
        known.join(" or ")
    );
    DataError::content(&file.name, "byte 0", detail)
}

/// A range of a file that holds consecutive tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TokenRange {
    /// Absolute path of the file.
    pub path: PathBuf,
    /// Offset in the file of the first token, in bytes.
    pub begin: u64,
    /// Number of tokens.
    pub tokens: u64,
    /// Number of bytes of one token: 1, 2 or 4, little-endian.
    pub width: u64,
}

/// The tokens of several files, joined end to end.
#[derive(Debug)]
pub(super) struct TokenFiles {
    segments: Vec<TokenSegment>,
    /// Cumulative number of tokens up to the end of each segment, in order.
    ends: Vec<u64>,
}

impl TokenFiles {
    pub(super) fn new(segments: Vec<TokenSegment>) -> Self {
        let ends = segments.iter().scan(0, |end, segment| {
            *end += segment.tokens;
            Some(*end)
        });
        Self { ends: ends.collect(), segments }
    }

    /// Returns the ranges of the files that have the tokens. `Err` if a file is compressed: its tokens are in
    /// memory only.
    pub(super) fn ranges(&self) -> Result<Vec<TokenRange>, DataError> {
        let range = |segment: &TokenSegment| match segment.file.path() {
            Some(path) => Ok(TokenRange {
                path: path.to_owned(),
                begin: segment.begin,
                tokens: segment.tokens,
                width: segment.width,
            }),
            None => Err(DataError::Unfit(format!(
                "{} is compressed, and other engines read token files as they are; unpack it",
                segment.file.name
            ))),
        };
        self.segments.iter().map(range).collect()
    }

    pub(super) fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Appends the tokens `begin..begin + length` to `into`; `Err` names the place of a token that is not
    /// below `vocab`.
    pub(super) fn read(
        &self,
        begin: u64,
        length: u64,
        vocab: u32,
        into: &mut Vec<u32>,
    ) -> Result<(), DataError> {
        let (mut at, end) = (begin, begin + length);
        let mut which = self.ends.partition_point(|end| *end <= at);
        while at < end {
            let (segment, segment_end) = (&self.segments[which], self.ends[which]);
            let inside = at - (segment_end - segment.tokens);
            let count = end.min(segment_end) - at;
            let offset = segment.begin + inside * segment.width;
            let bytes = segment.file.read_up_to(offset, count * segment.width)?;
            let first = into.len();
            match segment.width {
                1 => into.extend(bytes.iter().map(|b| u32::from(*b))),
                2 => into.extend(bytes.as_chunks().0.iter().map(|b| u32::from(u16::from_le_bytes(*b)))),
                _ => into.extend(bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b))),
            }
            if let Some(bad) = into[first..].iter().position(|token| *token >= vocab) {
                let place = format!("byte {}", offset + bad as u64 * segment.width);
                let token = into[first + bad];
                let detail = format!(
                    "token {token} is outside of the model's vocabulary of {vocab}; set `model.vocab` to at least \
                     {} or name the files that belong to this model",
                    u64::from(token) + 1
                );
                return Err(DataError::content(&segment.file.name, place, detail));
            }
            at += count;
            which += 1;
        }
        Ok(())
    }
}

/// Opens token shards as a data set of training and validation samples.
///
/// `named` is the `tokenizer.json` that they were made with, if it is known.
pub(super) fn open(
    data: &Data,
    named: Option<&str>,
    root: &Path,
    model: Sequences,
) -> Result<DataSet, DataError> {
    let shards = |patterns: &[String]| {
        let files = files::find(patterns, root)?;
        let segments =
            files.iter().map(|file| TokenSegment::shard(Arc::clone(file))).collect::<Result<_, _>>()?;
        Ok::<_, DataError>((files, TokenFiles::new(segments)))
    };
    let (mut files, train) = shards(&data.train)?;
    let valid = match &data.valid {
        ValidationSource::Fraction(_) => None,
        ValidationSource::Files(patterns) => {
            let (more, valid) = shards(patterns)?;
            files.extend(more);
            Some(valid)
        }
    };
    let (train, valid) = pack(data, train, valid, model)?;
    let tokenizer = match named {
        Some(name) => {
            let (tokenizer, file) = tokenizer::named(name, root)?;
            tokenizer.fits(model.vocab)?;
            files.push(file);
            Some(tokenizer)
        }
        None => None,
    };
    let files = files::recorded(&files)?;
    Ok(DataSet { train, valid, files, tokenizer, preprocessing: None, warnings: Vec::new() })
}
