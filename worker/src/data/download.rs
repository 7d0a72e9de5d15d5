//! Downloads: data files named by a URL, fetched once per host, then read as local ones.
//!
//! A file is written under a temporary name, synced, compared with its checksum and renamed, so that a
//! reader sees all or nothing; a lock lets one process of a host do the work while the others wait. A
//! partial file of a process that is gone is continued only if a checksum can tell whether both parts
//! belong together.

use super::http::{HttpClient, HttpError};
use super::preparation::{DownloadProgress, PreparationObserver, PreparationStep};
use super::{DataError, file_lock};
use aws_lc_rs::digest;
use dtrain_recipes::{Bytes, Data, DataFormat, Tokenizer, Url, ValidationSource};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Number of consecutive attempts without new bytes after which a download fails.
const TRIES: u32 = 5;

/// Backoff after the first failed attempt; it doubles with each further one.
const PAUSE: Duration = Duration::from_millis(250);

/// Number of downloaded bytes between two checks of the free disk space.
const LOOK_EVERY: u64 = 16 << 20;

/// Number of bytes kept free on the disk of the cache; on a small disk, a twentieth of its size.
const KEPT_FREE: u64 = 64 << 20;

/// Number of bytes kept free on the disk if the server does not tell the length of the file, which may
/// have no end.
const KEPT_FREE_OF_UNKNOWN: u64 = 1 << 30;

/// Number of bytes received at a time.
const PIECE_BYTES: usize = 128 << 10;

/// Number of characters from the end of a file's name that its cached name keeps.
const NAME_CHARACTERS: usize = 100;

/// Returns the local path of the file downloaded for a data name; `None` if it is not on this host or the
/// name is not a URL.
pub fn downloaded(name: &str) -> Option<PathBuf> {
    let url = Url::parse(name).ok()?;
    cached_path(&url).ok().filter(|path| path.is_file())
}

/// Returns all names in the data section of a recipe: paths, patterns and URLs.
pub(super) fn names(data: &Data) -> Vec<&str> {
    let mut names: Vec<&String> = data.train.iter().collect();
    if let ValidationSource::Files(files) = &data.valid {
        names.extend(files);
    }
    match &data.format {
        DataFormat::Idx { labels, valid_labels } => names.extend(labels.iter().chain(valid_labels)),
        DataFormat::Text { tokenizer: Tokenizer::File(name), .. }
        | DataFormat::Tokens { tokenizer: Some(name) } => names.push(name),
        DataFormat::Chat { tokenizer, template, .. } => {
            names.push(tokenizer);
            names.extend(template);
        }
        DataFormat::Text { .. }
        | DataFormat::Tokens { .. }
        | DataFormat::Csv { .. }
        | DataFormat::Parquet { .. }
        | DataFormat::Images { .. } => {}
    }
    names.into_iter().map(String::as_str).collect()
}

/// Downloads the URLs among `names` that this host does not have.
pub(super) fn download_all<'n>(
    names: impl IntoIterator<Item = &'n str>,
    watch: &PreparationObserver<'_>,
) -> Result<(), DataError> {
    for name in names.into_iter().filter(|name| Url::is_url(name)) {
        let url = parsed(name)?;
        one(&url, &cached_path(&url)?, watch)?;
    }
    Ok(())
}

/// Returns the local path of the file downloaded from `url`; `Err` if it was not downloaded.
pub(super) fn path(url: &Url) -> Result<PathBuf, DataError> {
    let path = cached_path(url)?;
    let is_file = std::fs::symlink_metadata(&path).is_ok_and(|found| found.is_file());
    if is_file { Ok(path) } else { Err(failed(url, "it was not downloaded to this host yet")) }
}

pub(super) fn parsed(name: &str) -> Result<Url, DataError> {
    Url::parse(name).map_err(|wrong| DataError::Url(wrong.to_string()))
}

/// Returns the path at which the file of a URL is cached, downloaded or not.
fn cached_path(url: &Url) -> Result<PathBuf, DataError> {
    let folder = folder().ok_or_else(|| {
        failed(url, "there is no folder to keep it in: set HOME or XDG_CACHE_HOME to an absolute path")
    })?;
    Ok(folder.join(cached_name(url)))
}

/// Returns the folder of downloaded files: `$XDG_CACHE_HOME/dtrain/data`, by default
/// `~/.cache/dtrain/data`.
fn folder() -> Option<PathBuf> {
    Some(crate::files::cache_folder()?.join("data"))
}

