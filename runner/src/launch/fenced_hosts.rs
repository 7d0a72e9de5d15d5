//! The hosts that a user fenced for one trial.

use crate::durable;
use crate::files;
use crate::home::TrialFolder;
use std::collections::BTreeSet;
use std::io;

/// Names of the hosts that a user fenced for a trial: they count as lost, and no attempt is placed on them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FencedHosts(BTreeSet<String>);

impl FencedHosts {
    /// Reads the fenced hosts of the trial in `folder`.
    pub fn read(folder: &TrialFolder) -> io::Result<Self> {
        match files::read_to_string(&folder.fenced()) {
            Ok(text) => Ok(Self(text.lines().map(str::to_owned).collect())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    /// Returns `true` if `host` is fenced.
    pub fn has(&self, host: &str) -> bool {
        self.0.contains(host)
    }

    /// Returns the names of the fenced hosts, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Fences a host durably; returns `true` if it was not fenced before.
    pub fn add(folder: &TrialFolder, host: &str) -> io::Result<bool> {
        let mut fences = Self::read(folder)?;
        let is_new = fences.0.insert(host.to_owned());
        fences.write(folder)?;
        Ok(is_new)
    }

    /// Lifts the fence of a host; returns `true` if it was fenced.
    pub fn lift(folder: &TrialFolder, host: &str) -> io::Result<bool> {
        let mut fences = Self::read(folder)?;
        let was_there = fences.0.remove(host);
        fences.write(folder)?;
        Ok(was_there)
    }

    fn write(&self, folder: &TrialFolder) -> io::Result<()> {
        let lines: String = self.0.iter().map(|host| format!("{host}\n")).collect();
        durable::atomic_write(&folder.fenced(), lines.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_stands_until_it_is_lifted() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = TrialFolder::at(root.path().join("trial"));
        folder.create().expect("room on disk");
        assert_eq!(FencedHosts::read(&folder).expect("readable"), FencedHosts::default());
        assert!(FencedHosts::add(&folder, "node1").expect("room on disk"));
        assert!(!FencedHosts::add(&folder, "node1").expect("room on disk"), "it is already");
        assert!(FencedHosts::add(&folder, "node0").expect("room on disk"));
        let fences = FencedHosts::read(&folder).expect("readable");
        assert!(fences.has("node1") && !fences.has("node"));
        assert_eq!(fences.names().collect::<Vec<_>>(), ["node0", "node1"]);
        assert!(FencedHosts::lift(&folder, "node1").expect("room on disk"));
        assert!(!FencedHosts::lift(&folder, "node1").expect("room on disk"), "there is none");
        assert!(!FencedHosts::read(&folder).expect("readable").has("node1"));
    }
}
