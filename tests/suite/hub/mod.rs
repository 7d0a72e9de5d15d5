//! Models by their names on a Hugging Face Hub, which a server on this machine stands for.

mod chat;
mod server;

use crate::interop::{fixture, tokens};
use dtrain_runner::ledger::History;
use dtrain_runner::ledger::TrialActivity;
use dtrain_tests::TestEnv;
use server::{Hub, Manners};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

const FIRST: &str = "060db6499f32faf8b98477b0a26969ef7d8b9987";
const SECOND: &str = "160db6499f32faf8b98477b0a26969ef7d8b9987";
const TOKEN: &str = "hf_hunter2hunter2hunter2";

/// Variables that lead elsewhere than to a server on this machine.
const REMOVED: [&str; 11] = [
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "ALL_PROXY",
    "all_proxy",
    "HF_TOKEN",
    "HF_TOKEN_PATH",
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "HF_ENDPOINT",
];

/// The files of a model, as a fixture has them.
fn files(name: &str) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(fixture(name)).expect("a folder").map(|entry| entry.expect("an entry").path());
    let named = |path: PathBuf| path.file_name().expect("a name").to_string_lossy().into_owned();
    entries.map(|path| (named(path.clone()), fs::read(path).expect("a file"))).collect()
}

/// The llama of the fixtures, in several files of weights.
fn hub(manners: Manners) -> Hub {
    Hub::new(FIRST, files("llama"), manners)
}

/// A user whose caches are below the house.
struct User(TestEnv);

impl User {
    fn new() -> Self {
        let house = TestEnv::default();
        house.file("tokens.bin", tokens());
        Self(house)
    }

    fn caches(&self) -> PathBuf {
        self.0.state().with_file_name("caches")
    }

    /// The folder of a commit.
    fn folder(&self, commit: &str) -> PathBuf {
        self.caches().join("dtrain/hub/Org--Tiny").join(commit)
    }

    fn dtrain(&self, endpoint: &str, arguments: &[&str]) -> Command {
        let mut command = self.0.dtrain(arguments);
        for name in REMOVED {
            command.env_remove(name);
        }
        command.env("XDG_CACHE_HOME", self.caches()).env("HF_ENDPOINT", endpoint);
        command
    }

    /// Runs the program to its end, which must have this exit code; returns what it printed on standard error.
    fn expect(&self, code: i32, hub: &Hub, arguments: &[&str]) -> String {
        expect(code, &mut self.dtrain(&hub.url(), arguments))
    }

    /// Writes a recipe for the model of this name.
    fn init(&self, code: i32, hub: &Hub, name: &str) -> String {
        self.expect(code, hub, &["init", "tiny.toml", "--from", name, "--data", "tokens.bin"])
    }

    fn recipe(&self) -> String {
        fs::read_to_string(self.0.path().join("tiny.toml")).expect("a recipe")
    }

    /// What the newest trial began with.
    fn model(&self) -> Option<String> {
        let history = History::open_read_only(&self.0.history()).expect("a history");
        let id = history.find("last").expect("a trial");
        let trial = history.trial(&id, &|_| TrialActivity::None).expect("a trial");
        assert!(!format!("{:?}", trial.provenance).contains(TOKEN), "a token is recorded nowhere");
        trial.provenance.environment.get("weights.model").cloned()
    }
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).split_whitespace().collect::<Vec<_>>().join(" ")
}

fn expect(code: i32, command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    let words = words(&output);
    assert_eq!(output.status.code(), Some(code), "{command:?}\n{words}");
    assert!(!words.contains(TOKEN), "{words}");
    words
}

const RUN: [&str; 9] = [
    "run",
    "tiny.toml",
    "--no-sample",
    "--set",
    "objective.stop={ steps = 1 }",
    "--set",
    "data.valid=tokens.bin",
    "--set",
    "train.batch=8",
];

