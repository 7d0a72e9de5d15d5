//! `tests/run` with tests that fail once, and with Ctrl-C.

use dtrain_tests::root;
use std::process::Command;

/// A flaky test is named, counts as failed where it must, and a signal leaves no process behind.
#[test]
fn flaky_tests_are_named_and_an_interrupt_leaves_no_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let check = root().join("tests/data/run_check.py");
    let output = Command::new("python3").arg(check).arg(folder.path()).output().expect("Python starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
