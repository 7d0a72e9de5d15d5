//! Every recipe key set to texts with a meaning for shells, option parsers, paths or terminals: each is
//! refused with its key and line, or passed on to a program that is shown here to treat it as plain text.

use super::trap::{ATTACKS, Trap};
use dtrain_recipes::keys::{Key, Kind, ValueType, keys};
use dtrain_recipes::{
    CheckContext, CheckedRecipe, ConfigLayer, Document, Host, Problem, Source, check, render_all,
    resolve_extends,
};
use dtrain_runner::transport::{OpenSsh, SshTarget, TransportError, User};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Keys through which an attack passes, and the test that follows it to where it ends. A key that is missing here must not pass one.
const PASSES: [(&str, &str); 20] = [
    ("description", "what_passes_the_check_does_nothing"),
    ("model.argv", "a_foreign_program_gets_its_arguments_as_they_were_written"),
    ("model.progress", "a_foreign_program_gets_its_arguments_as_they_were_written"),
    ("data.train", "data_may_be_called_anything (in data_keys.rs and emitted.rs)"),
    ("data.valid", "data_may_be_called_anything"),
    ("data.labels", "data_may_be_called_anything"),
    ("data.valid_labels", "data_may_be_called_anything"),
    ("data.target", "data_may_be_called_anything"),
    ("data.ignore", "data_may_be_called_anything"),
    ("data.field", "json_lines_may_have_any_field_and_separator"),
    ("data.separator", "json_lines_may_have_any_field_and_separator"),
    ("data.template", "a_chat_template_may_be_called_anything"),
    ("train.from", "weights_may_be_said_to_be_anywhere"),
    ("cluster.python", "an_interpreter_is_the_name_of_a_program_and_no_command"),
    ("cluster.notice.command", "exit_code_0_of_a_command_is_a_notice (in runner/src/agent/notice/tests.rs)"),
    ("cluster.notice.contains", "an_answer_counts_only_with_the_text_that_it_must_contain (there)"),
    ("cluster.workdir.exclude", "a_pattern_of_files_only_leaves_files_out"),
    ("cluster.slurm.options", "submitted.rs"),
    ("cluster.slurm.partition", "submitted.rs"),
    ("cluster.slurm.account", "submitted.rs"),
];

/// A recipe of each kind, in which the key at `path` may stand.
pub(super) fn base(kind: Kind, path: &str) -> toml::Table {
    let text = match kind {
        Kind::Mlp | Kind::Cnn if path.ends_with("labels") => {
            "[model]\nkind = 'mlp'\ninputs = 2\nhidden = [4]\nclasses = 2\n\
             [data]\ntrain = 'a.idx'\nlabels = 'b.idx'\nvalid = 'c.idx'\nvalid_labels = 'd.idx'"
        }
        Kind::Decoder if path == "data.field" => {
            "[model]\nkind = 'decoder'\nlayers = 1\nhidden = 8\nheads = 1\ncontext = 8\n[data]\ntrain = 'text.jsonl'"
        }
        Kind::Decoder if path == "data.template" => {
            "[model]\nkind = 'decoder'\nlayers = 1\nhidden = 8\nheads = 1\ncontext = 8\nvocab = 256\n\
             [data]\nformat = 'chat'\ntrain = 'chat.jsonl'\ntokenizer = 'tokenizer.json'"
        }
        Kind::Custom if path == "data.field" => {
            "[model]\nkind = 'custom'\nnetwork = 'mine'\ncontext = 8\n[data]\ntrain = 'text.jsonl'"
        }
        Kind::Decoder => {
            "[model]\nkind = 'decoder'\nlayers = 1\nhidden = 8\nheads = 1\ncontext = 8\n[data]\ntrain = 'text.txt'"
        }
        Kind::Mlp => {
            "[model]\nkind = 'mlp'\ninputs = 2\nhidden = [4]\nclasses = 2\n[data]\ntrain = 'table.csv'\ntarget = 'y'"
        }
        Kind::Cnn => {
            "[model]\nkind = 'cnn'\nchannels = 1\nheight = 4\nwidth = 4\nstages = [4]\nclasses = 2\n[data]\ntrain = 'table.csv'\ntarget = 'y'"
        }
        Kind::Custom
            if ["context", "vocab", "tokenizer", "separator"].iter().any(|key| path.contains(key)) =>
        {
            "[model]\nkind = 'custom'\nnetwork = 'mine'\ncontext = 8\n[data]\ntrain = 'text.txt'"
        }
        Kind::Custom if path.ends_with("labels") => {
            "[model]\nkind = 'custom'\nnetwork = 'mine'\ninputs = 2\nclasses = 2\n\
             [data]\ntrain = 'a.idx'\nlabels = 'b.idx'\nvalid = 'c.idx'\nvalid_labels = 'd.idx'"
        }
        Kind::Custom => {
            "[model]\nkind = 'custom'\nnetwork = 'mine'\ninputs = 2\nclasses = 2\n[data]\ntrain = 'table.csv'\ntarget = 'y'"
        }
        Kind::Command => "[model]\nkind = 'command'\nargv = ['true']",
    };
    format!("name = 'walk'\n{text}\n[objective]\nstop = {{ steps = 1 }}").parse().expect("TOML")
}

