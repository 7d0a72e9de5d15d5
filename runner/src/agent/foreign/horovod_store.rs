//! The rendezvous store of Horovod: a small key-value store over HTTP, like that of horovodrun.
//!
//! `PUT /scope/key` stores a value, `GET` returns it or 404, `DELETE` removes it; a connection serves one
//! request. Any client that reaches the address can read and write, as with horovodrun: it holds only
//! addresses.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

/// Time limit of one request; requests are served one at a time, so a slow one delays the others.
const PATIENCE: Duration = Duration::from_secs(1);

/// Maximum size in bytes of the head of a request, and of a value.
const LARGEST: u64 = 64 << 10;

/// Maximum number of stored values.
const VALUES: usize = 100_000;

/// Starts the store on a free port of `address`, in a thread that runs as long as the process; returns the
/// port.
pub(super) fn serve(address: &str) -> io::Result<u16> {
    let listener = TcpListener::bind((address, 0))?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || {
        let mut values = BTreeMap::new();
        for stream in listener.incoming().flatten() {
            // A client that sends an invalid request or leaves early harms only itself.
            drop(answer(&stream, &mut values));
        }
    });
    Ok(port)
}

fn answer(stream: &TcpStream, values: &mut BTreeMap<String, Vec<u8>>) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut from = BufReader::new(stream);
    let mut head = from.by_ref().take(LARGEST);
    let mut first = String::new();
    head.read_line(&mut first)?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        if head.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap_or(u64::MAX);
        }
    }
    let mut words = first.split_whitespace();
    let (status, body) = match (words.next(), words.next()) {
        (Some("PUT"), Some(_)) if length > LARGEST || values.len() >= VALUES => ("413 Too Large", Vec::new()),
        (Some("PUT"), Some(path)) => {
            let mut value = vec![0; usize::try_from(length).map_err(io::Error::other)?];
            from.read_exact(&mut value)?;
            values.insert(path.to_owned(), value);
            ("200 OK", Vec::new())
        }
        (Some("GET"), Some(path)) => match values.get(path) {
            Some(value) => ("200 OK", value.clone()),
            None => ("404 Not Found", Vec::new()),
        },
        (Some("DELETE"), Some(path)) => {
            values.remove(path);
            ("200 OK", Vec::new())
        }
        _ => ("400 Bad Request", Vec::new()),
    };
    let mut to = stream;
    write!(to, "HTTP/1.0 {status}\r\nContent-Length: {}\r\n\r\n", body.len())?;
    to.write_all(&body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(port: u16, request: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    }

    #[test]
    fn values_are_kept_given_and_forgotten() {
        let port = serve("127.0.0.1").expect("a free port");
        assert!(ask(port, "GET /global_/0 HTTP/1.1\r\n\r\n").starts_with("HTTP/1.0 404"));
        let put = "PUT /global_/0 HTTP/1.1\r\ncontent-length: 5\r\n\r\nhello";
        assert!(ask(port, put).starts_with("HTTP/1.0 200"));
        assert!(ask(port, "GET /global_/0 HTTP/1.1\r\n\r\n").ends_with("Content-Length: 5\r\n\r\nhello"));
        assert!(ask(port, "DELETE /global_/0 HTTP/1.1\r\n\r\n").starts_with("HTTP/1.0 200"));
        assert!(ask(port, "GET /global_/0 HTTP/1.1\r\n\r\n").starts_with("HTTP/1.0 404"));
    }

    #[test]
    fn nonsense_is_refused_and_serving_goes_on() {
        let port = serve("127.0.0.1").expect("a free port");
        assert!(ask(port, "nonsense\r\n\r\n").starts_with("HTTP/1.0 400"));
        let huge = format!("PUT /a/b HTTP/1.1\r\nContent-Length: {}\r\n\r\n", u64::MAX);
        assert!(ask(port, &huge).starts_with("HTTP/1.0 413"));
        drop(TcpStream::connect(("127.0.0.1", port)).expect("it listens"));
        assert!(ask(port, "GET /a/b HTTP/1.1\r\n\r\n").starts_with("HTTP/1.0 404"));
    }
}
