//! Data that is downloaded: every recipe of the library trains on such data, and what goes wrong on the way is told or mended.

mod server;

use dtrain_protocol::InputManifest;
use dtrain_protocol::input_manifest::INPUTS;
use dtrain_recipes::library;
use dtrain_tests::{TestEnv, newest_checkpoint};
use server::{Asked, Manners, Server, gzip, sha256};
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

/// A decoder of the bytes at a URL.
const RECIPE: &str = r#"
[model]
kind = "decoder"
layers = 1
hidden = 16
heads = 2
context = 16

[data]
train = "URL"
valid = "10%"

[objective]
stop = { steps = 2 }
"#;

/// A tokenizer of five words.
const TOKENIZER: &str = r#"{
  "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null, "decoder": null,
  "added_tokens": [{ "id": 0, "content": "<|endoftext|>", "single_word": false, "lstrip": false, "rstrip": false,
                     "normalized": false, "special": true }],
  "pre_tokenizer": { "type": "Whitespace" },
  "model": { "type": "WordLevel", "unk_token": "?", "vocab": { "<|endoftext|>": 0, "?": 1, "one": 2, "two": 3, "three": 4 } }
}"#;

/// Variables that name a proxy, which a server on this machine is not reached through.
const PROXIES: [&str; 6] =
    ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];

/// A user without a proxy, whose downloads are below the house.
struct User(TestEnv);

impl User {
    fn new() -> Self {
        Self(TestEnv::default())
    }

    fn caches(&self) -> PathBuf {
        self.0.state().with_file_name("caches")
    }

    /// The files that were downloaded; locks left out.
    fn downloads(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.caches().join("dtrain/data")).into_iter().flatten();
        let paths = entries.map(|entry| entry.expect("an entry").path());
        paths.filter(|path| path.extension().is_none_or(|ending| ending != "lock")).collect()
    }

    fn dtrain(&self, arguments: &[&str]) -> Command {
        let mut command = self.0.dtrain(arguments);
        command.env("XDG_CACHE_HOME", self.caches());
        for name in PROXIES {
            command.env_remove(name);
        }
        command
    }

    /// Runs the program to its end, which must have this exit code.
    fn expect(&self, code: i32, arguments: &[&str]) -> Output {
        let output = self.dtrain(arguments).output().expect("it starts");
        assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{}", words(&output.stderr));
        output
    }

    /// What `dtrain data` says about the data at a URL, with this exit code.
    fn data(&self, code: i32, url: &str) -> Output {
        self.0.file("recipe.toml", RECIPE.replace("URL", url));
        self.expect(code, &["data", "recipe.toml"])
    }

    /// Starts the same.
    fn start(&self) -> Child {
        let mut command = self.dtrain(&["data", "recipe.toml"]);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts")
    }
}

fn words(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).split_whitespace().collect::<Vec<_>>().join(" ")
}

fn text() -> Vec<u8> {
    dtrain_tests::numbered_lines().into_bytes()
}

/// A file as MNIST's: the magic number, the dimensions, and bytes below ten.
fn idx(dimensions: &[u32]) -> Vec<u8> {
    let mut file = vec![0, 0, 8, u8::try_from(dimensions.len()).expect("few")];
    file.extend(dimensions.iter().flat_map(|size| size.to_be_bytes()));
    file.extend((0..dimensions.iter().product::<u32>()).map(|at| u8::try_from(at % 10).expect("below ten")));
    file
}

/// The files that recipes of the library are given in place of those of the net, in the same formats; JSON lines in
/// place of Parquet files.
fn files() -> Vec<(&'static str, Vec<u8>)> {
    let documents: String = (0..200)
        .map(|number| format!("{{\"text\": \"one two three {number} {}\"}}\n", "two ".repeat(20)))
        .collect();
    let columns: String = (0..8).map(|column| format!("x{column},")).collect();
    let rows: String =
        (0..100).map(|row| format!("{row},{},0.5,1,2,3,{},4,{}\n", row % 7, row % 3, row % 2)).collect();
    vec![
        ("input.txt", text()),
        ("documents.jsonl", documents.into_bytes()),
        ("tokenizer.json", TOKENIZER.into()),
        ("table.csv", format!("{columns}Outcome\n{rows}").into_bytes()),
        ("train-images-idx3-ubyte.gz", gzip(&idx(&[64, 28, 28]))),
        ("train-labels-idx1-ubyte.gz", gzip(&idx(&[64]))),
        ("t10k-images-idx3-ubyte.gz", gzip(&idx(&[16, 28, 28]))),
        ("t10k-labels-idx1-ubyte.gz", gzip(&idx(&[16]))),
    ]
}

