//! What the suites share: where the repository and the binary are, and a state folder of their own.

use std::path::{Path, PathBuf};

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the repository").to_owned()
}

/// The `dtrain` program, built beside this test.
///
/// Panics with the command to type when it is missing.
pub fn program() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows where it is");
    let program = test.ancestors().nth(2).expect("tests lie in target/<profile>/deps").join("dtrain");
    assert!(program.exists(), "{} is missing; run `cargo build --release` first", program.display());
    program
}
