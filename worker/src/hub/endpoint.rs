//! The server of the Hub and the token for it, from the environment variables of huggingface_hub.

use super::error::HubError;
use crate::data::{BearerToken, HttpClient};
use dtrain_recipes::HubModel;
use std::ffi::OsString;
use std::path::PathBuf;
use ureq::http::StatusCode;

/// The Hub of Hugging Face.
const HUGGING_FACE: &str = "https://huggingface.co";

/// A server of models.
pub(super) struct HubEndpoint {
    /// URL without a slash at its end.
    address: String,
    /// Secret for this server alone; `None` without one.
    token: Option<String>,
    is_offline: bool,
}

impl HubEndpoint {
    /// Returns the server that `HF_ENDPOINT` names, with the token of `HF_TOKEN`, or of the file at
    /// `HF_TOKEN_PATH` or where huggingface_hub keeps it.
    pub(super) fn from_environment() -> Result<Self, HubError> {
        Self::of(&|name| std::env::var_os(name).filter(|value| !value.is_empty()))
    }

    /// Returns the server for these environment variables.
    pub(super) fn of(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Self, HubError> {
        let text = |name| variable(name).map(|value| value.to_string_lossy().into_owned());
        let address = text("HF_ENDPOINT").unwrap_or_else(|| HUGGING_FACE.to_owned());
        let address = address.trim_end_matches('/').to_owned();
        let host = address.split_once("://").filter(|(scheme, _)| ["http", "https"].contains(scheme));
        let is_right = host.is_some_and(|(_, host)| {
            !host.is_empty()
                && !host.contains(['@', '?', '#'])
                && host.bytes().all(|byte| byte.is_ascii_graphic())
        });
        if !is_right {
            // The text may have a password.
            return Err(HubError::new(
                "HF_ENDPOINT is not the URL of a server, without a user or a password",
                "set it to a URL such as https://huggingface.co, or unset it",
            ));
        }
        let token = text("HF_TOKEN").or_else(|| std::fs::read_to_string(token_file(variable)?).ok());
        let token = token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
        if token.as_ref().is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(HubError::new(
                "the token for the Hugging Face Hub has spaces, or characters outside ASCII",
                "set HF_TOKEN to a token as https://huggingface.co/settings/tokens shows it",
            ));
        }
        let is_offline = text("HF_HUB_OFFLINE")
            .is_some_and(|value| ["1", "ON", "YES", "TRUE"].contains(&value.to_ascii_uppercase().as_str()));
        Ok(Self { address, token, is_offline })
    }

    /// Returns `true` if no request is to be made.
    pub(super) fn is_offline(&self) -> bool {
        self.is_offline
    }

    /// Returns `true` if requests have a token.
    #[cfg(test)]
    pub(super) fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// Returns a client for the server.
    pub(super) fn client(&self) -> Result<HttpClient, HubError> {
        let token = self.token.clone();
        let token = token.map(|secret| BearerToken { secret, server: self.address.clone() });
        HttpClient::new(&self.address, token).map_err(|detail| HubError::unreachable(&self.address, &detail))
    }

    /// Returns the URL at which the server describes a model.
    pub(super) fn description(&self, model: &HubModel) -> String {
        let (org, name) = (model.org(), model.name());
        let revision = model.revision().replace('/', "%2F");
        format!("{}/api/models/{org}/{name}/revision/{revision}?blobs=true", self.address)
    }

    /// Returns the URL of a file of a model at a commit.
    pub(super) fn file(&self, model: &HubModel, commit: &str, file: &str) -> String {
        format!("{}/{}/{}/resolve/{commit}/{file}", self.address, model.org(), model.name())
    }

    /// Returns the URL of the page of a model.
    pub(super) fn page(&self, model: &HubModel) -> String {
        format!("{}/{}/{}", self.address, model.org(), model.name())
    }

    /// Returns the error for a request about a model that the server refused with a status and its own code of
    /// the reason.
    pub(super) fn refusal(&self, model: &HubModel, status: StatusCode, code: Option<&str>) -> HubError {
        let (page, revision) = (self.page(model), model.revision());
        let sent = if self.token.is_some() { "the token has no access" } else { "no token was sent" };
        match (status.as_u16(), code) {
            (404, Some("RevisionNotFound")) => HubError::new(
                format!("{page} has no branch, tag or commit {revision:?}"),
                format!("the revisions are listed at {page}/commits; without @REVISION, main is taken"),
            ),
            (404, Some("EntryNotFound")) => HubError::new(
                format!("{page} lacks a file that it lists"),
                "try again later, or name another revision",
            ),
            (401 | 404, Some("RepoNotFound")) | (404 | 410, _) => HubError::new(
                format!("there is no model {model} at {}, or it is private ({status}, {sent})", self.address),
                format!(
                    "correct the name; for a private model set HF_TOKEN; for a folder write its path, such as ./{}/{}",
                    model.org(),
                    model.name()
                ),
            ),
            (401 | 403 | 407, _) => HubError::new(
                format!("{page} is not open to everyone: the server answered {status}, and {sent}"),
                format!("set HF_TOKEN to a token of an account that has accepted the conditions at {page}"),
            ),
            _ => HubError::new(
                format!("expected {model} from {}, the server answered {status}", self.address),
                "check HF_ENDPOINT, or try again later",
            ),
        }
    }

    /// Returns the error for a server that was not reached.
    pub(super) fn unreachable(&self, detail: &str) -> HubError {
        HubError::unreachable(&self.address, detail)
    }
}

/// Returns the path of the file in which huggingface_hub keeps the user's token.
fn token_file(variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name| variable(name).map(PathBuf::from);
    let caches = || path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")));
    path("HF_TOKEN_PATH")
        .or_else(|| Some(path("HF_HOME")?.join("token")))
        .or_else(|| Some(caches()?.join("huggingface/token")))
}