/// The recipe with `path` set to `value`, as text, and the line on which the key stands.
pub(super) fn with(kind: Kind, path: &str, value: toml::Value) -> (String, usize) {
    let mut recipe = base(kind, path);
    let (section, key) = path.rsplit_once('.').unwrap_or(("", path));
    if section == "cluster.hosts" {
        let mut host = toml::Table::from_iter([("address".to_owned(), "node1".into())]);
        host.insert(key.to_owned(), value);
        let cluster = [
            ("launcher".to_owned(), "ssh".into()),
            ("hosts".to_owned(), toml::Value::Array(vec![host.into()])),
        ];
        recipe.insert("cluster".to_owned(), toml::Table::from_iter(cluster).into());
    } else {
        if section == "cluster.slurm" {
            recipe.insert(
                "cluster".to_owned(),
                toml::Table::from_iter([("launcher".to_owned(), "slurm".into())]).into(),
            );
        }
        if path == "cluster.notice.contains" {
            let url = toml::Table::from_iter([("url".to_owned(), "http://127.0.0.1/notice".into())]);
            let notice = toml::Table::from_iter([("notice".to_owned(), url.into())]);
            recipe.insert("cluster".to_owned(), notice.into());
        }
        let mut table = &mut recipe;
        for part in section.split('.').filter(|part| !part.is_empty()) {
            let entry = table.entry(part).or_insert_with(|| toml::Table::new().into());
            if !entry.is_table() {
                *entry = toml::Table::new().into();
            }
            table = entry.as_table_mut().expect("it was just made one");
        }
        table.insert(key.to_owned(), value);
    }
    let text = toml::to_string(&recipe).expect("TOML");
    // A table is written below a header of its own.
    let at = |from: usize, wanted: &dyn Fn(&str) -> bool| {
        text.lines().skip(from).position(wanted).map(|at| from + at)
    };
    let own = at(0, &|line| line == format!("[{path}]"));
    let begin = at(0, &|line| [format!("[{section}]"), format!("[[{section}]]")].contains(&line.to_owned()))
        .unwrap_or(0);
    let line = own
        .or_else(|| at(begin, &|line| line.starts_with(&format!("{key} = "))))
        .expect("the key has a line")
        + 1;
    (text, line)
}

fn read(text: &str) -> Result<CheckedRecipe, Vec<Problem>> {
    let document = Document::parse(&Source::file(Path::new("recipe.toml"), ConfigLayer::Recipe, text))?;
    let nobody = |name: &str, _: &Source| Err(format!("no recipe is called {name:?}"));
    check(&resolve_extends(document, &nobody)?, &CheckContext::of_file(Path::new("recipe.toml")))
}

/// The attack as the one value, and as that of a list.
fn values(attack: &str) -> [toml::Value; 3] {
    let choices = toml::Table::from_iter([("choices".to_owned(), toml::Value::Array(vec![attack.into()]))]);
    [attack.into(), toml::Value::Array(vec![attack.into()]), choices.into()]
}

/// Refused: the message says which key and where, and no control character of it gets to a terminal.
fn is_refused_well(key: &Key, line: usize, problems: &[Problem], attack: &str) {
    let said = render_all(problems, false);
    let leaf = key.path.rsplit('.').next().expect("a path is not empty");
    assert!(said.contains(leaf), "{} = {attack:?} is refused without the key:\n{said}", key.path);
    assert!(
        // The value of a table stands on the line below its header.
        [line, line + 1].iter().any(|line| said.contains(&format!("recipe.toml:{line}:"))),
        "{} = {attack:?}: line {line} is not told:\n{said}",
        key.path
    );
    assert!(!said.contains(|c: char| c.is_control() && c != '\n'), "{}: {said:?}", key.path);
}

