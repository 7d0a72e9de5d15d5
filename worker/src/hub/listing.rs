//! The files of a model at one commit, as the Hub lists them.

use super::endpoint::HubEndpoint;
use super::error::HubError;
use super::{INDEX, WEIGHTS};
use crate::data::{Backoff, FileDigest, HttpClient, HttpError};
use dtrain_recipes::HubModel;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;

/// Maximum length of a description of a model in bytes.
const MOST_BYTES: u64 = 64 << 20;

/// A file of a model, as the Hub lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HubFile {
    /// Name of the file in the folder of the model.
    pub(super) name: String,
    /// Length of the file in bytes.
    pub(super) bytes: u64,
    /// Digest of the file.
    pub(super) digest: FileDigest,
}

/// The files of a model at one commit.
#[derive(Debug)]
pub(super) struct HubListing {
    /// The model, pinned to the commit.
    model: HubModel,
    /// Files by their names; `Err` with the reason for one that cannot be verified.
    files: BTreeMap<String, Result<HubFile, String>>,
}

#[derive(Deserialize)]
struct ModelDescription {
    sha: String,
    siblings: Vec<ListedFile>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListedFile {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<LargeFile>,
}

#[derive(Deserialize)]
struct LargeFile {
    sha256: String,
    size: Option<u64>,
}

impl HubListing {
    /// Asks the server which commit a model has and which files.
    pub(super) fn request(
        model: &HubModel,
        endpoint: &HubEndpoint,
        client: &HttpClient,
    ) -> Result<Self, HubError> {
        let address = endpoint.description(model);
        let mut backoff = Backoff::default();
        loop {
            let detail = match read(client, &address) {
                Ok(text) => return Self::parse(model, &address, &text),
                Err(HttpError::Final(detail)) => return Err(endpoint.unreachable(&detail)),
                Err(HttpError::Refused { status, code }) => {
                    return Err(endpoint.refusal(model, status, code.as_deref()));
                }
                Err(HttpError::NoRest) => "the server sent a part".to_owned(),
                Err(HttpError::Passing(detail)) => detail,
            };
            backoff.wait(false, &detail).map_err(|detail| endpoint.unreachable(&detail))?;
        }
    }

    /// Parses the description of a model that came from `address`.
    pub(super) fn parse(model: &HubModel, address: &str, text: &[u8]) -> Result<Self, HubError> {
        let wrong = |detail: String| {
            HubError::new(
                format!("{address}: expected the description of a model in JSON, {detail}"),
                "check HF_ENDPOINT: it names the server of a Hub, and no page of it",
            )
        };
        let about: ModelDescription =
            serde_json::from_slice(text).map_err(|error| wrong(format!("found something else: {error}")))?;
        let pinned = model.at(&about.sha);
        let pinned =
            pinned.ok_or_else(|| wrong(format!("found `sha` {:?}, which is no commit", about.sha)))?;
        if model.commit().is_some() && model.commit() != pinned.commit() {
            return Err(wrong(format!("found that of the commit {}, not of {model}", about.sha)));
        }
        let files = about.siblings.into_iter().map(|file| (file.rfilename.clone(), verifiable(file)));
        Ok(Self { model: pinned, files: files.collect() })
    }

    /// Returns the model, pinned to the commit of the files.
    pub(super) fn model(&self) -> &HubModel {
        &self.model
    }

    /// Returns the commit of the files.
    pub(super) fn commit(&self) -> &str {
        self.model.revision()
    }

    /// Returns the file called `name`; `None` if the model has none. `Err` if it cannot be verified.
    pub(super) fn find(&self, name: &str) -> Result<Option<&HubFile>, HubError> {
        match self.files.get(name) {
            None => Ok(None),
            Some(Ok(file)) => Ok(Some(file)),
            Some(Err(reason)) => Err(HubError::new(
                format!("{name} of {} cannot be verified: {reason}", self.model),
                "check HF_ENDPOINT: the server must tell lengths and digests as the Hub of Hugging Face does",
            )),
        }
    }

