use super::manifest::{Manifest, ManifestEntry};
use super::store::{WorkdirStore, hold};
use super::{WorkdirError, WorkdirFiles, WorkdirSnapshot};
use dtrain_recipes::{Bytes, Workdir};
use dtrain_skip::skip;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

/// No folder has dtrain's state in it, unless a test says so.
const STATE: &str = "/no/state";

/// A folder with these files.
fn folder(files: &[(&str, &str)]) -> TempDir {
    let root = tempfile::tempdir().expect("a folder");
    put(root.path(), files);
    root
}

fn put(root: &Path, files: &[(&str, &str)]) {
    for (name, text) in files {
        let path = root.join(name);
        fs::create_dir_all(path.parent().expect("it is in the folder")).expect("room on disk");
        fs::write(path, text).expect("room on disk");
    }
}

/// Runs git in a folder; returns `false` where there is no git.
fn git(folder: &Path, arguments: &[&str]) -> bool {
    let mut command = Command::new("git");
    let settings = ["-c", "user.name=me", "-c", "user.email=me@host", "-c", "protocol.file.allow=always"];
    command.arg("-C").arg(folder).args(settings).args(arguments);
    match command.env("GIT_CONFIG_GLOBAL", "/dev/null").output() {
        Ok(output) => {
            assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
            true
        }
        Err(_) => false,
    }
}

fn excluding(patterns: &[&str]) -> Workdir {
    Workdir { exclude: patterns.iter().map(|one| (*one).to_owned()).collect(), ..Workdir::default() }
}

fn names(folder: &Path, rules: &Workdir) -> Vec<String> {
    let found = WorkdirFiles::find(folder, rules, Path::new(STATE)).expect("it can be sent");
    found.files.into_iter().map(|file| file.path).collect()
}

fn refused(folder: &Path, rules: &Workdir) -> WorkdirError {
    WorkdirFiles::find(folder, rules, Path::new(STATE)).expect_err("it cannot be sent")
}

fn snapshot(folder: &Path) -> WorkdirSnapshot {
    WorkdirSnapshot::take(folder, &Workdir::default(), Path::new(STATE)).expect("it can be sent")
}

#[test]
fn git_says_what_belongs_to_the_folder() {
    let root = folder(&[
        (".gitignore", "*.log\n/runs/\n"),
        ("train.py", "print()"),
        ("lib/model.py", ""),
        ("gone.py", ""),
        ("kept.log", "tracked although ignored"),
        ("out.log", "ignored"),
        ("runs/1/last.pt", "ignored"),
    ]);
    let root = root.path();
    if !git(root, &["init", "--quiet"]) {
        return skip("there is no git");
    }
    // Nothing is committed yet.
    let all = [".gitignore", "gone.py", "kept.log", "lib/model.py", "train.py"];
    assert_eq!(names(root, &excluding(&["nothing"])), [all[0], all[1], all[3], all[4]]);
    git(root, &["add", "."]);
    git(root, &["add", "--force", "kept.log"]);
    git(root, &["commit", "--quiet", "--message", "all"]);
    assert_eq!(names(root, &Workdir::default()), all);
    fs::remove_file(root.join("gone.py")).expect("it was there");
    put(root, &[("new.py", "untracked")]);
    assert_eq!(names(root, &excluding(&["*.log"])), [".gitignore", "lib/model.py", "new.py", "train.py"]);
    assert_eq!(names(&root.join("lib"), &Workdir::default()), ["model.py"], "a part of the repository");
}

#[test]
fn a_submodule_says_itself_what_belongs_to_it() {
    let (other, root) = (folder(&[(".gitignore", "*.o"), ("c.h", "")]), folder(&[("train.py", "")]));
    if !git(other.path(), &["init", "--quiet"]) {
        return skip("there is no git");
    }
    git(other.path(), &["add", "."]);
    git(other.path(), &["commit", "--quiet", "--message", "all"]);
    git(root.path(), &["init", "--quiet"]);
    let from = other.path().to_str().expect("UTF-8");
    git(root.path(), &["submodule", "--quiet", "add", from, "vendor"]);
    put(root.path(), &[("vendor/c.o", "built")]);
    let found = names(root.path(), &Workdir::default());
    assert_eq!(found, [".gitmodules", "train.py", "vendor/.gitignore", "vendor/c.h"]);
}

#[test]
fn without_git_what_other_programs_make_is_left_out() {
    let root = folder(&[
        ("train.py", ""),
        ("lib/__pycache__/a.pyc", ""),
        ("lib/a.py", ""),
        (".venv/bin/python", ""),
        ("node_modules/a.js", ""),
        ("target/debug/a", ""),
        (".config/settings", ""),
        ("state/history.db", ""),
    ]);
    let rules = excluding(&["lib/*.txt"]);
    let state = root.path().join("state");
    let found = WorkdirFiles::find(root.path(), &rules, &state).expect("it can be sent");
    let found: Vec<_> = found.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(found, [".config/settings", "lib/a.py", "train.py"], "and dtrain's own state");
}

