//! Files of `dtrain export` can be read by their target tools, and the Prometheus page is served to allowed
//! clients only.

use dtrain_protocol::{AttemptId, Rank};
use dtrain_runner::ledger::History;
use dtrain_runner::{Ledger, MetricPoint, TrialUpdate};
use dtrain_skip::skip;
use dtrain_tests::{TestEnv, root};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Values that formats lose most easily.
const HARD: [f64; 7] = [0.1 + 0.2, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300, 5e-324, -1.0 / 3.0];

/// A house with a trial of two ranks, `tiny-1`, with a note, a tag, and a metric of two attempts that overlap.
fn house() -> TestEnv {
    let house = TestEnv::default();
    let recipe = root().join("tests/data/tiny/recipe.toml");
    let settings = ["cluster.ranks=2", "layout.data=2"];
    let run = ["run", recipe.to_str().expect("UTF-8"), "--no-sample"];
    house.expect(0, run.into_iter().chain(settings.into_iter().flat_map(|setting| ["--set", setting])));
    house.expect(0, ["note", "last", "a note", "--tag", "keep"]);
    let mut history = History::open(&house.history()).expect("a history");
    let trial = history.find("last").expect("a trial");
    let mut points = Vec::new();
    for (attempt, steps) in [(1, 1..8), (2, 5..10)] {
        points.extend(steps.map(|step| MetricPoint {
            attempt: AttemptId(attempt),
            rank: Rank(0),
            key: "val/f1".into(),
            step,
            at_ms: 1_795_549_794_000 + 1000 * attempt + step,
            value: HARD[usize::try_from(step + attempt).expect("small") % HARD.len()],
        }));
    }
    history.record(&trial, &TrialUpdate { points, ..TrialUpdate::default() }).expect("room on disk");
    house
}

/// Python with the packages, where `tests/run` puts it.
fn python() -> PathBuf {
    root().join("target/test-data/exports/bin/python")
}

fn words(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Names of what is in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder").flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().expect("UTF-8")).collect();
    names.sort();
    names
}

#[test]
fn exports_are_read_back_by_the_packages_they_are_for() {
    let house = house();
    let out =
        house.file("out/shown.json", house.expect(0, ["show", "last", "--json", "--series", "all"]).stdout);
    let out = out.parent().expect("a folder");
    let at = |name: &str| out.join(name).to_str().expect("UTF-8").to_owned();
    let export = |to: &str, name: &str| {
        let args = ["export", "last", "--to", to, "--out", &at(name), "--json"].map(str::to_owned);
        serde_json::from_slice::<Value>(&house.expect(0, args).stdout).expect("JSON")
    };
    // W&B's own folder has other runs, and MLflow's file may be there already.
    fs::create_dir_all(out.join("wandb/offline-run-20200101_000000-other")).expect("a folder");
    for (to, name) in [
        ("tensorboard", "runs"),
        ("mlflow", "mlflow.db"),
        ("wandb", "wandb"),
        ("csv", "all.csv"),
        ("jsonl", "all.jsonl"),
        ("parquet", "all.parquet"),
    ] {
        let written = export(to, name);
        assert_eq!((&written["format"], &written["path"]), (&"dtrain.export/2".into(), &at(name).into()));
        let points = written["runs"][0]["points"].as_u64().expect("a number");
        assert!(points > 20 * 24, "{to}: {points}");
        let refused = house.expect(2, ["export", "last", "--to", to, "--out", &at(name)]);
        assert!(words(&refused.stderr).contains("exists already"), "{}", words(&refused.stderr));
        house.expect(0, ["export", "last", "--to", to, "--out", &at(name), "--force"]);
    }
    house.expect(0, ["export", "last", "--to", "prometheus", "--out", &at("page.prom")]);
    assert_eq!(names(&out.join("wandb")).len(), 2);
    assert!(names(out).iter().all(|name| !name.ends_with("partial")), "{:?}", names(out));

    let few = house.expect(
        0,
        ["export", "last", "--to", "csv", "--out", "-", "--keys", "val/*,loss", "--attempt", "last"],
    );
    let few = String::from_utf8(few.stdout).expect("UTF-8");
    assert_eq!(few.lines().count(), 1 + 20 + 9, "{few}");
    let unknown = house.expect(2, ["export", "last", "--to", "csv", "--keys", "los"]);
    assert!(words(&unknown.stderr).contains("no series has the key `los`"), "{}", words(&unknown.stderr));
    house.expect(0, ["export", "last", "--to", "tensorboard", "--attempt", "all", "--out", &at("attempts")]);
    assert_eq!(names(&out.join("attempts/tiny-1")), ["attempt-1", "attempt-2"]);

    let script = root().join("tests/data/exports_check.py");
    if !python().exists() {
        return skip(format_args!("there is no {}; `tests/run exports` makes it", python().display()));
    }
    let checked = Command::new(python()).arg(script).arg(out).output().expect("Python starts");
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(checked.status.success(), "{said}\n{}", String::from_utf8_lossy(&checked.stderr));
    assert_eq!(said.lines().count(), 7, "{said}");
}

