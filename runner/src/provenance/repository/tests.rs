use super::super::git;
use super::*;
use std::os::unix::fs::PermissionsExt;

/// Repository with one commit, an attribute for every file, and a program that leaves a mark beside it.
struct Evil {
    folder: tempfile::TempDir,
}

impl Evil {
    fn new() -> Self {
        let evil = Self { folder: tempfile::tempdir().expect("a folder") };
        fs::create_dir(evil.top()).expect("made");
        evil.file("a.txt", "one\n");
        evil.file(".gitattributes", "*.txt filter=evil diff=evil merge=evil\n");
        let program = evil.folder.path().join("program");
        fs::write(&program, format!("#!/bin/sh\necho \"$0 $*\" >>'{}'\ncat\n", evil.mark().display()))
            .expect("written");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("ours");
        evil.run(&["init", "-q", "-b", "main"]);
        evil.run(&["add", "-A"]);
        evil.run(&["commit", "-q", "-m", "first"]);
        evil
    }

    fn top(&self) -> PathBuf {
        self.folder.path().join("repository")
    }

    fn mark(&self) -> PathBuf {
        self.folder.path().join("mark")
    }

    fn program(&self) -> String {
        self.folder.path().join("program").display().to_string()
    }

    fn file(&self, name: &str, text: &str) {
        fs::write(self.top().join(name), text).expect("written");
    }

    fn run(&self, words: &[&str]) {
        let identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"];
        let done =
            Command::new("git").arg("-C").arg(self.top()).args(identity).args(words).output().expect("git");
        assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
    }

    fn set(&self, name: &str) {
        self.run(&["config", name, &self.program()]);
    }

    /// Returns the state of the repository with a changed file, and checks that no program of it has run.
    fn found(&self, vector: &str) -> super::super::GitState {
        self.file("a.txt", "two\n");
        let found = git(&self.top()).unwrap_or_else(|| panic!("{vector}: no repository was found"));
        let marks = fs::read_to_string(self.mark()).unwrap_or_default();
        assert_eq!(marks, "", "{vector} ran a program");
        let patch = found.patch.clone().unwrap_or_default();
        assert!(patch.contains("-one\n+two\n"), "{vector}: {patch}");
        found
    }
}

#[test]
fn no_setting_of_a_repository_runs_a_program() {
    let names = [
        "filter.evil.clean",
        "filter.evil.process",
        "filter.evil.smudge",
        "diff.external",
        "diff.evil.command",
        "diff.evil.textconv",
        "core.fsmonitor",
        "core.pager",
        "core.sshCommand",
        "core.askPass",
        "core.editor",
        "core.alternateRefsCommand",
        "credential.helper",
        "gpg.program",
        "pager.diff",
        "uploadpack.packObjectsHook",
    ];
    for name in names {
        let evil = Evil::new();
        evil.set(name);
        evil.run(&["config", "filter.evil.required", "true"]);
        evil.run(&["config", "core.untrackedCache", "true"]);
        evil.found(name);
    }
}

#[test]
fn an_included_setting_and_one_of_a_work_tree_run_no_program() {
    for (name, include) in [("include.path", "../included"), ("includeIf.gitdir:/.path", "../included")] {
        let evil = Evil::new();
        evil.file(
            "included",
            &format!("[filter \"evil\"]\n\tclean = {0}\n[core]\n\tfsmonitor = {0}\n", evil.program()),
        );
        evil.run(&["config", name, include]);
        evil.found(name);
    }
    let evil = Evil::new();
    evil.run(&["config", "extensions.worktreeConfig", "true"]);
    evil.run(&["config", "--worktree", "filter.evil.clean", &evil.program()]);
    evil.found("config.worktree");
}

#[test]
fn attributes_beside_the_settings_run_no_program() {
    let evil = Evil::new();
    evil.file(".git/info/attributes", "* filter=evil\n");
    evil.set("filter.evil.clean");
    evil.found("info/attributes");
    let evil = Evil::new();
    evil.file("attributes", "* filter=other\n");
    evil.run(&["config", "core.attributesFile", &evil.top().join("attributes").display().to_string()]);
    evil.set("filter.other.clean");
    evil.found("core.attributesFile");
}