/// Returns the file name of a download in the cache, made from URL and checksum, because a file
/// downloaded without a checksum was not verified.
fn cached_name(url: &Url) -> String {
    let key = format!("{}#{}", url.address(), url.sha256().unwrap_or_default());
    let key = blake3::hash(key.as_bytes()).to_hex();
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let name: String = url.file_name().chars().map(plain).collect();
    format!("{}-{}", &key[..32], &name[name.len().saturating_sub(NAME_CHARACTERS)..])
}

/// Downloads the file of a URL to `path`, unless `path` exists.
fn one(url: &Url, path: &Path, watch: &PreparationObserver<'_>) -> Result<(), DataError> {
    let folder = path.parent().expect("a file of the cache lies in its folder");
    crate::files::make_folder(folder).map_err(|error| failed(url, &on_disk("using", folder, &error)))?;
    if path.is_file() {
        return Ok(());
    }
    let lock = beside(path, ".lock");
    let _lock = file_lock::hold(&lock, watch.progress)
        .map_err(|error| failed(url, &on_disk("locking", &lock, &error)))?;
    if path.is_file() {
        return Ok(());
    }
    let part = beside(path, ".part");
    let mut download = Download::begin(url, &part, watch).map_err(|detail| failed(url, &detail))?;
    download.run().map_err(|detail| failed(url, &detail))?;
    fs::rename(&part, path).map_err(|error| failed(url, &on_disk("renaming", &part, &error)))
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

fn failed(url: &Url, detail: &str) -> DataError {
    DataError::Download { url: url.address().to_owned(), detail: detail.to_owned() }
}

fn on_disk(action: &str, path: &Path, error: &std::io::Error) -> String {
    let hint = match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            "; free some space, or let XDG_CACHE_HOME name a folder that has more"
        }
        _ => "; XDG_CACHE_HOME names the folder of caches",
    };
    format!("{action} {}: {error}{hint}", path.display())
}

/// Free and reserved bytes of a disk that has too little space for a download.
#[derive(Debug, PartialEq, Eq)]
struct InsufficientSpace {
    free: u64,
    /// Number of free bytes that must stay free.
    kept: u64,
}

/// Returns the shortage if a disk with `free` bytes, of which `kept` must stay free, cannot take `more`
/// bytes; `None` if it can.
fn shortage(more: u64, free: u64, kept: u64) -> Option<InsufficientSpace> {
    (free < kept.saturating_add(more)).then_some(InsufficientSpace { free, kept })
}

/// A download in progress. The `Err` texts of its functions follow "downloading URL: ".
struct Download<'a> {
    url: &'a Url,
    client: HttpClient,
    part: &'a Path,
    file: File,
    watch: &'a PreparationObserver<'a>,
    /// Number of bytes downloaded so far.
    bytes: u64,
    of: Option<u64>,
    /// The server's identifier for the version of the file to which the downloaded bytes belong.
    version: Option<String>,
    /// True if the downloaded bytes came in more than one response.
    is_joined: bool,
}

impl<'a> Download<'a> {
    fn begin(url: &'a Url, part: &'a Path, watch: &'a PreparationObserver<'a>) -> Result<Self, String> {
        let client = HttpClient::new(url).map_err(|trouble| match trouble {
            HttpError::Passing(detail) | HttpError::Final(detail) => detail,
            HttpError::NoRest => "the server sends no part of it".to_owned(),
        })?;
        let opened =
            crate::files::open_as(File::options().read(true).write(true).create(true).truncate(false), part);
        let opened = opened.and_then(|file| file.metadata().map(|about| (file, about.len())));
        let (file, left) = opened.map_err(|error| on_disk("opening", part, &error))?;
        let bytes = if url.sha256().is_some() { left } else { 0 };
        Ok(Self { url, client, part, file, watch, bytes, of: None, version: None, is_joined: false })
    }

    /// Downloads the whole file, syncs it and verifies its checksum.
    fn run(&mut self) -> Result<(), String> {
        let mut is_second = false;
        loop {
            self.bring()?;
            self.file.sync_all().map_err(|error| on_disk("syncing", self.part, &error))?;
            let Some(wanted) = self.url.sha256() else { return Ok(()) };
            let found = self.sha256().map_err(|error| on_disk("reading", self.part, &error))?;
            if found == wanted {
                return Ok(());
            }
            if is_second || !self.is_joined {
                // The wrong bytes must not be continued by a later download.
                drop(fs::remove_file(self.part));
                return Err(format!(
                    "expected the sha256 {wanted}, found {found} ({} bytes); the file has changed, or the URL leads \
                     elsewhere: look at it, then correct the URL or the digits behind `#sha256=`",
                    self.bytes
                ));
            }
            // The parts may belong to two versions of the file: download it once more as a whole.
            is_second = true;
            self.start_over();
        }
    }

