//! Lists of hosts, each in a file.

use crate::durable;
use crate::files;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;

/// Names of hosts in a file, one per line: those that are fenced for a trial
/// ([`crate::home::TrialFolder::fenced`]), drained ([`crate::Home::drained`]), or may run an attempt
/// ([`crate::home::TrialFolder::unsettled_hosts`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostList(BTreeSet<String>);

impl HostList {
    /// Reads the list at `path`; a missing one is empty.
    pub fn read(path: &Path) -> io::Result<Self> {
        match files::read_to_string(path) {
            Ok(text) => Ok(Self(text.lines().map(str::to_owned).collect())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    /// Returns `true` if `host` is in the list.
    pub fn has(&self, host: &str) -> bool {
        self.0.contains(host)
    }

    /// Returns the names in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Adds a host durably to the list at `path`; returns `true` if it was not there before.
    pub fn add(path: &Path, host: &str) -> io::Result<bool> {
        let mut list = Self::read(path)?;
        let is_new = list.0.insert(host.to_owned());
        Self::write(path, list.names())?;
        Ok(is_new)
    }

    /// Removes a host from the list at `path`; returns `true` if it was there.
    pub fn remove(path: &Path, host: &str) -> io::Result<bool> {
        let mut list = Self::read(path)?;
        let was_there = list.0.remove(host);
        Self::write(path, list.names())?;
        Ok(was_there)
    }

    /// Replaces the list at `path` durably.
    pub(crate) fn write<'a>(path: &Path, names: impl Iterator<Item = &'a str>) -> io::Result<()> {
        let lines: String = names.map(|host| format!("{host}\n")).collect();
        durable::atomic_write(path, lines.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_stays_in_its_list_until_it_is_removed() {
        let root = tempfile::tempdir().expect("a folder");
        let path = root.path().join("fenced");
        assert_eq!(HostList::read(&path).expect("readable"), HostList::default());
        assert!(HostList::add(&path, "node1").expect("room on disk"));
        assert!(!HostList::add(&path, "node1").expect("room on disk"), "it is already");
        assert!(HostList::add(&path, "node0").expect("room on disk"));
        let list = HostList::read(&path).expect("readable");
        assert!(list.has("node1") && !list.has("node"));
        assert_eq!(list.names().collect::<Vec<_>>(), ["node0", "node1"]);
        assert!(HostList::remove(&path, "node1").expect("room on disk"));
        assert!(!HostList::remove(&path, "node1").expect("room on disk"), "there is none");
        assert!(!HostList::read(&path).expect("readable").has("node1"));
    }
}
