//! Keeps the structure as `ARCHITECTURE.md` and `deny.toml` tell it.

mod layers;
mod matches;
mod plain_names;
mod traffic;

use dtrain_tests::root;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Most lines of a source file: beyond them it has a second subject.
const LINES: usize = 400;

/// The crates a crate may use, from the table under "Crates and arrows" of `ARCHITECTURE.md`.
fn allowed() -> BTreeMap<String, BTreeSet<String>> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md is there");
    let table =
        text.split("<!-- arrows -->").nth(1).expect("the table stands between two `<!-- arrows -->` marks");
    table
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| {
            let mut cells = line.split('|').map(str::trim).skip(1);
            let name = cells.next().expect("a row has cells").trim_matches('`').to_owned();
            let uses = cells.next().expect("a row has two cells");
            (
                name,
                uses.split(',').map(|c| c.trim().trim_matches('`').to_owned()).filter(|c| c != "–").collect(),
            )
        })
        .collect()
}

/// What each crate of the workspace uses of the others, dev-dependencies left out.
fn found() -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    let packages = metadata["packages"].as_array().expect("there are packages");
    packages
        .iter()
        .map(|package| {
            let dependencies = package["dependencies"].as_array().expect("a list");
            let ours = dependencies
                .iter()
                .filter(|d| d["kind"].is_null())
                .filter_map(|d| d["name"].as_str()?.strip_prefix("dtrain-").map(str::to_owned))
                .collect();
            let name = package["name"].as_str().expect("a name");
            (name.strip_prefix("dtrain-").unwrap_or("cli").to_owned(), ours)
        })
        .collect()
}

#[test]
fn arrows_between_crates_are_those_of_the_architecture() {
    let (allowed, found) = (allowed(), found());
    assert_eq!(
        allowed.keys().collect::<Vec<_>>(),
        found.keys().collect::<Vec<_>>(),
        "the crates of the table"
    );
    for (name, uses) in &found {
        let extra: Vec<_> = uses.difference(&allowed[name]).collect();
        assert!(extra.is_empty(), "{name} uses {extra:?}, which ARCHITECTURE.md does not allow");
    }
}

#[test]
fn fenced_crates_are_met_only_through_their_wrappers() {
    let deny: toml::Table = read("deny.toml").parse().expect("deny.toml is TOML");
    let lock: toml::Table = read("Cargo.lock").parse().expect("Cargo.lock is TOML");
    let packages = lock["package"].as_array().expect("packages");
    let mut fences = 0;
    for entry in deny["bans"]["deny"].as_array().expect("a list") {
        let name = entry["crate"].as_str().expect("a name").split('@').next().expect("a name");
        let Some(wrappers) = entry.get("wrappers") else { continue };
        let wrappers: Vec<_> =
            wrappers.as_array().expect("a list").iter().filter_map(|w| w.as_str()).collect();
        fences += 1;
        for package in packages {
            let user = package["name"].as_str().expect("a name");
            // Another version of a crate (burn brings its own sysinfo) is not the one that is fenced.
            let is_ours = user == "dtrain" || user.starts_with("dtrain-");
            let uses = package.get("dependencies").and_then(|d| d.as_array()).is_some_and(|list| {
                list.iter().filter_map(|d| d.as_str()).any(|d| d.split(' ').next() == Some(name))
            });
            assert!(
                !uses || !is_ours || wrappers.contains(&user),
                "{user} uses {name}; only {wrappers:?} may"
            );
        }
    }
    assert!(fences >= 8, "deny.toml lost its fences: {fences} left");
}

#[test]
fn links_in_documents_lead_somewhere() {
    let mut broken = Vec::new();
    for path in files(&root(), &["md"]) {
        let text = fs::read_to_string(&path).expect("documents are UTF-8");
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap_or_default();
            let local = !target.is_empty() && !target.contains("://") && !target.contains(' ');
            if local && !path.parent().expect("a file has a folder").join(target).exists() {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Paths are those words in backquotes outside fenced blocks that have a slash and no placeholder.
#[test]
fn the_paths_of_the_contributors_page_exist() {
    let page = read("CONTRIBUTING.md");
    let text: String = page.split("\n```").step_by(2).collect();
    let is_path = |word: &&str| {
        word.contains('/') && word.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c))
    };
    let words = text.split('`').skip(1).step_by(2).flat_map(str::split_whitespace);
    // What a build makes is not there in a fresh clone.
    let paths: BTreeSet<&str> = words.filter(is_path).filter(|path| !path.starts_with("target/")).collect();
    assert!(paths.len() > 50, "{paths:?}");
    let missing: Vec<_> = paths.into_iter().filter(|path| !root().join(path).exists()).collect();
    assert!(missing.is_empty(), "CONTRIBUTING.md names {missing:?}");
}

/// `ARCHITECTURE.md` is two pages and the list of layers; what is longer belongs into the header of a module.
#[test]
fn the_architecture_fits_on_two_pages() {
    let text = read("ARCHITECTURE.md");
    let layers = text.split("<!-- layers -->").nth(1).expect("it lists the layers");
    let count = text.lines().count() - layers.lines().count();
    assert!(count <= 120, "ARCHITECTURE.md has {count} lines beside its layers, at most 120 are wanted");
    let long: Vec<_> =
        (1u32..).zip(text.lines()).filter(|(_, line)| line.chars().count() > 120).map(|(n, _)| n).collect();
    assert!(long.is_empty(), "lines {long:?} of ARCHITECTURE.md have more than 120 characters");
}

#[test]
fn no_source_file_is_a_house_of_its_own() {
    let mut sizes: Vec<_> = files(&root(), &["rs"])
        .into_iter()
        .map(|path| (fs::read_to_string(&path).expect("sources are UTF-8").lines().count(), path))
        .collect();
    sizes.sort();
    sizes.reverse();
    println!("the ten largest files; ask of each what its second subject is:");
    for (lines, path) in &sizes[..10] {
        println!("{lines:5} {}", path.strip_prefix(root()).expect("inside").display());
    }
    let long: Vec<_> = sizes
        .iter()
        .filter(|(lines, _)| *lines > LINES)
        .map(|(lines, path)| format!("{} has {lines}", path.strip_prefix(root()).expect("inside").display()))
        .collect();
    assert!(long.is_empty(), "at most {LINES} lines are wanted; give the second subject a file: {long:#?}");
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Files below `folder` with one of the endings, build outputs and hidden folders left out.
fn files(folder: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            out.extend(files(&path, endings));
        } else if path.extension().is_some_and(|e| endings.iter().any(|ending| e == *ending)) {
            out.push(path);
        }
    }
    out
}