    /// Returns the file called `name`, which the model must have.
    pub(super) fn expect(&self, name: &str) -> Result<&HubFile, HubError> {
        self.find(name)?.ok_or_else(|| {
            HubError::new(
                format!("{} has no file {name}", self.model),
                "name a model of Hugging Face transformers with weights in safetensors",
            )
        })
    }

    /// Returns the error for a model without weights that dtrain reads.
    pub(super) fn without_weights(&self, endpoint: &HubEndpoint) -> HubError {
        let ends = [".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".safetensors"];
        let others = self.files.keys().filter(|name| ends.iter().any(|end| name.ends_with(end)));
        let others: Vec<&str> = others.take(5).map(String::as_str).collect();
        let found = if others.is_empty() { "no weights".to_owned() } else { others.join(", ") };
        HubError::new(
            format!(
                "{} has no weights that dtrain reads: expected {WEIGHTS} or {INDEX}, found {found}",
                self.model
            ),
            format!(
                "look for a copy in safetensors among the revisions at {}/commits, or save one with transformers: \
                 `AutoModelForCausalLM.from_pretrained(\"{}/{}\").save_pretrained(\"{2}\")`, then name the folder",
                endpoint.page(&self.model),
                self.model.org(),
                self.model.name()
            ),
        )
    }
}

/// Returns the names of the tensor files in the index at `path` of a downloaded model.
pub(super) fn shards(model: &HubModel, path: &Path) -> Result<BTreeSet<String>, HubError> {
    #[derive(Deserialize)]
    struct WeightMap {
        weight_map: BTreeMap<String, String>,
    }
    let wrong = |detail: String| {
        HubError::new(
            format!("{INDEX} of {model}: {detail}"),
            "name another revision, or tell the authors of the model",
        )
    };
    let text = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let index: WeightMap = serde_json::from_slice(&text)
        .map_err(|error| wrong(format!("expected the names of tensor files in JSON, {error}")))?;
    let names: BTreeSet<String> = index.weight_map.into_values().collect();
    match names.iter().find(|name| !is_file_name(name)) {
        Some(name) => {
            Err(wrong(format!("expected the names of files in the folder of the model, found {name:?}")))
        }
        None if names.is_empty() => Err(wrong("expected the names of tensor files, found none".to_owned())),
        None => Ok(names),
    }
}

/// Returns `true` if `name` is a file in a folder itself, which no other file there can be mistaken for.
pub(super) fn is_file_name(name: &str) -> bool {
    !name.starts_with('.')
        && !name.contains("..")
        && name.ends_with(".safetensors")
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

/// Returns a listed file with its digest; `Err` with the reason if it has none.
fn verifiable(file: ListedFile) -> Result<HubFile, String> {
    let digits = |text: &str, count| {
        let is_right = text.len() == count && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_right.then(|| text.to_ascii_lowercase())
    };
    let digest = match (&file.lfs, &file.blob_id) {
        (Some(large), _) => digits(&large.sha256, 64).map(FileDigest::Sha256),
        (None, Some(blob)) => digits(blob, 40).map(FileDigest::GitBlob),
        (None, None) => None,
    };
    let bytes = file.lfs.as_ref().and_then(|large| large.size).or(file.size);
    Ok(HubFile {
        digest: digest.ok_or("the server tells neither its sha256 nor its git blob")?,
        bytes: bytes.ok_or("the server does not tell its length")?,
        name: file.rfilename,
    })
}

/// Requests a description, which is short enough for memory.
fn read(client: &HttpClient, address: &str) -> Result<Vec<u8>, HttpError> {
    let answer = client.ask(address, 0, None)?;
    let mut text = Vec::new();
    answer
        .body
        .take(MOST_BYTES)
        .read_to_end(&mut text)
        .map_err(|error| HttpError::Passing(format!("the connection broke: {error}")))?;
    Ok(text)
}
