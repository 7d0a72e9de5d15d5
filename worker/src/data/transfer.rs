//! The transfer of one file over HTTP: continued after a broken connection, and verified.

use super::http::{HttpClient, HttpError};
use super::preparation::{DownloadProgress, PreparationObserver, PreparationStep};
use aws_lc_rs::digest;
use dtrain_recipes::Bytes;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use ureq::http::StatusCode;

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

/// A digest that a file is to have, in lower-case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FileDigest {
    /// The SHA-256 of the content.
    Sha256(String),
    /// The SHA-1 of git's object with the content.
    GitBlob(String),
}

impl FileDigest {
    /// Returns the digits.
    pub(crate) fn digits(&self) -> &str {
        match self {
            Self::Sha256(digits) | Self::GitBlob(digits) => digits,
        }
    }

    /// Returns the name of the digest, for messages.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Sha256(_) => "sha256",
            Self::GitBlob(_) => "git blob sha1",
        }
    }

    /// Returns the digits of this kind of digest for the content of `file`; `advance` is called for each
    /// piece that was read.
    pub(crate) fn of(&self, file: &mut File, advance: &dyn Fn()) -> std::io::Result<String> {
        let mut context = match self {
            Self::Sha256(_) => digest::Context::new(&digest::SHA256),
            Self::GitBlob(_) => {
                let mut context = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
                context.update(format!("blob {}\0", file.metadata()?.len()).as_bytes());
                context
            }
        };
        let mut piece = vec![0; PIECE_BYTES];
        file.seek(SeekFrom::Start(0))?;
        loop {
            match file.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => context.update(&piece[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            advance();
        }
        Ok(context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// A file to download.
#[derive(Debug)]
pub(crate) struct DownloadSource<'a> {
    /// URL of the file, without a checksum; progress shows it.
    pub(crate) address: &'a str,
    /// Digest that the file must have; `None` if none is known.
    pub(crate) digest: Option<FileDigest>,
    /// Length that the file must have, in bytes; `None` if it is not known.
    pub(crate) length: Option<u64>,
}

/// The reason why a file could not be downloaded.
#[derive(Debug)]
pub(crate) enum DownloadError {
    /// The server refused the request.
    Refused {
        /// Status of the response.
        status: StatusCode,
        /// The header `X-Error-Code` of the response, if it has one.
        code: Option<String>,
    },
    /// The file has another digest than expected; it was removed.
    OtherDigest {
        /// Digest of the file that came, in hexadecimal digits.
        found: String,
        /// Length of the file that came, in bytes.
        bytes: u64,
    },
    /// Any other reason, in a text that follows "downloading URL: ".
    Failed(String),
}

/// The pauses between attempts at requests that failed for a passing reason.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Counts a failed attempt, and waits before the next one; `has_advanced` says that it brought something.
    /// `Err` if there were enough attempts.
    pub(crate) fn wait(&mut self, has_advanced: bool, detail: &str) -> Result<(), String> {
        self.failures = if has_advanced { 1 } else { self.failures + 1 };
        if self.failures >= TRIES {
            return Err(format!("{detail}; {TRIES} attempts failed"));
        }
        std::thread::sleep(PAUSE * 2u32.pow(self.failures - 1));
        Ok(())
    }
}

/// Returns the path beside `path` whose name has `ending` added.
pub(crate) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Describes an error of the disk in the folder of caches, with a remedy.
pub(crate) fn on_disk(action: &str, path: &Path, error: &std::io::Error) -> String {
    let hint = match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            "; free some space, or let XDG_CACHE_HOME name a folder that has more"
        }
        _ => "; XDG_CACHE_HOME names the folder of caches",
    };
    format!("{action} {}: {error}{hint}", path.display())
}

