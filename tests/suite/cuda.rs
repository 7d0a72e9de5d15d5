//! The program on a stand-in CUDA driver, `tests/data/cuda/driver.c`: NVRTC compiles every kernel of a training, and what a step asks
//! of the driver is counted and bounded. Values mean nothing there: what is read from the device is zero.

mod kernels;
mod memory;
mod nccl;
mod shapes;
mod single;

use dtrain_skip::{skip, skip_unbuilt};
use dtrain_tests::{TestEnv, root};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Steps of a short run, and of a long one. Both are validated 15 times, on the same samples: beside their steps, both runs do the
/// same.
const STEPS: [u64; 2] = [15, 30];

/// A model with RMSNorm, rotary positions, key heads that are shared and SwiGLU, in bf16.
const LLAMA: [&str; 3] = ["model.family=\"llama\"", "model.kv_heads=1", "train.precision=\"bf16\""];

/// Fewer kernels than a training compiles.
const LEAST_KERNELS: u64 = 40;

/// What a process asked of the driver, as the driver writes it.
#[derive(Clone, Debug, Default, Deserialize)]
struct Calls {
    /// The device that the process opened.
    device: u32,
    /// Launches of kernels.
    launches: u64,
    /// The same by the name of the kernel.
    launches_by: BTreeMap<String, u64>,
    /// Copies from the host to the device.
    uploads: u64,
    /// The same by the bytes of a copy.
    uploads_by: BTreeMap<String, u64>,
    /// Copies from the device to the host.
    downloads: u64,
    /// The same by the bytes of a copy.
    downloads_by: BTreeMap<String, u64>,
    /// Copies within the device.
    moves: u64,
    /// Kernels that NVRTC compiled.
    kernels: u64,
    /// Allocations of memory of the device.
    allocations: u64,
    /// Waits of the host for the device.
    synchronisations: u64,
}

/// Most calls of a step.
struct Most {
    launches: f64,
    uploads: f64,
    downloads: f64,
    synchronisations: f64,
}

/// Calls of a step in the steady state: those of a long run less those of a short one, divided.
#[derive(Debug)]
struct Step {
    launches: f64,
    uploads: f64,
    downloads: f64,
    moves: f64,
    allocations: f64,
    synchronisations: f64,
}

impl Step {
    fn of([short, long]: &[Calls; 2]) -> Self {
        let of = |calls: fn(&Calls) -> u64| {
            (calls(long) as f64 - calls(short) as f64) / (STEPS[1] - STEPS[0]) as f64
        };
        Self {
            launches: of(|calls| calls.launches),
            uploads: of(|calls| calls.uploads),
            downloads: of(|calls| calls.downloads),
            moves: of(|calls| calls.moves),
            allocations: of(|calls| calls.allocations),
            synchronisations: of(|calls| calls.synchronisations),
        }
    }

    /// The figures, with what the copies and the kernels are.
    fn words(&self, [short, long]: &[Calls; 2]) -> String {
        let parts: [(&str, fn(&Calls) -> &BTreeMap<String, u64>); 3] = [
            ("uploads by bytes", |calls| &calls.uploads_by),
            ("downloads by bytes", |calls| &calls.downloads_by),
            ("launches", |calls| &calls.launches_by),
        ];
        let parts = parts.map(|(part, by)| format!("\n  {part}: {}", most_often(by(short), by(long))));
        format!("{} kernels compiled; a step: {self:?}{}", long.kernels, parts.concat())
    }

    /// Panics where a step asks for more than is allowed.
    fn check(&self, most: &Most) {
        for (what, found, most) in [
            ("launches", self.launches, most.launches),
            ("copies to the device", self.uploads, most.uploads),
            ("copies to the host", self.downloads, most.downloads),
            ("waits", self.synchronisations, most.synchronisations),
            ("allocations", self.allocations, 0.0),
        ] {
            assert!(found <= most, "a step has {found:.1} {what}, and at most {most} are wanted");
        }
    }
}