    /// Downloads the whole file, in as many responses as that takes.
    fn bring(&mut self) -> Result<(), String> {
        let (mut most, mut failures) = (0, 0);
        loop {
            let detail = match self.receive() {
                Ok(()) => return Ok(()),
                Err(HttpError::Final(detail)) => return Err(detail),
                Err(HttpError::NoRest) => {
                    self.start_over();
                    continue;
                }
                Err(HttpError::Passing(detail)) => detail,
            };
            failures = if self.bytes > most { 1 } else { failures + 1 };
            most = most.max(self.bytes);
            if failures >= TRIES {
                return Err(format!(
                    "{detail}; {TRIES} attempts failed: try again later, or download the file yourself and name it"
                ));
            }
            self.watch.progress.advance();
            std::thread::sleep(PAUSE * 2u32.pow(failures - 1));
        }
    }

    /// Receives one response from the server: the whole file or the rest of it.
    fn receive(&mut self) -> Result<(), HttpError> {
        let can_join = self.version.is_some() || self.url.sha256().is_some();
        let begin = if can_join { self.bytes } else { 0 };
        let mut answer = self.client.ask(self.url, begin, self.version.as_deref())?;
        self.is_joined = answer.begin > 0;
        (self.bytes, self.of, self.version) = (answer.begin, answer.of, answer.version.take());
        let part = self.part;
        let unwritten = |error: std::io::Error| HttpError::Final(on_disk("writing", part, &error));
        self.file.set_len(self.bytes).map_err(unwritten)?;
        self.expect_room(self.of.map_or(0, |of| of.saturating_sub(self.bytes)))?;
        let mut looked_at = self.bytes;
        self.file.seek(SeekFrom::Start(self.bytes)).map_err(unwritten)?;
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            self.report_progress();
            let count = match answer.body.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    let detail = format!("the connection broke after {}: {error}", self.describe());
                    return Err(HttpError::Passing(detail));
                }
            };
            self.file.write_all(&piece[..count]).map_err(unwritten)?;
            self.bytes += count as u64;
            if self.bytes - looked_at >= LOOK_EVERY {
                looked_at = self.bytes;
                self.expect_room(0)?;
            }
        }
        match self.of {
            Some(of) if of != self.bytes => {
                Err(HttpError::Passing(format!("the connection ended after {}", self.describe())))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Fails, and removes the partial file, if the disk has no room for `more` bytes in addition to those
    /// kept free.
    fn expect_room(&self, more: u64) -> Result<(), HttpError> {
        let folder = self.part.parent().unwrap_or(self.part);
        let Ok(disk) = rustix::fs::statvfs(folder) else { return Ok(()) };
        let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
        let most = if self.of.is_some() { KEPT_FREE } else { KEPT_FREE_OF_UNKNOWN };
        let found = shortage(more, bytes(disk.f_bavail), most.min(bytes(disk.f_blocks) / 20));
        let Some(InsufficientSpace { free, kept }) = found else { return Ok(()) };
        drop(fs::remove_file(self.part));
        Err(HttpError::Final(format!(
            "{} are here, and {} has no room for the rest: {} are free, of which {} stay free; free some space, let \
             XDG_CACHE_HOME name a folder that has more, or download the file yourself and name it",
            self.describe(),
            folder.display(),
            Bytes(free),
            Bytes(kept)
        )))
    }

    fn start_over(&mut self) {
        (self.bytes, self.version, self.is_joined) = (0, None, false);
    }

    fn report_progress(&self) {
        self.watch.progress.advance();
        let Self { bytes, of, .. } = *self;
        (self.watch.tell)(PreparationStep::Fetching(DownloadProgress { url: self.url.address(), bytes, of }));
    }

    fn describe(&self) -> String {
        match self.of {
            Some(of) => format!("{} of {of} bytes", self.bytes),
            None => format!("{} bytes", self.bytes),
        }
    }

    /// Returns the SHA-256 checksum of the downloaded bytes, in hexadecimal digits.
    fn sha256(&mut self) -> std::io::Result<String> {
        let mut context = digest::Context::new(&digest::SHA256);
        let mut piece = vec![0; PIECE_BYTES];
        self.file.seek(SeekFrom::Start(0))?;
        loop {
            match self.file.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => context.update(&piece[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            self.watch.progress.advance();
        }
        Ok(context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_every_disk_stays_free() {
        assert_eq!(shortage(0, 5, 5), None);
        assert_eq!(shortage(2, 7, 5), None);
        assert_eq!(shortage(3, 7, 5), Some(InsufficientSpace { free: 7, kept: 5 }));
        assert!(shortage(u64::MAX, 1 << 39, 5).is_some(), "a length that cannot be");
    }
}
