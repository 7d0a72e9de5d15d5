//! Recipes on their way to others.

use crate::place::{Place, RECIPE};
use dtrain_recipes::sharing::{PublishRequest, PublishedRecipe, SharingError, add, publish, read_recipe};
use dtrain_recipes::{ConfigLayer, FilePattern};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// The files of a pattern: itself, or those that end as it does.
fn files(pattern: &FilePattern, folder: &Path) -> Vec<PathBuf> {
    let path = folder.join(&pattern.pattern);
    let Some((start, end)) = pattern.pattern.split_once('*') else {
        return if path.is_file() { vec![path] } else { Vec::new() };
    };
    let entries = fs::read_dir(folder.join(start)).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.to_string_lossy().ends_with(end)).collect()
}

/// A place with a repository that has a remote, `team.git` beside it.
fn with_remote() -> Place {
    let place = Place::new();
    place.commit(&[("README", "recipes")]);
    for (key, value) in [("user.name", "t"), ("user.email", "t@example.org"), ("commit.gpgsign", "false")] {
        place.git(&["config", key, value]);
    }
    place.git(&["init", "-q", "--bare", &place.path("team.git").display().to_string()]);
    place.git(&["remote", "add", "origin", "../team.git"]);
    place
}

/// Publishes `project/mine.toml` with this text, beside these files.
fn published(place: &Place, text: &str, beside: &[(&str, &str)]) -> Result<PublishedRecipe, SharingError> {
    for (name, text) in beside.iter().chain(&[("mine.toml", text)]) {
        let path = place.path("project").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let publication = PublishRequest {
        recipe: &place.path("project/mine.toml"),
        repository: &place.repository(),
        branch: None,
        message: None,
        remote: "origin",
        allow_file: true,
    };
    publish(&publication, Some(&place.store()), &files)
}

#[test]
fn what_a_recipe_names_goes_with_it() {
    let place = with_remote();
    let script = place.path("project/run.sh");
    fs::create_dir(place.path("project")).unwrap();
    fs::write(&script, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let text = "name = \"mine\"\n[model]\nkind = \"command\"\n\
        argv = [\"./run.sh\", \"python3 src/train.py\", \"--config=conf.yaml\", \"-m\", \"tools.more\", \"--out\", \"new\"]\n\
        env = { LIST = \"list.txt\" }\n";
    let beside = [
        ("src/train.py", "1"),
        ("conf.yaml", "2"),
        ("tools/more.py", "3"),
        ("list.txt", "4"),
        ("other.py", "5"),
    ];
    let published = published(&place, text, &beside).unwrap();
    let names = ["conf.yaml", "list.txt", "run.sh", "src/train.py", "tools/more.py"];
    assert_eq!(published.files, names);
    let url = place.path("team.git").display().to_string();
    let locked = add(&place.store(), &url, Some(&published.branch), Some("team")).unwrap();
    read_recipe(&place.store(), "team/mine", ConfigLayer::Recipe).unwrap();
    let copy = place.path("store").join("team").join(format!("run-{}", locked.commit));
    for name in names {
        assert!(copy.join(name).is_file(), "{name}");
    }
    assert_eq!(fs::metadata(copy.join("run.sh")).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn a_recipe_goes_with_those_that_it_extends() {
    let place = with_remote();
    let beside = [
        ("base/small.toml", "extends = \"smaller.toml\"\n[train]\nseed = 3\n"),
        ("base/smaller.toml", &RECIPE.replace("data/*.txt", "texts/*.txt")),
        ("base/texts/a.txt", "to be"),
    ];
    let text = "name = \"mine\"\nextends = \"base/small.toml\"\n";
    let published = published(&place, text, &beside).unwrap();
    assert_eq!(published.files, ["base/small.toml", "base/smaller.toml", "base/texts/a.txt"]);
    let url = place.path("team.git").display().to_string();
    add(&place.store(), &url, Some(&published.branch), Some("team")).unwrap();
    let checked = place.checked("extends = \"team/mine\"\n");
    assert_eq!(checked.recipe.train.seed, 3);
}

#[test]
fn what_cannot_go_with_a_recipe_is_listed_and_nothing_is_committed() {
    let place = with_remote();
    let before = place.git(&["for-each-ref"]);
    fs::create_dir(place.path("project")).unwrap();
    fs::write(place.path("secret.py"), "1").unwrap();
    symlink(place.path("secret.py"), place.path("project/link.py")).unwrap();
    let command = |words: &str| format!("name = \"mine\"\n[model]\nkind = \"command\"\nargv = [{words}]\n");
    let refused = |text: &str, beside: &[(&str, &str)], words: &[&str]| {
        let error = published(&place, text, beside).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "{word}: {error}");
        }
        assert_eq!(place.git(&["for-each-ref"]), before);
    };
    let outside = "is outside of the recipe's folder";
    let wanted = ["`model.argv`: train.py is not there", "`model.argv`: ../secret.py is outside"];
    refused(&command("\"python3\", \"train.py\", \"../secret.py\""), &[], &wanted);
    refused(&command("\"python3\", \"link.py\""), &[], &["link.py", outside]);
    let absolute = place.path("secret.py").display().to_string();
    refused(&command(&format!("\"python3\", {absolute:?}")), &[], &[&absolute, outside]);
    refused(
        &command("\"python3\", \"my file.py\", \"é.py\""),
        &[("é.py", "1")],
        &["é.py is not a plain path"],
    );
    refused(RECIPE, &[], &["`data.train`: data/*.txt matches no file"]);
    refused(&RECIPE.replace("data/*.txt", "../*.txt"), &[], &["`data.train`: ../*.txt", outside]);
    let large = "x".repeat(11 << 20);
    refused(RECIPE, &[("data/a.txt", &large)], &["data/a.txt is too much: a package holds at most"]);
}

/// A recipe of a command with these arguments and these further lines.
fn command(words: &str, more: &str) -> String {
    format!("name = \"mine\"\n[model]\nkind = \"command\"\nargv = [{words}]\n{more}")
}

#[test]
fn files_that_are_named_by_params_lists_and_variables_go_along() {
    let place = with_remote();
    let text = command(
        "\"python3\", \"train_{params.size}.py\", \"--config\", \"configs/{params.size}.yaml\", \"@args.txt\", \"a.csv,b.csv\", \
         \"--out={run.dir}/log.txt\", \"--from\", \"https://example.org/x.yaml\", \"org/model-1.3b\"",
        "env = { PYTHONPATH = \"src:lib:/usr/lib/x\" }\n[params]\nsize = { choices = [\"s\", \"m\"] }\n",
    );
    let names = [
        "a.csv",
        "args.txt",
        "b.csv",
        "configs/m.yaml",
        "configs/s.yaml",
        "lib/b.py",
        "src/a.py",
        "train_m.py",
        "train_s.py",
    ];
    let published = published(&place, &text, &names.map(|name| (name, "1"))).unwrap();
    assert_eq!(published.files, names);
}

#[test]
fn a_named_file_that_is_missing_or_unknown_is_refused() {
    let place = with_remote();
    let rate = "[params]\nrate = { uniform = [0.1, 0.2] }\n";
    let size = "[params]\nsize = { choices = [\"s\", \"m\"] }\n";
    for (words, params, wanted) in [
        ("\"--config\", \"configs/nope.yaml\"", "", "configs/nope.yaml is not there"),
        ("\"papermill\", \"nb.ipynb\"", "", "nb.ipynb is not there"),
        ("\"configs/{params.size}.yaml\"", size, "configs/m.yaml is not there"),
        ("\"configs/{params.rate}.yaml\"", rate, "configs/{…}.yaml is not the same file in each run"),
        ("\"{layout.data}/a.bin\"", "", "{…}/a.bin is not the same file in each run"),
    ] {
        let text = command(&format!("\"python3\", {words}"), params);
        let error = published(&place, &text, &[("configs/s.yaml", "1")]).unwrap_err().to_string();
        assert!(error.contains(wanted), "{wanted}: {error}");
    }
}

#[test]
fn links_to_folders_and_pipes_are_refused() {
    let place = with_remote();
    fs::create_dir_all(place.path("project/data")).unwrap();
    for name in ["x", "y"] {
        symlink(".", place.path("project/data").join(name)).unwrap();
    }
    let text = command("\"python3\", \"data\", \"pipe\"", "");
    let pipe = place.path("project/pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let error = published(&place, &text, &[("data/a.txt", "1")]).unwrap_err().to_string();
    for wanted in
        ["data/x is reached by a link to a folder", "data/y is", "pipe is neither a file nor a folder"]
    {
        assert!(error.contains(wanted), "{wanted}: {error}");
    }
}

#[test]
fn publishing_runs_no_program_of_the_repository() {
    let place = with_remote();
    let trap = place.path("trap");
    let evil = place.path("evil.sh");
    fs::write(&evil, format!("#!/bin/sh\necho \"$0 $*\" >>'{}'\nexit 1\n", trap.display())).unwrap();
    fs::set_permissions(&evil, fs::Permissions::from_mode(0o755)).unwrap();
    let evil = evil.display().to_string();
    for (key, value) in [
        ("remote.origin.receivepack", evil.as_str()),
        ("push.gpgSign", "true"),
        ("commit.gpgSign", "true"),
        ("gpg.program", &evil),
        ("core.sshCommand", &evil),
        ("core.askPass", &evil),
        ("credential.helper", &evil),
    ] {
        place.git(&["config", key, value]);
    }
    published(&place, RECIPE, &[("data/a.txt", "1")]).unwrap();
    assert_eq!(fs::read_to_string(&trap).unwrap_or_default(), "");
    let left = fs::read_dir(place.repository().join(".git")).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(!left.into_iter().any(|name| name.to_string_lossy().starts_with("dtrain-")));
    place.git(&["remote", "set-url", "origin", "ssh://127.0.0.1:1/team.git"]);
    published(&place, &RECIPE.replace("steps = 10", "steps = 11"), &[]).unwrap_err();
    assert_eq!(fs::read_to_string(&trap).unwrap_or_default(), "");
}

#[test]
fn publishing_makes_a_commit_that_others_can_add() {
    let place = Place::new();
    place.commit(&[("old.toml", RECIPE)]);
    place.git(&["config", "user.name", "t"]);
    place.git(&["config", "user.email", "t@example.org"]);
    place.git(&["config", "commit.gpgsign", "false"]);
    let recipe = place.path("mine.toml");
    fs::write(&recipe, RECIPE).unwrap();
    fs::create_dir(place.path("data")).unwrap();
    fs::write(place.path("data/a.txt"), "to be").unwrap();
    let publication = PublishRequest {
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
    let published = publish(&publication, None, &files).unwrap();
    assert_eq!(
        (published.branch.as_str(), published.path.as_str(), published.pushed),
        ("recipes/mine", "mine.toml", None)
    );
    assert!(published.commands[1].ends_with("push origin refs/heads/recipes/mine:refs/heads/recipes/mine"));
    assert!(!trap.exists(), "no hook runs");
    assert_eq!(place.git(&["status", "--porcelain"]), "", "the work tree is left alone");
    assert_eq!(place.git(&["show", "recipes/mine:mine.toml"]), RECIPE.trim());
    assert_eq!(place.git(&["show", "recipes/mine:data/a.txt"]), "to be");

    let remote = place.path("remote");
    fs::remove_dir_all(place.repository().join(".git/hooks")).unwrap();
    place.git(&["init", "-q", "--bare", &remote.display().to_string()]);
    place.git(&["remote", "add", "origin", &remote.display().to_string()]);
    fs::write(&recipe, RECIPE.replace("layers = 2", "layers = 3")).unwrap();
    let before = place.git(&["for-each-ref"]);
    let strict = PublishRequest { allow_file: false, ..publication.clone() };
    let refused = publish(&strict, None, &files).unwrap_err().to_string();
    assert!(refused.contains("refused to push") && refused.contains("--allow-file"), "{refused}");
    assert_eq!(place.git(&["for-each-ref"]), before, "nothing is committed that cannot be pushed");
    let again = publish(&publication, None, &files).unwrap();
    assert_eq!(place.git(&["rev-parse", "recipes/mine^"]), published.commit, "one commit over the other");
    assert_eq!(again.pushed.as_deref(), Some(remote.to_str().unwrap()));
    let next = format!(
        "dtrain recipe add {} --rev recipes/mine --allow-file",
        fs::canonicalize(&remote).unwrap().display()
    );
    assert_eq!(again.commands, [next]);
    let locked = add(&place.store(), remote.to_str().unwrap(), Some("recipes/mine"), None).unwrap();
    assert_eq!(locked.commit, again.commit);
    assert!(
        read_recipe(&place.store(), "remote/mine", ConfigLayer::Recipe).unwrap().text.contains("layers = 3")
    );

    let checked_out = PublishRequest { branch: Some("main"), ..publication.clone() };
    assert!(publish(&checked_out, None, &files).unwrap_err().to_string().contains("is checked out"));
    fs::write(&recipe, "[model]\nkind = \"decodr\"\n").unwrap();
    assert!(
        publish(&publication, None, &files).unwrap_err().to_string().contains("did you mean \"decoder\"?")
    );
}