#[test]
fn a_model_by_its_name_is_pinned_and_then_needs_no_network() {
    let user = User::new();
    let hub = hub(Manners::default());
    let url = hub.url();
    user.init(0, &hub, "hf:Org/Tiny");
    assert!(user.recipe().contains(&format!("from = \"hf:Org/Tiny@{FIRST}\"")), "{}", user.recipe());
    for (name, content) in files("llama").iter().filter(|(name, _)| *name != "logits.json") {
        assert_eq!(&fs::read(user.folder(FIRST).join(name)).expect("downloaded"), content, "{name}");
    }
    assert!(!user.folder(FIRST).join("logits.json").exists(), "only what is read is taken");
    drop(hub);
    let mut run = user.dtrain(&url, &RUN);
    expect(0, &mut run);
    assert_eq!(user.model(), Some(format!("hf:Org/Tiny@{FIRST}")));
    let said = expect(0, &mut user.dtrain(&url, &["check", "tiny.toml"]));
    assert!(said.contains("is pinned to its commit; it is on this host"), "{said}");
    let shown = user.dtrain(&url, &["show", "last"]).output().expect("it starts");
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains(&format!("begins with the weights of hf:Org/Tiny@{FIRST}")), "{shown}");
    // A name without a commit is not guessed, unless that is asked for.
    let name = ["init", "other.toml", "--from", "hf:Org/Tiny"];
    let said = expect(6, &mut user.dtrain(&url, &name));
    assert!(
        said.contains("cannot reach the Hugging Face Hub") && said.contains(&format!("hf:Org/Tiny@{FIRST}")),
        "{said}"
    );
    expect(0, user.dtrain(&url, &name).env("HF_HUB_OFFLINE", "1"));
    let never = ["init", "never.toml", "--from", "hf:Org/Other"];
    let said = expect(2, user.dtrain(&url, &never).env("HF_HUB_OFFLINE", "1"));
    assert!(said.contains("HF_HUB_OFFLINE forbids"), "{said}");
}

#[test]
fn a_name_without_hf_is_a_model_unless_there_is_such_a_folder() {
    let user = User::new();
    let hub = hub(Manners::default());
    user.init(0, &hub, "Org/Tiny");
    assert!(user.recipe().contains("hf:Org/Tiny@"));
    let said = user.expect(2, &hub, &["init", "new.toml", "--from", "No-Org/Tiny"]);
    assert!(said.contains("there is no model") && said.contains("there is no folder No-Org/Tiny"), "{said}");
    let asked = hub.asked().len();
    for (name, content) in files("llama") {
        user.0.file(&format!("Org/Tiny/{name}"), content);
    }
    user.expect(0, &hub, &["init", "folder.toml", "--from", "Org/Tiny"]);
    let said = user.expect(2, &hub, &["init", "new.toml", "--from", "./No-Org/Tiny"]);
    assert!(said.contains("there is no folder"), "{said}");
    assert_eq!(hub.asked().len(), asked);
}

#[test]
fn a_broken_download_goes_on_where_it_ended() {
    let user = User::new();
    let hub = hub(Manners { breaks: Some("model-00001-of-00003.safetensors"), ..Manners::default() });
    user.init(0, &hub, "hf:Org/Tiny");
    let asked = hub.asked();
    let begun = asked.iter().filter(|asked| asked.path.ends_with("model-00001-of-00003.safetensors"));
    let begun: Vec<usize> = begun.map(|asked| asked.begin).collect();
    assert!(begun.len() == 2 && begun[0] == 0 && begun[1] > 0, "{begun:?}");
}

#[test]
fn a_file_with_another_digest_is_told_and_removed() {
    let user = User::new();
    for name in ["model-00002-of-00003.safetensors", "config.json"] {
        let hub = hub(Manners { changes: Some(name), ..Manners::default() });
        let said = user.init(2, &hub, "hf:Org/Tiny");
        let kind = if name == "config.json" { "git blob sha1" } else { "sha256" };
        assert!(
            said.contains(name) && said.contains(&format!("expected the {kind} ")) && said.contains("found"),
            "{said}"
        );
        assert!(
            !user.folder(FIRST).join(name).exists()
                && !user.folder(FIRST).join(format!("{name}.part")).exists()
        );
        // A later command downloads what is missing.
        fs::remove_dir_all(user.caches()).expect("removed");
    }
}

