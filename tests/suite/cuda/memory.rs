//! A training on a device that has less memory than its plan believes.

use super::{Device, STEPS, words};
use dtrain_protocol::Failure;
use dtrain_runner::ledger::History;
use dtrain_runner::ledger::TrialActivity;
use dtrain_runner::{AttemptEnd, Ledger, Verdict};
use dtrain_tests::TestEnv;

/// Its weights alone take a third of [`BYTES`], and their moments two more.
const MODEL: [&str; 2] = ["model.hidden=256", "model.context=256"];

/// Memory that the driver gives to a process.
const BYTES: u64 = 16 << 20;

/// CubeCL tells of it in words of its own, and only where a result is read.
#[test]
fn a_gpu_without_memory_ends_the_trial_at_the_first_time() {
    let Some(device) = Device::new(80) else { return };
    let house = TestEnv::default();
    // Speeds are measured while there is enough.
    device.run(&house, "plan", &MODEL, STEPS[0]);
    let mut command = device.command(&house, "run", &MODEL, STEPS[0]);
    command.env("STAND_IN_OUT_OF_MEMORY_AFTER", BYTES.to_string());
    let output = command.output().expect("the program starts");
    assert_eq!(output.status.code(), Some(5), "{}", words(&output));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("ran out of memory") && said.contains("layout.micro_batch"), "{said}");
    let history = History::open_read_only(&house.history()).expect("a history");
    let id = history.find("last").expect("a trial");
    let trial = history.trial(&id, &|_| TrialActivity::None).expect("it is readable");
    assert_eq!(trial.verdict, Some(Verdict::OutOfMemory));
    let [attempt] = trial.attempts.as_slice() else {
        panic!("it is tried once: {:?}", trial.attempts);
    };
    let Some(AttemptEnd::Lost(Failure::OutOfMemory { detail })) = &attempt.ended else {
        panic!("memory is told as such: {attempt:?}");
    };
    assert!(detail.starts_with("out of device memory allocating"), "{detail}");
    let strikes = history.strikes().expect("they are readable");
    assert!(strikes.is_empty(), "no host is to blame: {strikes:?}");
}
