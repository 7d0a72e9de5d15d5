//! Each collective of the worker names the function of the planner that counts its bytes.

use super::{files, read};
use dtrain_tests::root;

/// Methods of process groups that send values, without the beginnings of [`WRAPPED`].
const COLLECTIVES: [&str; 5] = ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "exchange"];

/// Beginnings of the methods that wrap a collective.
const WRAPPED: [&str; 3] = [".", ".start_", ".start_half_"];

/// Beginning of the line that says where a collective is counted, and of one that says why it is not.
const COUNTED: &str = "Counted in `planner/src/step/traffic/";
const NOT_COUNTED: &str = "Not counted in `planner/src/step/traffic`: ";

#[test]
fn every_collective_of_the_worker_names_the_table_that_counts_it() {
    let (mut silent, mut wrong, mut places) = (Vec::new(), Vec::new(), 0);
    for file in files(&root().join("worker/src"), &["rs"]) {
        let name = file.strip_prefix(root()).expect("inside").display().to_string();
        let source = read(&name);
        let code = source.split("#[cfg(test)]\nmod tests {").next().expect("a text has a first part");
        let lines = || code.lines().map(str::trim_start);
        let comments: Vec<_> = lines().filter_map(|line| line.strip_prefix("/// ")).collect();
        for line in comments.iter().filter_map(|line| line.strip_prefix(COUNTED)) {
            places += 1;
            wrong.extend(missing(line).map(|what| format!("{name}: {what}")));
        }
        let is_reason = |line: &&str| line.starts_with(COUNTED) || line.starts_with(NOT_COUNTED);
        let is_inside =
            ["worker/src/comm/", "worker/src/mesh/"].iter().any(|folder| name.starts_with(folder));
        let is_test = name.contains("/tests");
        if !is_inside && !is_test && lines().any(sends) && !comments.iter().any(is_reason) {
            silent.push(name);
        }
    }
    assert!(places > 20, "{places} places are named: did the worker move?");
    assert!(
        silent.is_empty(),
        "say where the planner counts the collectives of {silent:#?}: `/// {COUNTED}…`"
    );
    assert!(wrong.is_empty(), "the planner does not have {wrong:#?}");
}

/// Returns `true` if `line` calls a collective.
fn sends(line: &str) -> bool {
    let calls = |wrap: &str| COLLECTIVES.iter().any(|name| line.contains(&format!("{wrap}{name}")));
    !line.starts_with("//") && WRAPPED.into_iter().any(calls)
}

/// Returns the file or functions that the planner lacks, of a line such as ``mod.rs`, `figures`.``
fn missing(line: &str) -> Option<String> {
    let mut words = line.split('`');
    let file = format!("planner/src/step/traffic/{}", words.next().expect("a text has a first part"));
    if !root().join(&file).is_file() {
        return Some(file);
    }
    let source = read(&file);
    let mut functions = words.skip(1).step_by(2).peekable();
    if functions.peek().is_none() {
        return Some(format!("{file}, with no function named"));
    }
    let lacks = |name: &&str| !source.contains(&format!("fn {name}("));
    functions.find(lacks).map(|name| format!("`{name}` in {file}"))
}
