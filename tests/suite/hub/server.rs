//! A Hugging Face Hub with one model, which remembers what it is asked for and can be told to behave badly.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// What a hub was asked for.
#[derive(Clone, Debug)]
pub(super) struct Request {
    /// The path with its query.
    pub(super) path: String,
    /// The first byte that was wanted.
    pub(super) begin: usize,
    /// The token that came along.
    pub(super) token: Option<String>,
}

/// How a hub behaves.
#[derive(Default)]
pub(super) struct Manners {
    /// The file of which the first answer is cut in half.
    pub(super) breaks: Option<&'static str>,
    /// The file that comes with another content than its digest says.
    pub(super) changes: Option<&'static str>,
    /// The token without which nothing is answered.
    pub(super) token: Option<&'static str>,
    /// The server to which files of weights are redirected.
    pub(super) redirects: Option<String>,
    /// Whether it answers with a page of HTML.
    pub(super) is_page: bool,
}

struct Shared {
    files: BTreeMap<String, Vec<u8>>,
    /// The description of the files.
    siblings: String,
    /// The commits, the last of which is `main`.
    commits: Mutex<Vec<String>>,
    manners: Manners,
    asked: Mutex<Vec<Request>>,
    has_broken: AtomicBool,
    is_over: AtomicBool,
}

/// A hub, until it is dropped.
pub(super) struct Hub {
    address: SocketAddr,
    shared: Arc<Shared>,
    listening: Option<JoinHandle<()>>,
}

impl Hub {
    /// Serves `Org/Tiny` with these files at a commit.
    pub(super) fn new(commit: &str, files: BTreeMap<String, Vec<u8>>, manners: Manners) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared {
            siblings: siblings(&files),
            files,
            commits: Mutex::new(vec![commit.to_owned()]),
            manners,
            asked: Mutex::default(),
            has_broken: AtomicBool::default(),
            is_over: AtomicBool::default(),
        });
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

    /// The value of `HF_ENDPOINT`.
    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What it was asked for so far.
    pub(super) fn asked(&self) -> Vec<Request> {
        self.shared.asked.lock().expect("no thread panicked").clone()
    }

    /// Moves `main` to another commit with the same files.
    pub(super) fn moves(&self, commit: &str) {
        self.shared.commits.lock().expect("no thread panicked").push(commit.to_owned());
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        // The listener checks for its end at each connection.
        drop(TcpStream::connect(self.address));
        if let Some(listening) = self.listening.take() {
            listening.join().expect("the server ends");
        }
    }
}

/// An answer: status, headers of its own, and content.
type Answer = (&'static str, String, Vec<u8>);

impl Shared {
    /// Answers one request, and closes the connection.
    fn serve(&self, mut stream: TcpStream) {
        let Some(request) = request(&stream) else { return };
        self.asked.lock().expect("no thread panicked").push(request.clone());
        let (status, headers, content) = self.answer(&request);
        let length = content.len();
        let head =
            format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{headers}Connection: close\r\n\r\n");
        let is_broken = self.manners.breaks.is_some_and(|name| request.path.ends_with(name))
            && !self.has_broken.swap(true, Ordering::SeqCst);
        let sent = if is_broken { &content[..length / 2] } else { &content[..] };
        // The client may be gone.
        drop(stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(sent)));
        drop(stream.shutdown(Shutdown::Write));
    }

    fn answer(&self, request: &Request) -> Answer {
        let refused = |status, code: &str| (status, format!("X-Error-Code: {code}\r\n"), Vec::new());
        let manners = &self.manners;
        match (manners.token, &request.token) {
            (Some(_), None) => return refused("401 Unauthorized", "GatedRepo"),
            (Some(wanted), Some(token)) if token != wanted => return refused("403 Forbidden", "GatedRepo"),
            _ => {}
        }
        if manners.is_page {
            return ("200 OK", String::new(), b"<html>a page</html>".to_vec());
        }
        let path = request.path.split('?').next().expect("a path");
        let commits = self.commits.lock().expect("no thread panicked").clone();
        if let Some(revision) = path.strip_prefix("/api/models/Org/Tiny/revision/") {
            let commit =
                if revision == "main" { commits.last() } else { commits.iter().find(|c| *c == revision) };
            let Some(commit) = commit else { return refused("404 Not Found", "RevisionNotFound") };
            let text =
                format!("{{\"id\": \"Org/Tiny\", \"sha\": \"{commit}\", \"siblings\": [{}]}}", self.siblings);
            return ("200 OK", String::new(), text.into_bytes());
        }
        let file = path.strip_prefix("/Org/Tiny/resolve/").and_then(|rest| rest.split_once('/'));
        let Some((commit, name)) = file else { return refused("404 Not Found", "RepoNotFound") };
        let Some(content) = self.files.get(name).filter(|_| commits.iter().any(|c| c == commit)) else {
            return refused("404 Not Found", "EntryNotFound");
        };
        if let Some(store) = manners.redirects.as_ref().filter(|_| name.ends_with(".safetensors")) {
            return ("302 Found", format!("Location: {store}{path}\r\n"), Vec::new());
        }
        let mut content = content.clone();
        if manners.changes == Some(name) {
            content[5] ^= 1;
        }
        match request.begin {
            0 => ("200 OK", "ETag: \"one\"\r\n".to_owned(), content),
            begin => {
                let (last, of) = (content.len() - 1, content.len());
                let range = format!("Content-Range: bytes {begin}-{last}/{of}\r\nETag: \"one\"\r\n");
                ("206 Partial Content", range, content.split_off(begin))
            }
        }
    }
}

/// The description of files, with the digests that `git` and `sha256sum` print.
fn siblings(files: &BTreeMap<String, Vec<u8>>) -> String {
    let mut text = String::from("{\"rfilename\": \"onnx/model.onnx\"}");
    for (name, content) in files {
        let (blob, size) = (printed("git", &["hash-object", "--stdin"], content), content.len());
        write!(text, ", {{\"rfilename\": {name:?}, \"size\": {size}, \"blobId\": \"{blob}\"")
            .expect("written");
        if name.ends_with(".safetensors") {
            let sha256 = printed("sha256sum", &[], content);
            write!(text, ", \"lfs\": {{\"sha256\": \"{sha256}\", \"size\": {size}, \"pointerSize\": 132}}")
                .expect("written");
        }
        text.push('}');
    }
    text
}

/// The first word that a program prints of a text.
fn printed(program: &str, arguments: &[&str], text: &[u8]) -> String {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    child.stdin.take().expect("a pipe").write_all(text).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{program}");
    String::from_utf8_lossy(&output.stdout).split_whitespace().next().expect("a word").to_owned()
}

/// Reads the head of a request; `None` when there is none.
fn request(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let (mut begin, mut token) = (0, None);
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').unwrap_or_default();
        match name.to_ascii_lowercase().as_str() {
            "range" => {
                let first = value.trim().trim_start_matches("bytes=").trim_end_matches('-');
                begin = first.parse().expect("the first byte of a range without an end");
            }
            "authorization" => token = value.trim().strip_prefix("Bearer ").map(str::to_owned),
            _ => {}
        }
    }
    Some(Request { path, begin, token })
}
