//! The program on GPUs, which are Mesa's software device here: ranks are processes with a device each.

mod script;

use crate::kill::{card, kill};
use dtrain_protocol::{DeviceKind, Placement, Rank};
use dtrain_runner::ledger::History;
use dtrain_tests::{TestEnv, root};
use dtrain_worker::device;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Steps of a run.
const STEPS: u64 = 30;

/// Replicas with optimizer state sharded.
const SHARDED: [&str; 3] = ["layout.data=2", "layout.zero=1", "layout.shard=2"];

/// Two ranks of the tiny recipe on `devices`, in a layout.
fn command(house: &TestEnv, devices: &str, layout: &[&str]) -> Command {
    let recipe = root().join("tests/data/tiny/recipe.toml");
    let mut command = house.dtrain(["run", recipe.to_str().expect("UTF-8"), "--quiet", "--no-sample"]);
    for setting in [
        format!("cluster.devices=\"{devices}\""),
        format!("objective.stop={{ steps = {STEPS} }}"),
        "cluster.ranks=2".to_owned(),
        "layout.micro_batch=2".to_owned(),
        "checkpoint.every=\"5 steps\"".to_owned(),
    ] {
        command.args(["--set", &setting]);
    }
    for setting in layout {
        command.args(["--set", setting]);
    }
    command.env(device::SOFTWARE_GPUS, "2").stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Losses of the newest trial by step, and how many attempts it took.
fn losses(house: &TestEnv) -> Option<(BTreeMap<u64, f64>, usize)> {
    let history = History::open_read_only(&house.history()).ok()?;
    let trial = history.find("last").ok()?;
    let attempts = history.series_by_attempt(&trial, "loss", Rank(0)).ok()?;
    let points = attempts.iter().flat_map(|(_, points)| points);
    Some((points.map(|point| (point.step, point.value)).collect(), attempts.len()))
}

#[test]
fn two_ranks_with_a_device_each_resume_after_one_was_killed() {
    let placement = Placement { host: 0, device: DeviceKind::Wgpu, index: 0, threads: 1 };
    if let Err(reason) = device::open(&placement) {
        return dtrain_skip::skip(reason);
    }
    let host = TestEnv::default();
    assert!(command(&host, "cpu", &SHARDED).status().expect("it starts").success());
    let (expected, _) = losses(&host).expect("a trial");

    let house = TestEnv::default();
    let mut run = command(&house, "gpu", &SHARDED).spawn().expect("it starts");
    let begun = Instant::now();
    while losses(&house).is_none_or(|(losses, _)| losses.len() < 10) {
        assert!(begun.elapsed() < Duration::from_secs(300), "it should train");
        sleep(Duration::from_millis(5));
    }
    let ranks = card(&house, &[]).expect("an agent").ranks;
    kill(ranks[1]);
    assert!(run.wait().expect("it ends").success());

    let (found, attempts) = losses(&house).expect("a trial");
    assert_eq!(attempts, 2, "a rank was killed in the middle");
    assert_eq!(found.len() as u64, STEPS);
    let worst = found.iter().map(|(step, loss)| ((loss - expected[step]) / loss).abs()).fold(0.0, f64::max);
    println!("largest relative difference of a loss over {STEPS} steps: {worst:.1e}");
    assert!(worst < 1e-3, "losses on devices differ from those on CPUs by {worst:.1e}");
}

/// Matrices, vocabulary and sequences cut between two devices: losses, norms and sums over both are found there.
#[test]
fn two_devices_that_hold_parts_of_matrices_train_as_two_processors_do() {
    let placement = Placement { host: 0, device: DeviceKind::Wgpu, index: 0, threads: 1 };
    if let Err(reason) = device::open(&placement) {
        return dtrain_skip::skip(reason);
    }
    let [expected, found] = ["cpu", "gpu"].map(|devices| {
        let house = TestEnv::default();
        let mut run = command(&house, devices, &["layout.tensor=2", "layout.sequence=true"]);
        assert!(run.status().expect("it starts").success(), "on {devices}");
        losses(&house).expect("a trial").0
    });
    assert_eq!(found.len() as u64, STEPS);
    let worst = found.iter().map(|(step, loss)| ((loss - expected[step]) / loss).abs()).fold(0.0, f64::max);
    println!("largest relative difference of a loss over {STEPS} steps: {worst:.1e}");
    assert!(worst < 1e-3, "losses on devices differ from those on CPUs by {worst:.1e}");
}

/// What a file of `dtrain doctor --device` says.
fn document(house: &TestEnv, file: &str) -> Value {
    let text = fs::read_to_string(house.state().with_file_name(file)).expect("the file was written");
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn the_doctor_compares_a_device_with_the_host_and_measures_it() {
    if let Err(reason) = device::open(&Placement { host: 0, device: DeviceKind::Wgpu, index: 0, threads: 1 })
    {
        return dtrain_skip::skip(reason);
    }
    let house = TestEnv::default();
    let mut doctor = house.dtrain(["doctor", "--device", "wgpu", "--index", "1", "--output", "found.json"]);
    let output = doctor.env(device::SOFTWARE_GPUS, "2").output().expect("it starts");
    let [page, told] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    println!("{page}");
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert!(told.contains("comparing gpt in f32 with the host") && told.contains("found.json"), "{told}");
    assert!(page.contains("agrees") && page.contains("tokens/s") && !page.contains("DIFFERS"), "{page}");

    let found = document(&house, "found.json");
    assert_eq!((&found["format"], &found["agrees"]), (&"dtrain.device/2".into(), &true.into()));
    assert_eq!(
        (&found["device"], &found["index"], &found["devices"]),
        (&"wgpu".into(), &1.into(), &2.into())
    );
    let list = |key: &str| found[key].as_array().unwrap_or_else(|| panic!("{key} is a list")).clone();
    let number = |one: &Value, key: &str| one[key].as_f64().unwrap_or_else(|| panic!("{key} in {one}"));
    let full: Vec<Value> = list("parity").into_iter().filter(|one| one["precision"] == "f32").collect();
    assert_eq!(full.iter().map(|one| one["family"].clone()).collect::<Vec<_>>(), ["gpt", "llama", "odd"]);
    for one in &full {
        assert!(number(one, "loss_difference") < 1e-3 && number(one, "gradient_difference") < 1e-3, "{one}");
        let losses: Vec<f64> =
            one["losses"].as_array().into_iter().flatten().flat_map(Value::as_f64).collect();
        assert!(losses.last() < losses.first(), "it learned nothing: {losses:?}");
    }
    for (part, key) in [("training", "tokens_per_second"), ("products", "gflops"), ("attention", "gflops")] {
        assert!(list(part).iter().any(|one| one["precision"] == "f32" && number(one, key) > 0.0), "{part}");
    }
    let training = &list("training")[0];
    let (peak, held) = (number(training, "memory_peak_bytes"), number(training, "memory_reserved_bytes"));
    // Weights, gradients and two moments are there at once.
    assert!(16.0 * number(training, "parameters") < peak && peak <= held, "{peak} of {held}");
    assert!(list("copies").iter().all(|one| number(one, "to_device") > 0.0 && number(one, "to_host") > 0.0));
    assert_eq!(list("links").iter().map(|one| one["to"].clone()).collect::<Vec<_>>(), [0]);
    assert_eq!(list("faults"), [0; 0]);
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    assert!(!found.to_string().contains(&format!("\"{host}\"")), "the name of the host is private");
}

#[test]
fn a_device_that_is_absent_is_refused_with_what_to_do() {
    let house = TestEnv::default();
    let refused = |args: &[&str], code: i32| {
        let mut doctor = house.dtrain(["doctor"].iter().chain(args).copied());
        // No GPU of this machine.
        doctor.env("CUDA_VISIBLE_DEVICES", "").env(device::SOFTWARE_GPUS, "0");
        let output = doctor.output().expect("it starts");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {told}");
        told
    };
    let cuda = refused(&["--device", "cuda"], 4);
    // With the backend, and without it.
    assert!(
        cuda.contains("--device cpu") || cuda.contains("cargo build --release --features cuda"),
        "{cuda}"
    );
    let cpu = refused(&["--device", "cpu", "--index", "3"], 4);
    assert!(cpu.contains("cpu shows 1 device") && cpu.contains("--index is at most 0"), "{cpu}");
    refused(&["--device", "gpu-01"], 2);
    refused(&["--device", "cpu", "--output", "nowhere/found.json"], 2);
    refused(&["--index", "1"], 2);
    refused(&["--only", "parity"], 2);
    refused(&["--device", "cpu", "--only", "everything"], 2);
    refused(&["--device", "cpu", "--only", "parity", "--precision", "bf16"], 2);
    refused(&["gpu-01", "--device", "cpu"], 2);
    let files = fs::read_dir(house.state().with_file_name(".")).expect("a folder").count();
    assert!(files <= 2, "a refusal leaves no file behind");
}

#[test]
fn only_the_parts_that_are_named_are_done() {
    let house = TestEnv::default();
    let doctor = |parts: &[&str]| {
        let args = [&["doctor", "--json", "--device", "cpu", "--output", "found.json", "--only"][..], parts];
        let output = house.dtrain(args.concat()).output().expect("it starts");
        println!("{}", String::from_utf8_lossy(&output.stderr));
        (output.status.code(), document(&house, "found.json"))
    };
    let (code, found) =
        doctor(&["steps", "--model", "tiny", "--steps", "3", "--precision", "f32", "--batch", "2"]);
    assert_eq!(code, Some(0), "nothing was to be compared");
    assert_eq!((&found["agrees"], &found["parts"]), (&true.into(), &serde_json::json!(["steps"])));
    assert_eq!((&found["parity"], &found["products"]), (&serde_json::json!([]), &serde_json::json!([])));
    let steps = &found["steps"];
    assert_eq!((&steps["model"], &steps["batch"]), (&"tiny".into(), &2.into()));
    assert_eq!(steps["series"].as_array().expect("steps").len(), 3);
    assert!(steps["tokens_per_second"].as_f64().expect("a number") > 0.0);

    // Of two parts, one cannot be done on a processor.
    let (code, found) = doctor(&["attention,nccl"]);
    assert_eq!(code, Some(4));
    assert!(!found["attention"].as_array().expect("a list").is_empty());
    assert!(found["faults"].to_string().contains("NCCL is for CUDA devices"), "{}", found["faults"]);
}

#[test]
fn ctrl_c_ends_an_examination_with_what_was_found() {
    let house = TestEnv::default();
    let mut doctor = house.dtrain(["doctor", "--device", "cpu", "--output", "found.json"]);
    let mut doctor = doctor.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(doctor.stderr.take().expect("a pipe")).lines().map_while(Result::ok);
    assert!(
        lines.any(|line| line.contains("in bf16") || line.contains("training in")),
        "it should come so far"
    );
    let id = rustix::process::Pid::from_child(&doctor);
    rustix::process::kill_process(id, rustix::process::Signal::INT).expect("it runs");
    let told: Vec<String> = lines.collect();
    assert_eq!(doctor.wait().expect("it ends").code(), Some(130), "{told:?}");
    assert!(told.iter().any(|line| line.contains("found.json has what was found")), "{told:?}");
    let found = document(&house, "found.json");
    assert_eq!((&found["agrees"], &found["failure"]), (&false.into(), &"interrupted".into()));
    assert_eq!(found["parity"][0]["family"], "gpt");
}