#[test]
fn hooks_do_not_run() {
    let evil = Evil::new();
    for hook in ["post-index-change", "reference-transaction", "post-checkout", "fsmonitor-watchman"] {
        let path = evil.top().join(".git/hooks").join(hook);
        drop(fs::create_dir(evil.top().join(".git/hooks")));
        fs::copy(evil.program(), &path).expect("copied");
    }
    evil.found("hooks");
    let evil = Evil::new();
    fs::create_dir(evil.top().join("hooks")).expect("made");
    fs::copy(evil.program(), evil.top().join("hooks/post-index-change")).expect("copied");
    evil.run(&["config", "core.hooksPath", "hooks"]);
    evil.found("core.hooksPath");
}

#[test]
fn what_is_missing_is_not_fetched() {
    let evil = Evil::new();
    evil.run(&["config", "core.repositoryformatversion", "1"]);
    evil.run(&["config", "extensions.partialClone", "origin"]);
    evil.run(&["config", "remote.origin.promisor", "true"]);
    evil.run(&["config", "protocol.ext.allow", "always"]);
    evil.run(&["config", "remote.origin.url", &format!("ext::{} %S", evil.program())]);
    let objects = evil.top().join(".git/objects");
    for folder in
        fs::read_dir(&objects).expect("there").flatten().filter(|entry| entry.file_name().len() == 2)
    {
        fs::remove_dir_all(folder.path()).expect("removed");
    }
    evil.file("a.txt", "two\n");
    let found = git(&evil.top()).expect("its head has a name");
    assert!(!evil.mark().exists(), "git fetched");
    assert!(found.is_patch_cut && found.is_dirty(), "what differs is not known: {found:?}");
}

#[test]
fn a_repository_in_the_repository_is_not_entered() {
    let inner = Evil::new();
    let outer = Evil::new();
    let place = outer.top().join("inner");
    fs::rename(inner.top(), &place).expect("moved");
    outer.run(&["-c", "advice.addEmbeddedRepo=false", "add", "inner"]);
    outer.run(&["commit", "-q", "-m", "second"]);
    fs::write(place.join("a.txt"), "two\n").expect("written");
    for name in ["filter.evil.clean", "core.fsmonitor"] {
        let done =
            Command::new("git").arg("-C").arg(&place).args(["config", name, &outer.program()]).status();
        assert!(done.expect("git").success());
    }
    outer.found("a submodule");
}

#[test]
fn settings_choose_no_other_work_tree() {
    let evil = Evil::new();
    let secret = evil.folder.path().join("secret");
    fs::write(&secret, "a secret of the user\n").expect("written");
    evil.run(&["config", "core.worktree", &evil.folder.path().display().to_string()]);
    evil.found("core.worktree");
    let found = git(&evil.top()).expect("a repository");
    assert!(!format!("{found:?}").contains("secret"), "{found:?}");
}

#[test]
fn further_work_trees_and_indexes_in_two_files_are_read() {
    let evil = Evil::new();
    let other = evil.folder.path().join("other");
    evil.run(&["worktree", "add", "-q", "-b", "side", &other.display().to_string()]);
    fs::write(other.join("a.txt"), "three\n").expect("written");
    let found = git(&other).expect("a work tree");
    assert_eq!(found.branch.as_deref(), Some("side"));
    assert!(found.patch.as_deref().is_some_and(|patch| patch.contains("-one\n+three\n")), "{found:?}");
    evil.run(&["update-index", "--split-index"]);
    assert_eq!(evil.found("a split index").branch.as_deref(), Some("main"));
}

#[test]
fn what_the_user_ignores_is_not_told() {
    let evil = Evil::new();
    evil.file(".git/info/exclude", "ignored\n");
    evil.file("ignored", "");
    evil.file("new", "");
    assert_eq!(evil.found("nothing").untracked, ["new"]);
}

#[test]
fn a_repository_with_a_pipe_is_left_alone() {
    let pipe = |path: &Path| {
        drop(fs::remove_file(path));
        assert!(Command::new("mkfifo").arg(path).status().expect("mkfifo").success());
    };
    for name in [
        ".git/HEAD",
        ".git/index",
        ".git/commondir",
        ".git/config",
        ".gitattributes",
        ".git/objects/info/alternates",
    ] {
        let evil = Evil::new();
        pipe(&evil.top().join(name));
        assert_eq!(git(&evil.top()), None, "{name}");
    }
}

#[test]
fn git_is_ended_after_the_deadline() {
    let evil = Evil::new();
    let pipe = evil.top().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    // The pipe has no writer, so the process never ends by itself.
    let mut waits = Command::new("cat");
    waits.arg(&pipe).stdout(Stdio::piped());
    assert_eq!(capture_output(&mut waits, 100, Instant::now()), None);
}