/// After which a server that never closes a connection fails the test.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a server at `address` answers to `request` until it closes the connection.
fn answer(address: &str, request: &[u8], is_over: bool) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("it is open");
    // It may close while it is written to.
    drop(stream.write_all(request));
    if is_over {
        drop(stream.shutdown(Shutdown::Write));
    }
    let mut bytes = Vec::new();
    if let Err(error) = stream.read_to_end(&mut bytes) {
        assert_ne!(error.kind(), ErrorKind::WouldBlock, "the server keeps the connection: {error}");
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn the_page_for_prometheus_is_served_until_ctrl_c_and_not_to_everybody() {
    let house = house();
    let mut server = house
        .dtrain(["export", "last", "--to", "prometheus", "--listen", "127.0.0.1:0", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut said = String::new();
    let mut lines = BufReader::new(server.stdout.take().expect("a pipe"));
    while !said.ends_with("}\n") {
        assert_ne!(lines.read_line(&mut said).expect("UTF-8"), 0, "{said}");
    }
    let served: Value = serde_json::from_str(&said).expect("JSON");
    let address = served["listen"].as_str().expect("an address");
    let get = |request: String| answer(address, request.as_bytes(), false);
    let page = get(format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\n\r\n"));
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.contains("text/plain; version=0.0.4"), "{page}");
    assert!(page.contains("\ndtrain_trial_loss{trial=\"tiny-1\"} "), "{page}");
    assert!(page.contains("\ndtrain_trial_checkpoint_age_seconds{trial=\"tiny-1\"} "), "{page}");
    for (request, status) in [
        ("GET /metrics HTTP/1.1\r\nHost: example.com\r\n\r\n".to_owned(), "403"),
        ("GET /other HTTP/1.1\r\n\r\n".to_owned(), "404"),
        ("DELETE /metrics HTTP/1.1\r\n\r\n".to_owned(), "405"),
        ("nonsense\r\n\r\n".to_owned(), "400"),
        (format!("GET /metrics HTTP/1.1\r\nX: {}", "x".repeat(9 << 10)), "431"),
    ] {
        let answered = get(request);
        assert!(
            answered.starts_with(&format!("HTTP/1.1 {status} ")) || answered.is_empty(),
            "{status}: {answered}"
        );
        assert!(!answered.contains("dtrain_"), "{answered}");
    }
    // A client that sends nothing blocks no other client, and is disconnected.
    let silent: Vec<_> = (0..4).map(|_| TcpStream::connect(address).expect("it listens")).collect();
    assert!(get("GET /metrics HTTP/1.1\r\n\r\n".to_owned()).contains("dtrain_trial_step"));
    assert_eq!(answer(address, b"GET /metr", false), "");
    drop(silent);
    assert_eq!(answer(address, b"", true), "");

    kill_process(Pid::from_raw(server.id().cast_signed()).expect("a number"), Signal::INT).expect("it runs");
    assert_eq!(server.wait().expect("it ends").code(), Some(0));
}
