//! Tests of the polls, against a small server and with small commands.

use super::*;
use crate::process::Process;
use dtrain_recipes::Seconds;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::mpsc;

const NOT_FOUND: &str = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";

/// Starts a server that sends these answers, one for each connection, and then none. Returns its URL and the requests
/// that it receives.
fn server(answers: &'static [&'static str]) -> (NoticeUrl, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = format!("http://{}/spot/action?version=1", listener.local_addr().expect("bound"));
    let (requests, received) = mpsc::channel();
    thread::spawn(move || {
        let mut answers = answers.iter();
        let mut silent = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let lines = BufReader::new(stream.try_clone().expect("a stream")).lines().map_while(Result::ok);
            let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            match answers.next() {
                Some(answer) => stream.write_all(answer.as_bytes()).expect("it reads"),
                None => silent.push(stream),
            }
            if requests.send(head.join("\n")).is_err() {
                return;
            }
        }
    });
    (NoticeUrl { address, contains: None, headers: BTreeMap::new() }, received)
}

/// Starts the polls of rank 3 in a folder.
fn poll(query: NoticeQuery, folder: &Path) -> (NoticePoller, Receiver<InboxMessage>) {
    let trial = TrialId("01T".into());
    let ranks = PolledRanks { trial: &trial, attempt: AttemptId(1), first: Rank(3), folder };
    let (inbox, said) = channel();
    (NoticePoller::start(&NoticePoll { query, every: Seconds(0.01) }, ranks, &inbox), said)
}

fn command(argv: &[&str]) -> NoticeQuery {
    NoticeQuery::Command(argv.iter().map(|word| (*word).to_owned()).collect())
}

/// Waits for the next words that the user is told.
fn next_words(said: &Receiver<InboxMessage>) -> String {
    match said.recv_timeout(Duration::from_secs(10)) {
        Ok(InboxMessage::Event(Rank(3), Event::Notice(words))) => words,
        Ok(_) => panic!("expected words"),
        Err(error) => panic!("no words: {error}"),
    }
}

/// Waits for the notice, with which the polls end.
fn assert_noticed(said: &Receiver<InboxMessage>) {
    assert_eq!(next_words(said), "the machine of rank 3 gave notice that it will be taken away");
    let next = said.recv_timeout(Duration::from_secs(10));
    assert!(matches!(next, Ok(InboxMessage::Done(HostMessage::NoticeGiven))));
    assert!(said.recv_timeout(Duration::from_secs(10)).is_err(), "the polls have ended");
}

#[test]
fn a_url_is_asked_until_it_is_answered_with_200() {
    let (url, requests) = server(&[NOT_FOUND, NOT_FOUND, "HTTP/1.1 200 OK\r\n\r\n{\"action\": \"stop\"}"]);
    let host = url.address.trim_start_matches("http://").split('/').next().map(str::to_owned);
    let headers = BTreeMap::from([("Metadata-Flavor".to_owned(), "Google".to_owned())]);
    let (_poller, said) = poll(NoticeQuery::Url(NoticeUrl { headers, ..url }), Path::new("/"));
    assert_noticed(&said);
    let heads: Vec<String> = requests.try_iter().collect();
    assert_eq!(heads.len(), 3);
    assert_eq!(
        heads[0],
        format!(
            "GET /spot/action?version=1 HTTP/1.1\nHost: {}\nUser-Agent: dtrain\nConnection: close\nMetadata-Flavor: Google",
            host.expect("an address")
        )
    );
}

#[test]
fn an_answer_counts_only_with_the_text_that_it_must_contain() {
    const FALSE: &str = "HTTP/1.1 200 OK\r\nX-Text: TRUE $(fire)\r\n\r\nFALSE";
    for text in ["TRUE", "$(fire)"] {
        let (url, requests) = server(&[FALSE, FALSE, "HTTP/1.1 200 OK\r\n\r\nTRUE $(fire)"]);
        let url = NoticeUrl { contains: Some(text.to_owned()), ..url };
        let (_poller, said) = poll(NoticeQuery::Url(url), Path::new("/"));
        assert_noticed(&said);
        assert_eq!(requests.try_iter().count(), 3, "headers do not count");
    }
}

