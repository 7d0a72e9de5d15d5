//! Prometheus metrics page: printed or written once, or served over HTTP until Ctrl-C.

use super::export_failed;
use super::metrics_collector::MetricsCollector;
use crate::args::ExportArgs;
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::run_trial::record_finished_trials;
use crate::{signals, trials};
use dtrain_runner::export::{self, prometheus::CONTENT_TYPE};
use serde::Serialize;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Address on which the server listens by default.
const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9400);

/// Maximum size of a request's head, in bytes.
const HEAD: usize = 8 << 10;
/// Time within which a request must arrive.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of requests that are answered in parallel.
const AT_A_TIME: usize = 16;

/// Time for which a page is cached: requests within it get the same page.
const FRESH: Duration = Duration::from_secs(1);

/// Interval between checks whether the user pressed Ctrl-C.
const PAUSE: Duration = Duration::from_millis(50);

/// JSON document with the address on which the server listens.
#[derive(Serialize)]
struct ListenAddress {
    listen: String,
}

/// Serves the metrics page over HTTP, or with `--out` writes it once.
pub(super) fn run(context: &Context, args: &ExportArgs) -> CommandResult {
    if !args.keys.is_empty() || args.attempt.is_some() || args.force {
        let message = "`--keys`, `--attempt` and `--force` have no meaning for prometheus: a page has the newest values";
        return Err(CommandError::new(ExitReason::Usage, message));
    }
    record_finished_trials(context);
    drop(trials::read_history(context)?);
    let mut live = MetricsCollector::new(context, args);
    // Errors in names and conditions are reported before the first request.
    let first = live.page()?;
    match args.out.as_deref() {
        Some(path) if path == Path::new("-") => {
            context.out.bytes(first.as_bytes()).map(|()| ExitReason::Done)
        }
        Some(path) => export::replace(path, first.as_bytes())
            .map(|()| ExitReason::Done)
            .map_err(|error| export_failed(&error)),
        None => serve(context, args.listen.unwrap_or(ADDRESS), live),
    }
}

fn serve(context: &Context, address: SocketAddr, live: MetricsCollector<'_>) -> CommandResult {
    let failed = |error: io::Error| {
        CommandError::new(ExitReason::Infrastructure, format!("cannot listen on {address}"))
            .cause(error.to_string())
            .hint("`--listen ADDRESS:PORT` takes another address")
    };
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let interrupts = signals::listen()?;
    if !address.ip().is_loopback() {
        context.out.say(&format!(
            "{} every client that reaches {address} can read names, settings and figures of trials: there is no password",
            context.out.paint.yellow("warning:")
        ));
    }
    if context.out.json {
        context.out.json("served", &ListenAddress { listen: address.to_string() })?;
    }
    context.out.say(&format!("serving http://{address}/metrics; Ctrl-C ends it"));
    let pages = Mutex::new(CachedPage { live, kept: None });
    let busy = AtomicUsize::new(0);
    thread::scope(|scope| {
        while interrupts.count() == 0 {
            match listener.accept() {
                Ok((stream, _)) if busy.load(Ordering::SeqCst) < AT_A_TIME => {
                    busy.fetch_add(1, Ordering::SeqCst);
                    let (pages, busy) = (&pages, &busy);
                    let is_local = address.ip().is_loopback();
                    scope.spawn(move || {
                        // Errors of a disconnected client are ignored.
                        drop(answer(stream, pages, is_local));
                        busy.fetch_sub(1, Ordering::SeqCst);
                    });
                }
                // Too many connections, or a closed one: dropped.
                Ok(_) => {}
                Err(_) => thread::sleep(PAUSE),
            }
        }
    });
    Ok(ExitReason::Done)
}

/// The last page of metrics, rendered again once it is too old.
struct CachedPage<'a> {
    live: MetricsCollector<'a>,
    kept: Option<(Instant, String)>,
}

impl CachedPage<'_> {
    fn get(&mut self) -> Result<String, CommandError> {
        if let Some((_, page)) = self.kept.as_ref().filter(|(made, _)| made.elapsed() < FRESH) {
            return Ok(page.clone());
        }
        let page = self.live.page()?;
        self.kept = Some((Instant::now(), page.clone()));
        Ok(page)
    }
}

