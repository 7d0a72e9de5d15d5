//! `tests/gpu`, the script for people who have a GPU: on the processor and on Mesa's software device, with parts that hang or fail, with
//! minutes that are too few, and with stand-ins for NVIDIA's tools.

use dtrain_protocol::{DeviceKind, Placement};
use dtrain_tests::{TestEnv, program, root};
use dtrain_worker::device;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How a run of the script ended, and what it left in the folder `found`.
struct Script {
    code: Option<i32>,
    page: String,
    told: String,
    folder: PathBuf,
}

impl Script {
    /// Runs it on a device with a program, and with PyTorch left out.
    #[expect(clippy::print_stdout, reason = "a test that fails shows it")]
    fn run(house: &TestEnv, program: &Path, device: &str, more: &[&str]) -> Self {
        let mut script = Command::new(root().join("tests/gpu"));
        script.args(["--device", device, "--without-pytorch", "--output", "found", "--program"]).arg(program);
        script.args(more).current_dir(house.state().parent().expect("a folder"));
        script.env("CUDA_VISIBLE_DEVICES", "").env(device::SOFTWARE_GPUS, "1");
        let output = script.output().expect("python3 is there");
        let [page, told] =
            [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        println!("{told}\n{page}");
        let folder = house.state().with_file_name("found");
        Self { code: output.status.code(), page, told, folder }
    }

    /// After how many seconds a part would be ended, or 0 where it did not begin.
    fn seconds_given(&self, part: &str) -> f64 {
        let begins = format!(", {part}: begins, at most ");
        let of_line = |line: &str| line.split_once(&begins)?.1.split(' ').next()?.parse().ok();
        self.told.lines().find_map(of_line).unwrap_or_default()
    }

    /// What a part found.
    fn part(&self, name: &str) -> Value {
        let text = fs::read_to_string(self.folder.join(format!("{name}.json")));
        serde_json::from_str(&text.unwrap_or_else(|error| panic!("{name}: {error}"))).expect("JSON")
    }

    /// The verdict on a part.
    fn verdict(&self, name: &str) -> String {
        self.part(name)["verdict"].as_str().expect("a word").to_owned()
    }

    /// Panics where page and archive do not have what was found of these parts.
    fn is_whole(&self, parts: &[&str]) {
        let written = fs::read_to_string(self.folder.join("page.md")).expect("a page");
        assert_eq!(self.page.trim(), written.trim(), "the page is printed, too");
        let archive = self.folder.join("results.tar.gz");
        let listed = Command::new("tar").arg("tzf").arg(&archive).output().expect("tar is there").stdout;
        let listed = String::from_utf8_lossy(&listed).into_owned();
        for part in parts {
            assert!(written.contains(part), "{part} in {written}");
            assert!(listed.contains(&format!("results/{part}.json")), "{part} in {listed}");
        }
        assert!(listed.contains("results/page.md"), "{listed}");
        assert!(fs::metadata(&archive).expect("it is there").len() < 16 << 20);
    }
}

#[test]
fn the_script_for_gpus_says_where_there_is_no_gpu() {
    let house = TestEnv::default();
    let script = Script::run(&house, &program(), "cuda", &["--minutes", "1"]);
    assert_eq!(script.code, Some(2), "{}", script.told);
    assert!(script.told.contains("tests/gpu: nothing was examined: "), "{}", script.told);
}

#[test]
fn the_script_for_gpus_compares_and_measures_the_processor() {
    let parts = ["tiny", "nccl", "products", "two-ranks"];
    let more = ["--minutes", "10", "--only", &parts.join(",")];
    let house = TestEnv::default();
    let script = Script::run(&house, &program(), "cpu", &more);
    assert_eq!(script.code, Some(0), "{}", script.told);
    script.is_whole(&parts);
    assert_eq!(script.verdict("machine"), "held");
    let tiny = script.part("tiny");
    let losses = |label: &str| {
        let series = tiny["documents"][label]["steps"]["series"].as_array().expect("steps").clone();
        series.iter().map(|step| step["loss"].as_f64().expect("a loss")).collect::<Vec<_>>()
    };
    let (host, found) = (losses("host f32"), losses("f32"));
    assert_eq!((host.len(), found.len()), (20, 20));
    assert!(host[19] < host[0] - 0.1, "it learned nothing: {host:?}");
    let ranks = script.part("two-ranks");
    let held = ranks["held"].as_array().expect("sentences");
    assert_eq!(held.len(), 2, "ZeRO and a pipeline train as one rank does: {ranks}");
    assert!(script.page.contains("TFLOP/s"), "{}", script.page);
    assert_eq!(script.verdict("nccl"), "skipped", "there is no NCCL on a processor");
    assert!(script.page.contains("nccl: it is for NVIDIA's GPUs"), "{}", script.page);
}

#[test]
fn the_script_for_gpus_examines_mesas_device() {
    let placement = Placement { host: 0, device: DeviceKind::Wgpu, index: 0, threads: 1 };
    if let Err(reason) = device::open(&placement) {
        return dtrain_skip::skip(reason);
    }
    let more = ["--minutes", "10", "--only", "tiny,attention"];
    let house = TestEnv::default();
    let script = Script::run(&house, &program(), "wgpu", &more);
    assert_eq!(script.code, Some(0), "{}", script.told);
    script.is_whole(&["machine", "tiny", "attention"]);
    assert!(script.page.contains("losses of 20 steps differ by"), "{}", script.page);
}

/// A program that hangs in some parts of the script, with a child in a session of its own, fails in another, and otherwise is dtrain.
/// The process of the newest child is in the second file. Parts are patterns of the shell.
fn spoiled(house: &TestEnv, hangs: &str, fails: &str) -> (PathBuf, PathBuf) {
    let child = house.file("child", "");
    let text = format!(
        "#!/bin/sh\ncase \"$TESTS_GPU_PART\" in\n{hangs}) trap '' INT; setsid sleep 3600 & echo $! > {}; wait; sleep 3600;;\n\
         {fails}) echo 'words of a driver' >&2; exit 3;;\nesac\nexec {} \"$@\"\n",
        child.display(),
        program().display()
    );
    let spoiled = house.file("spoiled", text);
    fs::set_permissions(&spoiled, fs::Permissions::from_mode(0o700)).expect("the file is ours");
    (spoiled, child)
}

/// Panics where the process that the file names is still there.
fn is_gone(child: &Path) {
    let id = fs::read_to_string(child).expect("the file is there");
    let id = id.trim();
    assert!(!id.is_empty(), "the part was tried");
    let state = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    let is_alive = !state.is_empty() && !state.contains(") Z ");
    assert!(!is_alive, "nothing is left behind: {state}");
}

#[test]
fn a_part_of_the_script_for_gpus_that_hangs_or_fails_spoils_no_other() {
    let house = TestEnv::default();
    let (program, child) = spoiled(&house, "tiny", "products");
    let more = ["--minutes", "10", "--only", "tiny,products,attention", "--limit", "tiny=3"];
    let script = Script::run(&house, &program, "cpu", &more);
    assert_eq!(script.code, Some(1), "{}", script.told);
    script.is_whole(&["machine", "tiny", "products", "attention"]);
    let verdicts = ["tiny", "products", "attention"].map(|part| script.verdict(part));
    assert_eq!(verdicts, ["hung", "failed", "held"]);
    for words in ["tiny: not done after", "exit code 3: words of a driver", "what was not seen: `tests/gpu"] {
        assert!(script.page.contains(words), "`{words}` in {}", script.page);
    }
    is_gone(&child);
}

#[test]
fn the_script_for_gpus_ends_in_time_where_the_minutes_are_too_few() {
    let house = TestEnv::default();
    let (program, child) = spoiled(&house, "tiny|parity", "nothing");
    let script = Script::run(&house, &program, "cpu", &["--minutes", "0.3"]);
    assert_eq!(script.code, Some(1), "{}", script.told);
    // The two parts that hang were given no more than all of the 18 seconds, rounded.
    let given = ["tiny", "parity"].map(|part| script.seconds_given(part));
    assert!(given[0] > 0.0 && given.iter().sum::<f64>() <= 19.0, "{given:?} s: {}", script.told);
    script.is_whole(&["machine", "tiny", "parity", "two-ranks"]);
    assert_eq!(script.verdict("two-ranks"), "no time");
    assert!(script.page.contains("two-ranks: no time left"), "{}", script.page);
    is_gone(&child);
}

/// What only a GPU of NVIDIA shows, with stand-ins for the program and for NVIDIA's tools, whose figures mean nothing.
#[test]
fn the_script_for_gpus_reads_what_nvidias_tools_say() {
    let tools = root().join("tests/data/gpu");
    let path = std::env::var("PATH").expect("it is set");
    let script = |environment: &[(&str, &str)]| {
        let house = TestEnv::default();
        let mut script = Command::new(root().join("tests/gpu"));
        script.args(["--without-pytorch", "--output", "found", "--program"]).arg(tools.join("dtrain"));
        script.env("PATH", format!("{}:{path}", tools.display())).envs(environment.iter().copied());
        let output = script.current_dir(house.state().parent().expect("a folder")).output();
        let output = output.expect("python3 is there");
        println!("{}", String::from_utf8_lossy(&output.stderr));
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, page) = script(&[]);
    println!("{page}");
    assert_eq!(code, Some(0));
    for words in [
        "CUDA of the driver |",
        "compute-sanitizer found no error",
        "1 of 1 calls of NCCL",
        "two-gpus: there is 1 GPU",
        // 8192 tokens at 200,000 a second, of 860 M operations each and a peak of 989 TFLOP/s.
        "| gpt2, tuned     | bf16     |  200,000 | 41.0 ms |",
        "17.4 %",
        "kernels of a step of gpt2: 3 launches, 4.0 ms of the device",
        "| matmul   |        2 | 3.00 ms | 75.0 % | 3.00 GB | 1.00 |",
        "| bf16     | 4096 |  500.00 | 275 µs |        51 % |",
        "attention: the best, in bf16 at 4096, is 1 % of the peak",
        "memory held after step 10 is 2.000 GiB, after step 60 2.000 GiB",
    ] {
        assert!(page.contains(words), "`{words}` in the page");
    }
    let wrong = [("STAND_IN_DIFFERS", "1"), ("STAND_IN_GROWS", "1"), ("STAND_IN_ERRORS", "7")];
    let (code, page) = script(&[&wrong[..], &[("STAND_IN_FORBIDDEN", "1")]].concat());
    println!("{page}");
    assert_eq!(code, Some(1));
    for words in [
        "parity: llama in f32: losses 1.0e-05 (1.0e-03 allowed), gradients 5.0e-01 (1.0e-02), most in head.weight",
        "memory: memory held after step 10 is 2.562 GiB, after step 60 5.688 GiB",
        "compute-sanitizer found 7 errors; the first: Invalid __global__ read of size 4 bytes",
        "profile: ncu does not work here: ERROR ERR_NVGPUCTRPERM",
        "counters are for root only",
        "parity differs: `tests/gpu --device cuda --only parity`",
    ] {
        assert!(page.contains(words), "`{words}` in the page");
    }
}

/// The package holds what a machine without this repository needs.
#[test]
fn the_script_for_gpus_travels_with_a_program_and_kernels_and_runs_where_nothing_else_is() {
    let house = TestEnv::default();
    let (program, _) = spoiled(&house, "nothing", "nothing");
    house.file("filled/kernel", "compiled");
    let folder = house.state().parent().expect("a folder").to_owned();
    let mut script = Command::new(root().join("tests/gpu"));
    script.args(["--prepare", "gpu.tar.xz", "--kernels", "filled", "--program"]).arg(program);
    let output = script.current_dir(&folder).output().expect("python3 is there");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert!(told.contains("there: tar xf gpu.tar.xz && dtrain-gpu/gpu --minutes 7"), "{told}");
    let unpacked = Command::new("tar").args(["xf", "gpu.tar.xz"]).current_dir(&folder).status();
    assert!(unpacked.expect("tar is there").success());
    let kernel = fs::read_to_string(folder.join("dtrain-gpu/kernels/kernel"));
    assert_eq!(kernel.expect("kernels travel"), "compiled");
    let mut there = Command::new(folder.join("dtrain-gpu/gpu"));
    there.args(["--device", "cpu", "--minutes", "1", "--only", "products", "--output", "found"]);
    let output = there.current_dir(&folder).output().expect("python3 is there");
    println!("{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0));
    assert!(folder.join("found/results.tar.gz").exists());
}
