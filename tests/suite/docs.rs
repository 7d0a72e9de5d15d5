//! Every command and every recipe of `README.md`, `CONTRIBUTING.md` and `docs/`, as a reader copies them.
//!
//! `CONTRIBUTING.md` explains how a page marks its blocks. Each page has one house, and its blocks are taken in order.

use crate::failures::sources;
use crate::fences::{Block, Kind, blocks, redirected};
use dtrain_tests::{TestEnv, numbered_lines, root};
use std::fs;
use std::process::{Command, Stdio};

/// The recipe that fragments are laid over.
const BASE: &str = r#"
[model]
kind = "decoder"
layers = 4
hidden = 64
heads = 4
context = 64

[data]
train = "corpus/*.txt"

[objective]
stop = { steps = 1000 }
"#;

/// Programs that a block of other programs' commands may call.
const OTHERS: [&str; 16] = [
    "apt-get",
    "cargo",
    "cli/packaging/static-build",
    "docker",
    "export",
    "git",
    "mkdir",
    "pip",
    "hf",
    "python3",
    "ssh",
    "tests/cuda-without-driver",
    "tests/gpu",
    "tests/measure",
    "tests/run",
    "tmux",
];

/// The pages of `docs/` in order, `README.md` and `CONTRIBUTING.md`.
fn pages() -> Vec<String> {
    let entries = fs::read_dir(root().join("docs")).expect("the folder of the pages");
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"));
    let mut pages: Vec<_> =
        names.filter(|name| name.ends_with(".md")).map(|name| format!("docs/{name}")).collect();
    pages.sort();
    pages.extend(["README.md", "CONTRIBUTING.md"].map(str::to_owned));
    pages
}

/// A PNG of one grey pixel.
const PNG: &[u8] =
    b"\x89\x50\x4e\x47\x0d\x0a\x1a\x0a\x00\x00\x00\x0d\x49\x48\x44\x52\x00\x00\x00\x01\x00\x00\x00\x01\
    \x08\x00\x00\x00\x00\x3a\x7e\x9b\x55\x00\x00\x00\x0a\x49\x44\x41\x54\x78\x9c\x63\x68\x00\x00\x00\
    \x82\x00\x81\x77\xcd\x72\xb6\x00\x00\x00\x00\x49\x45\x4e\x44\xae\x42\x60\x82";

/// A house with the examples, with [`BASE`], and with the data that recipes of the pages name.
fn house() -> TestEnv {
    let house = TestEnv::default();
    house.file("base.toml", BASE);
    house.file("corpus/one.txt", numbered_lines());
    for (name, token) in [("tokens/train.bin", 1), ("tokens/valid.bin", 2)] {
        house.file(name, [token, 0].repeat(4096));
    }
    house.file("images.idx", idx(&[100, 28, 28]));
    house.file("labels.idx", idx(&[100]));
    for number in 0..20 {
        house.file(&format!("photos/{}/{number}.png", ["cat", "dog"][number % 2]), PNG);
    }
    let rows = (0..100).map(|row| format!("{row},{},0.5,1,{}\n", row % 7, row % 3));
    house.file("measurements.csv", format!("a,b,c,d,class\n{}", rows.collect::<String>()));
    let examples = house.state().with_file_name("examples");
    std::os::unix::fs::symlink(root().join("examples"), examples).expect("a link to the examples");
    house
}

/// A file as MNIST's, of these dimensions and full of zeros.
fn idx(dimensions: &[u32]) -> Vec<u8> {
    let mut file = vec![0, 0, 8, u8::try_from(dimensions.len()).expect("few")];
    file.extend(dimensions.iter().flat_map(|size| size.to_be_bytes()));
    file.resize(file.len() + dimensions.iter().product::<u32>() as usize, 0);
    file
}

/// What was done with the blocks of pages.
#[derive(Debug, Default)]
struct Done {
    run: usize,
    parsed: usize,
    recipes: usize,
}

/// Follows a page from the top.
fn follow(page: &str, done: &mut Done) {
    let house = house();
    for block in blocks(page) {
        match block.kind() {
            Kind::Run { exit } => {
                for command in block.commands() {
                    run(&house, &block, command, exit);
                    done.run += 1;
                }
            }
            Kind::Parsed => {
                for command in block.commands() {
                    parse(&house, &block, command);
                    done.parsed += 1;
                }
            }
            Kind::Other => only_others(&block),
            Kind::Shown { language, file } => {
                if let Some(file) = file {
                    house.file(file, &block.text);
                }
                if language == "toml" {
                    accept(&house, &block);
                    done.recipes += 1;
                }
            }
        }
    }
}

/// Runs a command, with a training of a recipe cut to five steps; its `> FILE` is written.
fn run(house: &TestEnv, block: &Block, command: Vec<String>, exit: Option<i32>) {
    let (mut command, file) = redirected(command);
    let names_a_recipe = |word: &String| word.ends_with(".toml") || word.starts_with("library/");
    if command[0] == "run" && command.get(1).is_some_and(names_a_recipe) {
        command.extend(["--set", "objective.stop={ steps = 5 }"].map(str::to_owned));
    }
    let output = expect(&mut house.dtrain(&command), block, exit.unwrap_or(0));
    if let Some(file) = file {
        house.file(&file, output);
    }
}

/// Parses the arguments of a command: clap reads them all before it meets `--help`.
fn parse(house: &TestEnv, block: &Block, command: Vec<String>) {
    let (command, _) = redirected(command);
    expect(house.dtrain(command).arg("--help"), block, 0);
}