#[test]
fn links_stay_in_the_folder_and_other_files_are_named() {
    let root = folder(&[("lib/a.py", ""), ("data/x", "")]);
    let path = |name: &str| root.path().join(name);
    symlink("a.py", path("lib/b.py")).expect("room on disk");
    symlink("../data", path("lib/data")).expect("room on disk");
    let found =
        WorkdirFiles::find(root.path(), &Workdir::default(), Path::new(STATE)).expect("they stay inside");
    let links: Vec<_> = found.files.iter().filter_map(|file| file.link.as_deref()).collect();
    assert_eq!(links, ["a.py", "../data"]);
    for (target, words) in [("/etc/passwd", "out of"), ("../../..", "out of"), ("nowhere", "leads nowhere")] {
        symlink(target, path("lib/wrong")).expect("room on disk");
        let said = refused(root.path(), &Workdir::default()).to_string();
        assert!(said.contains("lib/wrong") && said.contains(words), "{said}");
        assert!(!names(root.path(), &excluding(&["wrong"])).is_empty(), "but it may be excluded");
        fs::remove_file(path("lib/wrong")).expect("it was there");
    }
    // A link that is excluded leads out, and another leads through it.
    symlink("/etc", path("excluded")).expect("room on disk");
    symlink("excluded/passwd", path("through")).expect("room on disk");
    let said = refused(root.path(), &excluding(&["excluded"])).to_string();
    assert!(said.contains("through") && said.contains("out of"), "{said}");
    ["excluded", "through"].iter().for_each(|name| fs::remove_file(path(name)).expect("it was there"));
    drop(std::os::unix::net::UnixListener::bind(path("socket")).expect("room on disk"));
    let said = refused(root.path(), &Workdir::default()).to_string();
    assert!(said.contains("socket") && said.contains("neither a file nor a folder"), "{said}");
}

#[test]
fn a_folder_above_the_limits_is_refused_with_what_is_large_in_it() {
    let root = folder(&[("train.py", "12345"), ("data/a.bin", "1234567890"), ("data/b.bin", "123")]);
    let rules = |bytes, files| Workdir { limit: Bytes(bytes), files, ..Workdir::default() };
    assert_eq!(names(root.path(), &rules(18, 3)).len(), 3, "as much as is allowed");
    match refused(root.path(), &rules(17, 3)) {
        WorkdirError::TooLarge { found: Bytes(18), limit: Bytes(17), largest } => {
            assert_eq!(largest[0], ("data/a.bin".to_owned(), Bytes(10)));
            assert_eq!(largest[1], ("train.py".to_owned(), Bytes(5)));
        }
        other => panic!("{other}"),
    }
    match refused(root.path(), &rules(18, 2)) {
        WorkdirError::TooMany { found: 3, is_cut: false, limit: 2, folders } => {
            assert_eq!(folders[0], ("data".to_owned(), 2));
        }
        other => panic!("{other}"),
    }
    let many: Vec<String> = (0..20).map(|number| format!("many/{number}")).collect();
    many.iter().for_each(|name| put(root.path(), &[(name, "")]));
    let cut = refused(root.path(), &rules(18, 2));
    assert!(matches!(cut, WorkdirError::TooMany { found: 9, is_cut: true, .. }), "{cut}");
}

#[test]
fn the_home_folder_is_not_sent() {
    let home = PathBuf::from(std::env::var_os("HOME").expect("the tests have one"));
    for folder in [home.as_path(), Path::new("/")] {
        assert!(
            matches!(refused(folder, &Workdir::default()), WorkdirError::Home(_)),
            "{}",
            folder.display()
        );
    }
}

#[test]
fn the_digest_is_that_of_names_modes_and_contents() {
    let files = [("train.py", "print()"), ("lib/a.py", "")];
    let (one, other) = (folder(&files), folder(&files));
    let old = SystemTime::now() - Duration::from_secs(3600);
    let file = fs::File::options().write(true).open(other.path().join("train.py")).expect("it is there");
    file.set_modified(old).expect("it is ours");
    let digest = snapshot(one.path()).digest().to_owned();
    assert_eq!(snapshot(other.path()).digest(), digest, "neither of times nor of the folder's own name");
    let changed = |change: &dyn Fn(&Path)| {
        let other = folder(&files);
        change(other.path());
        snapshot(other.path()).digest().to_owned()
    };
    let run = |path: &Path| {
        fs::set_permissions(path.join("train.py"), fs::Permissions::from_mode(0o755)).expect("it is ours");
    };
    assert_ne!(changed(&run), digest);
    assert_ne!(changed(&|path| put(path, &[("train.py", "print(1)")])), digest);
    assert_ne!(changed(&|path| put(path, &[("new", "")])), digest);
    assert_ne!(changed(&|path| fs::rename(path.join("train.py"), path.join("b.py")).expect("room")), digest);
    assert_ne!(changed(&|path| symlink("train.py", path.join("link")).expect("room")), digest);
}