#[test]
fn every_key_refuses_an_attack_or_passes_it_to_one_who_is_tested() {
    let mut passed: BTreeMap<&str, usize> = BTreeMap::new();
    let mut refused = 0;
    for key in keys() {
        for (kind, attack) in key.kinds.iter().flat_map(|kind| ATTACKS.map(|attack| (*kind, attack))) {
            let long = (attack == ATTACKS[0]).then(|| values(&attack.repeat(4000)));
            for value in values(attack).into_iter().chain(long.into_iter().flatten()) {
                let (text, line) = with(kind, key.path, value);
                match read(&text) {
                    Ok(_) => *passed.entry(key.path).or_default() += 1,
                    Err(problems) => {
                        is_refused_well(key, line, &problems, attack);
                        refused += 1;
                    }
                }
            }
        }
    }
    let tested: Vec<&str> = PASSES.iter().map(|(path, _)| *path).collect();
    let untested: Vec<_> = passed.keys().filter(|path| !tested.contains(path)).collect();
    assert!(
        untested.is_empty(),
        "an attack passes the check in {untested:?}: refuse it there, or follow it to where it ends and name the test in PASSES"
    );
    println!("{} keys: {refused} values refused, passed on: {passed:?}", keys().len());
    let is_text = |key: &&Key| {
        matches!(key.shape, ValueType::Text | ValueType::Texts | ValueType::Files) && key.path != "extends"
    };
    let texts: Vec<_> =
        keys().iter().filter(is_text).map(|key| key.path).filter(|path| !passed.contains_key(path)).collect();
    assert!(texts.is_empty(), "these take any text, and the walk did not reach them: {texts:?}");
}

/// The attacks that pass are in the recipe all at once, and the real program looks at it.
#[test]
fn what_passes_the_check_does_nothing() {
    let trap = Trap::set();
    for (at, attack) in ATTACKS.iter().enumerate() {
        for kind in [Kind::Decoder, Kind::Mlp, Kind::Command] {
            let mut recipe = base(kind, "");
            for (path, _) in PASSES {
                let applies = keys().iter().any(|key| key.path == path && key.kinds.contains(&kind));
                let is_list = path.ends_with(['v', 's']) || path == "data.ignore";
                let value = if is_list { values(attack)[1].clone() } else { (*attack).into() };
                let (text, _) = with(kind, path, value);
                let is_section = ["slurm", "workdir", "notice"].iter().any(|name| path.contains(name));
                if applies && !is_section && read(&text).is_ok() {
                    let (section, key) = path.split_once('.').unwrap_or(("", path));
                    let said: toml::Table = text.parse().expect("TOML");
                    if section.is_empty() {
                        recipe.insert(key.to_owned(), said[key].clone());
                    } else {
                        recipe
                            .entry(section)
                            .or_insert_with(|| toml::Table::new().into())
                            .as_table_mut()
                            .expect("a section")
                            .insert(key.to_owned(), said[section][key].clone());
                    }
                }
            }
            let path = trap.house.file(&format!("{at}.toml"), toml::to_string(&recipe).expect("TOML"));
            let path = path.to_str().expect("UTF-8");
            trap.ends(trap.dtrain(["show", "--resolved", path]), &[0, 2]);
            if kind == Kind::Command {
                trap.ends(trap.dtrain(["check", path]), &[0]);
            }
        }
        let set = format!("description={attack}");
        if !attack.contains('\0') {
            trap.ends(trap.dtrain(["check", "library/tiny-llama", "--set", &set]), &[0, 2]);
            trap.ends(trap.dtrain(["check", attack]), &[0, 2]);
        }
    }
}

/// Hosts as a recipe, or a command line, names them: what is no plain name is refused before any program is run.
#[test]
fn no_host_user_or_bastion_is_an_option_or_a_command() {
    let trap = Trap::set();
    // A program `ssh` that tells what it was asked; it must not be asked anything.
    trap.program("ssh", "fire \"$@\"");
    let user =
        User { name: "me".into(), home: trap.folder(), config: Some(trap.house.file("ssh_config", "")) };
    let host = |address: &str, user: Option<&str>, via: Option<&str>| Host {
        address: address.into(),
        port: 22,
        user: user.map(str::to_owned),
        via: via.map(str::to_owned),
    };
    let is_name = |error: Option<TransportError>, what: &str| {
        assert!(matches!(error, Some(TransportError::Name(..))), "{what}: {error:?}");
    };
    for attack in ATTACKS {
        for host in [host(attack, None, None), host("h", Some(attack), None), host("h", None, Some(attack))] {
            is_name(OpenSsh::connect(&host, &user).err(), &format!("ssh: {host:?}"));
            is_name(SshTarget::resolve(&host, &user).err(), &format!("libssh2: {host:?}"));
        }
        is_name(SshTarget::parse(attack, &user).err(), attack);
        if !attack.contains('\0') {
            trap.ends(trap.dtrain(["doctor", "--", attack]), &[2, 4, 6]);
        }
        for key in ["address", "user", "via"] {
            let (text, _) = with(Kind::Command, &format!("cluster.hosts.{key}"), attack.into());
            let path = trap.house.file("hosts.toml", text);
            if read(&fs::read_to_string(&path).expect("just written")).is_ok() {
                trap.ends(trap.dtrain(["run", path.to_str().expect("UTF-8")]), &[2, 4, 6]);
            }
        }
    }
}

