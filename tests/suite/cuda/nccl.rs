//! NCCL calls of training, recorded by the stand-in `tests/data/cuda/nccl.c`: ranks, counts, types, streams
//! and order. The real library is loaded where its package is installed.

mod buckets;

use super::{Calls, Device, Step, before, words};
use dtrain_skip::skip;
use dtrain_tests::{TestEnv, root};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// `ncclFloat32`.
const F32: i32 = 7;
const STEPS: usize = 6;

/// A call of NCCL or of the driver, as the stand-ins write it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Call {
    process: u32,
    thread: u64,
    call: String,
    /// Of the communicator.
    id: u32,
    rank: u32,
    ranks: u32,
    count: usize,
    r#type: i32,
    peer: i32,
    stream: u64,
    from: u64,
    to: u64,
    event: u64,
    /// Of a launch.
    kernel: String,
    /// Arguments of a launch; what is allocated or freed.
    pointers: Vec<u64>,
    /// That are allocated or copied.
    bytes: u64,
}

impl Call {
    fn is(&self, name: &str) -> bool {
        self.call == name
    }
}

/// Compiles the stand-in beside the driver's.
fn compile(device: &Device) {
    let output = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-Wl,-soname,libnccl.so.2", "-o"])
        .arg(device.driver.path().join("libnccl.so.2"))
        .arg(root().join("tests/data/cuda/nccl.c"))
        .output()
        .expect("cc compiled the driver");
    assert!(output.status.success(), "{}", words(&output));
}

/// A run of the tiny recipe on two GPUs with a layout, and the file to which its calls of NCCL go.
fn training(device: &Device, house: &TestEnv, settings: &[&str]) -> (Command, PathBuf) {
    let record = house.file("nccl", "");
    let settings = [&["cluster.ranks=2", "train.precision=\"f32\""], settings].concat();
    let mut command = device.command(house, "run", &settings, STEPS as u64);
    command.env("STAND_IN_DEVICES", "2").env("STAND_IN_NCCL", &record);
    (command, record)
}

/// The calls of each process in a file, in their order; processes that called NCCL by their ranks.
fn calls(record: &Path) -> Vec<Vec<Call>> {
    let mut by_process = BTreeMap::<u32, Vec<Call>>::new();
    for line in fs::read_to_string(record).expect("the file is ours").lines() {
        let call: Call = serde_json::from_str(line).expect("calls are JSON");
        by_process.entry(call.process).or_default().push(call);
    }
    let mut processes: Vec<_> = by_process.into_values().collect();
    let rank = |calls: &Vec<Call>| calls.iter().find(|call| call.ranks > 0).map(|call| call.rank);
    processes.sort_by_key(rank);
    processes
}

/// Runs the tiny recipe on two GPUs with a layout; the calls of each process that called NCCL, in their order.
fn train(device: &Device, settings: &[&str], environment: &[(&str, &str)]) -> (Output, Vec<Vec<Call>>) {
    let house = TestEnv::default();
    let (mut command, record) = training(device, &house, settings);
    let output = command.envs(environment.iter().copied()).output().expect("the program starts");
    (output, calls(&record))
}