/// Sends a folder to the store at `root` in small pieces.
fn send(snapshot: &WorkdirSnapshot, root: &Path) -> Result<PathBuf, String> {
    let store = WorkdirStore::new(root, snapshot.digest())?;
    let mut packed = Vec::new();
    snapshot.packed().read_to_end(&mut packed).map_err(|error| error.to_string())?;
    for (number, piece) in packed.chunks(7).enumerate() {
        store.write(7 * number as u64, piece)?;
    }
    store.install().map(|()| store.folder())
}

#[test]
fn a_folder_arrives_as_it_was_and_a_changed_one_is_not_used() {
    let root = folder(&[("train.py", "print()"), ("lib/empty", ""), ("run.sh", "exit")]);
    fs::set_permissions(root.path().join("run.sh"), fs::Permissions::from_mode(0o755)).expect("it is ours");
    symlink("../run.sh", root.path().join("lib/link")).expect("room on disk");
    let (snapshot, home) = (snapshot(root.path()), tempfile::tempdir().expect("a folder"));
    let store = WorkdirStore::new(home.path(), snapshot.digest()).expect("a digest");
    assert!(!store.is_intact());
    let there = send(&snapshot, home.path()).expect("room on disk");
    assert!(store.is_intact());
    assert_eq!(self::snapshot(&there).digest(), snapshot.digest());
    assert_eq!(fs::read_to_string(there.join("lib/link")).expect("the link holds"), "exit");

    put(&there, &[("out/log.txt", "what a program writes")]);
    assert!(store.is_intact(), "new files do not change the code");
    put(&there, &[("train.py", "print(2)")]);
    assert!(!store.is_intact());
    put(&there, &[("train.py", "print()")]);
    assert!(store.is_intact());
    fs::set_permissions(there.join("run.sh"), fs::Permissions::from_mode(0o600)).expect("it is ours");
    assert!(!store.is_intact(), "a script that cannot be executed");
    send(&snapshot, home.path()).expect("room on disk");
    assert!(store.is_intact());
    let left = fs::read_dir(home.path()).expect("a folder").count();
    assert_eq!(
        left, 2,
        "the folder and its manifest: nothing is left of the transfer or of the changed folder"
    );
}

#[test]
fn what_changes_while_it_is_sent_is_refused() {
    let root = folder(&[("train.py", "print()"), ("z", "123")]);
    let (snapshot, home) = (snapshot(root.path()), tempfile::tempdir().expect("a folder"));
    put(root.path(), &[("train.py", "print?!")]);
    let said = send(&snapshot, home.path()).expect_err("another content");
    assert!(said.contains("train.py") && said.contains("changed while it was sent"), "{said}");
    put(root.path(), &[("train.py", "print")]);
    let said = send(&snapshot, home.path()).expect_err("it is shorter");
    assert!(said.contains("train.py has just become shorter"), "{said}");
    put(root.path(), &[("train.py", "print() and more")]);
    let said = send(&snapshot, home.path());
    assert!(said.is_ok(), "what was added is not sent: {said:?}");
}

#[test]
fn nothing_is_written_outside_of_the_folder() {
    let home = tempfile::tempdir().expect("a folder");
    for digest in ["", "..", "../../x", &"A".repeat(64), &"a".repeat(63)] {
        assert!(WorkdirStore::new(home.path(), digest).is_err(), "{digest}");
    }
    let entry = |path: &str, link: Option<&str>| ManifestEntry {
        path: path.to_owned(),
        bytes: 0,
        is_executable: false,
        hash: None,
        link: link.map(str::to_owned),
    };
    let parsed = |entry: ManifestEntry| {
        let text = Manifest { files: vec![entry] }.to_text();
        let digest = blake3::hash(text.as_bytes()).to_hex();
        Manifest::parse(text.as_bytes(), digest.as_str())
    };
    for path in ["", "/etc/x", "../x", "a/../../x", "a//b", "./a"] {
        assert!(parsed(entry(path, None)).is_err(), "{path}");
    }
    for link in ["/etc", "b/../../..", "../.."] {
        assert!(parsed(entry("a/link", Some(link))).is_err(), "{link}");
    }
    assert!(parsed(entry("a/link", Some("../b"))).is_ok());
    assert!(Manifest::parse(b"{\"files\":[]}", &"0".repeat(64)).is_err(), "another digest");
}

#[test]
fn folders_that_no_trial_uses_are_removed_beyond_the_last_used_ones() {
    let home = tempfile::tempdir().expect("a folder");
    let sent =
        |text: String| send(&snapshot(folder(&[("train.py", &text)]).path()), home.path()).expect("room");
    let age = |folder: &Path, hours: u64| {
        let manifest =
            fs::File::options().write(true).open(folder.with_extension("json")).expect("its manifest");
        let at = SystemTime::now() - Duration::from_secs(3600 * hours);
        manifest.set_modified(at).expect("it is ours");
    };
    let (used, unused) = (sent("used".into()), sent("unused".into()));
    age(&used, 1000);
    age(&unused, 999);
    let lock = hold(&used).expect("it is there");
    let newer: Vec<PathBuf> = (0..5).map(|number| sent(number.to_string())).collect();
    assert!(used.exists() && !unused.exists());
    assert!(newer.iter().all(|folder| folder.exists()));
    drop(lock);
    sent("0".into());
    assert!(!used.exists());
}
