//! Data files: finds them, reads them at any offset, and hashes them.

use super::file_type::{self, FileCompression};
use super::{DataError, download};
use dtrain_protocol::InputFile;
use dtrain_recipes::{Url, url};
use std::collections::HashSet;
use std::fs::{File, Metadata};
use std::io::{BufReader, Cursor, Read};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Length in bytes up to which a file is hashed as a whole.
pub(super) const WHOLE_BYTES: u64 = 64 << 20;

/// Number of blocks that are hashed of a longer file, evenly spread, with its first and its last block.
const BLOCKS: u64 = 64;

/// Length of one hashed block, in bytes.
const BLOCK_BYTES: u64 = 1 << 20;

/// Limit on the decompressed bytes of a compressed file that is kept in memory.
const UNPACKED_BYTES: u64 = 512 << 20;

/// The content of an open file: on disk, or decompressed in memory.
#[derive(Debug)]
enum ByteSource {
    Disk(File),
    /// The decompressed content of a compressed file.
    Memory(Vec<u8>),
}

/// An open data file, with the name under which checkpoints record it.
#[derive(Debug)]
pub(super) struct DataFile {
    contents: ByteSource,
    /// Absolute path of the file.
    path: PathBuf,
    /// Path relative to the root if the file is below it, otherwise the full path; or the URL that it was
    /// downloaded from.
    pub(super) name: String,
    /// Length of the content in bytes; at least 1.
    pub(super) bytes: u64,
    /// Time of the last modification in nanoseconds since the Unix epoch, as reported by the file system.
    pub(super) modified: i128,
}

/// A data file that was found on this host and is not open yet.
#[derive(Debug)]
pub(super) struct ResolvedFile {
    pub(super) path: PathBuf,
    /// Path relative to the root if the file is below it, otherwise the full path; or the URL.
    pub(super) name: String,
    /// URL that the file was downloaded from, with its checksum; `None` for a local file.
    url: Option<String>,
}

impl ResolvedFile {
    fn at(path: PathBuf, root: &Path) -> Self {
        let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
        Self { path, name, url: None }
    }

    /// Returns a pattern for a recipe that matches this file alone; `Err` if its path is not UTF-8.
    pub(super) fn pattern(&self) -> Result<String, DataError> {
        self.url
            .as_deref()
            .or(self.path.to_str())
            .map(str::to_owned)
            .ok_or_else(|| DataError::content(&self.name, "its name", "this is not UTF-8; rename the file"))
    }

    /// Opens the file, which keeps its recorded name.
    pub(super) fn open(&self) -> Result<DataFile, DataError> {
        DataFile::open_as(&self.path, self.name.clone())
    }
}

/// Opens the files that `patterns` name, in the order of the patterns; those of one pattern are sorted.
/// Each file is opened once. URLs must have been downloaded.
pub(super) fn find(patterns: &[String], root: &Path) -> Result<Vec<Arc<DataFile>>, DataError> {
    resolve_patterns(patterns, root)?.iter().map(|found| found.open().map(Arc::new)).collect()
}

/// Finds the files that `patterns` name without opening them, in the order of [`find`].
pub(super) fn resolve_patterns(patterns: &[String], root: &Path) -> Result<Vec<ResolvedFile>, DataError> {
    let (mut all, mut seen) = (Vec::new(), HashSet::new());
    for pattern in patterns {
        if Url::is_url(pattern) {
            let found = downloaded(pattern)?;
            if seen.insert(found.path.clone()) {
                all.push(found);
            }
            continue;
        }
        let paths = matches(pattern, root)?;
        if paths.is_empty() {
            return Err(DataError::NoFile { pattern: pattern.clone(), root: root.to_owned() });
        }
        let new = paths.into_iter().filter(|path| seen.insert(path.clone()));
        all.extend(new.map(|path| ResolvedFile::at(path, root)));
    }
    Ok(all)
}

