//! Within a crate, imports go down: the top-level modules form the layers that `ARCHITECTURE.md` lists, and no more than three
//! files import each other in a circle.
//!
//! A file uses another if a `use` or a path in it names an item of that file. A re-export leads to the file that defines the
//! item. Code under `#[cfg(test)]` is left out, and so is what a module and its own submodules use of each other.

mod imports;

use dtrain_tests::root;
use imports::{Imports, Sources};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// Most files that may import each other in a circle.
const CIRCLE: usize = 3;

/// The crates that have layers.
const CRATES: [&str; 6] = ["recipes", "protocol", "planner", "runner", "worker", "cli"];

/// Layers of a crate, the lowest first; each is a set of top-level modules.
type Layers = Vec<BTreeSet<String>>;

/// Reads the layers of each crate from `ARCHITECTURE.md`. A line that begins with a space continues the crate of the line above.
fn layers(text: &str) -> BTreeMap<String, Layers> {
    let block =
        text.split("<!-- layers -->").nth(1).expect("the list stands between two `<!-- layers -->` marks");
    let mut lists: Vec<(String, String)> = Vec::new();
    for line in block.lines().filter(|line| !line.trim().is_empty() && !line.starts_with("```")) {
        match (line.split_once(' '), lists.last_mut()) {
            (Some((name, list)), _) if !name.is_empty() => lists.push((name.to_owned(), list.to_owned())),
            (_, Some((_, list))) => list.push_str(line),
            (_, None) => panic!("`{line}` is under no crate"),
        }
    }
    let split = |list: &str| {
        list.split('<').map(|layer| layer.split_whitespace().map(str::to_owned).collect()).collect()
    };
    lists.into_iter().map(|(name, list)| (name, split(&list))).collect()
}

/// The sources of a crate by their path below `src`.
fn sources(name: &str) -> Sources {
    let folder = root().join(name).join("src");
    let read = |file: std::path::PathBuf| {
        let path = file.strip_prefix(&folder).expect("inside").display().to_string();
        (path, fs::read_to_string(&file).expect("sources are UTF-8"))
    };
    super::files(&folder, &["rs"]).into_iter().map(read).collect()
}

/// Returns what is wrong with the imports of a crate.
fn problems(layers: &Layers, sources: &Sources) -> Vec<String> {
    let imports = Imports::of(sources);
    let level = |module: &str| layers.iter().position(|layer| layer.contains(module));
    let (mut wrong, modules) = (Vec::new(), imports.top_level_modules());
    wrong.extend(modules.iter().filter(|m| level(m).is_none()).map(|m| format!("`{m}` is in no layer")));
    let listed = layers.iter().flatten().filter(|module| !modules.contains(*module));
    wrong.extend(listed.map(|module| format!("`{module}` is in a layer, and there is no such module")));
    for (user, used, item) in imports.between_top_level_modules() {
        let (of_user, of_used) = (imports.top_level_module(user), imports.top_level_module(used));
        if of_used == "lib" || level(of_user) <= level(of_used) {
            wrong.push(format!("{user} uses `{item}` of {used}: `{of_used}` is not below `{of_user}`"));
        }
    }
    let circles = imports.circles().into_iter().filter(|circle| circle.len() > CIRCLE);
    wrong.extend(circles.map(|circle| {
        let arrows = imports.within(&circle);
        format!("{} files import each other in a circle: {arrows:#?}", circle.len())
    }));
    wrong
}

#[test]
fn imports_within_a_crate_go_down() {
    let text = super::read("ARCHITECTURE.md");
    let layers = layers(&text);
    assert_eq!(layers.keys().map(String::as_str).collect::<BTreeSet<_>>(), BTreeSet::from(CRATES));
    let wrong: BTreeMap<_, _> = CRATES
        .iter()
        .map(|name| (name, problems(&layers[*name], &sources(name))))
        .filter(|(_, wrong)| !wrong.is_empty())
        .collect();
    assert!(
        wrong.is_empty(),
        "move what both need below both, or change the layers of ARCHITECTURE.md: {wrong:#?}"
    );
}

