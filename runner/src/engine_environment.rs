//! Python environments of training engines: their folder on a host, the packages that an engine needs, and
//! their installation.
//!
//! Engines of one framework share an environment, `engines/NAME` in the state folder; hosts that share a
//! state folder share it too.

mod install;

pub use install::install;

use crate::home::Home;
use dtrain_planner::emit::TORCHTITAN_VERSION;
use dtrain_recipes::TrainingEngine;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Python interpreter of an engine where none is named and none was installed.
const SYSTEM_PYTHON: &str = "python3";

/// A Python package that an engine needs.
#[derive(Debug, PartialEq, Eq)]
struct PythonPackage {
    /// Name of the package on PyPI.
    name: &'static str,
    /// Version that is installed: the one with which dtrain is tested.
    pinned: &'static str,
    /// Oldest version that is accepted.
    least: &'static str,
    /// First version that is not accepted any more.
    below: &'static str,
}

const TORCH: PythonPackage = PythonPackage { name: "torch", pinned: "2.15.0", least: "2.8", below: "3" };

/// Returns the packages that an engine needs.
fn packages(engine: TrainingEngine) -> &'static [PythonPackage] {
    match engine {
        TrainingEngine::Dtrain | TrainingEngine::Auto => &[],
        TrainingEngine::Torchtitan => &[
            TORCH,
            PythonPackage { name: "datasets", pinned: "4.7.0", least: "3.6", below: "4.8" },
            PythonPackage {
                name: "torchtitan",
                pinned: TORCHTITAN_VERSION,
                least: TORCHTITAN_VERSION,
                below: "0.3.1",
            },
        ],
        TrainingEngine::Fsdp => {
            &[TORCH, PythonPackage { name: "transformers", pinned: "5.24.0", least: "5", below: "6" }]
        }
    }
}

/// The Python environment in which an engine runs on a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineEnvironment {
    /// Interpreter, as it is started.
    pub python: PathBuf,
    /// Versions of Python (`python`) and of the packages that the engine needs, by name.
    pub versions: BTreeMap<String, String>,
}

/// Returns the folder of the environment that `dtrain engine install` makes for an engine.
pub fn folder(home: &Home, engine: TrainingEngine) -> PathBuf {
    let name = match engine {
        TrainingEngine::Dtrain | TrainingEngine::Auto | TrainingEngine::Torchtitan | TrainingEngine::Fsdp => {
            "pytorch"
        }
    };
    home.engines().join(name)
}

/// Returns the interpreter with which an engine runs on this host: the `named` one, or that of the installed
/// environment, or `python3`.
pub fn interpreter(home: &Home, engine: TrainingEngine, named: Option<&str>) -> PathBuf {
    let installed = interpreter_in(&folder(home, engine));
    match named {
        Some(named) => PathBuf::from(named),
        None if installed.exists() => installed,
        None => PathBuf::from(SYSTEM_PYTHON),
    }
}

fn interpreter_in(environment: &Path) -> PathBuf {
    environment.join("bin/python")
}

/// Checks that this host has the interpreter and the packages of an engine, and returns what was found.
///
/// The error says what is missing and what to do.
pub fn examine(
    home: &Home,
    engine: TrainingEngine,
    named: Option<&str>,
) -> Result<EngineEnvironment, String> {
    let python = interpreter(home, engine, named);
    let environment = versions(&python, packages(engine));
    let environment =
        environment.map_err(|reason| format!("{}: {reason}; {}", python.display(), remedy(engine)))?;
    let wrong = problems(engine, &environment);
    if wrong.is_empty() {
        return Ok(EngineEnvironment { python, versions: environment });
    }
    Err(format!("{} {}; {}", python.display(), wrong.join(", "), remedy(engine)))
}

/// Returns the versions of Python and of all packages of engines in the environment that was installed on this
/// host; `None` if none was, and `Err` if its interpreter does not answer.
pub fn installed(home: &Home) -> Option<Result<BTreeMap<String, String>, String>> {
    let python = interpreter_in(&folder(home, TrainingEngine::Torchtitan));
    if !python.exists() {
        return None;
    }
    let all = TrainingEngine::ALL.iter().flat_map(|engine| packages(*engine));
    Some(versions(&python, all).map_err(|reason| format!("{}: {reason}", python.display())))
}

/// Returns the reasons why an engine cannot run with packages of these versions, by name; empty if it can.
pub fn problems(engine: TrainingEngine, versions: &BTreeMap<String, String>) -> Vec<String> {
    packages(engine).iter().filter_map(|package| package.problem(versions)).collect()
}

/// Returns `true` if an engine was installed among packages of these versions, by name: its last package, which
/// no other engine needs, is there.
pub fn is_installed(engine: TrainingEngine, versions: &BTreeMap<String, String>) -> bool {
    packages(engine).last().is_some_and(|package| versions.contains_key(package.name))
}

