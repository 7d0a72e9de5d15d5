//! HTTP requests for a file, or for the rest of a partly downloaded one.
//!
//! Retries are up to [`super::transfer`].

use std::sync::Arc;
use std::time::Duration;
use ureq::http::{HeaderMap, Response, StatusCode};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body, BodyReader};

/// Time limit for connecting to a server.
const CONNECT: Duration = Duration::from_secs(30);

/// Time limit for waiting on a server that sends nothing.
const SILENCE: Duration = Duration::from_secs(60);

/// Maximum number of redirections of a request with a token.
const REDIRECTIONS: usize = 10;

/// The reason why a server did not send a file completely. The text follows "downloading URL: ".
#[derive(Debug)]
pub(crate) enum HttpError {
    /// The error is temporary: a retry may succeed.
    Passing(String),
    /// The error is permanent: a retry would fail in the same way.
    Final(String),
    /// The server refused the request, and would refuse it again.
    Refused {
        /// Status of the response.
        status: StatusCode,
        /// The header `X-Error-Code` of the response, if it has one.
        code: Option<String>,
    },
    /// The server cannot send the file from the requested byte on.
    NoRest,
}

/// A server's response with a file, or the rest of one.
pub(crate) struct HttpResponse {
    /// Offset in the file of the first byte sent: 0, or the requested one.
    pub(crate) begin: u64,
    /// Length of the whole file in bytes, if the server tells it.
    pub(crate) of: Option<u64>,
    /// The server's identifier for this version of the file.
    pub(crate) version: Option<String>,
    pub(crate) body: BodyReader<'static>,
}

/// A secret that is sent to one server only.
pub(crate) struct BearerToken {
    /// The secret; printable ASCII.
    pub(crate) secret: String,
    /// A URL of the server that may have it.
    pub(crate) server: String,
}

/// A client that downloads files over HTTP.
pub(crate) struct HttpClient {
    agent: Agent,
    token: Option<BearerToken>,
}

impl HttpClient {
    /// Creates a client for requests to the server of `address`. The proxy is taken from the environment
    /// (`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY`). The token is not sent along a redirection to
    /// another scheme, host or port than its own.
    pub(crate) fn new(address: &str, token: Option<BearerToken>) -> Result<Self, String> {
        let is_secure = address.get(..8).is_some_and(|begin| begin.eq_ignore_ascii_case("https://"));
        let found = rustls_native_certs::load_native_certs().certs;
        if is_secure && found.is_empty() {
            return Err(
                "this host has no certificates of authorities, which https needs; install the package \
                 ca-certificates, or let SSL_CERT_FILE name a file of them"
                    .into(),
            );
        }
        let roots: RootCerts = found.iter().map(|found| Certificate::from_der(found).to_owned()).into();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = TlsConfig::builder().root_certs(roots).unversioned_rustls_crypto_provider(provider).build();
        let config = Agent::config_builder()
            .tls_config(tls)
            // A redirection must not downgrade the recipe's HTTPS.
            .https_only(is_secure)
            .http_status_as_error(false)
            .user_agent(concat!("dtrain/", env!("CARGO_PKG_VERSION")))
            // No content encoding: checksums and lengths are those of the stored file.
            .accept_encoding("identity")
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(SILENCE))
            .timeout_per_read(Some(SILENCE))
            .build();
        Ok(Self { agent: config.new_agent(), token })
    }

    /// Requests the bytes of the file at `address` from `begin` on; of the file's `version`, if that is known.
    pub(crate) fn ask(
        &self,
        address: &str,
        begin: u64,
        version: Option<&str>,
    ) -> Result<HttpResponse, HttpError> {
        let response = self.response(address, begin, version)?;
        let headers = response.headers();
        let (version, length) = (version_in(headers), number(headers, "content-length"));
        let (begin, of) = match response.status() {
            StatusCode::OK => (0, length),
            StatusCode::PARTIAL_CONTENT if begin > 0 => match range(headers) {
                Some((first, of)) if first == begin => (begin, of),
                Some(_) | None => return Err(HttpError::NoRest),
            },
            StatusCode::RANGE_NOT_SATISFIABLE if begin > 0 => return Err(HttpError::NoRest),
            status => return Err(status_error(status, text(headers, "x-error-code"))),
        };
        Ok(HttpResponse { begin, of, version, body: response.into_body().into_reader() })
    }

    /// Requests a file, and follows redirections.
    fn response(
        &self,
        address: &str,
        begin: u64,
        version: Option<&str>,
    ) -> Result<Response<Body>, HttpError> {
        let mut address = address.to_owned();
        for _ in 0..REDIRECTIONS {
            let mut request = self.agent.get(&address);
            if begin > 0 {
                request = request.header("Range", format!("bytes={begin}-"));
                if let Some(version) = version {
                    request = request.header("If-Range", version);
                }
            }
            let token = self.token.as_ref().filter(|token| origin(&token.server) == origin(&address));
            let Some(token) = token else {
                return request.call().map_err(|error| transport_error(&error));
            };
            // The client would send the token to any port of the host.
            let request = request.header("Authorization", format!("Bearer {}", token.secret));
            let request = request.config().max_redirects(0).build();
            let response = request.call().map_err(|error| transport_error(&error))?;
            let to = text(response.headers(), "location").map(|to| redirected(&address, to));
            match to.filter(|_| response.status().is_redirection()) {
                Some(to) => address = to,
                None => return Ok(response),
            }
        }
        Err(HttpError::Final(format!("the server redirected the request {REDIRECTIONS} times")))
    }
}