#[test]
fn a_poll_that_fails_is_no_notice_and_is_told_once() {
    const DENIED: &str = "HTTP/1.1 401 Unauthorized\r\n\r\n";
    let (url, _requests) = server(&[DENIED, DENIED, "HTTP/1.1 200 OK\r\n\r\n"]);
    let (_poller, said) = poll(NoticeQuery::Url(url.clone()), Path::new("/"));
    let words = next_words(&said);
    let expected = format!("cannot be read (`cluster.notice`): {}: answered with 401", url.address);
    assert!(words.contains(&expected), "{words}");
    assert_noticed(&said);

    // The port is free again.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("bound");
    let closed = NoticeUrl { address: format!("http://{port}/a"), ..url.clone() };
    let error = http::is_noticed(&closed).expect_err("nobody listens");
    assert!(error.contains("refused"), "{error}");
    let (garbled, _requests) = server(&["220 mail\r\n"]);
    assert!(http::is_noticed(&garbled).is_err_and(|error| error.contains("not HTTP")));
}

#[test]
fn a_server_that_never_answers_costs_two_seconds() {
    let (url, _requests) = server(&[]);
    let begun = Instant::now();
    let error = http::is_noticed(&url).expect_err("no answer");
    assert!(error.ends_with("no answer within 2 s"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(4));
}

#[test]
fn a_poll_of_a_url_keeps_no_agent_from_ending() {
    let (url, requests) = server(&[]);
    let (poller, _said) = poll(NoticeQuery::Url(url), Path::new("/"));
    requests.recv().expect("it asks");
    let begun = Instant::now();
    poller.close();
    assert!(begun.elapsed() < Duration::from_millis(500));
}

/// Every word arrives as it was written: there is no shell.
#[test]
fn exit_code_0_of_a_command_is_a_notice() {
    let folder = tempfile::tempdir().expect("a folder");
    let odd = "$(fire); `fire` 'a\nb' -x";
    let script = "printf %s \"$1\" >said; test -e notice";
    let (_poller, said) = poll(command(&["sh", "-c", script, "sh", odd]), folder.path());
    let until = Instant::now() + Duration::from_secs(10);
    while std::fs::read_to_string(folder.path().join("said")).ok().as_deref() != Some(odd) {
        assert!(Instant::now() < until, "it runs in the folder");
        thread::sleep(Duration::from_millis(5));
    }
    assert!(said.try_recv().is_err(), "there is no notice yet");
    std::fs::write(folder.path().join("notice"), "").expect("room on disk");
    assert_noticed(&said);
}

#[test]
fn a_command_that_cannot_run_is_told_once() {
    for (argv, part) in [
        (&["/no/such/program"][..], "\"/no/such/program\" cannot be started: No such file"),
        (&["sh", "-c", "no-such-program-of-dtrain"], "\"sh\" ended with code 127: a program is missing"),
        (&["sh", "-c", "kill -9 $$"], "\"sh\" was killed by signal 9"),
    ] {
        let (poller, said) = poll(command(argv), Path::new("/"));
        let words = next_words(&said);
        assert!(words.contains(part), "{words}");
        thread::sleep(Duration::from_millis(100));
        assert!(said.try_recv().is_err(), "{argv:?}");
        poller.close();
    }
}

/// Waits for the process whose id a script writes to `id`, which must end when `end` is called.
fn assert_ends(folder: &Path, end: impl FnOnce()) {
    let until = Instant::now() + Duration::from_secs(15);
    let read = || std::fs::read_to_string(folder.join("id")).ok()?.strip_suffix('\n')?.parse().ok();
    let id = loop {
        if let Some(id) = read() {
            break id;
        }
        assert!(Instant::now() < until, "it starts");
        thread::sleep(Duration::from_millis(5));
    };
    let started = Process::of(id).expect("it runs");
    end();
    while started.is_alive() {
        assert!(Instant::now() < until, "process {id} survived");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_command_ends_with_the_polls_and_at_its_time_limit() {
    let script = "sleep 177 & echo $! >id; wait";
    let folder = tempfile::tempdir().expect("a folder");
    let (poller, _said) = poll(command(&["sh", "-c", script]), folder.path());
    assert_ends(folder.path(), || {
        let begun = Instant::now();
        poller.sparing(|id| assert!(id.is_some(), "it is not reaped by others"));
        poller.close();
        assert!(begun.elapsed() < Duration::from_secs(1));
    });

    let folder = tempfile::tempdir().expect("a folder");
    let (_poller, said) = poll(command(&["sh", "-c", script]), folder.path());
    assert_ends(folder.path(), || assert!(next_words(&said).contains("\"sh\" ran for longer than 5 s")));
}
