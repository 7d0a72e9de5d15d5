//! The keys of `[data]`, and patterns of files, set to texts with a meaning for shells, paths or terminals: they end as plain text.

use super::injection::{base, with};
use super::trap::{ATTACKS, Trap};
use dtrain_recipes::keys::Kind;
use std::fs;

/// JSON lines whose field and separator have such names.
#[test]
fn json_lines_may_have_any_field_and_separator() {
    let trap = Trap::set();
    for (at, attack) in ATTACKS.iter().enumerate().filter(|(_, attack)| !attack.contains('\0')) {
        let line = serde_json::json!({ *attack: "some text that is long enough for a few samples" });
        trap.house.file(&format!("{at}.jsonl"), format!("{line}\n"));
        let mut recipe = base(Kind::Decoder, "data.field");
        let data = recipe["data"].as_table_mut().expect("a section");
        data.insert("train".into(), format!("{at}.jsonl").into());
        data.insert("field".into(), (*attack).into());
        data.insert("separator".into(), (*attack).into());
        let path = trap.house.file(&format!("{at}.toml"), toml::to_string(&recipe).expect("TOML"));
        trap.ends(trap.dtrain(["check", path.to_str().expect("UTF-8")]), &[0, 2]);
    }
}

/// A chat template in a file of such a name, which is not there.
#[test]
fn a_chat_template_may_be_called_anything() {
    let trap = Trap::set();
    trap.house.file("chat.jsonl", "{}\n");
    trap.house.file("tokenizer.json", "{}");
    for (at, attack) in ATTACKS.iter().enumerate().filter(|(_, attack)| !attack.contains('\0')) {
        let (text, _) = with(Kind::Decoder, "data.template", (*attack).into());
        let path = trap.house.file(&format!("{at}.toml"), text);
        trap.ends(trap.dtrain(["check", path.to_str().expect("UTF-8")]), &[0, 2]);
    }
}

/// A pattern matches the file of that name, or nothing; the folder is listed and nothing is sent.
#[test]
fn a_pattern_of_files_only_leaves_files_out() {
    let trap = Trap::set();
    for (at, attack) in ATTACKS.iter().enumerate() {
        let mut recipe = base(Kind::Command, "");
        let workdir = [("exclude".to_owned(), vec![toml::Value::from(*attack)].into())];
        let cluster = [
            ("launcher".to_owned(), "ssh".into()),
            ("hosts".to_owned(), vec![toml::Value::from("node1")].into()),
            ("workdir".to_owned(), toml::Table::from_iter(workdir).into()),
        ];
        recipe.insert("cluster".into(), toml::Table::from_iter(cluster).into());
        let path = trap.house.file(&format!("project/{at}.toml"), toml::to_string(&recipe).expect("TOML"));
        trap.ends(trap.dtrain(["check", path.to_str().expect("UTF-8")]), &[0, 2]);
    }
}

/// Training on files and a column with such names.
#[test]
fn data_may_be_called_anything() {
    let trap = Trap::set();
    for (at, attack) in
        ATTACKS.iter().enumerate().filter(|(_, attack)| !attack.contains(['\0', '\n', '\r', '"']))
    {
        let rows: String = (0..40).map(|n| format!("{n},{},{},no\n", n % 7, n % 2)).collect();
        let table = format!("a,b,{attack},x{attack}\n{rows}");
        let Some(file) = trap.hostile_file(&format!("{attack}{at}.csv"), &table) else { continue };
        let mut recipe = base(Kind::Mlp, "");
        let data = recipe["data"].as_table_mut().expect("a section");
        data.insert("train".into(), vec![toml::Value::from(file.as_str())].into());
        data.insert("target".into(), (*attack).into());
        data.insert("ignore".into(), vec![toml::Value::from(format!("x{attack}"))].into());
        recipe.insert("description".into(), (*attack).into());
        let path = trap
            .house
            .file(&format!("{at}{attack}.toml").replace('/', "_"), toml::to_string(&recipe).expect("TOML"));
        let path = path.to_str().expect("UTF-8");
        trap.ends(trap.dtrain(["check", path]), &[0, 2]);
        // One of them all the way: training takes a while.
        if attack.starts_with("' ; fire") {
            let page = trap.folder().join("page.html");
            let page = page.to_str().expect("UTF-8");
            trap.ends(
                trap.dtrain(["plan", path, "--html", page, "--set", "description=<script>fire</script>"]),
                &[0],
            );
            assert!(!fs::read_to_string(page).expect("it was written").contains("<script>fire"));
            trap.ends(trap.dtrain(["run", path]), &[0]);
            trap.ends(trap.dtrain(["show", "last"]), &[0]);
        }
    }
}
