//! Installation of the Python environment of an engine, by uv where that is installed, otherwise by venv and
//! pip.

use super::{EngineEnvironment, examine, folder, interpreter_in, packages};
use crate::files;
use crate::home::Home;
use dtrain_recipes::TrainingEngine;
use rustix::fs::{FlockOperation, flock};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// Program that makes environments faster than pip, and fetches a Python where the host's is too old.
const UV: &str = "uv";

/// Number of lines of a failed program that its error quotes.
const LAST_LINES: usize = 4;

/// Installs the packages of an engine into its environment on this host, which is made if it is missing, and
/// returns what is there.
///
/// With `wheels`, packages come from that folder and nothing is downloaded. `say` gets what the installers
/// print, line by line.
pub fn install(
    home: &Home,
    engine: TrainingEngine,
    wheels: Option<&Path>,
    say: &mut dyn FnMut(&str),
) -> Result<EngineEnvironment, String> {
    let environment = folder(home, engine);
    let in_folder = |error: io::Error| format!("{}: {error}", environment.display());
    files::make_folder(&home.engines()).map_err(in_folder)?;
    let _lock = lock(&environment, say).map_err(in_folder)?;
    if let Some(wheels) = wheels.filter(|wheels| !wheels.is_dir()) {
        return Err(format!("there is no folder {} on this host", wheels.display()));
    }
    let installer = if is_installed(UV) { Installer::Uv } else { Installer::Pip };
    if !interpreter_in(&environment).exists() {
        installer.make(&environment, say).inspect_err(|_| {
            // Half an environment would count as one the next time.
            drop(fs::remove_dir_all(&environment));
        })?;
    }
    installer.prepare(&environment, say)?;
    let requirements = packages(engine).iter().map(|package| package.requirement().into()).collect();
    installer.add(&environment, requirements, wheels, say)?;
    let installed = interpreter_in(&environment);
    examine(home, engine, installed.to_str())
}

/// Locks an environment against another installation, which it waits for.
fn lock(environment: &Path, say: &mut dyn FnMut(&str)) -> io::Result<File> {
    let file = files::append(&environment.with_extension("lock"))?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        say("waiting for another installation of this environment");
        flock(&file, FlockOperation::LockExclusive)?;
    }
    Ok(file)
}

fn is_installed(program: &str) -> bool {
    let asked = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    asked.is_ok_and(|output| output.status.success())
}

/// A program that makes environments and installs packages.
#[derive(Clone, Copy)]
enum Installer {
    Uv,
    Pip,
}

impl Installer {
    fn make(self, environment: &Path, say: &mut dyn FnMut(&str)) -> Result<(), String> {
        let (program, arguments) = match self {
            Self::Uv => (UV, vec!["venv"]),
            Self::Pip => ("python3", vec!["-m", "venv"]),
        };
        let arguments = arguments.into_iter().map(OsString::from).chain([environment.into()]).collect();
        run(program.as_ref(), arguments, say).map_err(|reason| match self {
            Self::Uv => reason,
            Self::Pip => {
                format!("{reason}; install Python 3.11 or newer with its venv module, or uv")
            }
        })
    }

    /// Makes sure that the installer can work in an environment that another one may have made.
    fn prepare(self, environment: &Path, say: &mut dyn FnMut(&str)) -> Result<(), String> {
        let python = interpreter_in(environment);
        let has_pip = || {
            let asked = Command::new(&python).args(["-m", "pip", "--version"]).stdin(Stdio::null()).output();
            asked.is_ok_and(|output| output.status.success())
        };
        match self {
            Self::Pip if !has_pip() => run(&python, ["-m", "ensurepip"].map(OsString::from).to_vec(), say),
            Self::Pip | Self::Uv => Ok(()),
        }
    }

    fn add(
        self,
        environment: &Path,
        requirements: Vec<OsString>,
        wheels: Option<&Path>,
        say: &mut dyn FnMut(&str),
    ) -> Result<(), String> {
        let python = interpreter_in(environment);
        let mut arguments: Vec<OsString> = match self {
            Self::Uv => ["pip", "install", "--python"].map(OsString::from).to_vec(),
            Self::Pip => {
                let quiet = ["-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"];
                quiet.map(OsString::from).to_vec()
            }
        };
        let program = match self {
            Self::Uv => {
                arguments.push(python.into());
                UV.into()
            }
            Self::Pip => python,
        };
        if let Some(wheels) = wheels {
            arguments.extend(["--no-index".into(), "--find-links".into(), wheels.into()]);
        }
        arguments.extend(requirements);
        run(&program, arguments, say)
    }
}

/// Runs a program to its end, and passes on what it prints. The error quotes its last lines.
fn run(program: &Path, arguments: Vec<OsString>, say: &mut dyn FnMut(&str)) -> Result<(), String> {
    let shown = program.display();
    let failed = |error: io::Error| format!("{shown}: {error}");
    let (output, printed) = io::pipe().map_err(failed)?;
    let mut command = Command::new(program);
    command.args(&arguments).stdin(Stdio::null());
    command.stdout(printed.try_clone().map_err(failed)?).stderr(printed);
    let mut child = command.spawn().map_err(failed)?;
    // The command holds the write end of the pipe.
    drop(command);
    let mut last = std::collections::VecDeque::new();
    for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        if line.is_empty() {
            continue;
        }
        say(&line);
        if last.len() == LAST_LINES {
            last.pop_front();
        }
        last.push_back(line);
    }
    let status = child.wait().map_err(failed)?;
    if status.success() {
        return Ok(());
    }
    let last: Vec<String> = last.into_iter().collect();
    Err(format!("{shown} ended with {status}: {}", last.join(" | ")))
}
