//! URLs of data files, such as `https://host/path/name.csv#sha256=…`.
//!
//! Only parses the text. The worker downloads the file, on the host that needs it.

use std::fmt;

/// Number of hexadecimal digits in a SHA-256 checksum.
const DIGITS: usize = 64;

/// Prefix of the checksum in the fragment of a URL.
const CHECKSUM: &str = "sha256=";

/// The URL of a data file to download, with its expected checksum if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    address: String,
    sha256: Option<String>,
}

/// An error in the URL of a data file. Does not repeat the text, which may contain a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlError {
    /// Message: the expectation and the finding.
    pub message: String,
    /// Suggested fix.
    pub hint: &'static str,
}

impl Url {
    /// Returns `true` if the data path `name` is a URL to download, not a file or a pattern.
    pub fn is_url(name: &str) -> bool {
        name.split_once("://").is_some_and(|(scheme, _)| is_web(scheme))
    }

    /// Parses the URL of a data file. `Err` has a message and a hint for the user.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let wrong = |message: &str, hint| Err(UrlError { message: message.to_owned(), hint });
        let (address, fragment) = match text.split_once('#') {
            Some((address, fragment)) => (address, Some(fragment)),
            None => (text, None),
        };
        let Some((_, rest)) = address.split_once("://").filter(|(scheme, _)| is_web(scheme)) else {
            return wrong("expected a URL that begins with https:// or http://", "write the whole address");
        };
        if !address.bytes().all(|byte| byte.is_ascii_graphic()) {
            let hint = "write spaces as %20, and other characters in the same way";
            return wrong("the URL has spaces, or characters outside ASCII", hint);
        }
        let host = rest.split(['/', '?']).next().unwrap_or_default();
        if host.contains('@') {
            let hint = "download the file yourself, and name it: secrets do not belong into a recipe";
            return wrong("the URL has a user or a password", hint);
        }
        if host.is_empty() {
            return wrong("the URL names no host", "write for example https://example.org/corpus.txt");
        }
        if let Some(port) = port_in(host).filter(|port| !is_port(port)) {
            let message = format!("expected a port from 1 to 65535 in the URL, found `{port}`");
            return wrong(&message, "correct the port, or leave it and the `:` before it out");
        }
        if name_in(address).is_empty() {
            return wrong("the URL names no file: its path is empty or ends with `/`", "name one file");
        }
        let sha256 = fragment.map(checksum).transpose()?;
        Ok(Self { address: address.to_owned(), sha256 })
    }

    /// Returns the URL without its checksum.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the expected SHA-256 checksum, in lower-case hexadecimal digits; `None` if the URL has none.
    pub fn sha256(&self) -> Option<&str> {
        self.sha256.as_deref()
    }

    /// Returns the name of the file: the last part of the URL's path, whose extension tells the format.
    pub fn file_name(&self) -> &str {
        name_in(&self.address)
    }

    /// Returns the path and query of the URL, as a request names them.
    pub fn target(&self) -> &str {
        let (_, rest) = self.address.split_once("://").unwrap_or_default();
        &rest[self.host().len()..]
    }

    /// Returns the host in the URL, with its port if there is one.
    pub fn host(&self) -> &str {
        let (_, rest) = self.address.split_once("://").unwrap_or_default();
        rest.split(['/', '?']).next().unwrap_or_default()
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address)
    }
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.message, self.hint)
    }
}

/// Returns the part of the data path `name` that has the file extension: the last part of a URL's path,
/// otherwise all of it.
pub fn file_extension(name: &str) -> &str {
    if Url::is_url(name) { name_in(name) } else { name }
}

fn is_web(scheme: &str) -> bool {
    scheme.eq_ignore_ascii_case("https") || scheme.eq_ignore_ascii_case("http")
}

/// Returns the port after the `:` of a host; `None` if there is none. An IPv6 address in brackets has colons
/// of its own.
fn port_in(host: &str) -> Option<&str> {
    let behind = host.rsplit_once(']').map_or(host, |(_, behind)| behind);
    behind.split_once(':').map(|(_, port)| port)
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok_and(|port| port > 0)
}

/// Returns the last part of the path of a URL; empty if there is none.
fn name_in(address: &str) -> &str {
    let (_, rest) = address.split_once("://").unwrap_or_default();
    let path = rest.split(['?', '#']).next().unwrap_or_default();
    path.rsplit_once('/').map_or("", |(_, name)| name)
}

fn checksum(fragment: &str) -> Result<String, UrlError> {
    let digits = fragment.strip_prefix(CHECKSUM).ok_or_else(|| UrlError {
        message: "expected `sha256=` behind the `#` of the URL".to_owned(),
        hint: "write `#sha256=` and the 64 digits that `sha256sum` prints for the file, or leave out the `#`",
    })?;
    if digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(digits.to_ascii_lowercase());
    }
    let has_digits = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let found = if has_digits { format!("{} digits", digits.len()) } else { "other characters".to_owned() };
    Err(UrlError {
        message: format!("a sha256 has {DIGITS} hexadecimal digits, found {found} in the URL"),
        hint: "copy the digits that `sha256sum` prints for the file",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_an_address_a_name_and_perhaps_a_checksum() {
        let digits = "0123456789abcdefABCDEF0123456789abcdef0123456789abcdef0123456789";
        let url = Url::parse(&format!("https://host:81/a/b.csv.gz?raw=1&x=/y#sha256={digits}")).unwrap();
        assert_eq!(url.address(), "https://host:81/a/b.csv.gz?raw=1&x=/y");
        assert_eq!((url.file_name(), url.host()), ("b.csv.gz", "host:81"));
        assert_eq!(url.sha256(), Some(digits.to_ascii_lowercase().as_str()));
        let plain = Url::parse("HTTP://host/x").unwrap();
        assert_eq!((plain.sha256(), plain.file_name()), (None, "x"));
        for host in ["host:1", "host:65535", "[::1]", "[::1]:8080"] {
            assert_eq!(Url::parse(&format!("https://{host}/x")).unwrap().host(), host);
        }
    }

    #[test]
    fn what_is_wrong_is_said_without_repeating_secrets() {
        for (text, part) in [
            ("s3://bucket/a.csv", "https://"),
            ("https:///a.csv", "no host"),
            ("https://host", "no file"),
            ("https://host/", "no file"),
            ("https://host/a b", "spaces"),
            ("https://me:hunter2@host/a", "password"),
            ("https://host:99999/a", "found `99999`"),
            ("https://host:0/a", "found `0`"),
            ("https://host:/a", "found ``"),
            ("https://host:+80/a", "found `+80`"),
            ("https://[::1]:70000/a", "found `70000`"),
            ("https://host/a#md5=00", "sha256="),
            ("https://host/a#sha256=00", "found 2 digits"),
        ] {
            let error = Url::parse(text).unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains("hunter2"), "{text}: {error}");
        }
    }

    #[test]
    fn the_ending_of_a_url_is_that_of_its_path() {
        for (name, expected) in [
            ("https://host/a/x.csv?download=true#sha256=00", "x.csv"),
            ("data/what?.csv", "data/what?.csv"),
            ("https://host", ""),
        ] {
            assert_eq!(file_extension(name), expected);
        }
        assert!(Url::is_url("https://host/a") && !Url::is_url("data/https/a") && !Url::is_url("s3://a/b"));
    }
}
