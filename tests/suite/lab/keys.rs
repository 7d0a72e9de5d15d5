//! SSH keys, made once and kept from run to run: making them takes longer than starting a lab.

use dtrain_tests::root;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// Kinds of keys of every owner, also the names of the files.
pub(super) const KINDS: [&str; 2] = ["ed25519", "ecdsa"];

/// The folder with the private keys of `owner`, by kind, and the public ones with `.pub`.
pub(super) fn of(owner: &str) -> PathBuf {
    let all = root().join("target/test-data/lab-keys");
    let folder = all.join(owner);
    if !folder.exists() {
        fs::create_dir_all(&all).expect("a folder for the keys");
        let fresh = tempfile::tempdir_in(&all).expect("a folder for new keys");
        for kind in KINDS {
            let mut command = Command::new("ssh-keygen");
            command.args(["-q", "-t", kind, "-N", "", "-C", owner, "-f"]).arg(fresh.path().join(kind));
            assert!(command.status().expect("ssh-keygen comes with ssh").success(), "{command:?}");
        }
        // Another test may have been faster; then its keys are as good.
        if fs::rename(fresh.path(), &folder).is_ok() {
            drop(fresh.keep());
        }
    }
    folder
}

/// A line of `authorized_keys` or, after a name, of `known_hosts`.
pub(super) fn public(owner: &str, kind: &str) -> String {
    let text = fs::read_to_string(of(owner).join(kind).with_extension("pub")).expect("a public key");
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}