/// What makes a recipe of the library small, and the keys of its data with the files that take the place of its own.
fn small(name: &str) -> (&'static [&'static str], &'static [(&'static str, &'static str)]) {
    const TEXT: &[(&str, &str)] = &[("data.train", "input.txt")];
    const DOCUMENTS: &[(&str, &str)] =
        &[("data.train", "documents.jsonl"), ("data.tokenizer", "tokenizer.json")];
    const GPT: &[&str] = &["model.layers=1", "model.hidden=32", "model.heads=2", "model.context=16"];
    const LLAMA: &[&str] = &[
        "model.layers=1",
        "model.hidden=32",
        "model.heads=4",
        "model.kv_heads=2",
        "model.ffn=64",
        "model.context=16",
    ];
    match name {
        "char-gpt" => (GPT, TEXT),
        "tiny-llama" => (LLAMA, TEXT),
        "gpt2-124m" => (GPT, DOCUMENTS),
        "llama-1b" => (LLAMA, DOCUMENTS),
        "tabular-mlp" => (&["model.hidden=[8]"], &[("data.train", "table.csv")]),
        "mnist-cnn" => (
            &["model.stages=[4]", "model.blocks=1"],
            &[
                ("data.train", "train-images-idx3-ubyte.gz"),
                ("data.labels", "train-labels-idx1-ubyte.gz"),
                ("data.valid", "t10k-images-idx3-ubyte.gz"),
                ("data.valid_labels", "t10k-labels-idx1-ubyte.gz"),
            ],
        ),
        other => panic!("library/{other} needs a small form here"),
    }
}

#[test]
fn every_recipe_of_the_library_names_data_that_is_downloaded_and_trains_on_such_data() {
    for name in library::names() {
        let text = library::builtin_recipe(name).expect("it is in the library").text;
        let (model, data) = small(name);
        for (key, _) in data {
            let key = key.trim_start_matches("data.");
            let line = text.lines().find(|line| line.starts_with(&format!("{key} = ")));
            let line = line.unwrap_or_else(|| panic!("library/{name} names no {key}"));
            assert!(line.contains("https://") || line.ends_with('['), "library/{name}: {line}");
        }
        trains(name, model, data);
    }
}

/// Trains a recipe of the library for some steps on files that it downloads, each once.
fn trains(name: &str, model: &[&str], data: &[(&str, &str)]) {
    let (user, server) = (User::new(), Server::new(files()));
    let recipe = format!("library/{name}");
    let mut settings: Vec<String> = model.iter().map(|set| (*set).to_owned()).collect();
    settings.extend(data.iter().map(|(key, file)| format!("{key}=[\"{}\"]", server.checked_url(file))));
    if let Some((key, file)) = data.iter().find(|(key, _)| *key == "data.tokenizer") {
        settings.retain(|set| !set.starts_with(key));
        settings.push(format!("{key}=\"{}\"", server.checked_url(file)));
        settings.push("model.vocab=64".into());
    }
    let training =
        ["train.batch=4", "train.learning_rate=0.001", "train.warmup=1", "objective.stop={ steps = 3 }"];
    settings.extend(training.map(str::to_owned));
    settings.extend(["cluster.ranks=1", "cluster.devices=\"cpu\""].map(str::to_owned));
    let mut arguments = vec!["run", recipe.as_str(), "--no-sample"];
    arguments.extend(settings.iter().flat_map(|set| ["--set", set.as_str()]));
    user.expect(0, &arguments);

    let asked: Vec<_> = server.asked().into_iter().map(|asked| asked.name).collect();
    assert_eq!(asked.len(), data.len(), "{name}: each file is downloaded once: {asked:?}");
    let (step, checkpoint) = newest_checkpoint(&user.0.newest_trial());
    assert_eq!(step.0, 3, "{name}");
    let inputs = fs::read(checkpoint.join(INPUTS)).expect("what it was trained on");
    let inputs: InputManifest = serde_json::from_slice(&inputs).expect("JSON");
    let mut names: Vec<_> = inputs.files.into_iter().map(|file| file.name).collect();
    let mut urls: Vec<_> = data.iter().map(|(_, file)| server.url(file)).collect();
    names.sort();
    urls.sort();
    assert_eq!(names, urls, "{name}: the inputs are named by their URLs");
}

#[test]
fn a_wrong_checksum_is_told_and_nothing_is_kept() {
    let (user, server) = (User::new(), Server::new([("a.txt", text())]));
    let wanted = "0".repeat(64);
    let output = user.data(2, &format!("{}#sha256={wanted}", server.url("a.txt")));
    let said = words(&output.stderr);
    for part in [
        format!("downloading {}: expected the sha256 {wanted}", server.url("a.txt")),
        format!("found {}", sha256(&text())),
        "correct the URL or the digits behind `#sha256=`".to_owned(),
    ] {
        assert!(said.contains(&part), "expected `{part}` in: {said}");
    }
    assert_eq!(user.downloads(), Vec::<PathBuf>::new());
    user.data(0, &server.checked_url("a.txt"));
}

