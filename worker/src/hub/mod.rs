//! Models of a Hugging Face Hub: downloaded once per user, verified, then read as local folders.
//!
//! [`fetch`] resolves a branch or a tag to a commit, and keeps the files of a commit in a folder of its own. A
//! commit whose files are all there needs no request. `endpoint` has the server and the token, `listing` says
//! which files a model has, `cache` keeps them, `error` says what went wrong.

mod cache;
mod endpoint;
mod error;
mod listing;

#[cfg(test)]
mod tests;

pub use error::HubError;

use crate::comm::WorkCounter;
use crate::data::{
    DownloadError, DownloadSource, HttpClient, PreparationObserver, PreparationStep, download_file,
    hold_lock, on_disk,
};
use cache::HubCache;
use dtrain_recipes::HubModel;
use endpoint::HubEndpoint;
use listing::{HubFile, HubListing};
use std::path::{Path, PathBuf};

/// Configuration of a model, whose architecture it tells.
const CONFIG: &str = "config.json";
/// Tensors in one file.
const WEIGHTS: &str = "model.safetensors";
/// Names of the files that hold the tensors, if they are several.
const INDEX: &str = "model.safetensors.index.json";
/// Files that are taken beside configuration and tensors, if a model has them.
const OTHERS: [&str; 5] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
];

/// A model whose files are on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubFolder {
    /// The model, pinned to the commit of the files.
    pub model: HubModel,
    /// Folder of the files.
    pub path: PathBuf,
}

/// Returns the folder of a model that is pinned to a commit and whose files are all on this host; `None`
/// otherwise. Makes no request.
pub fn cached(model: &HubModel) -> Option<HubFolder> {
    let cache = HubCache::of(model).ok()?;
    let commit = model.commit()?;
    cache.is_complete(commit).then(|| HubFolder { model: model.clone(), path: cache.folder(commit) })
}

/// Returns the URL of a file of a model that is pinned to a commit.
///
/// `Err` if `HF_ENDPOINT` is no URL.
pub fn file_url(model: &HubModel, file: &str) -> Result<String, HubError> {
    Ok(HubEndpoint::from_environment()?.file(model, model.revision(), file))
}

/// Returns the SHA-256 of a file, in hexadecimal digits.
///
/// `Err` if it cannot be read.
pub fn sha256(path: &Path) -> std::io::Result<String> {
    let digest = crate::data::FileDigest::Sha256(String::new());
    digest.of(&mut std::fs::File::open(path)?, &|| ())
}

/// Downloads the configuration, the tokenizer and the weights of a model, unless they are on this host.
///
/// `accept` is called with the folder when it has the configuration and no weights yet, and may refuse the
/// model; `tell` receives the progress.
pub fn fetch<E: From<HubError>>(
    model: &HubModel,
    accept: &dyn Fn(&Path) -> Result<(), E>,
    tell: &dyn Fn(PreparationStep<'_>),
) -> Result<HubFolder, E> {
    if let Some(folder) = cached(model) {
        return Ok(folder);
    }
    let progress = WorkCounter::default();
    let watch = PreparationObserver { progress: &progress, tell };
    let cache = HubCache::of(model)?;
    let endpoint = HubEndpoint::from_environment()?;
    if endpoint.is_offline() {
        return Ok(cached_offline(model, &cache)?);
    }
    let client = endpoint.client()?;
    let listing = HubListing::request(model, &endpoint, &client).map_err(|error| match model.commit() {
        Some(_) => error,
        None => error.with_cached_commits(model, &cache.commits()),
    })?;
    let pinned = listing.model().clone();
    let commit = listing.commit();
    cache.make().map_err(|error| HubError::of_disk(model, &on_disk("using", cache.root(), &error)))?;
    if model.commit().is_none() {
        cache
            .record_ref(model.revision(), commit)
            .map_err(|error| HubError::of_disk(model, &on_disk("writing", cache.root(), &error)))?;
    }
    let lock = cache.lock(commit);
    let _lock = hold_lock(&lock, &progress)
        .map_err(|error| HubError::of_disk(model, &on_disk("locking", &lock, &error)))?;
    let folder = HubFolder { path: cache.folder(commit), model: pinned };
    // Another process may have downloaded it meanwhile.
    if !cache.is_complete(commit) {
        let download =
            ModelDownload { endpoint: &endpoint, client: &client, listing: &listing, cache: &cache };
        download.file(listing.expect(CONFIG)?, &watch)?;
        accept(&folder.path)?;
        download.rest(&watch)?;
    }
    Ok(folder)
}

/// Returns a model from the cache without a request: at its commit, or at that which a branch had at the last
/// request.
fn cached_offline(model: &HubModel, cache: &HubCache) -> Result<HubFolder, HubError> {
    let commit = model.commit().map(str::to_owned).or_else(|| cache.commit_of_ref(model.revision()));
    commit
        .and_then(|commit| cached(&model.at(&commit)?))
        .ok_or_else(|| HubError::not_cached(model, &cache.commits()))
}

/// The download of the files of one commit.
struct ModelDownload<'a> {
    endpoint: &'a HubEndpoint,
    client: &'a HttpClient,
    listing: &'a HubListing,
    cache: &'a HubCache,
}

impl ModelDownload<'_> {
    /// Downloads all files but the configuration, and records that the commit is complete.
    fn rest(&self, watch: &PreparationObserver<'_>) -> Result<(), HubError> {
        for name in OTHERS {
            if let Some(file) = self.listing.find(name)? {
                self.file(file, watch)?;
            }
        }
        match (self.listing.find(WEIGHTS)?, self.listing.find(INDEX)?) {
            (Some(weights), _) => self.file(weights, watch)?,
            (None, Some(index)) => {
                self.file(index, watch)?;
                let path = self.cache.folder(self.listing.commit()).join(INDEX);
                for name in listing::shards(self.listing.model(), &path)? {
                    self.file(self.listing.expect(&name)?, watch)?;
                }
            }
            (None, None) => return Err(self.listing.without_weights(self.endpoint)),
        }
        self.cache.record_complete(self.listing.commit()).map_err(|error| self.on_disk("recording", &error))
    }

    /// Downloads a file, unless it is there with its digest.
    fn file(&self, file: &HubFile, watch: &PreparationObserver<'_>) -> Result<(), HubError> {
        let (model, commit) = (self.listing.model(), self.listing.commit());
        let made = self.cache.make_folder(commit);
        let is_there = made.and_then(|()| self.cache.is_there(commit, file, &|| watch.progress.advance()));
        if is_there.map_err(|error| self.on_disk("using", &error))? {
            return Ok(());
        }
        let path = self.cache.folder(commit).join(&file.name);
        let address = self.endpoint.file(model, commit, &file.name);
        let source =
            DownloadSource { address: &address, digest: Some(file.digest.clone()), length: Some(file.bytes) };
        download_file(self.client, &source, &path, watch).map_err(|error| match error {
            DownloadError::Failed(detail) => HubError::of_download(model, &address, &detail),
            DownloadError::Refused { status, code } => self.endpoint.refusal(model, status, code.as_deref()),
            DownloadError::OtherDigest { found, bytes } => {
                HubError::of_digest(&address, &file.digest, &found, bytes)
            }
        })?;
        self.cache.record(commit, file).map_err(|error| self.on_disk("recording", &error))
    }

    fn on_disk(&self, action: &str, error: &std::io::Error) -> HubError {
        let folder = self.cache.folder(self.listing.commit());
        HubError::of_disk(self.listing.model(), &on_disk(action, &folder, error))
    }
}
