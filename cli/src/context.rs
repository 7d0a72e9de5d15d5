//! Context that every command receives: its output settings, the state folder and open connections.

use crate::command_error::CommandError;
use crate::exit_code::ExitReason;
use crate::kept_connections::KeptConnections;
use crate::output::Output;
use dtrain_protocol::TrialId;
use dtrain_runner::{Home, files};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Output settings, state folder and open connections of a command.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    /// Output settings of the command.
    pub(crate) out: Output,
    /// State folder, which contains the history and all trials.
    pub(crate) home: Home,
    /// Connections to hosts that no step of the command uses now.
    pub(crate) connections: KeptConnections,
}

impl Context {
    pub(crate) fn new(out: Output, state: Option<PathBuf>) -> Result<Self, CommandError> {
        let folder = match state {
            Some(folder) => folder,
            None => base("XDG_STATE_HOME", ".local/state")?.join("dtrain"),
        };
        let folder = std::path::absolute(&folder).map_err(|error| {
            CommandError::new(
                ExitReason::Preflight,
                format!("cannot use the state folder {}", folder.display()),
            )
            .cause(error.to_string())
        })?;
        Ok(Self { out, home: Home::at(folder), connections: KeptConnections::default() })
    }
}

impl Context {
    /// Refuses a state folder that another user owns or can write to.
    pub(crate) fn check_state(&self) -> Result<(), CommandError> {
        self.home.check().map_err(|error| {
            let folder = self.home.path().display();
            CommandError::new(ExitReason::Preflight, format!("cannot use the state folder {folder}"))
                .cause(error.to_string())
        })
    }
}

impl Context {
    /// Refuses the folder of a trial that another user owns or can write to.
    pub(crate) fn check_trial(&self, trial: &TrialId) -> Result<(), CommandError> {
        let folder = self.home.trial(trial);
        files::check_trial(folder.path()).map_err(|error| {
            CommandError::new(ExitReason::Preflight, format!("cannot use {}", folder.path().display()))
                .cause(error.to_string())
        })
    }

    /// Refuses an output path inside the state folder, where a write could overwrite dtrain's own files.
    pub(crate) fn check_output(&self, path: &Path) -> Result<(), CommandError> {
        if !lies_in(path, self.home.path()) {
            return Ok(());
        }
        let what = format!("{} is in the state folder {}", path.display(), self.home.path().display());
        Err(CommandError::new(ExitReason::Usage, what).hint("name a place outside of it"))
    }
}

/// Returns `true` if `path` is `folder` or lies in it, after links are resolved. Missing parts are taken
/// literally.
fn lies_in(path: &Path, folder: &Path) -> bool {
    let whole = |path: &Path| {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let known = path.ancestors().find_map(|above| Some((above, std::fs::canonicalize(above).ok()?)));
        known.map_or_else(
            || path.clone(),
            |(above, real)| real.join(path.strip_prefix(above).unwrap_or(Path::new(""))),
        )
    };
    whole(path).starts_with(whole(folder))
}

/// Refuses a file or folder that dtrain obeys (settings, packages, trust) if another user owns it or can
/// write to it.
pub(crate) fn check_obeyed(path: &Path) -> Result<(), CommandError> {
    files::check_behind_links(path).map_err(|error| {
        CommandError::new(ExitReason::Preflight, format!("cannot use {}", path.display()))
            .cause(error.to_string())
    })
}

/// Returns the path of the user's settings file, which may not exist.
pub(crate) fn settings_file() -> Result<PathBuf, CommandError> {
    Ok(base("XDG_CONFIG_HOME", ".config")?.join("dtrain").join("config.toml"))
}

/// Returns a base folder of the user: `variable` if that is an absolute path, otherwise `below_home` in the
/// home folder.
pub(crate) fn base(variable: &str, below_home: &str) -> Result<PathBuf, CommandError> {
    folder(std::env::var_os(variable), std::env::var_os("HOME"), below_home).ok_or_else(|| {
        CommandError::new(
            ExitReason::Preflight,
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
    fn an_output_in_the_state_folder_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let state = folder.path().join("state");
        std::fs::create_dir_all(state.join("trials")).expect("made");
        std::os::unix::fs::symlink(&state, folder.path().join("link")).expect("made");
        let context = Context::new(Output::new(false, true), Some(state.clone())).expect("a context");
        for inside in
            ["state", "state/history.db", "state/new.html", "link/a/b", "state/../state/x", "x/../link/y"]
        {
            drop(std::fs::create_dir(folder.path().join("x")));
            assert!(context.check_output(&folder.path().join(inside)).is_err(), "{inside}");
        }
        for outside in ["state.html", "a/b.html", "state/../x.html"] {
            assert!(context.check_output(&folder.path().join(outside)).is_ok(), "{outside}");
        }
    }

    #[test]
    fn a_relative_base_folder_is_ignored_as_the_convention_says() {
        let find =
            |variable: &str, home: &str| folder(Some(variable.into()), Some(home.into()), ".local/state");
        assert_eq!(find("/x", "/home/a"), Some("/x".into()));
        assert_eq!(find("x", "/home/a"), Some("/home/a/.local/state".into()));
        assert_eq!(find("", ""), None);
    }
}
