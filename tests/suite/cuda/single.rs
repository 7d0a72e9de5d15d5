//! NCCL with one rank, as `dtrain doctor --device cuda --only nccl` tries it, on the stand-ins: which calls are made, in which order.

use super::{Device, before, words};
use dtrain_tests::{TestEnv, root};
use serde_json::Value;
use std::fs;
use std::process::{Command, Output};

/// Examines the stand-in; how it ended, what was found, and the names of the calls in their order.
#[expect(clippy::print_stdout, reason = "a test that fails shows it")]
fn examine(device: &Device, environment: &[(&str, &str)]) -> (Output, Value, Vec<String>) {
    let library = device.driver.path().join("libnccl.so.2");
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-Wl,-soname,libnccl.so.2", "-o"])
        .args([&library, &root().join("tests/data/cuda/nccl.c")])
        .output()
        .expect("cc compiled the driver");
    assert!(compiled.status.success(), "{}", words(&compiled));
    let house = TestEnv::default();
    let record = house.file("nccl", "");
    let found = house.file("found.json", "");
    let libraries = [device.driver.path(), &device.toolkit.join("lib")];
    let output = house
        .dtrain(["doctor", "--device", "cuda", "--only", "nccl", "--output", "found.json"])
        .env("LD_LIBRARY_PATH", before("LD_LIBRARY_PATH", &libraries))
        .env("PATH", before("PATH", &libraries[..1]))
        .env("CUDA_PATH", &device.toolkit)
        .env("STAND_IN_SM", device.capability.to_string())
        .env("STAND_IN_NCCL", &record)
        .env("DTRAIN_KERNEL_CACHE", house.state().with_file_name("kernels"))
        .envs(environment.iter().copied())
        .output()
        .expect("the program starts");
    println!("{}", words(&output));
    let calls = fs::read_to_string(&record).expect("the file is ours");
    let name = |line: &str| {
        let call: Value = serde_json::from_str(line).expect("calls are JSON");
        call["call"].as_str().expect("a name").to_owned()
    };
    let looks = |call: &String| call != "ncclCommGetAsyncError";
    let calls = calls.lines().map(name).filter(looks).collect();
    let found = fs::read_to_string(found).expect("the file is ours");
    (output, serde_json::from_str(&found).expect("JSON"), calls)
}

#[test]
fn one_rank_makes_every_call_of_nccl_and_aborts_at_the_end() {
    let Some(device) = Device::new(90) else { return };
    let (_, found, calls) = examine(&device, &[]);
    let moves: Vec<_> = calls.iter().skip_while(|call| *call != "ncclAllReduce").cloned().collect();
    let wanted = [
        "ncclAllReduce",
        "ncclReduceScatter",
        "ncclAllGather",
        "ncclGroupStart",
        "ncclSend",
        "ncclRecv",
        "ncclGroupEnd",
        "ncclCommAbort",
    ];
    assert_eq!(moves, wanted, "{calls:?}");
    let told = found["nccl"].as_array().expect("a list");
    let names: Vec<_> = told.iter().map(|call| call["call"].as_str().expect("a name")).collect();
    assert_eq!(names, ["all-reduce", "reduce-scatter", "all-gather", "send and receive", "abort"]);
    assert_eq!(told[4]["agrees"], true);
}

#[test]
fn a_call_that_nccl_refuses_is_told_and_nothing_follows_but_the_abort() {
    let Some(device) = Device::new(90) else { return };
    let (output, found, calls) = examine(&device, &[("STAND_IN_NCCL_FAIL", "ncclReduceScatter:1:3")]);
    assert_eq!(output.status.code(), Some(4));
    assert!(words(&output).contains("reduce-scatter: NCCL failed in reduce-scatter"), "{}", words(&output));
    assert_eq!(calls.last().map(String::as_str), Some("ncclCommAbort"));
    assert!(!calls.iter().any(|call| call == "ncclAllGather"), "{calls:?}");
    assert_eq!(found["agrees"], false);
}
