//! A request to the metadata service of a cloud, whose answer with 200 is a notice.

use dtrain_recipes::NoticeUrl;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Longest time from the start of the connection to the end of the answer.
const TIME_LIMIT: Duration = Duration::from_secs(2);

/// Bytes of an answer that are read.
const LIMIT: usize = 64 << 10;

/// Port of a URL without one.
const PORT: u16 = 80;

/// Returns `true` if the URL is answered with 200, and with the text that it must contain; `false` for 404, or without
/// that text. `Err` says why there is no answer.
pub(super) fn is_noticed(url: &NoticeUrl) -> Result<bool, String> {
    let failed = |reason: String| format!("{}: {reason}", url.address);
    let answer = get(url).map_err(failed)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer.as_str(), ""));
    match status(head) {
        Some(200) => Ok(url.contains.as_ref().is_none_or(|text| body.contains(text.as_str()))),
        Some(404) => Ok(false),
        Some(other) => Err(failed(format!("answered with {other}, expected 200 or 404"))),
        None => Err(failed("the answer is not HTTP".to_owned())),
    }
}

/// Returns the status code of an answer.
fn status(head: &str) -> Option<u16> {
    let (version, rest) = head.split_once(' ')?;
    version.starts_with("HTTP/1.").then(|| rest.get(..3)?.parse().ok())?
}

/// Sends the request; returns the beginning of the answer.
fn get(url: &NoticeUrl) -> Result<String, String> {
    let parsed = NoticeUrl::parse(&url.address).map_err(|error| error.message)?;
    let host = parsed.host();
    let has_port = host.rsplit_once(']').map_or(host, |(_, behind)| behind).contains(':');
    let address = if has_port { host.to_owned() } else { format!("{host}:{PORT}") };
    let found = address.to_socket_addrs().map_err(|error| error.to_string())?.next();
    let found = found.ok_or("the host has no address")?;
    let headers: String = url.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: dtrain\r\nConnection: close\r\n{headers}\r\n",
        parsed.target()
    );
    let until = Instant::now() + TIME_LIMIT;
    let in_words = |error: std::io::Error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => late(),
        _ => error.to_string(),
    };
    let mut stream = TcpStream::connect_timeout(&found, TIME_LIMIT).map_err(in_words)?;
    stream.set_write_timeout(Some(left(until)?)).map_err(in_words)?;
    stream.write_all(request.as_bytes()).map_err(in_words)?;
    let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
    while answer.len() < LIMIT {
        stream.set_read_timeout(Some(left(until)?)).map_err(in_words)?;
        match stream.read(&mut piece).map_err(in_words)? {
            0 => break,
            count => answer.extend_from_slice(&piece[..count]),
        }
    }
    answer.truncate(LIMIT);
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Returns the time until `until`, which is not zero.
fn left(until: Instant) -> Result<Duration, String> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(late()) } else { Ok(left) }
}

fn late() -> String {
    format!("no answer within {} s", TIME_LIMIT.as_secs())
}
