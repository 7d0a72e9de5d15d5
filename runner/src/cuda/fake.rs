//! Fake machines in temporary folders, for tests.

use super::HostEnvironment;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use tempfile::TempDir;

/// Makes a fake machine with these files, all empty, and an empty environment. The folder is removed when the
/// first value is dropped.
pub(super) fn machine(files: &[&str]) -> (TempDir, HostEnvironment) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let root = folder.path().canonicalize().expect("it is there");
    let place = HostEnvironment { root, environment: BTreeMap::new() };
    files.iter().for_each(|file| write(&place, file, ""));
    (folder, place)
}

/// Writes a file of the fake machine.
pub(super) fn write(place: &HostEnvironment, file: &str, text: &str) {
    let file = place.at(file);
    fs::create_dir_all(file.parent().expect("it is in a folder")).expect("it can be made");
    fs::write(file, text).expect("it can be written");
}

/// Makes a symbolic link at the path `file` of the fake machine to its path `to`.
pub(super) fn link(place: &HostEnvironment, file: &str, to: &str) {
    let file = place.at(file);
    fs::create_dir_all(file.parent().expect("it is in a folder")).expect("it can be made");
    symlink(place.at(to), file).expect("it can be made");
}

/// Sets an environment variable of the fake machine to one of its folders.
pub(super) fn set(place: &mut HostEnvironment, variable: &str, folder: &str) {
    let folder = place.at(folder);
    place.environment.insert(variable.into(), folder.into());
}