#[test]
fn a_model_with_conditions_needs_a_token_which_goes_to_no_other_server() {
    let user = User::new();
    let store = Hub::new(FIRST, files("llama"), Manners::default());
    let manners = Manners { token: Some(TOKEN), redirects: Some(store.url()), ..Manners::default() };
    let hub = hub(manners);
    let said = user.init(2, &hub, "hf:Org/Tiny");
    assert!(said.contains("no token was sent") && said.contains("HF_TOKEN"), "{said}");
    assert!(said.contains(&format!("accepted the conditions at {}/Org/Tiny", hub.url())), "{said}");
    let arguments = ["init", "tiny.toml", "--from", "hf:Org/Tiny", "--data", "tokens.bin"];
    let said = expect(2, user.dtrain(&hub.url(), &arguments).env("HF_TOKEN", "hf_other"));
    assert!(said.contains("the token has no access"), "{said}");
    expect(0, user.dtrain(&hub.url(), &arguments).env("HF_TOKEN", TOKEN));
    assert!(!store.asked().is_empty() && store.asked().iter().all(|asked| asked.token.is_none()));
    assert!(hub.asked().iter().filter(|asked| asked.token.as_deref() == Some(TOKEN)).count() > 3);
    expect(0, &mut user.dtrain(&hub.url(), &RUN));
    assert!(user.model().is_some());
}

#[test]
fn a_branch_that_moved_is_told_and_changes_no_pinned_recipe() {
    let user = User::new();
    let hub = hub(Manners::default());
    user.init(0, &hub, "hf:Org/Tiny");
    hub.moves(SECOND);
    let said = user.expect(0, &hub, &RUN);
    assert!(!said.contains("moved"), "{said}");
    assert_eq!(user.model(), Some(format!("hf:Org/Tiny@{FIRST}")));
    let from: Vec<&str> = RUN.into_iter().chain(["--from", "hf:Org/Tiny"]).collect();
    let said = user.expect(0, &hub, &from);
    assert!(said.contains("main has moved past the commit of the recipe") && said.contains(SECOND), "{said}");
    assert_eq!(user.model(), Some(format!("hf:Org/Tiny@{SECOND}")));
    // A recipe without a commit is told so.
    let text = user.recipe().replace(&format!("Tiny@{FIRST}"), "Tiny");
    user.0.file("tiny.toml", text);
    let said = user.expect(0, &hub, &["check", "tiny.toml"]);
    assert!(said.contains("is not pinned to a commit"), "{said}");
    let said = user.expect(0, &hub, &RUN);
    assert!(said.contains(&format!("hf:Org/Tiny is now hf:Org/Tiny@{SECOND}")), "{said}");
}

#[test]
fn what_is_no_model_is_refused_with_what_to_do() {
    let user = User::new();
    let mut outside = files("llama");
    let index = String::from_utf8(outside["model.safetensors.index.json"].clone()).expect("UTF-8");
    let index = index.replace("model-00001-of-00003.safetensors", "../../model-00001.safetensors");
    outside.insert("model.safetensors.index.json".to_owned(), index.into_bytes());
    let bin = BTreeMap::from([
        ("config.json".to_owned(), files("llama")["config.json"].clone()),
        ("pytorch_model.bin".to_owned(), vec![1, 2, 3]),
    ]);
    for (files, part) in [
        (outside, "found \"../../model-00001.safetensors\""),
        (bin, "found pytorch_model.bin"),
        (BTreeMap::new(), "has no file config.json"),
    ] {
        let hub = Hub::new(FIRST, files, Manners::default());
        let said = user.init(2, &hub, "hf:Org/Tiny");
        assert!(said.contains(part) && said.contains("hint:"), "{said}");
        assert!(!user.caches().join("dtrain/model-00001.safetensors").exists());
        fs::remove_dir_all(user.caches()).expect("removed");
    }
    let hub = hub(Manners { is_page: true, ..Manners::default() });
    let said = user.init(2, &hub, "hf:Org/Tiny");
    assert!(said.contains("expected the description of a model in JSON"), "{said}");
    let said = user.init(2, &hub, "hf:Tiny");
    assert!(said.contains("expected hf:ORG/NAME"), "{said}");
    let hub = self::hub(Manners::default());
    let said = user.init(2, &hub, "hf:Org/Tiny@v9");
    assert!(said.contains("no branch, tag or commit \"v9\""), "{said}");
}
