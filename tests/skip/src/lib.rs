//! The one way for a test to be skipped, with its reason.
//!
//! A skipped test returns early and passes as far as libtest knows. So that nobody takes it for one that ran, [`skip`] writes its name
//! and reason to the file named by `TESTS_SKIPPED`, which `tests/run` prints and counts at its end. Without that variable, under a
//! plain `cargo test`, the reason goes to stderr, past the capture of libtest.
//!
//! With `CI` set nothing may be skipped in silence or otherwise: [`skip`] panics. Only what needs gigabytes of Python packages may be
//! left out there, by [`skip_large`], and what needs a feature that the program was built without, by [`skip_unbuilt`].

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;

/// The file that gets a line for each skipped test: `test`, or `part` where the rest of it ran, the name, the reason, with tabs between.
const SKIPPED: &str = "TESTS_SKIPPED";

/// Skips the running test, which should return after the call.
///
/// # Panics
///
/// With `CI` set: there every test must run.
pub fn skip(reason: impl Display) {
    let name = test();
    assert!(!is_ci(), "{name} cannot run here: {reason}. With CI set every test must run");
    record("test", &name, reason);
}

/// Skips the running test for want of Python packages of gigabytes (PyTorch, JAX, TensorFlow), in CI too.
pub fn skip_large(reason: impl Display) {
    record("test", &test(), reason);
}

/// Skips the running test because the program was built without this feature, in CI too: there `.ci/run` says which features it has.
pub fn skip_unbuilt(feature: &str) {
    record("test", &test(), format!("the program was built without `--features {feature}`"));
}

/// Says that the running test left out `part` of its checks for want of Python packages of gigabytes, and goes on.
pub fn skip_part(part: &str, reason: impl Display) {
    record("part", &format!("{} ({part})", test()), reason);
}

/// The name of the running test: `tests/run` puts it in the environment, libtest gives it to the thread.
fn test() -> String {
    let thread = std::thread::current();
    let of_thread = || thread.name().unwrap_or("a test in a thread without a name").to_owned();
    std::env::var("TESTS_NAME").unwrap_or_else(|_| of_thread())
}

fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| !value.is_empty() && value != "false")
}

/// Appends a line to the list, in one write, because tests of several processes do so at the same time.
fn record(kind: &str, name: &str, reason: impl Display) {
    let reason = reason.to_string().replace(['\n', '\t'], " ");
    let line = format!("{kind}\t{name}\t{reason}\n");
    let written = match std::env::var_os(SKIPPED) {
        Some(path) => OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(line.as_bytes())),
        None => std::io::stderr().write_all(format!("skipped {line}").as_bytes()),
    };
    written.expect("the list of skipped tests can be written");
}