/// Returns the paths of the files that `patterns` name, in the order of [`find`].
pub(super) fn paths(patterns: &[String], root: &Path) -> Result<Vec<PathBuf>, DataError> {
    Ok(resolve_patterns(patterns, root)?.into_iter().map(|found| found.path).collect())
}

/// Opens the one file that `name` names, which is a path or a downloaded URL.
pub(super) fn only(name: &str, root: &Path) -> Result<DataFile, DataError> {
    if Url::is_url(name) { downloaded(name)?.open() } else { DataFile::open(&root.join(name), root) }
}

/// Opens the file `name` beside `file`, which a recipe names `named`; `None` if there is none.
pub(super) fn beside(
    named: &str,
    file: &DataFile,
    name: &str,
    root: &Path,
) -> Result<Option<DataFile>, DataError> {
    if Url::is_url(named) {
        let found = download::downloaded_beside(named, name)?;
        return found.map(|(path, url)| DataFile::open_as(&path, url.address().to_owned())).transpose();
    }
    let path = file.path().and_then(Path::parent).map(|folder| folder.join(name));
    path.filter(|path| path.is_file()).map(|path| DataFile::open(&path, root)).transpose()
}

fn downloaded(name: &str) -> Result<ResolvedFile, DataError> {
    let url = download::parsed(name)?;
    let path = download::path(&url)?;
    Ok(ResolvedFile { path, name: url.address().to_owned(), url: Some(name.to_owned()) })
}

/// Returns the regular files on this host that match `pattern`; empty if the pattern is invalid.
pub fn matching(pattern: &str, root: &Path) -> Vec<PathBuf> {
    let mut paths = matches(pattern, root).unwrap_or_default();
    paths.retain(|path| path.is_file());
    paths
}

fn matches(pattern: &str, root: &Path) -> Result<Vec<PathBuf>, DataError> {
    let literal = root.join(pattern);
    if literal.exists() || !pattern.contains(['*', '?', '[']) {
        return Ok(if literal.exists() { vec![literal] } else { Vec::new() });
    }
    let bad = |detail: String| DataError::Pattern { pattern: pattern.to_owned(), detail };
    // Joining an absolute pattern drops the root, which must not be interpreted as a pattern itself.
    let escaped = PathBuf::from(glob::Pattern::escape(&root.to_string_lossy())).join(pattern);
    let paths = glob::glob(&escaped.to_string_lossy()).map_err(|error| bad(error.to_string()))?;
    let mut found = Vec::new();
    for path in paths {
        let path = path.map_err(|error| bad(error.to_string()))?;
        if path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Returns the type of a file system entry for messages, such as `a FIFO`.
pub fn kind_of_file(about: &Metadata) -> &'static str {
    let kind = about.file_type();
    if kind.is_file() {
        "a regular file"
    } else if kind.is_dir() {
        "a folder"
    } else if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else if kind.is_char_device() || kind.is_block_device() {
        "a device"
    } else {
        "no file"
    }
}

impl DataFile {
    pub(super) fn open(path: &Path, root: &Path) -> Result<Self, DataError> {
        ResolvedFile::at(path.to_owned(), root).open()
    }

    fn open_as(path: &Path, name: String) -> Result<Self, DataError> {
        let io = |source| DataError::Io { file: path.display().to_string(), source };
        // Examined before it is opened: opening a FIFO would wait for a writer.
        let about = path.metadata().map_err(io)?;
        if about.is_dir() {
            let detail = format!("this is a folder; name the files in it, such as `{name}/*`");
            return Err(DataError::content(&name, "the whole", detail));
        }
        if !about.is_file() {
            let detail = format!("this is {}, expected a regular file", kind_of_file(&about));
            return Err(DataError::content(&name, "the whole", detail));
        }
        let file = File::open(path).map_err(io)?;
        if about.len() == 0 {
            return Err(DataError::content(
                &name,
                "byte 0",
                "the file is empty; remove it or narrow the pattern",
            ));
        }
        let modified = i128::from(about.mtime()) * 1_000_000_000 + i128::from(about.mtime_nsec());
        let path = std::path::absolute(path).map_err(io)?;
        Ok(Self { contents: ByteSource::Disk(file), path, name, bytes: about.len(), modified })
    }

    /// Returns the path of the file that has the content as it is read; `None` if the file is compressed.
    pub(super) fn path(&self) -> Option<&Path> {
        match &self.contents {
            ByteSource::Disk(_) => Some(&self.path),
            ByteSource::Memory(_) => None,
        }
    }

    /// Fills `into` with the bytes of the file from `offset` on.
    pub(super) fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), DataError> {
        let io = |source| DataError::Io { file: format!("{} at byte {offset}", self.name), source };
        match &self.contents {
            ByteSource::Disk(file) => file.read_exact_at(into, offset).map_err(io),
            ByteSource::Memory(bytes) => {
                let begin = usize::try_from(offset).ok();
                let part = begin.and_then(|begin| bytes.get(begin..)?.get(..into.len()));
                let part = part.ok_or_else(|| io(std::io::ErrorKind::UnexpectedEof.into()))?;
                into.copy_from_slice(part);
                Ok(())
            }
        }
    }

    /// Returns up to `length` bytes of the file from `offset` on.
    pub(super) fn read_up_to(&self, offset: u64, length: u64) -> Result<Vec<u8>, DataError> {
        let length = length.min(self.bytes.saturating_sub(offset));
        let mut bytes = vec![0; usize::try_from(length).expect("a piece of a file fits into memory")];
        self.read_at(offset, &mut bytes)?;
        Ok(bytes)
    }
}

