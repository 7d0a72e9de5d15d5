//! Packages that are added, listed, used and updated.

use crate::place::{PROGRAM, Place, RECIPE};
use dtrain_recipes::sharing::{
    ChangeKind, CheckoutState, SharingError, Store, add, list, read_recipe, remove, resolver, restore, show,
    update, verify,
};
use dtrain_recipes::{ConfigLayer, Document, render_all, resolve_extends};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

#[test]
fn a_repository_is_added_listed_shown_and_verified() {
    let place = Place::new();
    let commit =
        place.commit(&[("small.toml", RECIPE), ("deep/program.toml", PROGRAM), ("README.md", "hello")]);
    let locked = place.add().unwrap();
    assert_eq!(
        (locked.name.as_str(), locked.commit.as_str(), locked.rev.as_str()),
        ("recipes", commit.as_str(), "HEAD")
    );
    let store = place.store();
    assert_eq!(list(&store).unwrap(), std::slice::from_ref(&locked));
    let shown = show(&store, "recipes").unwrap();
    let paths: Vec<&str> = shown.files.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(paths, ["README.md", "deep/program.toml", "small.toml"]);
    let capabilities: Vec<String> =
        shown.capabilities.iter().map(|(path, all)| format!("{path}: {}", all[0])).collect();
    assert_eq!(capabilities, ["deep/program.toml: runs \"python3\" \"train.py\""]);
    assert_eq!(verify(&store).unwrap(), [(locked, CheckoutState::Sound)]);
    remove(&store, "recipes").unwrap();
    assert!(list(&store).unwrap().is_empty());
    assert!(show(&store, "recipes").unwrap_err().to_string().contains("no shared recipe is named"));
}

#[test]
fn a_repository_that_no_lock_file_names_leaves_the_store() {
    let place = Place::new();
    let commit = place.commit(&[("a.toml", RECIPE), ("p.toml", PROGRAM)]);
    let (store, other) = (place.store(), Store { lock: place.path("other/dtrain.lock"), ..place.store() });
    fs::create_dir(place.path("other")).unwrap();
    place.add().unwrap();
    add(&other, &place.url(), None, None).unwrap();
    let copy = place.path("store/recipes").join(&commit);
    let first = remove(&store, "recipes").unwrap();
    assert_eq!(first.users, std::slice::from_ref(&other.lock));
    assert!(first.kept.iter().any(|(path, why)| *path == copy && why.contains("other/dtrain.lock")));
    assert_eq!(verify(&other).unwrap()[0].1, CheckoutState::Sound);
    assert!(remove(&store, "recipes").unwrap_err().to_string().contains("no shared recipe is named"));

    // What a program of the package wrote is not in any repository.
    let run = place.path("store/recipes").join(format!("run-{commit}"));
    fs::create_dir(&run).unwrap();
    fs::write(run.join("model.bin"), "weights").unwrap();
    let second = remove(&other, "recipes").unwrap();
    assert!(second.users.is_empty() && second.removed.contains(&copy), "{second:?}");
    assert_eq!(second.kept.len(), 1, "{:?}", second.kept);
    assert!(run.join("model.bin").exists() && !copy.exists());

    fs::remove_dir_all(&run).unwrap();
    place.add().unwrap();
    assert!(remove(&store, "recipes").unwrap().kept.is_empty());
    assert!(!place.path("store/recipes").exists());
}

#[test]
fn a_lock_file_that_came_from_elsewhere_counts_once_it_was_verified() {
    let place = Place::new();
    place.commit(&[("a.toml", RECIPE)]);
    place.add().unwrap();
    fs::create_dir(place.path("clone")).unwrap();
    let clone = Store { lock: place.path("clone/dtrain.lock"), ..place.store() };
    fs::copy(place.path("dtrain.lock"), &clone.lock).unwrap();
    assert!(restore(&clone).unwrap().is_empty());
    assert_eq!(remove(&place.store(), "recipes").unwrap().users, [clone.lock]);
}