/// What a step does most often, and how often. Kernels are put together by their names without types and numbers.
fn most_often(short: &BTreeMap<String, u64>, long: &BTreeMap<String, u64>) -> String {
    let before = |key, mark| str::split(key, mark).next().unwrap_or(key);
    let mut all = BTreeMap::<_, f64>::new();
    for (key, times) in long {
        let more = *times as f64 - short.get(key).copied().unwrap_or(0) as f64;
        let kind = ["_kernel", "_entry", "_c_", "_f_", "_i_", "_t_"].into_iter().fold(key.as_str(), before);
        *all.entry(kind).or_default() += more / (STEPS[1] - STEPS[0]) as f64;
    }
    let mut all: Vec<_> = all.into_iter().filter(|(_, times)| *times != 0.0).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all.iter().map(|(kind, times)| format!("{kind} {times:.2}")).collect::<Vec<_>>().join(" · ")
}

/// A folder with NVRTC and the headers of CUDA, where `tests/run` puts them; `Err` says what is missing.
fn toolkit() -> Result<PathBuf, String> {
    let pythons = fs::read_dir(root().join("target/test-data/cuda/lib")).into_iter().flatten().flatten();
    let mut folders = pythons.map(|python| python.path().join("site-packages/nvidia/cu13"));
    let has_all = |folder: &PathBuf| {
        ["lib/libnvrtc.so.13", "include/cuda_runtime.h", "include/cccl", "include/crt/mma.h"]
            .iter()
            .all(|part| folder.join(part).exists())
    };
    folders.find(has_all).ok_or_else(|| {
        "there is no CUDA compiler; `TESTS_CARGO_OPTIONS='--features cuda' tests/run cuda` installs it".into()
    })
}

/// A folder with the driver, compiled, and beside it a program that tells the memory of the GPU as NVIDIA's does, and NVRTC of
/// `toolkit` under the name that the program asks for.
fn driver(toolkit: &Path) -> Result<tempfile::TempDir, String> {
    let folder = tempfile::tempdir().expect("a folder");
    // Without a soname: NVRTC would ask a `libcuda.so.1` for what this one lacks.
    let output = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(folder.path().join("libcuda.so"))
        .arg(root().join("tests/data/cuda/driver.c"))
        .output()
        .map_err(|error| format!("cc: {error}"))?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let nvrtc = toolkit.join("lib/libnvrtc.so.13");
    symlink(nvrtc, folder.path().join("libnvrtc.so")).expect("the folder is ours");
    let told = folder.path().join("nvidia-smi");
    fs::write(&told, "#!/bin/sh\necho $((${STAND_IN_MEMORY:-80} * 1024))\n").expect("room on disk");
    fs::set_permissions(&told, fs::Permissions::from_mode(0o700)).expect("the file is ours");
    Ok(folder)
}

/// These folders before those of an environment variable.
fn before(variable: &str, folders: &[&Path]) -> OsString {
    let others = std::env::var_os(variable).unwrap_or_default();
    let others =
        std::env::split_paths(&others).filter(|path| !path.as_os_str().is_empty()).collect::<Vec<_>>();
    let paths = folders.iter().map(|folder| (*folder).to_owned()).chain(others);
    std::env::join_paths(paths).expect("no colons in folders")
}

/// The driver in a folder, and the compiler in another.
struct Device {
    driver: tempfile::TempDir,
    toolkit: PathBuf,
    /// Its compute capability: 80 for 8.0.
    capability: u32,
    /// Its memory, in GiB.
    memory: u32,
}

impl Device {
    /// A driver of this compute capability. `None` if the test cannot run, which is counted as skipped.
    fn new(capability: u32) -> Option<Self> {
        let checks = TestEnv::default().dtrain(["doctor", "--json"]).output().expect("it starts").stdout;
        if !String::from_utf8_lossy(&checks).contains("CUDA") {
            skip_unbuilt("cuda");
            return None;
        }
        let made = toolkit()
            .and_then(|toolkit| Ok(Self { driver: driver(&toolkit)?, toolkit, capability, memory: 80 }));
        made.map_err(skip).ok()
    }

