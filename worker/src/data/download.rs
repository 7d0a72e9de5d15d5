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
use ureq::http::StatusCode;

/// Files that may lie beside the `tokenizer.json` of a model: its special tokens and its chat template.
pub(super) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
pub(super) const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// Number of characters from the end of a file's name that its cached name keeps.
const NAME_CHARACTERS: usize = 100;

/// Returns the local path of the file downloaded for a data name; `None` if it is not on this host or the
/// name is not a URL.
pub fn downloaded(name: &str) -> Option<PathBuf> {
    let url = Url::parse(name).ok()?;
    cached_path(&url).ok().filter(|path| path.is_file())
}

/// Keeps copies of the tokenizer in `folder`, and of the files beside it, as the files downloaded from the URL `name`
/// of the tokenizer and from its folder. Does nothing for files that were downloaded.
pub fn keep_as_downloaded(name: &str, folder: &Path) -> Result<(), DataError> {
    let url = parsed(name)?;
    keep(&url, &folder.join(url.file_name()))?;
    beside_tokenizer(&url).iter().try_for_each(|beside| keep(beside, &folder.join(beside.file_name())))
}

/// Keeps a copy of `file` as the file downloaded from `url`; of a file that does not exist, that there is none.
fn keep(url: &Url, file: &Path) -> Result<(), DataError> {
    let path = cached_path(url)?;
    if path.is_file() {
        return Ok(());
    }
    let folder = path.parent().expect("a file of the cache lies in its folder");
    let part = beside(&path, ".part");
    let content = if file.exists() { fs::read(file) } else { Ok(Vec::new()) };
    crate::files::make_folder(folder)
        .and(content)
        .and_then(|content| fs::write(&part, content))
        .and_then(|()| fs::rename(&part, &path))
        .map_err(|error| failed(url, &on_disk("writing", &path, &error)))
}

/// Returns the URLs of the files that may lie beside a tokenizer, without checksums.
fn beside_tokenizer(tokenizer: &Url) -> Vec<Url> {
    let names = [TOKENIZER_CONFIG, CHAT_TEMPLATE];
    names.iter().filter_map(|name| url_beside(tokenizer, name)).collect()
}

/// Returns the URL of the file `name` in the folder of `url`; `None` if the folder is not known, because the URL has a
/// query.
fn url_beside(url: &Url, name: &str) -> Option<Url> {
    let folder = url.address().strip_suffix(url.file_name()).filter(|_| !url.file_name().is_empty())?;
    Url::parse(&format!("{folder}{name}")).ok()
}

/// Returns the path of the file `name` that was downloaded from the folder of the URL `url`, and its own URL; `None`
/// if that folder has no such file.
pub(super) fn downloaded_beside(url: &str, name: &str) -> Result<Option<(PathBuf, Url)>, DataError> {
    let Some(url) = url_beside(&parsed(url)?, name) else { return Ok(None) };
    let path = path(&url)?;
    // An empty file says that there is none.
    let is_empty = fs::metadata(&path).is_ok_and(|found| found.len() == 0);
    Ok((!is_empty).then_some((path, url)))
}

/// Downloads the files that `data` names by URLs and this host does not have. Beside the tokenizer of conversations
/// they are also the files that hold its template, if its folder has them.
pub(super) fn fetch(data: &Data, watch: &PreparationObserver<'_>) -> Result<(), DataError> {
    download_all(names(data), watch)?;
    let DataFormat::Chat { tokenizer, .. } = &data.format else { return Ok(()) };
    if !Url::is_url(tokenizer) {
        return Ok(());
    }
    for url in beside_tokenizer(&parsed(tokenizer)?) {
        let path = cached_path(&url)?;
        if !one(&url, &path, watch)? {
            fs::write(&path, "").map_err(|error| failed(&url, &on_disk("writing", &path, &error)))?;
        }
    }
    Ok(())
}

/// Returns all names in the data section of a recipe: paths, patterns and URLs.
fn names(data: &Data) -> Vec<&str> {
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
        if !one(&url, &cached_path(&url)?, watch)? {
            return Err(failed(&url, &http::refusal(StatusCode::NOT_FOUND)));
        }
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

/// Downloads the file of a URL to `path`, unless `path` exists; `false` if the server has no such file.
fn one(url: &Url, path: &Path, watch: &PreparationObserver<'_>) -> Result<bool, DataError> {
    let folder = path.parent().expect("a file of the cache lies in its folder");
    crate::files::make_folder(folder).map_err(|error| failed(url, &on_disk("using", folder, &error)))?;
    if path.is_file() {
        return Ok(true);
    }
    let lock = beside(path, ".lock");
    let _lock = file_lock::hold(&lock, watch.progress)
        .map_err(|error| failed(url, &on_disk("locking", &lock, &error)))?;
    if path.is_file() {
        return Ok(true);
    }
    let client = HttpClient::new(url.address(), None).map_err(|detail| failed(url, &detail))?;
    let digest = url.sha256().map(|digits| FileDigest::Sha256(digits.to_owned()));
    let source = DownloadSource { address: url.address(), digest, length: None };
    let refused = match transfer::download(&client, &source, path, watch) {
        Ok(()) => return Ok(true),
        Err(DownloadError::Refused { status: StatusCode::NOT_FOUND, .. }) => return Ok(false),
        Err(refused) => refused,
    };
    Err(match refused {
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