/// Returns scheme, host and port of a URL, in lower case.
fn origin(address: &str) -> String {
    let begin = address.find("://").map_or(0, |at| at + 3);
    let end = address[begin..].find(['/', '?', '#']).map_or(address.len(), |at| begin + at);
    address[..end].to_ascii_lowercase()
}

/// Returns the URL that the header `Location` in the response of `address` names.
fn redirected(address: &str, location: &str) -> String {
    let server = origin(address);
    let is_whole = location.split_once("://").is_some_and(|(scheme, _)| !scheme.contains(['/', '?']));
    if is_whole {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{}:{location}", server.split(':').next().unwrap_or("https"))
    } else if location.starts_with('/') {
        format!("{server}{location}")
    } else {
        let path = address.split(['?', '#']).next().unwrap_or(address);
        let folder =
            path.rfind('/').filter(|at| *at >= server.len()).map_or(server.as_str(), |at| &path[..at]);
        format!("{folder}/{location}")
    }
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    text(headers, name)?.trim().parse().ok()
}

/// Returns the offset of the first byte sent and the length of the whole file, from a header such as
/// `Content-Range: bytes 5-9/10`.
fn range(headers: &HeaderMap) -> Option<(u64, Option<u64>)> {
    let (range, of) = text(headers, "content-range")?.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (first, _) = range.split_once('-')?;
    Some((first.trim().parse().ok()?, of.trim().parse().ok()))
}

/// Returns the identifier of a file's version: a strong entity tag, otherwise the time of the last
/// change.
fn version_in(headers: &HeaderMap) -> Option<String> {
    let tag = text(headers, "etag").filter(|tag| !tag.starts_with("W/"));
    tag.or_else(|| text(headers, "last-modified")).map(str::to_owned)
}

fn transport_error(error: &ureq::Error) -> HttpError {
    use ureq::Error as E;
    match error {
        E::Rustls(error) => tls_error(error),
        E::Io(error) => match error.get_ref().and_then(|inner| inner.downcast_ref()) {
            Some(inner) => tls_error(inner),
            None => HttpError::Passing(format!("the server did not answer: {error}")),
        },
        E::HostNotFound => HttpError::Passing("the host of the URL is not known".into()),
        E::Timeout(_) | E::ConnectionFailed | E::Protocol(_) => {
            HttpError::Passing(format!("the server did not answer: {error}"))
        }
        error => HttpError::Final(error.to_string()),
    }
}

fn tls_error(error: &rustls::Error) -> HttpError {
    match error {
        rustls::Error::InvalidCertificate(_) => HttpError::Final(format!(
            "the server is not trusted: {error}; SSL_CERT_FILE may name a file with the certificate of its authority"
        )),
        error => HttpError::Passing(format!("the server did not answer: {error}")),
    }
}

fn status_error(status: StatusCode, code: Option<&str>) -> HttpError {
    match status.as_u16() {
        408 | 425 | 429 | 500 | 502..=504 => {
            HttpError::Passing(format!("expected the file, the server answered {status}"))
        }
        _ => HttpError::Refused { status, code: code.map(str::to_owned) },
    }
}

/// Describes the refusal of a data file, with a remedy.
pub(super) fn refusal(status: StatusCode) -> String {
    let words = format!("expected the file, the server answered {status}");
    match status.as_u16() {
        404 | 410 => format!("{words}; correct the URL"),
        401 | 403 | 407 => format!(
            "{words}: dtrain downloads what needs no password only; download the file yourself, and name it"
        ),
        _ => format!("{words}; check the URL"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ureq::http::HeaderValue;

    fn headers(name: &'static str, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name.parse().expect("a name"), HeaderValue::from_static(value))])
    }

    #[test]
    fn the_range_of_a_part_is_read_and_what_is_none_is_refused() {
        for (value, expected) in [
            ("bytes 5-9/10", Some((5, Some(10)))),
            ("bytes 5-9/*", Some((5, None))),
            ("bytes */10", None),
            ("lines 5-9/10", None),
        ] {
            assert_eq!(range(&headers("content-range", value)), expected, "{value}");
        }
    }

    #[test]
    fn only_a_strong_tag_names_a_version() {
        assert_eq!(version_in(&headers("etag", "\"a\"")).as_deref(), Some("\"a\""));
        assert_eq!(version_in(&headers("etag", "W/\"a\"")), None);
        assert_eq!(version_in(&headers("last-modified", "yesterday")).as_deref(), Some("yesterday"));
    }

    #[test]
    fn a_token_is_for_one_scheme_host_and_port() {
        assert_eq!(origin("HTTPS://Host:81/a?b"), "https://host:81");
        assert_ne!(origin("http://host:81/a"), origin("http://host:82/a"));
        assert_ne!(origin("https://host.evil/a"), origin("https://host/a"));
        assert_eq!(origin("https://host?x@y"), "https://host");
        for (to, expected) in [
            ("https://cdn/x?y=://", "https://cdn/x?y=://"),
            ("//cdn/x", "https://cdn/x"),
            ("/x?to=http://a", "https://host/x?to=http://a"),
            ("x", "https://host/a/x"),
        ] {
            assert_eq!(redirected("https://host/a/b?c=/d", to), expected);
        }
    }

    #[test]
    fn what_another_attempt_may_mend_is_told_from_the_rest() {
        for (status, is_passing) in [(404, false), (403, false), (503, true), (429, true), (400, false)] {
            let trouble = status_error(StatusCode::from_u16(status).expect("a status"), None);
            assert_eq!(matches!(trouble, HttpError::Passing(_)), is_passing, "{status}");
        }
    }
}