#[test]
fn a_branch_a_tag_and_a_commit_can_be_followed() {
    let place = Place::new();
    let first = place.commit(&[("a.toml", RECIPE)]);
    place.git(&["tag", "v1"]);
    let second = place.commit(&[("b.toml", RECIPE)]);
    let at = |rev: &str, name: &str| add(&place.store(), &place.url(), Some(rev), Some(name)).unwrap().commit;
    assert_eq!(at("v1", "tagged"), first);
    assert_eq!(at("main", "branch"), second);
    assert_eq!(at(&first, "commit"), first);
    assert_eq!(list(&place.store()).unwrap().len(), 3);
}

#[test]
fn a_recipe_extends_a_shared_one_and_says_where_its_values_come_from() {
    let place = Place::new();
    place.commit(&[
        ("base.toml", RECIPE),
        ("wide.toml", "extends = \"./base.toml\"\n[model]\nhidden = 128\n"),
    ]);
    place.add().unwrap();
    let checked = place.checked("extends = \"recipes/wide\"\n[model]\nlayers = 3\n");
    let of = |path: &str| {
        let value = checked.resolved.iter().find(|value| value.path == path).unwrap();
        (value.value.clone(), value.origin.source().map_or(String::new(), |source| source.name.clone()))
    };
    assert_eq!(of("model.layers").0, "3");
    assert_eq!(of("model.hidden").0, "128");
    assert!(of("model.hidden").1.starts_with("recipes/wide.toml@"));
    assert!(of("model.heads").1.starts_with("recipes/base.toml@"));
}

#[test]
fn a_shared_recipe_cannot_reach_the_users_files() {
    let place = Place::new();
    fs::write(place.path("secret.toml"), RECIPE).unwrap();
    let secret = place.path("secret.toml").display().to_string();
    let climbing = "extends = \"../../../secret.toml\"\n";
    place.commit(&[("climb.toml", climbing), ("absolute.toml", &format!("extends = {secret:?}\n"))]);
    place.add().unwrap();
    let store = place.store();
    for name in ["climb", "absolute"] {
        let source = read_recipe(&store, &format!("recipes/{name}"), ConfigLayer::Recipe).unwrap();
        let problems =
            resolve_extends(Document::parse(&source).unwrap(), &resolver(Some(&store))).unwrap_err();
        assert!(render_all(&problems, false).contains("is not the name of a shared recipe"), "{name}");
    }
    for reference in ["recipes/../../secret", "../recipes/climb", "recipes", "recipes//climb"] {
        assert!(read_recipe(&store, reference, ConfigLayer::Recipe).is_err(), "{reference}");
    }
}

#[test]
fn an_update_says_what_changed() {
    let place = Place::new();
    place.commit(&[("a.toml", RECIPE), ("gone.toml", RECIPE)]);
    let before = place.add().unwrap();
    assert!(update(&place.store(), "recipes").unwrap().changes.is_empty());
    fs::remove_file(place.repository().join("gone.toml")).unwrap();
    let commit =
        place.commit(&[("a.toml", &RECIPE.replace("layers = 2", "layers = 3")), ("new.toml", RECIPE)]);
    let update = update(&place.store(), "recipes").unwrap();
    assert_eq!((update.before.commit, update.after.commit.clone()), (before.commit, commit));
    let changes: Vec<_> = update.changes.iter().map(|change| (change.path.as_str(), change.kind)).collect();
    let changed = ChangeKind::Changed { added: 1, removed: 1 };
    assert_eq!(
        changes,
        [("a.toml", changed), ("gone.toml", ChangeKind::Removed), ("new.toml", ChangeKind::Added)]
    );
    assert_eq!(list(&place.store()).unwrap(), [update.after]);
}