/// Both processes of a run that ended well, each with its rank, one communicator and one stream, all values f32.
fn of_both(device: &Device, settings: &[&str]) -> [Vec<Call>; 2] {
    let (output, processes) = train(device, settings, &[]);
    assert!(output.status.success(), "{settings:?}: {}", words(&output));
    let ranks: [Vec<Call>; 2] = processes.try_into().unwrap_or_else(|all| panic!("two ranks call: {all:?}"));
    let founders = ranks.iter().flatten().filter(|call| call.is("ncclGetUniqueId")).count();
    assert_eq!(founders, 1, "one rank makes the identifier of the communicator");
    let ids: BTreeSet<_> = ranks.iter().flatten().filter(|call| call.ranks > 0).map(|call| call.id).collect();
    assert_eq!(ids.len(), 1, "both are in the same communicator: {ids:?}");
    for (rank, calls) in (0..).zip(&ranks) {
        assert!(
            calls.iter().all(|call| call.ranks == 0 || (call.rank, call.ranks) == (rank, 2)),
            "{calls:?}"
        );
        let travelling: Vec<_> = calls.iter().filter(|call| call.count > 0).collect();
        let streams: BTreeSet<_> = travelling.iter().map(|call| call.stream).collect();
        assert!(streams.len() == 1 && !streams.contains(&0), "a stream of its own: {streams:?}");
        assert!(travelling.iter().all(|call| call.r#type == F32), "{travelling:?}");
        assert!(!calls.iter().any(|call| call.is("ncclCommAbort")), "nothing went wrong");
    }
    ranks
}

/// Function, number of values and peer of each call that moves values.
fn sequence(calls: &[Call]) -> Vec<(&str, usize, i32)> {
    let moves = calls.iter().filter(|call| call.count > 0);
    moves.map(|call| (call.call.as_str(), call.count, call.peer)).collect()
}

#[test]
fn gpus_of_replicas_sum_gradients_by_nccl() {
    let Some(device) = Device::new(80) else { return };
    compile(&device);
    let [first, second] = of_both(&device, &["layout.data=2"]);
    let sums = sequence(&first);
    assert_eq!(sums, sequence(&second), "both ranks call the same, in the same order");
    assert!(sums.iter().all(|(call, ..)| *call == "ncclAllReduce"), "{sums:?}");
    assert!(first.iter().all(|call| call.from == call.to), "sums take the place of what is summed");
    assert_eq!(
        sums,
        vec![("ncclAllReduce", parameters(32, 2), -1); STEPS],
        "a bucket of all gradients in each step"
    );
}

/// Parameters of the tiny recipe's model in this width: embedding and head, positions, the last norm; and of each block two norms,
/// four matrices of attention and two of the feed-forward layer, each with what is added to it.
fn parameters(w: usize, layers: usize) -> usize {
    let [f, vocabulary, context] = [4 * w, 256, 32];
    let block = 2 * 2 * w + 4 * (w * w + w) + (w * f + f) + (f * w + w);
    vocabulary * w + context * w + layers * block + 2 * w
}

#[test]
fn gpus_of_a_tensor_parallel_group_sum_activations_by_nccl() {
    let Some(device) = Device::new(80) else { return };
    compile(&device);
    let [first, second] = of_both(&device, &["layout.tensor=2"]);
    let sums = sequence(&first);
    assert_eq!(sums, sequence(&second), "both ranks call the same, in the same order");
    // Micro-batches of 4 sequences of 32 tokens, 32 wide.
    let whole = ("ncclAllReduce", 4 * 32 * 32, -1);
    // Of each token the largest score, the sum of exponentials and the score of its target, of the classes of each rank.
    let figures = ("ncclAllGather", 3 * 4 * 32, -1);
    assert!(sums.iter().all(|sum| [whole, figures].contains(sum)), "{sums:?}");
    // In each of 2 micro-batches of a step, for each of 2 layers one after attention and one after the feed-forward layer, and as
    // many in backward; and one for the embedding, whose vocabulary is cut, and in backward one for what the head reads.
    let of_training = STEPS * 2 * (2 * 2 + 2 * 2 + 2);
    let found = sums.iter().filter(|sum| **sum == whole).count();
    assert!(found > of_training, "validation comes on top of {of_training}: {found}");
    let found = sums.iter().filter(|sum| **sum == figures).count();
    assert!(found > STEPS * 2, "each micro-batch has a loss: {found}");
}

/// Calls of a step of each of the two ranks of a layout.
fn step_of_both(device: &Device, settings: &[&str]) -> Vec<Step> {
    let house = TestEnv::default();
    let settings = [&["cluster.ranks=2", "train.precision=\"f32\""], settings].concat();
    let run = |command: &str, steps: u64| -> Vec<Calls> {
        let counts = house.file("counts", "");
        let mut command = device.command(&house, command, &settings, steps);
        command.env("STAND_IN_DEVICES", "2").env("STAND_IN_COUNTS", &counts);
        let output = command.output().expect("the program starts");
        assert!(output.status.success(), "{settings:?}: {}", words(&output));
        let lines = fs::read_to_string(&counts).expect("the file is ours");
        let calls = lines.lines().map(|line| serde_json::from_str(line).expect("counts are JSON"));
        let mut calls: Vec<Calls> = calls.filter(|calls: &Calls| calls.launches > 0).collect();
        calls.sort_by_key(|calls| calls.device);
        calls
    };
    // Speeds are measured first, so that later only the ranks compute.
    run("plan", super::STEPS[0]);
    let [short, long] = super::STEPS.map(|steps| run("run", steps));
    assert_eq!((short.len(), long.len()), (2, 2), "only two ranks compute");
    let devices = |calls: &[Calls]| calls.iter().map(|calls| calls.device).collect::<Vec<_>>();
    assert_eq!((devices(&short), devices(&long)), (vec![0, 1], vec![0, 1]), "a device for each rank");
    short.into_iter().zip(long).map(|(short, long)| Step::of(&[short, long])).collect()
}

/// As on one GPU: of each of two micro-batches the loss and the hits, and the norm of the gradients.
#[test]
fn a_step_of_tensor_parallel_gpus_reads_no_more_than_that_of_one() {
    let Some(device) = Device::new(80) else { return };
    compile(&device);
    for settings in [&["layout.tensor=2"][..], &["layout.tensor=2", "layout.sequence=true"]] {
        let steps = step_of_both(&device, settings);
        println!("{settings:?}: {steps:?}");
        for step in steps {
            assert!(step.downloads <= 5.0, "{settings:?}: {step:?}");
        }
    }
}

/// The gradients of all that both ranks hold whole are summed in one message.
#[test]
fn gpus_that_share_sequences_sum_gradients_once_a_step() {
    let Some(device) = Device::new(80) else { return };
    compile(&device);
    let [first, second] = of_both(&device, &["layout.tensor=2", "layout.sequence=true"]);
    let moves = sequence(&first);
    assert_eq!(moves, sequence(&second), "both ranks call the same, in the same order");
    // Positions, the last norm, and of each of two blocks two norms and the biases of the two matrices that are cut by rows.
    let whole = 32 * 32 + 2 * 32 + 2 * (2 * 2 * 32 + 2 * 32);
    let sums: Vec<_> = moves.iter().filter(|(call, ..)| *call == "ncclAllReduce").collect();
    assert_eq!(sums, vec![&("ncclAllReduce", whole, -1); STEPS], "of {moves:?}");
}

#[test]
fn gpus_of_pipeline_stages_send_activations_by_nccl() {
    let Some(device) = Device::new(80) else { return };
    compile(&device);
    let ranks = of_both(&device, &["layout.pipeline=2"]);
    let [first, second] = ranks.each_ref().map(|calls| sequence(calls));
    let only = |calls: &[(&str, usize, i32)], name| -> Vec<(usize, i32)> {
        let named = calls.iter().filter(|(call, ..)| *call == name);
        named.map(|(_, count, peer)| (*count, *peer)).collect()
    };
    for (from, to, (own, other)) in [(&first, &second, (0, 1)), (&second, &first, (1, 0))] {
        let (sent, received) = (only(from, "ncclSend"), only(to, "ncclRecv"));
        assert_eq!(sent.len(), received.len(), "what one sends the other receives");
        assert!(sent.iter().all(|message| *message == (4 * 32 * 32, other)), "{sent:?}");
        assert!(received.iter().all(|message| *message == (4 * 32 * 32, own)), "{received:?}");
    }
    assert!(only(&second, "ncclSend").len() >= STEPS * 2, "a gradient of each micro-batch goes back");
    for calls in &ranks {
        let names: Vec<_> = calls.iter().map(|call| call.call.as_str()).collect();
        let moves = names.iter().filter(|name| matches!(**name, "ncclSend" | "ncclRecv")).count();
        let begin = names.iter().position(|name| *name == "ncclGroupStart").expect("messages go in groups");
        assert!(moves > 0 && matches!(names[begin + 1], "ncclSend" | "ncclRecv"), "{names:?}");
        let [starts, ends] = ["ncclGroupStart", "ncclGroupEnd"]
            .map(|wanted| names.iter().filter(|name| **name == wanted).count());
        assert_eq!(starts, ends);
    }
}

#[test]
fn a_failed_call_of_nccl_is_aborted_and_ends_the_attempt() {
    let Some(device) = Device::new(80) else { return };
    compile(&device);
    let failing = [("STAND_IN_NCCL_FAIL", "ncclAllReduce:3:3")];
    let (output, processes) = train(&device, &["layout.data=2"], &failing);
    assert!(!output.status.success(), "two steps are not six: {}", words(&output));
    let said = words(&output);
    println!("{said}");
    assert!(said.contains("NCCL failed in all-reduce: the stand-in refused this"), "{said}");
    let aborts = processes.iter().flatten().filter(|call| call.is("ncclCommAbort")).count();
    assert!(aborts >= 1, "the communicator is aborted: {processes:?}");
    for calls in &processes {
        let after = calls.iter().skip_while(|call| !call.is("ncclCommAbort")).skip(1).count();
        assert_eq!(after, 0, "nothing is asked of a communicator that was aborted: {calls:?}");
    }
}

#[test]
fn without_nccl_gpus_exchange_values_through_host_memory() {
    let Some(device) = Device::new(80) else { return };
    compile(&device);
    let (output, processes) = train(&device, &["layout.data=2"], &[("DTRAIN_NCCL", "off")]);
    assert!(output.status.success(), "{}", words(&output));
    assert_eq!(processes, Vec::<Vec<Call>>::new(), "nothing is asked of it");
}

/// The library of NVIDIA's package for Python says its version to the program.
#[test]
fn the_real_nccl_is_loaded_under_the_name_of_its_package() {
    let Some(device) = Device::new(80) else { return };
    let libraries = device.toolkit.parent().expect("it lies in a folder").join("nccl/lib");
    if !libraries.join("libnccl.so.2").exists() {
        skip("NCCL is not installed; `TESTS_CARGO_OPTIONS='--features cuda' tests/run nccl` installs it");
        return;
    }
    let output = TestEnv::default()
        .dtrain(["doctor", "--json"])
        .env("LD_LIBRARY_PATH", before("LD_LIBRARY_PATH", &[device.driver.path(), &libraries]))
        .output()
        .expect("the program starts");
    let checks: serde_json::Value = serde_json::from_slice(&output.stdout).expect("doctor writes JSON");
    let text = checks.to_string();
    println!("{checks:#}");
    assert!(text.contains("NCCL 2."), "{text}");
}
