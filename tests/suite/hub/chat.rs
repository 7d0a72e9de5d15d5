//! Conversations for a model of a Hub: its tokenizer, its special tokens and its template come along.

use super::{FIRST, Hub, Manners, RUN, User, expect};
use crate::chat;
use dtrain_tests::TestEnv;
use std::collections::BTreeMap;
use std::fs;

/// The files of a small model with a tokenizer, whose configuration has the chat template, and conversations for it.
fn files() -> BTreeMap<String, Vec<u8>> {
    let house = TestEnv::default();
    let recipe = chat::recipe(&house, "packing = false");
    let more =
        ["--set", "train.batch=8", "--set", "cluster.ranks=1", "--set", "objective.stop={ steps = 2 }"];
    chat::losses(&house, &recipe, &more);
    house.expect(0, ["model", "export", "last", "--to", "hf", "--out", "model"]);
    let home = house.state().parent().expect("the house").to_owned();
    let mut files = BTreeMap::new();
    for folder in ["model", "tokenizer"] {
        for entry in fs::read_dir(home.join(folder)).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            files.insert(name, fs::read(path).expect("a file"));
        }
    }
    let template = files.remove("chat_template.jinja").expect("a template");
    let config = files.get_mut("tokenizer_config.json").expect("a configuration");
    let mut written: serde_json::Value = serde_json::from_slice(config).expect("JSON");
    written["chat_template"] = String::from_utf8(template).expect("UTF-8").into();
    *config = written.to_string().into_bytes();
    files.insert("chats.jsonl".to_owned(), fs::read(home.join("chats.jsonl")).expect("it is there"));
    files
}

#[test]
fn a_model_of_the_hub_brings_its_template_to_every_host() {
    let mut files = files();
    let user = User::new();
    user.0.file("chats.jsonl", files.remove("chats.jsonl").expect("it is there"));
    let hub = Hub::new(FIRST, files, Manners::default());
    let url = hub.url();
    let init = ["init", "tiny.toml", "--from", "hf:Org/Tiny", "--data", "chats.jsonl"];
    user.expect(0, &hub, &init);
    assert!(user.recipe().contains("format = \"chat\""), "{}", user.recipe());
    let run = RUN.map(|word| match word {
        "data.valid=tokens.bin" => "data.valid=chats.jsonl",
        "train.batch=8" => "train.batch=1",
        word => word,
    });
    // The host on which `init` ran has all.
    let asked = hub.asked().len();
    user.expect(0, &hub, &run);
    let found = hub.asked();
    let found: Vec<_> = found[asked..].iter().map(|asked| &asked.path).collect();
    assert!(!found.iter().any(|path| path.contains("token") || path.contains("template")), "{found:?}");
    // Another host downloads what lies beside the tokenizer, once; there is no file of a template.
    fs::remove_dir_all(user.caches().join("dtrain/data")).expect("removed");
    user.expect(0, &hub, &run);
    let found: Vec<_> = hub.asked().split_off(asked).into_iter().map(|asked| asked.path).collect();
    for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
        assert!(found.iter().any(|path| path.ends_with(name)), "{name}: {found:?}");
    }
    drop(hub);
    expect(0, &mut user.dtrain(&url, &run));
}
