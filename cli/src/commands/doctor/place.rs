//! File system root of the inspected machine; tests replace it by temporary folders.

pub(super) use dtrain_runner::cuda::HostEnvironment;

/// Fake machines in temporary folders.
#[cfg(test)]
pub(super) mod fake {
    use super::*;
    use std::collections::BTreeMap;
    use std::fs;
    use tempfile::TempDir;

    /// Creates a machine with these empty files and an empty environment, alive as long as the first value.
    pub(in super::super) fn machine(files: &[&str]) -> (TempDir, HostEnvironment) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let place = HostEnvironment { root: folder.path().into(), environment: BTreeMap::new() };
        files.iter().for_each(|file| write(&place, file, ""));
        (folder, place)
    }

    /// Writes a file of the machine.
    pub(in super::super) fn write(place: &HostEnvironment, file: &str, text: &str) {
        let file = place.at(file);
        fs::create_dir_all(file.parent().expect("it is in a folder")).expect("it can be made");
        fs::write(file, text).expect("it can be written");
    }

    /// Sets an environment variable of the machine to one of its folders.
    pub(in super::super) fn set(place: &mut HostEnvironment, variable: &str, folder: &str) {
        let folder = place.at(folder);
        place.environment.insert(variable.into(), folder.into());
    }
}