#[test]
fn a_file_that_is_not_there_is_asked_for_once() {
    let (user, server) = (User::new(), Server::new([("a.txt", text())]));
    let said = words(&user.data(2, &server.url("b.txt")).stderr);
    let expected = format!(
        "downloading {}: expected the file, the server answered 404 Not Found; correct the URL",
        server.url("b.txt")
    );
    assert!(said.contains(&expected), "expected `{expected}` in: {said}");
    assert_eq!(server.asked(), [Asked { name: "b.txt".into(), begin: 0 }]);
}

#[test]
fn a_file_that_the_disk_has_no_room_for_is_refused_before_it_is_written() {
    let manners = Manners { announces: Some(1 << 60), ..Manners::default() };
    let (user, server) = (User::new(), Server::with([("a.txt", text())], manners));
    let said = words(&user.data(2, &server.url("a.txt")).stderr);
    for part in ["0 of 1152921504606846976 bytes are here", "has no room for the rest", "XDG_CACHE_HOME"] {
        assert!(said.contains(part), "expected `{part}` in: {said}");
    }
    assert_eq!((server.asked().len(), user.downloads()), (1, Vec::<PathBuf>::new()));
}

#[test]
fn a_broken_download_goes_on_where_it_broke_off() {
    let manners = Manners { breaks: AtomicUsize::new(2), ..Manners::default() };
    let (user, server) = (User::new(), Server::with([("a.txt", text())], manners));
    user.data(0, &server.checked_url("a.txt"));
    let begins: Vec<_> = server.asked().into_iter().map(|asked| asked.begin).collect();
    let (length, half) = (text().len(), text().len() / 2);
    assert_eq!(begins, [0, half, half + (length - half) / 2]);
    let files = user.downloads();
    assert_eq!(files.len(), 1, "{files:?}");
    assert_eq!(fs::read(&files[0]).expect("a file"), text());
}

#[test]
fn a_broken_download_begins_anew_where_the_server_sends_whole_files_only() {
    let manners = Manners { breaks: AtomicUsize::new(1), is_whole: true, ..Manners::default() };
    let (user, server) = (User::new(), Server::with([("a.txt", text())], manners));
    user.data(0, &server.url("a.txt"));
    assert_eq!(server.asked().len(), 2);
    assert_eq!(fs::read(&user.downloads()[0]).expect("a file"), text());
}

#[test]
fn two_processes_at_once_download_a_file_once() {
    let manners = Manners { is_closed: true, ..Manners::default() };
    let (user, server) = (User::new(), Server::with([("a.txt", text())], manners));
    user.0.file("recipe.toml", RECIPE.replace("URL", &server.checked_url("a.txt")));
    let mut first = user.start();
    wait(&mut first, |_| !server.asked().is_empty());
    let mut second = user.start();
    // It has the file of the lock open, which the first one holds.
    wait(&mut second, |child| {
        let open = fs::read_dir(format!("/proc/{}/fd", child.id())).into_iter().flatten().flatten();
        open.filter_map(|entry| fs::read_link(entry.path()).ok())
            .any(|path| path.starts_with(user.caches()) && path.extension().is_some_and(|end| end == "lock"))
    });
    server.open();
    for child in [first, second] {
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{}", words(&output.stderr));
    }
    assert_eq!(server.asked().len(), 1);
}

/// Waits until something is true of a program that runs.
fn wait(child: &mut Child, is_true: impl Fn(&Child) -> bool) {
    while !is_true(child) {
        assert!(child.try_wait().expect("it can be asked").is_none(), "it ended before");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_file_that_was_downloaded_is_used_when_the_server_is_gone() {
    let (user, server) = (User::new(), Server::new([("a.txt", text())]));
    let url = server.checked_url("a.txt");
    user.0.file("recipe.toml", RECIPE.replace("URL", &url));
    let foretold = format!("1 file will be downloaded from {}", server.host());
    let said = words(&user.expect(0, &["check", "recipe.toml"]).stderr);
    assert!(said.contains(&foretold), "expected `{foretold}` in: {said}");
    assert!(server.asked().is_empty(), "a check downloads nothing");

    let said = words(&user.data(0, &url).stderr);
    assert!(said.contains(&format!("downloading {}", server.url("a.txt"))), "{said}");
    drop(server);
    let output = user.expect(0, &["data", "recipe.toml", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let name = url.split('#').next().expect("an address");
    assert_eq!(report["files"][0]["name"].as_str(), Some(name), "{report}");
    let said = words(&user.expect(0, &["check", "recipe.toml"]).stderr);
    assert!(!said.contains("will be downloaded"), "{said}");
}
