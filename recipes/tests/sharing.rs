//! Recipes through git: from local repositories, honest ones and malicious ones.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up its case has failed")]

use dtrain_recipes::sharing::{
    ChangeKind, Publication, SharingError, State, Store, Trust, add, capabilities, list, publish,
    read_recipe, remove, resolver, restore, show, trust, update, verify,
};
use dtrain_recipes::{CheckContext, Checked, Document, Layer, Source, check, extended, render_all};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const RECIPE: &str = "[model]\nkind = \"decoder\"\nlayers = 2\nhidden = 64\nheads = 4\ncontext = 32\n\
[data]\ntrain = \"data/*.txt\"\n[objective]\nstop = { steps = 10 }\n";
const PROGRAM: &str = "[model]\nkind = \"command\"\nargv = [\"python3\", \"train.py\"]\n";

/// A place with a repository `recipes`, a store and a lock file.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap() };
        fs::create_dir(place.repository()).unwrap();
        place.git(&["init", "-q", "-b", "main"]);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn repository(&self) -> PathBuf {
        self.path("recipes")
    }

    fn url(&self) -> String {
        self.repository().display().to_string()
    }

    fn store(&self) -> Store {
        Store { folder: self.path("store"), lock: self.path("dtrain.lock"), allow_file: true }
    }

    fn git(&self, arguments: &[&str]) -> String {
        self.git_with(arguments, b"")
    }

    /// Runs git in the repository; a failure is a failure of the test.
    fn git_with(&self, arguments: &[&str], input: &[u8]) -> String {
        let mut child = Command::new("git")
            .arg("-C")
            .arg(self.repository())
            .args(["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"])
            .args(arguments)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), input).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "git {arguments:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn commit(&self, files: &[(&str, &str)]) -> String {
        for (path, text) in files {
            let path = self.repository().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        self.git(&["add", "-A"]);
        self.git(&["commit", "-q", "-m", "recipes"]);
        self.git(&["rev-parse", "HEAD"])
    }

    /// Commits one entry that no work tree would have.
    fn commit_entry(&self, mode: &str, path: &str, text: &str) {
        let blob = self.git_with(&["hash-object", "-w", "--stdin"], text.as_bytes());
        self.git(&["update-index", "--add", "--cacheinfo", &format!("{mode},{blob},{path}")]);
        self.git(&["commit", "-q", "-m", "entry"]);
    }

    fn add(&self) -> Result<dtrain_recipes::sharing::Locked, SharingError> {
        add(&self.store(), &self.url(), None, None)
    }

    fn refused(&self, part: &str) {
        let error = self.add().unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
        assert!(list(&self.store()).unwrap().is_empty(), "nothing refused is locked");
        let kept: Vec<_> =
            fs::read_dir(self.path("store/recipes")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(kept, ["git"], "nothing refused is written");
    }

    fn checked(&self, text: &str) -> Checked {
        let store = self.store();
        let source = Source::file(&self.path("r.toml"), Layer::Recipe, text);
        let checked = Document::parse(&source)
            .and_then(|document| extended(document, &resolver(Some(&store))))
            .and_then(|document| check(&document, &CheckContext::of_file(Path::new("r.toml"))));
        checked.unwrap_or_else(|problems| panic!("{}", render_all(&problems, false)))
    }
}

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
    assert_eq!(verify(&store).unwrap(), [(locked, State::Sound)]);
    remove(&store, "recipes").unwrap();
    assert!(list(&store).unwrap().is_empty());
    assert!(show(&store, "recipes").unwrap_err().to_string().contains("no shared recipe is called"));
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
        let source = read_recipe(&store, &format!("recipes/{name}"), Layer::Recipe).unwrap();
        let problems = extended(Document::parse(&source).unwrap(), &resolver(Some(&store))).unwrap_err();
        assert!(render_all(&problems, false).contains("is not the name of a shared recipe"), "{name}");
    }
    for reference in ["recipes/../../secret", "../recipes/climb", "recipes", "recipes//climb"] {
        assert!(read_recipe(&store, reference, Layer::Recipe).is_err(), "{reference}");
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
        assert!(matches!(verify(&place.store()).unwrap()[0].1, State::Altered(_)), "{what}");
        assert!(read_recipe(&place.store(), "recipes/z", Layer::Recipe).is_err(), "{what}");
        assert!(restore(&place.store()).unwrap().is_empty(), "{what}: an alteration is not swept away");
        assert!(matches!(verify(&place.store()).unwrap()[0].1, State::Altered(_)), "{what}");
        update(&place.store(), "recipes").unwrap();
        assert_eq!(verify(&place.store()).unwrap()[0].1, State::Sound, "{what}");
    }
}

#[test]
fn a_lock_file_alone_brings_everything_back() {
    let place = Place::new();
    place.commit(&[("a.toml", RECIPE)]);
    let locked = place.add().unwrap();
    place.commit(&[("a.toml", PROGRAM)]);
    fs::remove_dir_all(place.path("store")).unwrap();
    assert_eq!(verify(&place.store()).unwrap()[0].1, State::Missing);
    assert_eq!(restore(&place.store()).unwrap(), std::slice::from_ref(&locked));
    assert_eq!(verify(&place.store()).unwrap(), [(locked, State::Sound)]);
    assert!(read_recipe(&place.store(), "recipes/a", Layer::Recipe).unwrap().text.contains("decoder"));
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
fn a_program_needs_trust_and_any_change_takes_it_away() {
    let place = Place::new();
    place.commit(&[("program.toml", PROGRAM)]);
    let locked = place.add().unwrap();
    let (store, file) = (place.store(), place.path("trust.toml"));
    let recipe = || place.checked("extends = \"recipes/program\"\n");
    assert_eq!(capabilities(&recipe())[0].to_string(), "runs \"python3\" \"train.py\"");
    let permit = |checked: &Checked| trust::permit(&store, &Trust::read(&file).unwrap(), checked);
    assert!(matches!(permit(&recipe()), Err(SharingError::Untrusted { .. })));

    let mut granted = Trust::read(&file).unwrap();
    granted.grant(&locked);
    granted.write(&file).unwrap();
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(permit(&recipe()).is_ok());

    let before = recipe();
    place.commit(&[("program.toml", &PROGRAM.replace("train.py", "other.py"))]);
    update(&store, "recipes").unwrap();
    assert!(matches!(permit(&before), Err(SharingError::Untrusted { .. })), "another commit");
    assert!(matches!(permit(&recipe()), Err(SharingError::Untrusted { .. })), "another commit, read again");

    granted.grant(&list(&store).unwrap()[0]);
    granted.write(&file).unwrap();
    assert!(permit(&recipe()).is_ok());
    granted.revoke(&place.url());
    granted.write(&file).unwrap();
    assert!(permit(&recipe()).is_err());
    assert!(permit(&place.checked(PROGRAM)).is_ok(), "the user's own file needs no trust");
}

#[test]
fn trust_that_others_could_have_written_is_no_trust() {
    let place = Place::new();
    let file = place.path("trust.toml");
    Trust::default().write(&file).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o660)).unwrap();
    assert!(Trust::read(&file).unwrap_err().to_string().contains("mode 660"));
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
