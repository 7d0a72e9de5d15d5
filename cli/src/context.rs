//! What every command is given: how to speak, and where state lies.

use crate::failure::{Exit, Failure};
use crate::output::Output;
use dtrain_runner::{Home, files};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// What every command is given.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    /// How to speak.
    pub(crate) out: Output,
    /// The state folder.
    pub(crate) home: Home,
}

impl Context {
    pub(crate) fn new(out: Output, state: Option<PathBuf>) -> Result<Self, Failure> {
        let folder = match state {
            Some(folder) => folder,
            None => base("XDG_STATE_HOME", ".local/state")?.join("dtrain"),
        };
        let folder = std::path::absolute(&folder).map_err(|error| {
            Failure::new(Exit::Preflight, format!("cannot use the state folder {}", folder.display()))
                .cause(error.to_string())
        })?;
        Ok(Self { out, home: Home::at(folder) })
    }
}

impl Context {
    /// Refuses a state folder in which somebody else could have put something.
    pub(crate) fn check_state(&self) -> Result<(), Failure> {
        self.home.check().map_err(|error| {
            let folder = self.home.path().display();
            Failure::new(Exit::Preflight, format!("cannot use the state folder {folder}"))
                .cause(error.to_string())
        })
    }
}

/// Refuses settings, and what else commands of the user obey, that belong to somebody else, or that others can write.
pub(crate) fn check_obeyed(path: &Path) -> Result<(), Failure> {
    files::check_behind_links(path).map_err(|error| {
        Failure::new(Exit::Preflight, format!("cannot use {}", path.display())).cause(error.to_string())
    })
}

/// The user's settings file; it need not exist.
pub(crate) fn settings_file() -> Result<PathBuf, Failure> {
    Ok(base("XDG_CONFIG_HOME", ".config")?.join("dtrain").join("config.toml"))
}

/// A base folder of the user: the variable where it is an absolute path, otherwise below the home folder.
pub(crate) fn base(variable: &str, below_home: &str) -> Result<PathBuf, Failure> {
    folder(std::env::var_os(variable), std::env::var_os("HOME"), below_home).ok_or_else(|| {
        Failure::new(
            Exit::Preflight,
            format!("cannot tell where files belong: neither {variable} nor HOME is set"),
        )
        .hint("set HOME, or give --state FOLDER")
    })
}

fn folder(variable: Option<OsString>, home: Option<OsString>, below_home: &str) -> Option<PathBuf> {
    let absolute = |text: OsString| Some(PathBuf::from(text)).filter(|path| path.is_absolute());
    variable
        .and_then(absolute)
        .or_else(|| Some(Path::new(&home.filter(|home| !home.is_empty())?).join(below_home)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_base_folder_is_ignored_as_the_convention_says() {
        let find =
            |variable: &str, home: &str| folder(Some(variable.into()), Some(home.into()), ".local/state");
        assert_eq!(find("/x", "/home/a"), Some("/x".into()));
        assert_eq!(find("x", "/home/a"), Some("/home/a/.local/state".into()));
        assert_eq!(find("", ""), None);
    }
}
