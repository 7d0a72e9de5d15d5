//! A state folder that another user prepared or can write to is refused, and so are links in it.

use super::trap::Trap;
use dtrain_skip::skip;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

/// Exit code of what is refused before anything is started.
const PREFLIGHT: i32 = 4;

/// A trap in which a script was trained, and its recipe.
fn trained() -> (Trap, String) {
    let trap = Trap::set();
    let recipe = trap.house.file(
        "recipe.toml",
        "[model]\nkind = 'command'\nargv = ['bash', '-c', 'echo done']\n[objective]\nstop = { steps = 1 }\n",
    );
    let recipe = recipe.display().to_string();
    trap.ends(trap.dtrain(["run", &recipe]), &[0]);
    (trap, recipe)
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
}

/// Each of these commands refuses with these words.
fn refuse(trap: &Trap, recipe: &str, words: &[&str]) {
    for command in [
        &["run", recipe][..],
        &["resume", "last"],
        &["history"],
        &["show", "last"],
        &["logs", "last"],
        &["gc"],
    ] {
        let output = trap.ends(trap.dtrain(command), &[PREFLIGHT]);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(words.iter().all(|word| told.contains(word)), "{command:?}: {told}");
    }
}

#[test]
fn a_state_that_others_can_write_is_refused() {
    let (trap, recipe) = trained();
    let state = trap.house.state();
    mode(&state, 0o777);
    refuse(&trap, &recipe, &["can be written by others (mode 0777", "chmod go-w", "--state FOLDER"]);
    trap.ends(trap.dtrain(["doctor"]), &[PREFLIGHT]);
    mode(&state, 0o755);
    for name in ["history.db", "audit.jsonl", "trials"] {
        let path = state.join(name);
        let before = fs::metadata(&path).expect("it was made").permissions().mode();
        mode(&path, 0o777);
        refuse(&trap, &recipe, &[name, "can be written by others"]);
        mode(&path, before);
    }
    trap.ends(trap.dtrain(["run", &recipe]), &[0]);
}

#[test]
fn a_state_of_somebody_else_is_refused() {
    let (trap, recipe) = trained();
    let state = trap.house.state();
    if chown(&state, Some(12_345), None).is_err() {
        return skip("only root can give a folder away");
    }
    refuse(&trap, &recipe, &["belongs to user 12345", "--state FOLDER"]);
    chown(&state, Some(0), None).expect("root may");
    chown(state.join("history.db"), Some(12_345), None).expect("root may");
    refuse(&trap, &recipe, &["history.db belongs to user 12345"]);
    chown(state.join("history.db"), Some(0), None).expect("root may");
    trap.ends(trap.dtrain(["history"]), &[0]);
}

#[test]
fn no_link_in_the_state_is_followed() {
    let (trap, recipe) = trained();
    let (state, trial) = (trap.house.state(), trap.house.newest_trial());
    let precious = trap.house.file("precious", "precious");
    for name in ["audit.jsonl", "history.db", "history.db-wal"] {
        let (path, aside) = (state.join(name), trap.folder().join("aside"));
        let was_there = fs::rename(&path, &aside).is_ok();
        symlink(&precious, &path).expect("made");
        refuse(&trap, &recipe, &[name, "is a symbolic link"]);
        fs::remove_file(&path).expect("ours");
        if was_there {
            fs::rename(&aside, &path).expect("ours");
        }
    }
    // The file with the controller's process number, and a folder of the trial.
    for name in ["controller.lock", "spool"] {
        let (path, aside) = (trial.join(name), trap.folder().join("aside"));
        fs::rename(&path, &aside).expect("it was made");
        symlink(if name == "spool" { trap.folder() } else { precious.clone() }, &path).expect("made");
        for command in [&["rm", "--yes", "last"][..], &["resume", "last"]] {
            let output = trap.ends(trap.dtrain(command), &[2, PREFLIGHT, 6]);
            let told = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(told.contains("is a symbolic link"), "{name}: {command:?}: {told}");
        }
        fs::remove_file(&path).expect("ours");
        fs::rename(&aside, &path).expect("ours");
    }
    assert_eq!(fs::read_to_string(&precious).expect("it is there"), "precious");

    // The whole folder may lie behind a link.
    let link = trap.folder().join("link");
    symlink(&state, &link).expect("made");
    let output = trap.ends(trap.dtrain(["--state", &link.display().to_string(), "history"]), &[0]);
    assert!(!output.stdout.is_empty());
}

#[test]
fn settings_that_others_can_write_are_refused() {
    let (trap, recipe) = trained();
    let settings = trap.house.file("config/dtrain/config.toml", "[cluster]\nranks = 1\n");
    mode(&settings, 0o666);
    let output = trap.ends(trap.dtrain(["check", &recipe]), &[PREFLIGHT]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("can be written by others"));
    mode(&settings, 0o644);
    trap.ends(trap.dtrain(["check", &recipe]), &[0]);
}

#[test]
fn folders_are_private_whatever_the_umask_is() {
    let trap = Trap::set();
    let recipe = trap.house.file(
        "recipe.toml",
        "[model]\nkind = 'command'\nargv = ['bash', '-c', 'echo done']\n[objective]\nstop = { steps = 1 }\n",
    );
    let mut command = std::process::Command::new("bash");
    let program = dtrain_tests::program();
    let line = format!("umask 000; exec '{}' run '{}'", program.display(), recipe.display());
    command.args(["-c", &line]);
    let house = trap.dtrain(["run"]);
    for (name, value) in house.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.current_dir(trap.folder());
    trap.ends(command, &[0]);
    let mut folders = vec![trap.house.state()];
    while let Some(folder) = folders.pop() {
        super::secrets::is_private(&folder);
        for entry in fs::read_dir(&folder).expect("ours").flatten() {
            if entry.file_type().expect("it is there").is_dir() {
                folders.push(entry.path());
            }
        }
    }
}
