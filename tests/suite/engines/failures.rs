//! Failures of an engine, each provoked once: in place of a step, a stand-in raises what PyTorch raises.

use super::{Form, env, python};
use dtrain_runner::ledger::History;
use dtrain_runner::ledger::TrialActivity;
use dtrain_tests::TestEnv;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A failure, what dtrain says of it, and the number of attempts after which it gives up.
struct Case {
    /// Python statement that a step runs.
    raises: &'static str,
    /// Words of the verdict and of what to do.
    says: &'static [&'static str],
    attempts: std::ops::RangeInclusive<usize>,
}

const CASES: [Case; 5] = [
    Case {
        raises: "raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB')",
        says: &["ran out of memory", "layout.micro_batch"],
        attempts: 1..=1,
    },
    Case {
        raises: "raise torch.distributed.DistBackendError('[Rank 1] Watchdog caught collective operation timeout: \
                 WorkNCCL(SeqNum=7, OpType=ALLREDUCE) ran for 600000 milliseconds before timing out.')",
        says: &["Watchdog caught collective operation timeout", "NCCL_DEBUG"],
        attempts: 2..=5,
    },
    Case {
        raises: "raise torch.distributed.DistNetworkError('The server socket has failed to listen on any local network \
                 address. port: 29500, code: -98, name: EADDRINUSE, message: address already in use')",
        says: &["address already in use", "another program"],
        attempts: 2..=5,
    },
    Case {
        raises: "raise OSError(28, 'No space left on device', '/state/step-5/__0_0.distcp')",
        says: &["No space left on device", "dtrain resume"],
        attempts: 1..=1,
    },
    Case {
        raises: "import a_package_that_is_missing",
        says: &["No module named 'a_package_that_is_missing'", "dtrain engine install"],
        attempts: 1..=1,
    },
];

/// Writes an interpreter whose first training step of `fsdp` runs `statement`.
fn stand_in(env: &TestEnv, python: &Path, statement: &str) -> PathBuf {
    let site = env.file(
        "stand_in/sitecustomize.py",
        format!(
            "import sys\nif 'dtrain_engines.fsdp' in sys.orig_argv:\n    import torch\n    import torch.distributed\n    \
             from dtrain_engines import tokens\n    def fails(*_):\n        {statement}\n    \
             tokens.StepReader.micro_batches = fails\n"
        ),
    );
    let folder = site.parent().expect("a folder").display();
    let script = format!("#!/bin/sh\nPYTHONPATH=\"{folder}:$PYTHONPATH\" exec {} \"$@\"\n", python.display());
    let path = env.file("stand_in/python", script);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    path
}

#[test]
fn each_failure_of_an_engine_is_named_with_what_to_do_and_not_repeated_in_vain() {
    let Some(python) = python(Form::Whole) else { return };
    for Case { raises, says, attempts } in CASES {
        let env = env();
        let python = format!("cluster.python={}", stand_in(&env, &python, raises).display());
        let run = ["run", "--no-sample", "--ranks", "1", "--engine", "fsdp", "--set", &python];
        let output = env.expect(5, run);
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        for said in says {
            assert!(words.contains(said), "{said:?} after {raises}: {words}");
        }
        let history = History::open_read_only(&env.history()).expect("a history");
        let trial = history
            .trial(&history.find("last").expect("a trial"), &|_| TrialActivity::None)
            .expect("a trial");
        assert!(attempts.contains(&trial.attempts.len()), "{} attempts after {raises}", trial.attempts.len());
    }
}