/// Checks a recipe, or a fragment laid over [`BASE`].
fn accept(house: &TestEnv, block: &Block) {
    let table: toml::Table = block.text.parse().unwrap_or_else(|error| panic!("{}: {error}", block.place));
    let kind = table.get("model").and_then(|model| model.get("kind"));
    let is_whole = kind.is_some() || table.contains_key("extends");
    let head = if is_whole { "" } else { "extends = \"base.toml\"\n" };
    house.file("checked.toml", format!("{head}{}", block.text));
    let mut command = house.dtrain(["check", "checked.toml"]);
    if block.text.contains("workdir") {
        // The link to the examples leads out of the house, and would be refused.
        command.args(["--set", "cluster.workdir.exclude=['examples']"]);
    }
    expect(&mut command, block, 0);
}

/// Standard output of a command; panics with what it printed when it does not end with `code`.
fn expect(command: &mut Command, block: &Block, code: i32) -> Vec<u8> {
    let output = command.stdin(Stdio::null()).output().expect("the program starts");
    let [out, error] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert_eq!(output.status.code(), Some(code), "{}: {command:?}\n{out}\n{error}", block.place);
    output.stdout
}

/// Asserts that a block calls known programs only, and not dtrain.
fn only_others(block: &Block) {
    for line in block.lines() {
        let program = line[0].as_str();
        assert!(OTHERS.contains(&program), "{}: `{program}` is none of {OTHERS:?}", block.place);
    }
}

#[test]
fn every_command_and_recipe_of_the_pages_works() {
    let mut done = Done::default();
    for page in pages() {
        follow(&page, &mut done);
    }
    println!("{done:?}");
    assert!(done.run >= 50 && done.parsed >= 20 && done.recipes >= 15, "blocks were lost: {done:?}");
}

/// What [`parse`] relies on.
#[test]
fn wrong_arguments_before_help_are_found() {
    let house = TestEnv::default();
    house.expect(0, ["plan", "recipe.toml", "--top", "3", "--help"]);
    house.expect(2, ["plan", "recipe.toml", "--tops", "3", "--help"]);
    house.expect(2, ["plan", "recipe.toml", "--top", "three", "--help"]);
    house.expect(2, ["plan", "recipe.toml", "another.toml", "--help"]);
    house.expect(2, ["plam", "recipe.toml", "--help"]);
}

#[test]
fn the_index_lists_every_page() {
    let index = fs::read_to_string(root().join("docs/README.md")).expect("an index");
    let names = pages().into_iter().filter_map(|page| page.strip_prefix("docs/").map(str::to_owned));
    let missing: Vec<_> =
        names.filter(|name| name != "README.md" && !index.contains(&format!("]({name})"))).collect();
    assert!(missing.is_empty(), "docs/README.md does not link to {missing:?}");
}

#[test]
fn the_page_of_keys_is_what_the_program_prints() {
    let printed = TestEnv::default().expect(0, ["recipe", "keys"]).stdout;
    let printed = String::from_utf8(printed).expect("text");
    let page = blocks("docs/recipe-keys.md");
    let [block] = &page[..] else { panic!("one block with the keys") };
    // As snapshots are.
    if std::env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
        let path = root().join("docs/recipe-keys.md");
        let text = fs::read_to_string(&path).expect("the page").replacen(&block.text, &printed, 1);
        fs::write(&path, text).expect("the page can be written");
    }
    let page = blocks("docs/recipe-keys.md");
    assert!(
        page[0].text == printed,
        "docs/recipe-keys.md is old; `INSTA_UPDATE=always tests/run the_page_of_keys` writes it"
    );
}

/// A message that is worded anew would not be found by those who search the page for it.
#[test]
fn every_message_of_when_it_fails_is_printed_by_the_program() {
    let page = fs::read_to_string(root().join("docs/when-it-fails.md")).expect("the page");
    let (_, table) = page.split_once("## By message").expect("a table of messages");
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let messages: Vec<&str> = rows.collect();
    assert!(messages.len() >= 10, "rows were lost: {messages:?}");
    let mut text = String::new();
    for name in ["cli", "planner", "protocol", "recipes", "runner", "worker"] {
        sources(&root().join(name).join("src"), &mut text);
    }
    let unknown: Vec<_> = messages.iter().filter(|message| !text.contains(**message)).collect();
    assert!(unknown.is_empty(), "docs/when-it-fails.md quotes what is not in the sources: {unknown:#?}");
}

#[test]
fn the_exit_codes_of_the_pages_are_those_of_the_help() {
    let help = TestEnv::default().expect(0, ["--help"]).stdout;
    let help = String::from_utf8(help).expect("text");
    let (_, table) = help.split_once("Exit codes:\n").expect("`--help` lists them");
    let first_word = |line: &str| line.split_whitespace().next()?.parse::<u8>().ok();
    let codes: Vec<u8> = table.lines().map_while(first_word).collect();
    let page = fs::read_to_string(root().join("docs/commands.md")).expect("the page");
    let (_, page) = page.split_once("## Exit codes").expect("a table of exit codes");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(' ').next()?.parse().ok());
    assert_eq!(rows.collect::<Vec<u8>>(), codes);
    let advice = fs::read_to_string(root().join("docs/when-it-fails.md")).expect("the page");
    let headings: Vec<&str> = advice.lines().filter(|line| line.starts_with("### ")).collect();
    let told = |code: u8| headings.iter().any(|line| line.starts_with(&format!("### {code}: ")));
    let missing: Vec<_> = codes.iter().filter(|code| **code != 0 && !told(**code)).collect();
    assert!(missing.is_empty(), "docs/when-it-fails.md says nothing about {missing:?}");
}
