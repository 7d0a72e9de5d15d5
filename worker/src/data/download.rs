//! Downloads: data files named by a URL, fetched once per host, then read as local ones.
//!
//! A file is written under a temporary name, synced, compared with its checksum and renamed, so that a
//! reader sees all or nothing; a lock lets one process of a host do the work while the others wait. A
//! partial file of a process that is gone is continued only if a checksum can tell whether both parts
//! belong together.

use super::http::{self, HttpClient};
use super::preparation::PreparationObserver;
use super::transfer::{self, DownloadError, DownloadSource, FileDigest, beside, on_disk};
use super::{DataError, file_lock};
use dtrain_recipes::{Data, DataFormat, Tokenizer, Url, ValidationSource};
use std::fs;
use std::path::{Path, PathBuf};

/// Number of characters from the end of a file's name that its cached name keeps.
const NAME_CHARACTERS: usize = 100;

/// Returns the local path of the file downloaded for a data name; `None` if it is not on this host or the
/// name is not a URL.
pub fn downloaded(name: &str) -> Option<PathBuf> {
    let url = Url::parse(name).ok()?;
    cached_path(&url).ok().filter(|path| path.is_file())
}

/// Keeps a copy of `file`, whose content was verified, as the file downloaded from the URL `name`. Does nothing
/// if that was downloaded.
pub fn keep_as_downloaded(name: &str, file: &Path) -> Result<(), DataError> {
    let url = parsed(name)?;
    let path = cached_path(&url)?;
    if path.is_file() {
        return Ok(());
    }
    let folder = path.parent().expect("a file of the cache lies in its folder");
    let part = beside(&path, ".part");
    crate::files::make_folder(folder)
        .and_then(|()| fs::copy(file, &part))
        .and_then(|_| fs::rename(&part, &path))
        .map_err(|error| failed(&url, &on_disk("writing", &path, &error)))
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
    let client = HttpClient::new(url.address(), None).map_err(|detail| failed(url, &detail))?;
    let digest = url.sha256().map(|digits| FileDigest::Sha256(digits.to_owned()));
    let source = DownloadSource { address: url.address(), digest, length: None };
    transfer::download(&client, &source, path, watch).map_err(|error| match error {
        DownloadError::Failed(detail) => failed(url, &detail),
        DownloadError::Refused { status, .. } => failed(url, &http::refusal(status)),
        DownloadError::OtherDigest { found, bytes } => failed(
            url,
            &format!(
                "expected the sha256 {}, found {found} ({bytes} bytes); the file has changed, or the URL leads elsewhere: \
                 look at it, then correct the URL or the digits behind `#sha256=`",
                url.sha256().unwrap_or_default()
            ),
        ),
    })
}

fn failed(url: &Url, detail: &str) -> DataError {
    DataError::Download { url: url.address().to_owned(), detail: detail.to_owned() }
}