    /// A short and a long training of the tiny recipe with these settings, in steps of two micro-batches.
    fn trainings(&self, settings: &[&str]) -> [Calls; 2] {
        let house = TestEnv::default();
        // Speeds are measured first, so that later only the rank computes.
        self.run(&house, "plan", settings, STEPS[0]);
        STEPS.map(|steps| {
            let mut calls = self.run(&house, "run", settings, steps);
            calls.retain(|calls| calls.launches > 0);
            assert_eq!(calls.len(), 1, "only one rank computes: {calls:?}");
            assert!(calls[0].kernels > LEAST_KERNELS, "a training has more kernels: {calls:?}");
            calls.remove(0)
        })
    }

    /// Runs a command to its end; what the driver counted in each of its processes.
    fn run(&self, house: &TestEnv, command: &str, settings: &[&str], steps: u64) -> Vec<Calls> {
        let counts = house.file("counts", "");
        let mut command = self.command(house, command, settings, steps);
        command.env("STAND_IN_COUNTS", &counts);
        let output = command.output().expect("the program starts");
        assert!(output.status.success(), "{command:?}: {}", words(&output));
        let lines = fs::read_to_string(&counts).expect("the file is ours");
        lines.lines().map(|line| serde_json::from_str(line).expect("counts are JSON")).collect()
    }

    /// A command on the tiny recipe with these settings, on this device.
    fn command(&self, house: &TestEnv, command: &str, settings: &[&str], steps: u64) -> Command {
        let recipe = root().join("tests/data/tiny/recipe.toml");
        let mut command = house.dtrain([command, recipe.to_str().expect("UTF-8")]);
        if command.get_args().any(|word| word == "run") {
            command.args(["--quiet", "--no-sample"]);
        }
        let every = format!("validation.every={}", (steps / 15).max(1));
        let steps = format!("objective.stop={{ steps = {steps} }}");
        let fixed = [
            "cluster.devices=\"cuda\"",
            "cluster.ranks=1",
            "layout.recompute=\"none\"",
            "layout.micro_batch=4",
            "validation.samples=32",
        ];
        for setting in fixed.iter().chain(settings).chain(&["checkpoint.every=1000", &every, &steps]) {
            command.args(["--set", setting]);
        }
        let libraries = [self.driver.path(), &self.toolkit.join("lib")];
        command
            .env("LD_LIBRARY_PATH", before("LD_LIBRARY_PATH", &libraries))
            .env("PATH", before("PATH", &libraries[..1]))
            .env("CUDA_PATH", &self.toolkit)
            // Nothing is there that another test compiled, and no kernel is chosen where nothing takes time.
            .env("DTRAIN_KERNEL_CACHE", kernels(house))
            .env("DTRAIN_TUNING_SECONDS", "0")
            .env("STAND_IN_SM", self.capability.to_string())
            .env("STAND_IN_MEMORY", self.memory.to_string());
        command
    }
}

/// The folder with the compiled kernels of a house.
fn kernels(house: &TestEnv) -> PathBuf {
    house.state().with_file_name("kernels")
}