/// Returns what to do about an engine that cannot run.
pub fn remedy(engine: TrainingEngine) -> String {
    format!(
        "`dtrain engine install {engine}` installs what it needs, or name another interpreter in cluster.python"
    )
}

impl PythonPackage {
    /// Returns the reason why the installed version cannot be used; `None` if it can.
    fn problem(&self, found: &BTreeMap<String, String>) -> Option<String> {
        let Self { name, least, below, .. } = self;
        let Some(version) = found.get(*name) else { return Some(format!("has no {name}")) };
        let is_accepted = numbers(version) >= numbers(least) && numbers(version) < numbers(below);
        (!is_accepted).then(|| format!("has {name} {version} (at least {least} and below {below} is needed)"))
    }

    /// Returns the requirement that pip installs.
    fn requirement(&self) -> String {
        format!("{}=={}", self.name, self.pinned)
    }
}

/// Returns the numbers at the beginning of a version such as `2.15.0+cu130`.
fn numbers(version: &str) -> Vec<u64> {
    let plain = version.split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap_or_default();
    let mut numbers: Vec<u64> = plain.split('.').filter_map(|part| part.parse().ok()).collect();
    while numbers.last() == Some(&0) {
        numbers.pop();
    }
    numbers
}

/// Asks an interpreter for its version and those of packages; a missing package is left out.
fn versions<'a>(
    python: &Path,
    wanted: impl IntoIterator<Item = &'a PythonPackage>,
) -> Result<BTreeMap<String, String>, String> {
    // The current folder may be that of a recipe, whose files are no packages.
    let program = "import importlib.metadata as m, json, platform, sys\n\
                   sys.path[:] = filter(None, sys.path)\n\
                   found = {'python': platform.python_version()}\n\
                   for name in sys.argv[1:]:\n    \
                       try:\n        found[name] = m.version(name)\n    \
                       except m.PackageNotFoundError:\n        pass\n\
                   print(json.dumps(found))";
    let names = wanted.into_iter().map(|package| package.name);
    let asked = Command::new(python).args(["-c", program]).args(names).stdin(Stdio::null()).output();
    let output = asked.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => "there is no such program".to_owned(),
        _ => error.to_string(),
    })?;
    serde_json::from_slice(&output.stdout).map_err(|_| {
        let complaint = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let last = complaint.lines().last().unwrap_or_default().to_owned();
        format!("it does not answer as a Python interpreter does ({}): {last}", output.status)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    /// Returns an interpreter that prints `answer`.
    fn interpreter_that_prints(answer: &str) -> (tempfile::TempDir, String) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("python");
        fs::write(&path, format!("#!/bin/sh\ncat <<'.'\n{answer}\n.\n")).expect("room on disk");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
        let name = path.to_str().expect("UTF-8").to_owned();
        (folder, name)
    }

    fn examined(answer: &str) -> Result<EngineEnvironment, String> {
        let (folder, python) = interpreter_that_prints(answer);
        examine(&Home::at(folder.path()), TrainingEngine::Torchtitan, Some(&python))
    }

    #[test]
    fn every_package_that_is_missing_or_of_another_version_is_named() {
        let all = r#"{"python":"3.11.2","torch":"2.15.0+cpu","torchtitan":"0.3.0","datasets":"4.7.0"}"#;
        let found = examined(all).expect("all are there");
        assert_eq!(found.versions["torchtitan"], "0.3.0");
        let old = examined(r#"{"python":"3.11.2","torch":"2.7.1","datasets":"4.10.0"}"#).expect_err("old");
        for words in [
            "has torch 2.7.1 (at least 2.8 and below 3 is needed)",
            "has no torchtitan",
            "has datasets 4.10.0",
            "`dtrain engine install torchtitan`",
            "cluster.python",
        ] {
            assert!(old.contains(words), "{words:?} in {old}");
        }
    }

    #[test]
    fn a_program_that_is_no_interpreter_is_refused() {
        let silent = examined("").expect_err("it says nothing");
        assert!(silent.contains("does not answer as a Python interpreter"), "{silent}");
        let home = Home::at("/nowhere");
        let missing = examine(&home, TrainingEngine::Fsdp, Some("/no/python")).expect_err("it is missing");
        assert!(missing.contains("/no/python: there is no such program"), "{missing}");
    }

    #[test]
    fn versions_are_compared_by_their_numbers() {
        assert!(numbers("2.15.0+cu130") > numbers("2.8"));
        assert_eq!(numbers("0.3.0"), numbers("0.3"));
        assert!(numbers("5.0.0rc1") < numbers("5.24.0"));
    }

    #[test]
    fn hosts_that_share_a_state_folder_share_the_environment() {
        let (home, engine) = (Home::at("/state"), TrainingEngine::Fsdp);
        assert_eq!(folder(&home, engine), folder(&home.host("gpu-01"), engine));
        assert_eq!(folder(&home, engine), Path::new("/state/engines/pytorch"));
        assert_eq!(interpreter(&home, engine, None), Path::new("python3"));
    }
}
