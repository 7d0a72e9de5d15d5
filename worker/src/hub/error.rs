//! Errors from downloading a model of the Hub.

use crate::data::FileDigest;
use dtrain_recipes::HubModel;

/// The reason why a model of the Hub cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct HubError {
    /// What was expected, what was found, and where.
    pub message: String,
    /// What to do.
    pub hint: String,
    /// Commits of the model that are on this host, the newest last; only if a branch could not be resolved.
    pub cached: Vec<String>,
    /// True if the server was not reached, or the disk failed, so that the name may be right.
    pub is_passing: bool,
}

impl HubError {
    pub(super) fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: hint.into(), cached: Vec::new(), is_passing: false }
    }

    fn passing(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { is_passing: true, ..Self::new(message, hint) }
    }

    /// A server that was not reached.
    pub(super) fn unreachable(server: &str, detail: &str) -> Self {
        Self::passing(
            format!("cannot reach the Hugging Face Hub at {server}: {detail}"),
            "check the network, HTTPS_PROXY and HF_ENDPOINT; or copy the model to this host and name its folder",
        )
    }

    /// The same error, with the commits that can be had without a request.
    pub(super) fn with_cached_commits(mut self, model: &HubModel, commits: &[String]) -> Self {
        if let Some(newest) = commits.last().and_then(|commit| model.at(commit)).filter(|_| self.is_passing) {
            self.hint = format!(
                "which commit {} is cannot be known now; a commit that is on this host needs no network: name {newest}, or \
                 set HF_HUB_OFFLINE=1 to take what {} was at the last request",
                model.revision(),
                model.revision()
            );
            self.cached = commits.to_vec();
        }
        self
    }

    /// A model that is not on this host, and may not be requested.
    pub(super) fn not_cached(model: &HubModel, commits: &[String]) -> Self {
        let message = format!("{model} is not on this host, and HF_HUB_OFFLINE forbids to download it");
        let hint = match commits.last().and_then(|commit| model.at(commit)) {
            Some(newest) => format!("unset HF_HUB_OFFLINE, or name a commit that is here, such as {newest}"),
            None => "unset HF_HUB_OFFLINE, or name a folder".to_owned(),
        };
        Self { cached: commits.to_vec(), ..Self::new(message, hint) }
    }

    /// A folder of the cache that cannot be used.
    pub(super) fn of_disk(model: &HubModel, detail: &str) -> Self {
        Self::passing(
            format!("cannot keep {model} on this host: {detail}"),
            "look at the folder, then try again",
        )
    }

    /// A file that did not come.
    pub(super) fn of_download(model: &HubModel, address: &str, detail: &str) -> Self {
        Self::passing(
            format!("downloading {address}: {detail}"),
            format!(
                "the same command goes on where this one ended; `hf download {}/{}` is another way",
                model.org(),
                model.name()
            ),
        )
    }

    /// A file with another content than the Hub says.
    pub(super) fn of_digest(address: &str, wanted: &FileDigest, found: &str, bytes: u64) -> Self {
        Self::new(
            format!(
                "downloading {address}: expected the {} {}, found {found} ({bytes} bytes); the file was removed",
                wanted.name(),
                wanted.digits()
            ),
            "try again; if it stays so, a proxy or the server of HF_ENDPOINT changes files",
        )
    }
}
