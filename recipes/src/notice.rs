//! Notices of machines that will be taken away, as clouds give them for spot and preemptible machines.

use crate::units::Seconds;
use crate::url::{Url, UrlError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How the agent of each host learns that its machine will be taken away.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NoticePoll {
    /// What is asked.
    pub query: NoticeQuery,
    /// Time between two polls, above 0.
    pub every: Seconds,
}

/// What an agent asks to learn that its machine will be taken away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoticeQuery {
    /// A program and its arguments; exit code 0 is a notice.
    Command(Vec<String>),
    /// A URL of the cloud's metadata service.
    Url(NoticeUrl),
}

/// A URL that is answered with 200 once there is a notice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoticeUrl {
    /// The URL, which begins with `http://`.
    pub address: String,
    /// Text that an answer must contain to be a notice; `None` if any answer with 200 is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contains: Option<String>,
    /// Header fields of the request, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
}

impl NoticePoll {
    /// The time between two polls, unless the recipe sets another.
    pub const DEFAULT_EVERY: Seconds = Seconds(5.0);
}

impl NoticeUrl {
    /// Parses the URL of a metadata service. `Err` has a message and a hint for the user.
    pub fn parse(text: &str) -> Result<Url, UrlError> {
        let wrong = |message: &str, hint| Err(UrlError { message: message.to_owned(), hint });
        if !text.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case("http://")) {
            let hint = "metadata services answer over http; for another, write a `command` with curl";
            return wrong("expected a URL that begins with http://", hint);
        }
        if text.contains('#') {
            return wrong("the URL has a fragment, which is not sent", "leave out the `#` and what follows");
        }
        let example = "write for example http://169.254.169.254/latest/meta-data/spot/instance-action";
        Url::parse(text).map_err(|error| UrlError { hint: example, ..error })
    }

    /// Checks the name and value of a header field; `Err` describes the mistake.
    pub fn check_header(name: &str, value: &str) -> Result<(), String> {
        let own = ["connection", "content-length", "host", "transfer-encoding"];
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        {
            return Err("its name must be letters, digits, `-` and `_`".to_owned());
        }
        if own.contains(&name.to_ascii_lowercase().as_str()) {
            return Err("dtrain itself sets this header".to_owned());
        }
        if !value.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) {
            return Err("its value has control characters, or characters outside ASCII".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_of_a_metadata_service_is_plain_http() {
        let url = NoticeUrl::parse("http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01");
        let url = url.expect("a URL");
        assert_eq!(url.target(), "/metadata/scheduledevents?api-version=2020-07-01");
        for (text, part) in [
            ("https://host/a", "begins with"),
            ("ftp://host/a", "begins with"),
            ("host/a", "begins with"),
            ("http://host/a#b", "fragment"),
            ("http://host/a b", "spaces"),
            ("http://host/a\r\nX: y", "spaces"),
            ("http://me:secret@host/a", "password"),
            ("http://:80", "no file"),
        ] {
            let error = NoticeUrl::parse(text).expect_err(text).to_string();
            assert!(error.contains(part) && !error.contains("secret"), "{text}: {error}");
        }
    }

    #[test]
    fn a_header_cannot_end_its_line_or_replace_one_of_dtrain() {
        for (name, value) in [("Metadata-Flavor", "Google"), ("Metadata", "true"), ("X-1", "")] {
            assert_eq!(NoticeUrl::check_header(name, value), Ok(()), "{name}");
        }
        for (name, value) in [("", "x"), ("A: b\r\nC", "x"), ("Host", "x"), ("A", "x\r\nHost: y"), ("Ä", "x")]
        {
            assert!(NoticeUrl::check_header(name, value).is_err(), "{name:?}: {value:?}");
        }
    }
}