/// NVIDIA's packages in the Python environment that is active are found and used: no variable names CUDA, and no link was made to the
/// compiler, whose name is another than the program asks for.
#[test]
fn wheels_of_the_active_environment_are_found_and_used() {
    let Some(device) = Device::new(80) else { return };
    let own = ["/usr/local/cuda", "/opt/cuda", "/usr/bin/nvcc", "/dev/nvidiactl"];
    if own.iter().any(|path| Path::new(path).exists()) {
        return skip("this host has a CUDA toolkit or a driver of its own, which decide as well");
    }
    fs::remove_file(device.driver.path().join("libnvrtc.so")).expect("the folder is ours");
    let house = TestEnv::default();
    let counts = house.file("counts", "");
    let home = counts.with_file_name("home");
    let caches = home.join(".cache/dtrain/cuda");
    let path = [device.driver.path(), Path::new("/usr/bin"), Path::new("/bin")];
    let path = std::env::join_paths(path).expect("no colons in folders");
    let active = |mut command: Command| {
        command
            .env("STAND_IN_COUNTS", &counts)
            .env("LD_LIBRARY_PATH", device.driver.path())
            .env("PATH", &path)
            .env("HOME", &home)
            .env("VIRTUAL_ENV", root().join("target/test-data/cuda"))
            .env_remove("CUDA_PATH")
            .env_remove("CUDA_HOME")
            .env_remove("CONDA_PREFIX")
            .env_remove("PYTHONPATH")
            .env_remove("XDG_CACHE_HOME");
        command.output().expect("the program starts")
    };
    let found = active(house.dtrain(["doctor", "--json"]));
    let found: serde_json::Value = serde_json::from_slice(&found.stdout).expect("doctor writes JSON");
    let check = |name: &str| {
        let checks = found["checks"].as_array().expect("there are checks");
        checks.iter().find(|check| check["name"] == name).cloned().unwrap_or_default()
    };
    for (name, part) in [("NVRTC", "lib/libnvrtc.so.13"), ("CUDA headers", "include")] {
        let check = check(name);
        println!("{check:#}");
        assert_eq!(check["verdict"], "good", "{check:#}");
        assert_eq!(check["taken"]["path"].as_str().map(Path::new), Some(device.toolkit.join(part).as_path()));
    }
    assert!(!caches.exists(), "who only looks makes no links");

    let output = active(device.command(&house, "run", &LLAMA, STEPS[0]));
    assert!(output.status.success(), "{}", words(&output));
    let lines = fs::read_to_string(&counts).expect("the file is ours");
    let calls = lines.lines().map(|line| serde_json::from_str::<Calls>(line).expect("counts are JSON"));
    let kernels = calls.map(|calls| calls.kernels).max().unwrap_or(0);
    assert!(kernels > LEAST_KERNELS, "a training has more kernels than {kernels}");
    let folders = fs::read_dir(&caches).expect("links were made").flatten();
    let folders: Vec<_> = folders.map(|folder| folder.path()).collect();
    let [links] = folders.as_slice() else { panic!("probes and ranks use one folder: {folders:?}") };
    let compiler = links.join("lib/libnvrtc.so").canonicalize().expect("the link leads somewhere");
    assert_eq!(Some(compiler), device.toolkit.join("lib/libnvrtc.so.13").canonicalize().ok());
}

/// How a program ended, and what it wrote.
fn words(output: &Output) -> String {
    let written = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{}\n{}", output.status, written.join("\n"))
}

/// Layers with LayerNorm, learned positions and GELU, in f32.
#[test]
fn a_step_of_a_gpt_asks_little_of_the_driver() {
    let Some(device) = Device::new(80) else { return };
    let runs = device.trainings(&["model.layers=2", "train.precision=\"f32\""]);
    // Uploads, for each of two micro-batches: 1 the tokens, 1 the targets. Downloads, for each micro-batch: 1 the loss, 1 the hits, all
    // of them at the end of the step; and 1 the norm of the gradients.
    // The host waits for each download, and now and then once more.
    let most = Most { launches: 545.0, uploads: 4.0, downloads: 5.0, synchronisations: 6.0 };
    let step = Step::of(&runs);
    println!("gpt, 2 layers, f32: {}", step.words(&runs));
    step.check(&most);
}

/// A short and a long training of [`LLAMA`] with this many layers.
fn llama(device: &Device, layers: u32) -> [Calls; 2] {
    device.trainings(&[&LLAMA[..], &[&format!("model.layers={layers}")]].concat())
}

/// Layers with RMSNorm, rotary positions, key heads that are shared and SwiGLU, in bf16; and what a layer adds to a step.
#[test]
fn a_step_of_a_llama_asks_little_of_the_driver() {
    let Some(device) = Device::new(80) else { return };
    let runs = llama(&device, 2);
    // Uploads and downloads as of the gpt.
    let most = Most { launches: 490.0, uploads: 4.0, downloads: 5.0, synchronisations: 6.0 };
    let step = Step::of(&runs);
    println!("llama, 2 layers, bf16: {}", step.words(&runs));
    step.check(&most);
    let larger = Step::of(&llama(&device, 4));
    let [launches, uploads] =
        [larger.launches - step.launches, larger.uploads - step.uploads].map(|more| more / 2.0);
    println!("  each layer of it: {launches:.0} launches, {uploads:.0} uploads");
    assert!(launches <= 212.0, "a layer has {launches:.1} launches in a step");
    assert!(uploads <= 0.0, "a layer has {uploads:.1} copies to the device in a step");
}