impl DataFile {
    /// Returns the compression of the file, judged by its name, otherwise by its first bytes. A read
    /// error here is left to the later read to report.
    pub(super) fn compression(&self) -> FileCompression {
        let by_content = || {
            self.read_up_to(0, 4).map_or(FileCompression::Plain, |head| FileCompression::by_content(&head))
        };
        self.compression_by_name().unwrap_or_else(by_content)
    }

    /// Returns the compression that the name of the file implies; `None` if it implies none.
    pub(super) fn compression_by_name(&self) -> Option<FileCompression> {
        FileCompression::by_name(url::file_extension(&self.name))
    }

    pub(super) fn is_compressed(&self) -> bool {
        self.compression() != FileCompression::Plain
    }

    /// Returns a reader of the decompressed text of the file, without its byte order mark. `Err` if the
    /// file is not text, or is text in another encoding than UTF-8.
    pub(super) fn reader(&self) -> Result<Box<dyn Read + Send + '_>, DataError> {
        let mut contents = self.contents()?;
        let mut head = Vec::new();
        let begin = contents.by_ref().take(file_type::HEAD_BYTES).read_to_end(&mut head);
        begin.map_err(|error| self.unreadable(error))?;
        head.drain(..self.text_begin_in(&head)?);
        Ok(Box::new(Cursor::new(head).chain(contents)))
    }

    /// Returns the offset of the first byte of text in an uncompressed file. `Err` if the file is not
    /// text.
    pub(super) fn text_begin(&self) -> Result<u64, DataError> {
        self.text_begin_in(&self.read_up_to(0, file_type::HEAD_BYTES)?).map(|begin| begin as u64)
    }

    fn text_begin_in(&self, head: &[u8]) -> Result<usize, DataError> {
        file_type::text_begin(head).map_err(|detail| DataError::content(&self.name, "byte 0", detail))
    }

    /// Returns the first bytes of the file, decompressed and without a byte order mark.
    pub(super) fn head(&self) -> Result<Vec<u8>, DataError> {
        let mut head = Vec::new();
        let read = self.contents()?.take(file_type::HEAD_BYTES).read_to_end(&mut head);
        read.map_err(|error| self.unreadable(error))?;
        if head.starts_with(file_type::MARK) {
            head.drain(..file_type::MARK.len());
        }
        Ok(head)
    }

    /// Returns a reader of the decompressed content of the file.
    fn contents(&self) -> Result<Box<dyn Read + Send + '_>, DataError> {
        let stored = SequentialReader { file: self, at: 0 };
        Ok(match self.compression() {
            FileCompression::Plain => Box::new(stored),
            FileCompression::Gzip => {
                Box::new(flate2::bufread::MultiGzDecoder::new(BufReader::with_capacity(1 << 17, stored)))
            }
            FileCompression::Zstd => {
                Box::new(zstd::Decoder::new(stored).map_err(|error| self.unreadable(error))?)
            }
        })
    }

    /// Converts an error from [`Self::reader`] to a data error that names the file.
    pub(super) fn unreadable(&self, source: std::io::Error) -> DataError {
        if !self.is_compressed() {
            return DataError::Io { file: self.name.clone(), source };
        }
        let detail = format!(
            "decompressing failed ({source}); is the file whole, and does its name say how it was compressed?"
        );
        DataError::content(&self.name, "the whole", detail)
    }

    /// Decompresses the file into memory if it is compressed; otherwise returns it as it is.
    pub(super) fn unpacked(self: &Arc<Self>) -> Result<Arc<Self>, DataError> {
        if !self.is_compressed() {
            return Ok(Arc::clone(self));
        }
        let mut bytes = Vec::new();
        let read = self.contents()?.take(UNPACKED_BYTES + 1).read_to_end(&mut bytes);
        read.map_err(|error| self.unreadable(error))?;
        let length = bytes.len() as u64;
        if length > UNPACKED_BYTES {
            let detail = format!(
                "decompressed it has more than {} MiB, the most that is held in memory; unpack it on the disk, where it is \
                 read in place",
                UNPACKED_BYTES >> 20
            );
            return Err(DataError::content(&self.name, "the whole", detail));
        }
        let contents = ByteSource::Memory(bytes);
        let (path, name) = (self.path.clone(), self.name.clone());
        Ok(Arc::new(Self { contents, path, name, bytes: length, modified: self.modified }))
    }
}

