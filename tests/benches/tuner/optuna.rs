//! Studies of Optuna, by `peer.py`.

use super::functions::Function;
use dtrain_planner::tune::TrialValue;
use serde::de::DeserializeOwned;
use serde_json::json;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SCRIPT: &str = include_str!("peer.py");

/// Its samplers.
pub(crate) const SAMPLERS: [&str; 5] = ["random", "sobol", "tpe", "cmaes", "gp"];

/// Optuna in a Python.
pub(crate) struct Optuna {
    python: PathBuf,
    folder: tempfile::TempDir,
    pub(crate) version: String,
    /// What studies found before: they are functions of the script, the version and the seed.
    found: PathBuf,
}

impl Optuna {
    /// That of a Python which has it.
    pub(crate) fn of(python: PathBuf) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("peer.py"), SCRIPT).expect("room on disk");
        let mut optuna = Self { python, folder, version: String::new(), found: PathBuf::new() };
        optuna.version = optuna.run(&["version"], "").trim().to_owned();
        let digest = blake3::hash(format!("{SCRIPT}{}", optuna.version).as_bytes()).to_hex();
        optuna.found = dtrain_tests::root().join("target/tuner").join(&digest[..16]);
        optuna
    }

    fn run(&self, words: &[&str], input: &str) -> String {
        let mut command = Command::new(&self.python);
        command.arg(self.folder.path().join("peer.py")).args(words);
        // One thread, as dtrain has; small matrices are not faster with more.
        command.env("OMP_NUM_THREADS", "1").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut stdin = child.stdin.take().expect("it is a pipe");
        stdin.write_all(input.as_bytes()).expect("it reads");
        drop(stdin);
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "peer.py {words:?}: {}", output.status);
        String::from_utf8(output.stdout).expect("it prints text")
    }

    /// The values of a function at some points.
    pub(crate) fn values(&self, function: &Function, points: &[Vec<TrialValue>]) -> Vec<Option<f64>> {
        let line = |point: &Vec<TrialValue>| format!("{}\n", json!([function.name, point]));
        lines(&self.run(&["check"], &points.iter().map(line).collect::<String>()))
    }

    /// For each seed, the true values of the lowest trial after 30 and after all trials.
    pub(crate) fn studies(
        &self,
        sampler: &str,
        function: &Function,
        seeds: u64,
        trials: u64,
    ) -> Vec<(f64, f64)> {
        let kept = self.found.join(format!("{sampler}-{}-{seeds}-{trials}.jsonl", function.name));
        let text = fs::read_to_string(&kept).unwrap_or_else(|_| {
            let words = ["study", sampler, function.name, &seeds.to_string(), &trials.to_string()];
            let text = self.run(&words, "");
            write(&kept, &text);
            text
        });
        lines(&text)
    }

    /// Milliseconds that each of some suggestions took after so many trials of Hartmann's function.
    pub(crate) fn milliseconds(&self, sampler: &str, trials: u64, repeats: u64) -> Vec<f64> {
        lines(&self.run(&["time", sampler, &trials.to_string(), &repeats.to_string()], ""))
    }
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("it is in a folder")).expect("a folder");
    fs::write(path, text).expect("room on disk");
}

fn lines<T: DeserializeOwned>(text: &str) -> Vec<T> {
    text.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
}
