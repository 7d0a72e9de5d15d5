//! Every `cargo …` line of the documents does what a reader expects in a fresh clone.
//!
//! No test builds with cargo: it would replace the program that the other tests start. `.ci/run` runs the first command of
//! `README.md` as it stands. Here each other line is checked by what cargo says without a build: which program `cargo run`
//! would start, and whether packages, features and benches exist.

use crate::fences::{blocks, words};
use dtrain_tests::root;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// The documents with commands for a clone of this repository.
fn documents() -> Vec<String> {
    let mut found =
        vec!["README.md".to_owned(), "CONTRIBUTING.md".to_owned(), "tests/fuzz/README.md".to_owned()];
    for folder in ["docs", "examples"] {
        markdown(&root().join(folder), &mut found);
    }
    found.sort();
    found
}

/// Adds the Markdown files below a folder.
fn markdown(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("a folder of documents") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            markdown(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "md") {
            let path = path.strip_prefix(root()).expect("below the root");
            found.push(path.to_str().expect("UTF-8").to_owned());
        }
    }
}

/// The `cargo …` lines of a document: those of fenced blocks, and those between backticks. Each with the document.
fn cargo_lines(document: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(root().join(document)).expect("a document");
    let fenced = blocks(document)
        .into_iter()
        .flat_map(|block| block.text.lines().map(str::trim).map(str::to_owned).collect::<Vec<_>>());
    // A line of prose may be wrapped inside a command.
    let prose: String = text.split("```").step_by(2).collect::<Vec<_>>().join("").replace('\n', " ");
    let inline = prose.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    fenced.chain(inline).filter(|line| line.starts_with("cargo ")).collect()
}

/// What cargo answers without building anything.
fn cargo(arguments: &[&str]) -> Output {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    Command::new(cargo).args(arguments).current_dir(root()).output().expect("cargo starts")
}

fn metadata() -> Value {
    let output = cargo(&["metadata", "--format-version", "1", "--no-deps", "--offline"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Names of the targets of a kind in a package.
fn targets<'m>(package: &'m Value, kind: &str) -> Vec<&'m str> {
    let all = package["targets"].as_array().expect("targets").iter();
    let of_kind =
        all.filter(|target| target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|k| k == kind)));
    of_kind.map(|target| target["name"].as_str().expect("a name")).collect()
}

/// The programs that `cargo run` can choose from: of package `named`, or else of the default members.
fn programs<'m>(metadata: &'m Value, named: Option<&str>) -> Vec<&'m str> {
    let defaults = metadata["workspace_default_members"].as_array().expect("default members");
    let packages = metadata["packages"].as_array().expect("packages").iter();
    let chosen = packages.filter(|package| match named {
        Some(name) => package["name"] == name,
        None => defaults.contains(&package["id"]),
    });
    chosen.flat_map(|package| targets(package, "bin")).collect()
}

/// The word after an option, as `-p NAME` has it.
fn option<'l>(line: &'l [String], names: &[&str]) -> Option<&'l str> {
    let at = line.iter().position(|word| names.contains(&word.as_str()))?;
    line.get(at + 1).map(String::as_str)
}

/// Checks one line; what is wrong with it where something is.
fn check(metadata: &Value, line: &str) -> Result<(), String> {
    let line = words(line);
    let own: Vec<String> = line.iter().take_while(|word| *word != "--").cloned().collect();
    match own.get(1).map(String::as_str) {
        Some("run") => match programs(metadata, option(&own, &["-p", "--package"]))[..] {
            [_] => Ok(()),
            ref several => Err(format!("cargo could choose from {several:?}")),
        },
        Some("build" | "install" | "check") => tree(&own),
        Some("uninstall") => {
            let mut packages = metadata["packages"].as_array().expect("packages").iter();
            let is_known = packages.any(|package| {
                Some(package["name"].as_str().expect("a name")) == own.get(2).map(String::as_str)
            });
            if is_known { Ok(()) } else { Err("there is no such package".to_owned()) }
        }
        Some("bench") => {
            if !own.iter().any(|word| word == "--workspace") {
                return Err("without --workspace it takes only the default member".to_owned());
            }
            let packages = metadata["packages"].as_array().expect("packages").iter();
            let benches: Vec<_> = packages.flat_map(|package| targets(package, "bench")).collect();
            let bench = option(&own, &["--bench"]);
            // `NAME` stands for any of them.
            let is_known = bench.is_none_or(|bench| bench == "NAME" || benches.contains(&bench));
            if is_known { Ok(()) } else { Err(format!("{bench:?} is none of {benches:?}")) }
        }
        Some("test") if !own.iter().any(|word| word == "--workspace" || word == "-p") => {
            Err("without --workspace it takes only the default member".to_owned())
        }
        // Of a workspace of its own, with a toolchain that a fresh machine lacks.
        Some("+nightly" | "test") => Ok(()),
        _ => Err("this kind of line is not checked".to_owned()),
    }
}

/// Whether packages and features of a build exist: `cargo tree` with the same options.
fn tree(line: &[String]) -> Result<(), String> {
    // A tool from the registry, not a package of this workspace.
    if line.get(1).is_some_and(|verb| verb == "install") && option(line, &["--path"]).is_none() {
        return Ok(());
    }
    let mut arguments = vec!["tree", "--offline", "--depth", "0"];
    let mut rest = line[2..].iter().map(String::as_str);
    let mut manifest = String::new();
    while let Some(word) = rest.next() {
        match word {
            "--release" | "--locked" => {}
            "--path" => manifest = format!("{}/Cargo.toml", rest.next().expect("a folder")),
            other => arguments.push(other),
        }
    }
    if !manifest.is_empty() {
        arguments.extend(["--manifest-path", &manifest]);
    }
    let output = cargo(&arguments);
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

#[test]
fn every_cargo_line_of_the_documents_works_in_a_fresh_clone() {
    let metadata = metadata();
    let mut count = 0;
    let mut wrong = Vec::new();
    for document in documents() {
        for line in cargo_lines(&document) {
            count += 1;
            if let Err(reason) = check(&metadata, &line) {
                wrong.push(format!("{document}: `{line}`: {reason}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(count >= 10, "lines were lost: {count}");
}

/// `.ci/run` types the first command of the README, so it must be where the script looks for it.
#[test]
fn ci_runs_the_first_command_of_the_readme_before_the_tests() {
    let script = fs::read_to_string(root().join(".ci/run")).expect("the script of CI");
    let readme = script.find("tests/first-command").expect("it runs the first command");
    let tests = script.find("tests/run").expect("it runs the tests");
    assert!(readme < tests, "after the tests were built it would replace the program that they start");
    let first = cargo_lines("README.md").into_iter().next();
    assert!(first.is_some_and(|line| line.starts_with("cargo run --release -- run ")));
}