/// Downloads `source` to `path`, by way of a partial file beside it.
pub(crate) fn download(
    client: &HttpClient,
    source: &DownloadSource<'_>,
    path: &Path,
    watch: &PreparationObserver<'_>,
) -> Result<(), DownloadError> {
    let part = beside(path, ".part");
    Download::begin(client, source, &part, watch)?.run()?;
    fs::rename(&part, path).map_err(|error| DownloadError::Failed(on_disk("renaming", &part, &error)))
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

/// A download in progress.
struct Download<'a> {
    source: &'a DownloadSource<'a>,
    client: &'a HttpClient,
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
    fn begin(
        client: &'a HttpClient,
        source: &'a DownloadSource<'a>,
        part: &'a Path,
        watch: &'a PreparationObserver<'a>,
    ) -> Result<Self, DownloadError> {
        let opened =
            crate::files::open_as(File::options().read(true).write(true).create(true).truncate(false), part);
        let opened = opened.and_then(|file| file.metadata().map(|about| (file, about.len())));
        let (file, left) = opened.map_err(|error| DownloadError::Failed(on_disk("opening", part, &error)))?;
        let bytes = if source.digest.is_some() { left } else { 0 };
        Ok(Self { source, client, part, file, watch, bytes, of: None, version: None, is_joined: false })
    }

    /// Downloads the whole file, syncs it and verifies its digest.
    fn run(&mut self) -> Result<(), DownloadError> {
        let failed = |action, part: &Path, error| DownloadError::Failed(on_disk(action, part, &error));
        let mut is_second = false;
        loop {
            self.bring()?;
            self.file.sync_all().map_err(|error| failed("syncing", self.part, error))?;
            let Some(wanted) = &self.source.digest else { return Ok(()) };
            let advance = || self.watch.progress.advance();
            let found =
                wanted.of(&mut self.file, &advance).map_err(|error| failed("reading", self.part, error))?;
            if found == wanted.digits() {
                return Ok(());
            }
            if is_second || !self.is_joined {
                // The wrong bytes must not be continued by a later download.
                drop(fs::remove_file(self.part));
                return Err(DownloadError::OtherDigest { found, bytes: self.bytes });
            }
            // The parts may belong to two versions of the file: download it once more as a whole.
            is_second = true;
            self.start_over();
        }
    }

    /// Downloads the whole file, in as many responses as that takes.
    fn bring(&mut self) -> Result<(), DownloadError> {
        let (mut most, mut backoff) = (0, Backoff::default());
        loop {
            let detail = match self.receive() {
                Ok(()) => return Ok(()),
                Err(HttpError::Final(detail)) => return Err(DownloadError::Failed(detail)),
                Err(HttpError::Refused { status, code }) => {
                    return Err(DownloadError::Refused { status, code });
                }
                Err(HttpError::NoRest) => {
                    self.start_over();
                    continue;
                }
                Err(HttpError::Passing(detail)) => detail,
            };
            self.watch.progress.advance();
            backoff.wait(self.bytes > most, &detail).map_err(|detail| {
                DownloadError::Failed(format!(
                    "{detail}: try again later, or download the file yourself and name it"
                ))
            })?;
            most = most.max(self.bytes);
        }
    }

    /// Receives one response from the server: the whole file or the rest of it.
    fn receive(&mut self) -> Result<(), HttpError> {
        let can_join = self.version.is_some() || self.source.digest.is_some();
        let begin = if can_join { self.bytes } else { 0 };
        let mut answer = self.client.ask(self.source.address, begin, self.version.as_deref())?;
        self.is_joined = answer.begin > 0;
        (self.bytes, self.of, self.version) = (answer.begin, answer.of, answer.version.take());
        let part = self.part;
        let unwritten = |error: std::io::Error| HttpError::Final(on_disk("writing", part, &error));
        self.file.set_len(self.bytes).map_err(unwritten)?;
        self.expect_length(self.of)?;
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
            self.expect_length(self.source.length.map(|length| length.max(self.bytes)))?;
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

    /// Fails, and removes the partial file, if the file has another length than is expected.
    fn expect_length(&self, found: Option<u64>) -> Result<(), HttpError> {
        match (self.source.length, found) {
            (Some(wanted), Some(found)) if wanted != found => {
                drop(fs::remove_file(self.part));
                Err(HttpError::Final(format!("expected {wanted} bytes, the server sends {found} or more")))
            }
            _ => Ok(()),
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
        (self.watch.tell)(PreparationStep::Fetching(DownloadProgress {
            url: self.source.address,
            bytes,
            of,
        }));
    }

    fn describe(&self) -> String {
        match self.of {
            Some(of) => format!("{} of {of} bytes", self.bytes),
            None => format!("{} bytes", self.bytes),
        }
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

    #[test]
    fn digests_are_those_of_sha256sum_and_of_git() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(b"hello\n").expect("written");
        for (digest, expected) in [
            (FileDigest::GitBlob(String::new()), "ce013625030ba8dba906f756967f9e9ca394464a"),
            (
                FileDigest::Sha256(String::new()),
                "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03",
            ),
        ] {
            assert_eq!(digest.of(&mut file, &|| ()).expect("read"), expected);
        }
    }
}
