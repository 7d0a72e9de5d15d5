//! A server of files on this machine, which counts what it is asked for and can be told to behave badly.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

/// What a server was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    /// The path, without its first `/`.
    pub(super) name: String,
    /// The first byte that was wanted.
    pub(super) begin: usize,
}

/// How a server behaves.
#[derive(Default)]
pub(super) struct Manners {
    /// Answers of which only half is sent before the connection ends.
    pub(super) breaks: AtomicUsize,
    /// The length that it announces in place of that of the file.
    pub(super) announces: Option<u64>,
    /// Whether it sends whole files only.
    pub(super) is_whole: bool,
    /// Whether answers wait until [`Server::open`].
    pub(super) is_closed: bool,
}

#[derive(Default)]
struct Shared {
    files: BTreeMap<String, Vec<u8>>,
    manners: Manners,
    asked: Mutex<Vec<Asked>>,
    is_open: Mutex<bool>,
    opened: Condvar,
    is_over: AtomicBool,
}

/// A server, until it is dropped.
pub(super) struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    listening: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves these files.
    pub(super) fn new(files: impl IntoIterator<Item = (&'static str, Vec<u8>)>) -> Self {
        Self::with(files, Manners::default())
    }

    /// Serves these files in this way.
    pub(super) fn with(files: impl IntoIterator<Item = (&'static str, Vec<u8>)>, manners: Manners) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let files = files.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect();
        let is_open = Mutex::new(!manners.is_closed);
        let shared = Arc::new(Shared { files, manners, is_open, ..Shared::default() });
        let own = Arc::clone(&shared);
        let listening = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if own.is_over.load(Ordering::SeqCst) {
                    return;
                }
                let shared = Arc::clone(&own);
                let stream = stream.expect("a connection");
                std::thread::spawn(move || shared.serve(stream));
            }
        });
        Self { address, shared, listening: Some(listening) }
    }

    /// Host and port.
    pub(super) fn host(&self) -> String {
        self.address.to_string()
    }

    /// The URL of a file.
    pub(super) fn url(&self, name: &str) -> String {
        format!("http://{}/{name}", self.address)
    }

    /// The same with the checksum of the file behind it.
    pub(super) fn checked_url(&self, name: &str) -> String {
        format!("{}#sha256={}", self.url(name), sha256(&self.shared.files[name]))
    }

    /// What it was asked for so far.
    pub(super) fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().expect("no thread panicked").clone()
    }

    /// Lets answers go out.
    pub(super) fn open(&self) {
        *self.shared.is_open.lock().expect("no thread panicked") = true;
        self.shared.opened.notify_all();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.open();
        self.shared.is_over.store(true, Ordering::SeqCst);
        // The listener checks for its end at each connection.
        drop(TcpStream::connect(self.address));
        if let Some(listening) = self.listening.take() {
            listening.join().expect("the server ends");
        }
    }
}

impl Shared {
    /// Answers one request, and closes the connection.
    fn serve(&self, mut stream: TcpStream) {
        let Some(asked) = request(&stream) else { return };
        self.asked.lock().expect("no thread panicked").push(asked.clone());
        let is_open = self.is_open.lock().expect("no thread panicked");
        drop(self.opened.wait_while(is_open, |is_open| !*is_open).expect("no thread panicked"));
        let Some(file) = self.files.get(&asked.name) else {
            let answer = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            drop(stream.write_all(answer.as_bytes()));
            return;
        };
        let begin = if self.manners.is_whole { 0 } else { asked.begin.min(file.len()) };
        let (rest, of) = (&file[begin..], file.len());
        let (status, range) = if begin == 0 {
            ("200 OK", String::new())
        } else {
            ("206 Partial Content", format!("Content-Range: bytes {begin}-{}/{of}\r\n", of - 1))
        };
        let length = self.manners.announces.unwrap_or(rest.len() as u64);
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{range}ETag: \"one\"\r\nConnection: close\r\n\r\n"
        );
        let is_broken = self
            .manners
            .breaks
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
            .is_ok();
        let sent = if is_broken { &rest[..rest.len() / 2] } else { rest };
        // The client may be gone.
        drop(stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(sent)));
        drop(stream.shutdown(Shutdown::Write));
    }
}

/// Reads the head of a request; `None` when there is none.
fn request(stream: &TcpStream) -> Option<Asked> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let first = lines.next()?;
    let name = first.split(' ').nth(1)?.trim_start_matches('/').to_owned();
    let mut begin = 0;
    for line in lines.take_while(|line| !line.is_empty()) {
        let line = line.to_ascii_lowercase();
        if let Some(range) = line.strip_prefix("range: bytes=") {
            begin = range.trim_end_matches('-').parse().expect("the first byte of a range without an end");
        }
    }
    Some(Asked { name, begin })
}

/// The sha256 of a file, by the program of the system.
pub(super) fn sha256(bytes: &[u8]) -> String {
    let printed = printed("sha256sum", &[], bytes);
    String::from_utf8_lossy(&printed).split_whitespace().next().expect("a checksum").to_owned()
}

/// The file compressed by gzip.
pub(super) fn gzip(bytes: &[u8]) -> Vec<u8> {
    printed("gzip", &["-nc"], bytes)
}

/// What a program prints of a file.
fn printed(program: &str, options: &[&str], bytes: &[u8]) -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), bytes).expect("written");
    let output = Command::new(program).args(options).arg(file.path()).output().expect("the program starts");
    assert!(output.status.success(), "{program}: {output:?}");
    output.stdout
}