/// Reads one HTTP request and answers it.
fn answer(mut stream: TcpStream, pages: &Mutex<CachedPage<'_>>, is_local: bool) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let (status, kind, body) = match head(&mut stream)? {
        Some(head) => match ScrapeRequest::of(&head, is_local) {
            ScrapeRequest::Metrics => match pages.lock().map(|mut pages| pages.get()) {
                Ok(Ok(page)) => ("200 OK", CONTENT_TYPE, page),
                Ok(Err(failure)) => ("500 Internal Server Error", TEXT, format!("{}\n", failure.message())),
                Err(_) => ("500 Internal Server Error", TEXT, String::new()),
            },
            ScrapeRequest::Root => ("200 OK", TEXT, "dtrain: /metrics has the metrics\n".to_owned()),
            ScrapeRequest::Refused(status) => (status, TEXT, format!("{status}\n")),
        },
        None => ("431 Request Header Fields Too Large", TEXT, String::new()),
    };
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

const TEXT: &str = "text/plain; charset=utf-8";

/// Reads the head of an HTTP request; `None` if it is too large. `Err` if it does not arrive in time.
fn head(stream: &mut TcpStream) -> io::Result<Option<String>> {
    let (mut bytes, mut part, until) = (Vec::new(), [0; 1024], Instant::now() + PATIENCE);
    while !bytes.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let read = stream.read(&mut part)?;
        if read == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        bytes.extend(&part[..read]);
        if bytes.len() > HEAD {
            return Ok(None);
        }
    }
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// Page that an HTTP request asks for, or the status with which the request is refused.
#[derive(Debug, PartialEq, Eq)]
enum ScrapeRequest {
    Metrics,
    Root,
    Refused(&'static str),
}

impl ScrapeRequest {
    fn of(head: &str, is_local: bool) -> Self {
        let mut lines = head.split("\r\n");
        let mut words = lines.next().unwrap_or_default().split(' ');
        let (method, target, version) = (words.next(), words.next(), words.next());
        if !version.is_some_and(|version| version.starts_with("HTTP/1.")) {
            return Self::Refused("400 Bad Request");
        }
        // Prevents DNS rebinding: a web page whose host name resolves to this machine must not read metrics.
        let host =
            lines.filter_map(|line| line.split_once(':')).find(|(name, _)| name.eq_ignore_ascii_case("host"));
        if is_local && host.is_some_and(|(_, host)| !is_loopback(host.trim())) {
            return Self::Refused("403 Forbidden");
        }
        if method != Some("GET") {
            return Self::Refused("405 Method Not Allowed");
        }
        match target.map(|target| target.split('?').next().unwrap_or(target)) {
            Some("/metrics") => Self::Metrics,
            Some("/") => Self::Root,
            _ => Self::Refused("404 Not Found"),
        }
    }
}

/// Returns `true` if `host`, with or without a port, is `localhost` or a loopback address.
fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.chars().all(|c| c.is_ascii_digit()) && !name.ends_with(':') => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_page_is_answered_and_only_to_who_asks_for_this_machine() {
        let asked = |head: &str| ScrapeRequest::of(&head.replace('\n', "\r\n"), true);
        assert_eq!(asked("GET /metrics HTTP/1.1\nHost: localhost:9400\n\n"), ScrapeRequest::Metrics);
        assert_eq!(asked("GET /metrics?x=1 HTTP/1.1\nhost: 127.0.0.1\n\n"), ScrapeRequest::Metrics);
        assert_eq!(asked("GET / HTTP/1.0\nHost: [::1]:9400\n\n"), ScrapeRequest::Root);
        assert_eq!(
            asked("GET /metrics HTTP/1.1\nHost: evil.example:9400\n\n"),
            ScrapeRequest::Refused("403 Forbidden")
        );
        assert_eq!(asked("POST /metrics HTTP/1.1\n\n"), ScrapeRequest::Refused("405 Method Not Allowed"));
        assert_eq!(asked("GET /etc/passwd HTTP/1.1\n\n"), ScrapeRequest::Refused("404 Not Found"));
        assert_eq!(asked("\u{16}\u{3}\u{1}"), ScrapeRequest::Refused("400 Bad Request"));
        let anywhere = "GET /metrics HTTP/1.1\r\nHost: gpu-01:9400\r\n\r\n";
        assert_eq!(ScrapeRequest::of(anywhere, false), ScrapeRequest::Metrics);
    }
}
