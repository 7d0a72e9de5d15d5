//! Recipes on their way to others.

use crate::place::{Place, RECIPE};
use dtrain_recipes::Layer;
use dtrain_recipes::sharing::{Publication, add, publish, read_recipe};
use std::fs;
use std::os::unix::fs::PermissionsExt;

#[test]
fn publishing_makes_a_commit_that_others_can_add() {
    let place = Place::new();
    place.commit(&[("old.toml", RECIPE)]);
    place.git(&["config", "user.name", "t"]);
    place.git(&["config", "user.email", "t@example.org"]);
    place.git(&["config", "commit.gpgsign", "false"]);
    let recipe = place.path("mine.toml");
    fs::write(&recipe, RECIPE).unwrap();
    let publication = Publication {
        recipe: &recipe,
        repository: &place.repository(),
        branch: None,
        message: None,
        remote: "origin",
        allow_file: true,
    };
    let trap = place.path("trap");
    for hook in ["pre-commit", "post-commit", "pre-push", "reference-transaction"] {
        let hook = place.repository().join(".git/hooks").join(hook);
        fs::create_dir_all(hook.parent().unwrap()).unwrap();
        fs::write(&hook, format!("#!/bin/sh\ntouch {}\n", trap.display())).unwrap();
        fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let published = publish(&publication, None).unwrap();
    assert_eq!(
        (published.branch.as_str(), published.path.as_str(), published.pushed),
        ("recipes/mine", "mine.toml", None)
    );
    assert!(published.commands[1].ends_with("push origin refs/heads/recipes/mine:refs/heads/recipes/mine"));
    assert!(!trap.exists(), "no hook runs");
    assert_eq!(place.git(&["status", "--porcelain"]), "", "the work tree is left alone");
    assert_eq!(place.git(&["show", "recipes/mine:mine.toml"]), RECIPE.trim());

    let remote = place.path("remote");
    fs::remove_dir_all(place.repository().join(".git/hooks")).unwrap();
    place.git(&["init", "-q", "--bare", &remote.display().to_string()]);
    place.git(&["remote", "add", "origin", &remote.display().to_string()]);
    fs::write(&recipe, RECIPE.replace("layers = 2", "layers = 3")).unwrap();
    let before = place.git(&["for-each-ref"]);
    let strict = Publication { allow_file: false, ..publication.clone() };
    let refused = publish(&strict, None).unwrap_err().to_string();
    assert!(refused.contains("refused to push") && refused.contains("--allow-file"), "{refused}");
    assert_eq!(place.git(&["for-each-ref"]), before, "nothing is committed that cannot be pushed");
    let again = publish(&publication, None).unwrap();
    assert_eq!(place.git(&["rev-parse", "recipes/mine^"]), published.commit, "one commit over the other");
    assert_eq!(again.pushed.as_deref(), Some(remote.to_str().unwrap()));
    let locked = add(&place.store(), remote.to_str().unwrap(), Some("recipes/mine"), None).unwrap();
    assert_eq!(locked.commit, again.commit);
    assert!(read_recipe(&place.store(), "remote/mine", Layer::Recipe).unwrap().text.contains("layers = 3"));

    let checked_out = Publication { branch: Some("main"), ..publication.clone() };
    assert!(publish(&checked_out, None).unwrap_err().to_string().contains("is checked out"));
    fs::write(&recipe, "[model]\nkind = \"decodr\"\n").unwrap();
    assert!(publish(&publication, None).unwrap_err().to_string().contains("did you mean \"decoder\"?"));
}