/// Adds lines to a file of a crate and returns the problems that this makes.
fn problems_with(name: &str, changes: &[(&str, &str)]) -> Vec<String> {
    let mut sources = sources(name);
    for (file, lines) in changes {
        let text = sources.get_mut(*file).unwrap_or_else(|| panic!("{name}/src/{file} is gone"));
        text.push_str(lines);
    }
    problems(&layers(&super::read("ARCHITECTURE.md"))[name], &sources)
}

#[test]
fn an_import_that_goes_up_is_found() {
    for (name, file, line, expected) in [
        ("planner", "price/memory/mod.rs", "use crate::planning::plan;", "`planning` is not below `price`"),
        ("planner", "price/memory/mod.rs", "use crate::Plan;", "`planning` is not below `price`"),
        (
            "planner",
            "price/memory/mod.rs",
            "fn f() { g(super::super::planning::CHOICES); }",
            "`planning` is not below",
        ),
        (
            "planner",
            "price/memory/mod.rs",
            "fn f() { assert!(crate::planning::CHOICES > 1); }",
            "`planning` is not below",
        ),
        ("cli", "run_trial.rs", "use crate::commands::{self, run};", "`commands` is not below `run_trial`"),
        ("cli", "run_trial.rs", "use super::commands as c;", "`commands` is not below `run_trial`"),
    ] {
        let found = problems_with(name, &[(file, line)]);
        assert!(found.iter().any(|problem| problem.contains(expected)), "{line}: {found:#?}");
    }
}

#[test]
fn imports_of_tests_may_go_up() {
    for line in
        ["#[cfg(test)] use crate::planning::plan;", "#[cfg(test)] mod t { use crate::planning::plan; }"]
    {
        let found = problems_with("planner", &[("price/memory/mod.rs", line)]);
        assert_eq!(found, problems_with("planner", &[]), "{line}");
    }
}

#[test]
fn a_circle_of_four_files_is_found_and_one_of_three_is_not() {
    let layers = vec![BTreeSet::from(["a".to_owned()])];
    let crate_of = |users: &[(&str, &str)]| -> Sources {
        let names: String = users.iter().map(|(name, _)| format!("mod {name};\n")).collect();
        let files = users.iter().map(|(name, used)| {
            (
                format!("a/{name}.rs"),
                format!("use super::{used}::of_{used};\npub(super) fn of_{name}() {{ of_{used}() }}"),
            )
        });
        let roots = [("lib.rs", "mod a;".to_owned()), ("a/mod.rs", names)];
        files.chain(roots.map(|(path, text)| (path.to_owned(), text))).collect()
    };
    let three = crate_of(&[("b", "c"), ("c", "d"), ("d", "b")]);
    assert_eq!(problems(&layers, &three), [""; 0]);
    let four = problems(&layers, &crate_of(&[("b", "c"), ("c", "d"), ("d", "e"), ("e", "b")]));
    assert!(matches!(&four[..], [one] if one.starts_with("4 files import each other")), "{four:#?}");
}

#[test]
fn a_re_export_leads_to_the_file_that_defines_the_item() {
    let layers = vec![BTreeSet::from(["a".to_owned()]), BTreeSet::from(["b".to_owned()])];
    let of = |a: &str| {
        let files = [
            ("lib.rs", "mod a;\nmod b;\npub use b::Kind as Renamed;"),
            ("a.rs", a),
            ("b/mod.rs", "mod c;\npub use c::*;"),
            ("b/c.rs", "pub enum Kind { One }"),
        ];
        problems(&layers, &files.into_iter().map(|(path, text)| (path.to_owned(), text.to_owned())).collect())
    };
    assert_eq!(of("// crate::b::Kind\nconst A: &str = \"crate::b::Kind\";"), [""; 0]);
    for a in [
        "use crate::Renamed;",
        "use crate::b::Kind::One;",
        "fn f(kind: &crate::b::Kind) {}",
        "use super::*; fn f(k: Renamed) {}",
    ] {
        let found = of(a);
        assert!(
            found.iter().any(|problem| problem.contains("of b/c.rs: `b` is not below `a`")),
            "{a}: {found:#?}"
        );
    }
}
