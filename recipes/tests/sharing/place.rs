//! A repository, and a store that adds from it.

use dtrain_recipes::sharing::{LockedPackage, SharingError, Store, add, list, resolver};
use dtrain_recipes::{
    CheckContext, CheckedRecipe, ConfigLayer, Document, Source, check, render_all, resolve_extends,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(crate) const RECIPE: &str = "[model]\nkind = \"decoder\"\nlayers = 2\nhidden = 64\nheads = 4\ncontext = 32\n\
[data]\ntrain = \"data/*.txt\"\n[objective]\nstop = { steps = 10 }\n";
pub(crate) const PROGRAM: &str = "[model]\nkind = \"command\"\nargv = [\"python3\", \"train.py\"]\n";

/// A place with a repository `recipes`, a store and a lock file.
pub(crate) struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap() };
        fs::create_dir(place.repository()).unwrap();
        place.git(&["init", "-q", "-b", "main"]);
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn repository(&self) -> PathBuf {
        self.path("recipes")
    }

    pub(crate) fn url(&self) -> String {
        self.repository().display().to_string()
    }

    pub(crate) fn store(&self) -> Store {
        Store { folder: self.path("store"), lock: self.path("dtrain.lock"), allow_file: true }
    }

    pub(crate) fn git(&self, arguments: &[&str]) -> String {
        self.git_with(arguments, b"")
    }

    /// Runs git in the repository; a failure is a failure of the test.
    pub(crate) fn git_with(&self, arguments: &[&str], input: &[u8]) -> String {
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

    pub(crate) fn commit(&self, files: &[(&str, &str)]) -> String {
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
    pub(crate) fn commit_entry(&self, mode: &str, path: &str, text: &str) {
        let blob = self.git_with(&["hash-object", "-w", "--stdin"], text.as_bytes());
        self.git(&["update-index", "--add", "--cacheinfo", &format!("{mode},{blob},{path}")]);
        self.git(&["commit", "-q", "-m", "entry"]);
    }

    pub(crate) fn add(&self) -> Result<LockedPackage, SharingError> {
        add(&self.store(), &self.url(), None, None)
    }

    pub(crate) fn refused(&self, part: &str) {
        let error = self.add().unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
        assert!(list(&self.store()).unwrap().is_empty(), "nothing refused is locked");
        let kept: Vec<_> =
            fs::read_dir(self.path("store/recipes")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(kept, ["git"], "nothing refused is written");
    }

    pub(crate) fn checked(&self, text: &str) -> CheckedRecipe {
        let store = self.store();
        let source = Source::file(&self.path("r.toml"), ConfigLayer::Recipe, text);
        let checked = Document::parse(&source)
            .and_then(|document| resolve_extends(document, &resolver(Some(&store))))
            .and_then(|document| check(&document, &CheckContext::of_file(Path::new("r.toml"))));
        checked.unwrap_or_else(|problems| panic!("{}", render_all(&problems, false)))
    }
}