/// A sequential reader of the stored bytes of a file.
struct SequentialReader<'a> {
    file: &'a DataFile,
    at: u64,
}

impl Read for SequentialReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let count = match &self.file.contents {
            ByteSource::Disk(file) => file.read_at(into, self.at)?,
            ByteSource::Memory(bytes) => {
                let begin = usize::try_from(self.at).map_or(bytes.len(), |at| at.min(bytes.len()));
                (&bytes[begin..]).read(into)?
            }
        };
        self.at += count as u64;
        Ok(count)
    }
}

/// Returns the names, lengths and hashes of files; only [`BLOCKS`] blocks of a long file are hashed.
pub(super) fn recorded<'a>(
    files: impl IntoIterator<Item = &'a Arc<DataFile>>,
) -> Result<Vec<InputFile>, DataError> {
    let record = |file: &Arc<DataFile>| {
        let blake3 = hash(file)?.to_hex().to_string();
        Ok(InputFile { name: file.name.clone(), bytes: file.bytes, blake3 })
    };
    files.into_iter().map(record).collect()
}

/// Returns the hash of a file; only [`BLOCKS`] blocks of a long file are hashed.
pub(super) fn hash(file: &DataFile) -> Result<blake3::Hash, DataError> {
    let mut hasher = blake3::Hasher::new();
    for (offset, length) in blocks(file.bytes) {
        hasher.update(&file.read_up_to(offset, length)?);
    }
    Ok(hasher.finalize())
}

/// Returns the offset and length of each hashed block in a file of `bytes` bytes.
fn blocks(bytes: u64) -> Vec<(u64, u64)> {
    if bytes <= WHOLE_BYTES {
        return (0..bytes).step_by(BLOCK_BYTES as usize).map(|offset| (offset, BLOCK_BYTES)).collect();
    }
    let last = u128::from(bytes - BLOCK_BYTES);
    #[expect(clippy::cast_possible_truncation, reason = "at most `last`, a u64")]
    let begin = |index: u64| (last * u128::from(index) / u128::from(BLOCKS - 1)) as u64;
    (0..BLOCKS).map(|index| (begin(index), BLOCK_BYTES)).collect()
}
