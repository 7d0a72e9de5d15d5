//! Environment of one test: state, settings and recipes in temporary folders.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A user's folders; removed on drop.
pub(crate) struct TestEnv(tempfile::TempDir);

/// Output of the program.
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl TestEnv {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder for the test"))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().expect("a file has a folder")).expect("a folder");
        fs::write(&path, text).expect("a file");
        path
    }

    /// Returns the program in this environment, without the settings of the user who runs the test.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dtrain"));
        command.args(args).current_dir(self.path()).env_clear();
        command.env("HOME", self.path()).env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("DTRAIN_STATE", self.path().join("state")).env("LANG", "C.UTF-8");
        command
    }

    pub(crate) fn dtrain(&self, args: &[&str]) -> Said {
        said(self.command(args).output().expect("the program starts"))
    }

    /// Writes a small valid recipe with its data.
    pub(crate) fn recipe(&self) -> PathBuf {
        self.file("data/a.txt", &"to be or not to be\n".repeat(200));
        self.file("recipe.toml", RECIPE)
    }
}

pub(crate) fn said(output: Output) -> Said {
    Said {
        code: output.status.code().expect("it ends by itself"),
        stdout: String::from_utf8(output.stdout).expect("UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}

const RECIPE: &str = r#"name = "tiny"

[model]
kind = "decoder"
layers = 1
hidden = 16
heads = 2
context = 16

[data]
train = "data/*.txt"
valid = "10%"

[objective]
stop = { steps = 20 }

[train]
batch = 8
seed = 7
"#;
