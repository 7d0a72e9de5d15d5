//! Repositories that want more than to be read.

use crate::place::{Place, RECIPE};
use dtrain_recipes::sharing::{SharingError, Store, add, list, read_recipe, resolver, update};
use dtrain_recipes::{ConfigLayer, Document, Source, render_all, resolve_extends};
use std::fs;
use std::os::unix::fs::PermissionsExt;

#[test]
fn symbolic_links_are_refused() {
    let place = Place::new();
    place.commit(&[("a.toml", RECIPE)]);
    place.commit_entry("120000", "link.toml", "/etc/passwd");
    place.refused("\"link.toml\" is a symbolic link");
}

#[test]
fn submodules_are_refused() {
    let place = Place::new();
    let commit = place.commit(&[("a.toml", RECIPE)]);
    place.git(&["update-index", "--add", "--cacheinfo", &format!("160000,{commit},sub")]);
    place.git(&["commit", "-q", "-m", "submodule"]);
    place.refused("\"sub\" is a submodule");
}

#[test]
fn paths_that_lead_out_are_refused() {
    for name in ["..", ".git", "."] {
        let place = Place::new();
        place.commit(&[("a.toml", RECIPE)]);
        let blob = place.git_with(&["hash-object", "-w", "--stdin"], b"x");
        let inner = place.git_with(&["mktree"], format!("100644 blob {blob}\tconfig\n").as_bytes());
        // Written as bytes, because git itself would not make such a tree.
        let mut tree = format!("40000 {name}\0").into_bytes();
        tree.extend((0..20).map(|byte| u8::from_str_radix(&inner[2 * byte..2 * byte + 2], 16).unwrap()));
        let tree = place.git_with(&["hash-object", "-t", "tree", "--literally", "-w", "--stdin"], &tree);
        let commit = place.git(&["commit-tree", "-m", "out", &tree]);
        place.git(&["update-ref", "refs/heads/main", &commit]);
        // Either git's own check of objects or ours; both end before anything is written.
        assert!(place.add().is_err(), "{name}");
        assert!(list(&place.store()).unwrap().is_empty());
        assert!(!place.path("store/config").exists() && !place.path("store/recipes/config").exists());
    }
}

#[test]
fn odd_names_are_refused() {
    for name in ["a b.toml", "-rf.toml", "ü.toml", "a;b.toml"] {
        let place = Place::new();
        place.commit(&[("a.toml", RECIPE), (name, RECIPE)]);
        place.refused("is not a plain path");
    }
}

#[test]
fn too_much_is_refused() {
    let place = Place::new();
    place.commit(&[("huge.txt", &"x".repeat(11 << 20))]);
    place.refused("at most 10485760 are taken");
    let place = Place::new();
    let names: Vec<String> = (0..1001).map(|n| format!("f{n}.toml")).collect();
    let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
    place.commit(&files);
    place.refused("1001 files, at most 1000 are taken");
}

#[test]
fn hooks_and_filters_of_a_repository_never_run() {
    let place = Place::new();
    let trap = place.path("trap");
    place.commit(&[("a.toml", RECIPE), (".gitattributes", "* filter=evil\n")]);
    place.git(&["config", "filter.evil.smudge", &format!("touch {}", trap.display())]);
    for hook in ["post-checkout", "post-merge", "pre-push", "reference-transaction"] {
        let hook = place.repository().join(".git/hooks").join(hook);
        fs::create_dir_all(hook.parent().unwrap()).unwrap();
        fs::write(&hook, format!("#!/bin/sh\ntouch {}\n", trap.display())).unwrap();
        fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
    }
    place.add().unwrap();
    update(&place.store(), "recipes").unwrap();
    assert!(!trap.exists());
}

#[test]
fn urls_that_run_programs_or_need_permission_are_refused() {
    let place = Place::new();
    place.commit(&[("a.toml", RECIPE)]);
    let trap = place.path("trap").display().to_string();
    let strict = Store { allow_file: false, ..place.store() };
    for url in [
        &format!("ext::touch% {trap}"),
        &format!("--upload-pack=touch {trap}"),
        &place.url(),
        &format!("file://{}", place.url()),
    ] {
        let error = add(&strict, url, None, Some("x")).unwrap_err();
        assert!(matches!(error, SharingError::Url { .. }), "{error}");
    }
    for name in ["..", "a/b", "", "-x", "library", ".hidden"] {
        assert!(add(&place.store(), &place.url(), None, Some(name)).is_err(), "{name}");
    }
    assert!(!place.path("trap").exists());
    // Git itself is told so too, in case a URL is rewritten by the user's settings.
    place.add().unwrap();
    let error = update(&strict, "recipes").unwrap_err().to_string();
    assert!(error.contains("--allow-file"), "{error}");
}

#[test]
fn a_name_belongs_to_one_repository() {
    let (place, other) = (Place::new(), Place::new());
    place.commit(&[("a.toml", RECIPE)]);
    other.commit(&[("a.toml", RECIPE)]);
    place.add().unwrap();
    let error = add(&place.store(), &other.url(), None, None).unwrap_err();
    assert!(matches!(error, SharingError::Taken { .. }), "{error}");
    assert!(add(&place.store(), &other.url(), None, Some("other")).is_ok());
}

#[test]
fn extends_shows_no_line_of_a_file_that_is_no_recipe() {
    let place = Place::new();
    fs::write(place.path("secrets"), "password of the user\n").unwrap();
    fs::create_dir(place.path("folder.toml")).unwrap();
    std::os::unix::fs::symlink(place.path("secrets"), place.path("link.toml")).unwrap();
    let absolute = place.path("secrets").display().to_string();
    for name in ["./secrets", "../secrets", &absolute, "link.toml", "folder.toml"] {
        let folder = if name.starts_with("..") { place.repository() } else { place.path("") };
        let source =
            Source::file(&folder.join("r.toml"), ConfigLayer::Recipe, format!("extends = {name:?}\n"));
        let source = Source { folder: Some(folder), ..source };
        let document = Document::parse(&source).unwrap();
        let problems = resolve_extends(document, &resolver(None)).unwrap_err();
        let told = render_all(&problems, false);
        assert!(told.contains("names end in `.toml`") && !told.contains("password"), "{name}: {told}");
    }
}

#[test]
fn a_package_extends_no_file_outside_it() {
    for name in ["../outside.toml", "./../../outside.toml", "../../../outside.toml", "/etc/passwd"] {
        let place = Place::new();
        fs::write(place.path("outside.toml"), "password = \"of the user\"\n").unwrap();
        place.commit(&[("a.toml", &format!("extends = {name:?}\n{RECIPE}"))]);
        place.add().unwrap();
        let store = place.store();
        let source = read_recipe(&store, "recipes/a", ConfigLayer::Recipe).unwrap();
        let problems =
            resolve_extends(Document::parse(&source).unwrap(), &resolver(Some(&store))).unwrap_err();
        let told = render_all(&problems, false);
        assert!(told.contains("is not the name of a shared recipe"), "{name}: {told}");
        assert!(!told.contains("of the user") && !told.contains("root:"), "{name}: {told}");
    }
}