/// A command of a recipe runs without a shell: it gets exactly the bytes that were written.
#[test]
fn a_foreign_program_gets_its_arguments_as_they_were_written() {
    let trap = Trap::set();
    trap.program(
        "witness",
        "printf '%s\\0' \"$@\" >\"$DTRAIN_RUN_DIR/arguments\"\nenv -0 >\"$DTRAIN_RUN_DIR/variables\"\n\
         printf '%s\\n' \"$@\"\necho '{\"step\": 1, \"loss\": 0.5}' >&\"$DTRAIN_EVENTS_FD\"",
    );
    let arguments: Vec<&str> = ATTACKS.into_iter().filter(|attack| !attack.contains('\0')).collect();
    let argv = std::iter::once("witness").chain(arguments.iter().copied());
    let mut recipe = base(Kind::Command, "");
    let model = recipe["model"].as_table_mut().expect("a section");
    model.insert("argv".into(), argv.map(toml::Value::from).collect::<Vec<_>>().into());
    let env = arguments.iter().enumerate().map(|(at, word)| (format!("WITNESS_{at}"), (*word).into()));
    model.insert("env".into(), toml::Table::from_iter(env).into());
    model.insert("progress".into(), vec![toml::Value::from("step {step} loss {loss} $(fire)")].into());
    recipe.insert("description".into(), arguments.join(" ").into());
    let path = trap.house.file("recipe.toml", toml::to_string(&recipe).expect("TOML"));
    trap.ends(trap.dtrain(["run", path.to_str().expect("UTF-8")]), &[0]);
    let found = fs::read(trap.house.newest_trial().join("command/arguments")).expect("the witness wrote it");
    let expected: Vec<u8> = arguments.iter().flat_map(|word| [word.as_bytes(), b"\0"].concat()).collect();
    assert_eq!(String::from_utf8_lossy(&found), String::from_utf8_lossy(&expected));
    let found = fs::read(trap.house.newest_trial().join("command/variables")).expect("the witness wrote it");
    let found: Vec<_> = found.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    for (at, word) in arguments.iter().enumerate() {
        assert!(found.iter().any(|line| *line == format!("WITNESS_{at}={word}")), "{word:?}: {found:?}");
    }
    for words in
        [&["show", "last"][..], &["history"], &["show", "last", "--json"], &["compare", "last", "last"]]
    {
        trap.ends(trap.dtrain(words), &[0, 2]);
    }
}

/// The program of that name is asked for its packages, as it is, and there is none.
#[test]
fn an_interpreter_is_the_name_of_a_program_and_no_command() {
    let trap = Trap::set();
    trap.house.file("text.txt", "to be or not to be\n".repeat(40));
    for (at, attack) in ATTACKS.iter().enumerate().filter(|(_, attack)| !attack.contains('\0')) {
        let (text, _) = with(Kind::Decoder, "cluster.python", (*attack).into());
        let path = trap.house.file(&format!("{at}.toml"), text);
        let path = path.to_str().expect("UTF-8");
        let more = ["--engine=fsdp", "--set=objective.stop.steps=1", "--set=cluster.ranks=1"];
        trap.ends(trap.dtrain(["run", path, "--no-sample"].into_iter().chain(more)), &[4]);
    }
}

/// Weights in a folder of such a name, which is not there.
#[test]
fn weights_may_be_said_to_be_anywhere() {
    let trap = Trap::set();
    trap.house.file("text.txt", "to be or not to be\n".repeat(40));
    for (at, attack) in ATTACKS.iter().enumerate().filter(|(_, attack)| !attack.contains('\0')) {
        let (text, _) = with(Kind::Decoder, "train.from", (*attack).into());
        let path = trap.house.file(&format!("{at}.toml"), text);
        let path = path.to_str().expect("UTF-8");
        for command in ["check", "run"] {
            trap.ends(trap.dtrain([command, path]), &[2]);
        }
        trap.ends(trap.dtrain(["init", "new.toml", &format!("--from={attack}")]), &[2]);
    }
}