#[test]
fn altered_files_are_found_and_never_used() {
    let alterations: [(&str, fn(&Path)); 5] = [
        ("a byte", |folder| fs::write(folder.join("a.toml"), RECIPE.replace('2', "3")).unwrap()),
        ("a new file", |folder| fs::write(folder.join("b.toml"), RECIPE).unwrap()),
        ("a lost file", |folder| fs::remove_file(folder.join("a.toml")).unwrap()),
        ("a mode", |folder| {
            fs::set_permissions(folder.join("a.toml"), fs::Permissions::from_mode(0o700)).unwrap();
        }),
        ("a link", |folder| {
            fs::remove_file(folder.join("a.toml")).unwrap();
            std::os::unix::fs::symlink("/etc/hostname", folder.join("a.toml")).unwrap();
        }),
    ];
    for (what, alter) in alterations {
        let place = Place::new();
        place.commit(&[("a.toml", RECIPE), ("z.toml", RECIPE)]);
        let locked = place.add().unwrap();
        alter(&place.path("store/recipes").join(&locked.commit));
        assert!(matches!(verify(&place.store()).unwrap()[0].1, CheckoutState::Altered(_)), "{what}");
        assert!(read_recipe(&place.store(), "recipes/z", ConfigLayer::Recipe).is_err(), "{what}");
        assert!(restore(&place.store()).unwrap().is_empty(), "{what}: an alteration is not swept away");
        assert!(matches!(verify(&place.store()).unwrap()[0].1, CheckoutState::Altered(_)), "{what}");
        update(&place.store(), "recipes").unwrap();
        assert_eq!(verify(&place.store()).unwrap()[0].1, CheckoutState::Sound, "{what}");
    }
}

#[test]
fn a_lock_file_alone_brings_everything_back() {
    let place = Place::new();
    place.commit(&[("a.toml", RECIPE)]);
    let locked = place.add().unwrap();
    place.commit(&[("a.toml", PROGRAM)]);
    fs::remove_dir_all(place.path("store")).unwrap();
    assert_eq!(verify(&place.store()).unwrap()[0].1, CheckoutState::Missing);
    assert_eq!(restore(&place.store()).unwrap(), std::slice::from_ref(&locked));
    assert_eq!(verify(&place.store()).unwrap(), [(locked, CheckoutState::Sound)]);
    assert!(read_recipe(&place.store(), "recipes/a", ConfigLayer::Recipe).unwrap().text.contains("decoder"));
}

#[test]
fn a_lock_file_that_lies_is_refused() {
    let place = Place::new();
    place.commit(&[("a.toml", RECIPE)]);
    place.add().unwrap();
    let good = fs::read_to_string(place.path("dtrain.lock")).unwrap();
    let tree = &list(&place.store()).unwrap()[0].tree;
    fs::remove_dir_all(place.path("store")).unwrap();
    fs::write(place.path("dtrain.lock"), good.replace(tree.as_str(), &"0".repeat(64))).unwrap();
    assert!(matches!(restore(&place.store()), Err(SharingError::Altered { .. })));
    let url = place.url();
    for (from, to) in [
        (url.as_str(), "ext::sh -c id"),
        ("name = \"recipes\"", "name = \"../up\""),
        ("rev = \"HEAD\"", "rev = \"--upload-pack=x\""),
        ("commit = \"", "commit = \"../"),
        ("version = 1", "version = 2"),
        ("version = 1", "version = 1\nother = 1"),
    ] {
        assert!(good.contains(from), "{from}");
        fs::write(place.path("dtrain.lock"), good.replace(from, to)).unwrap();
        assert!(list(&place.store()).is_err(), "{to}");
    }
}

/// In a process of its own: settings of the user are read by their variable.
#[test]
fn a_repository_is_added_where_bare_repositories_have_to_be_named() {
    const SETTINGS: &str = "DTRAIN_TEST_SETTINGS";
    if std::env::var_os(SETTINGS).is_some() {
        let place = Place::new();
        place.commit(&[("small.toml", RECIPE)]);
        place.add().unwrap();
        update(&place.store(), "recipes").unwrap();
        return;
    }
    let place = Place::new();
    let settings = place.path("gitconfig");
    fs::write(&settings, "[safe]\n\tbareRepository = explicit\n").unwrap();
    let name = "packages::a_repository_is_added_where_bare_repositories_have_to_be_named";
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env("GIT_CONFIG_GLOBAL", &settings)
        .env(SETTINGS, "1")
        .status()
        .unwrap();
    assert!(status.success());
}
