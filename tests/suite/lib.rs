//! Shared helpers of the suites: the program, an environment for each test, and access to checkpoints.

use dtrain_protocol::checkpoint::parse_folder_name;
use dtrain_protocol::{FileEntry, Manifest, Rank, Slice, StepId, Tensor, TensorKind};
use dtrain_runner::ledger::History;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the repository").to_owned()
}

/// A recipe without a name: some seconds of training on [`numbered_lines`], which divides among one, two and four hosts.
pub const SHORT_TRAINING: &str = r#"
[model]
kind = "decoder"
layers = 4
hidden = 64
heads = 4
context = 64

[data]
train = "text.txt"
valid = "5%"

[objective]
stop = { steps = 150 }

[train]
batch = 24

[checkpoint]
every = 5
"#;

/// Its steps.
pub const SHORT_STEPS: u64 = 150;

/// The text that it reads as `text.txt`.
pub fn numbered_lines() -> String {
    (0..4000).map(|line| format!("line {line} of a text, and {}\n", line * line)).collect()
}

/// A table of `rows` rows: 64 numbers that look random, `x0` to `x63`, and a `class` of ten.
pub fn random_rows(rows: u32) -> String {
    let mut text: String = (0..64).map(|column| format!("x{column},")).collect();
    text += "class\n";
    let mut state = 1u64;
    for row in 0..rows {
        for _ in 0..64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let value = f64::from((state >> 40) as u32 % 1000) / 500.0 - 1.0;
            write!(text, "{value:.2},").expect("a string grows");
        }
        writeln!(text, "c{}", row % 10).expect("a string grows");
    }
    text
}

/// The `dtrain` program: the one that `tests/run` built, as cargo reported it, otherwise the one beside this test.
///
/// Panics with the command to type when it is missing.
pub fn program() -> PathBuf {
    let program = std::env::var_os("TESTS_PROGRAM").map_or_else(program_beside_this_test, PathBuf::from);
    assert!(program.exists(), "{} is missing; run `cargo build --release` first", program.display());
    program
}

fn program_beside_this_test() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows where it is");
    test.ancestors().nth(2).expect("tests lie in target/<profile>/deps").join("dtrain")
}

/// Returns `true` if `tests/run` was called with this name: a test then takes its whole form, not the short one of CI.
pub fn is_named(name: &str) -> bool {
    std::env::var("TESTS_NAMED").is_ok_and(|names| names.split(' ').any(|one| one == name))
}

/// Python with `module`, where `tests/run foreign` and `tests/run interop` put it; `Err` says what is missing.
pub fn python_with(module: &str) -> Result<PathBuf, String> {
    let folder = if module == "torchtitan" { "engines" } else { "foreign" };
    let python = root().join("target").join(folder).join("bin/python");
    let command = if module == "torchtitan" {
        "tests/run engines"
    } else if ["transformers", "trl", "gguf", "peft", "onnxruntime"].contains(&module) {
        "tests/run interop"
    } else {
        "tests/run foreign"
    };
    let finds = format!("import importlib.util, sys; sys.exit(importlib.util.find_spec('{module}') is None)");
    match Command::new(&python).args(["-c", &finds]).status() {
        Ok(status) if status.success() => Ok(python),
        Ok(_) => Err(format!("{} has no {module}; `{command}` installs it", python.display())),
        Err(_) => Err(format!("there is no {}; `{command}` makes it", python.display())),
    }
}

/// A user's folders: state, settings and a place for recipes, all gone when it is dropped.
pub struct TestEnv {
    folder: tempfile::TempDir,
    /// Time that a probe may take.
    probe: &'static str,
    /// The program, where it is not `dtrain`.
    program: Option<PathBuf>,
}

impl Default for TestEnv {
    /// Probes are short: plans of tests need no precise speeds.
    fn default() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder for the test"), probe: "2 s", program: None }
    }
}

impl TestEnv {
    /// One whose probes take as long as those of a user.
    pub fn with_full_probes() -> Self {
        Self { probe: "12 s", ..Self::default() }
    }

    /// One of a program that was built with dtrain as a library.
    pub fn of_program(path: &Path) -> Self {
        Self { program: Some(path.to_owned()), ..Self::default() }
    }

    /// The folder of everything.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The state folder.
    pub fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// The history.
    pub fn history(&self) -> PathBuf {
        self.state().join("history.db")
    }

    /// Share of the validation samples that a trial read right at its end.
    pub fn accuracy(&self, trial: &str) -> f64 {
        let history = History::open_read_only(&self.history()).expect("a history");
        let trial = history.find(trial).expect("a trial");
        let accuracy = history.series(&trial, "valid.accuracy", Rank(0)).expect("accuracies");
        accuracy.last().expect("it was validated").value
    }

    /// Writes a file below the house and returns its path.
    pub fn file(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a file has a folder")).expect("a folder");
        fs::write(&path, text).expect("a file");
        path
    }

    /// The program with these arguments, in this house.
    pub fn dtrain<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(self.program.clone().unwrap_or_else(program));
        command
            .args(args)
            .env("DTRAIN_STATE", self.state())
            .env("XDG_CONFIG_HOME", self.folder.path().join("config"))
            .env("XDG_DATA_HOME", self.folder.path().join("data"))
            .env("NO_COLOR", "1")
            .env("DTRAIN_KERNEL_CACHE", root().join("target/test-data/kernels"))
            .env("DTRAIN_CLUSTER__PROBE", self.probe)
            .env_remove("DTRAIN_KILLS")
            .env_remove("DTRAIN_EXPORT_TRIALS")
            .env_remove("DTRAIN_POWER_CUTS")
            .current_dir(self.folder.path());
        command
    }

    /// Runs the program to its end; panics with what it printed when its exit code is not `code`.
    pub fn expect<S: AsRef<std::ffi::OsStr>>(&self, code: i32, args: impl IntoIterator<Item = S>) -> Output {
        let mut command = self.dtrain(args);
        let output = command.output().expect("the program starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert_eq!(
            output.status.code(),
            Some(code),
            "{command:?}\n--- stdout\n{}\n--- stderr\n{}",
            text(&output.stdout),
            text(&output.stderr)
        );
        output
    }

    /// The folder of the only, or the newest, trial.
    pub fn newest_trial(&self) -> PathBuf {
        self.find_newest_trial().expect("at least one trial")
    }

    /// The folder of the newest trial; `None` while there is none.
    pub fn find_newest_trial(&self) -> Option<PathBuf> {
        let entries = fs::read_dir(self.state().join("trials")).ok()?;
        entries.map(|entry| entry.expect("an entry").path()).max()
    }
}

/// The newest committed checkpoint below a trial's folder.
pub fn newest_checkpoint(trial: &Path) -> (StepId, PathBuf) {
    let entries = fs::read_dir(trial.join("checkpoints")).expect("checkpoints were made");
    let committed = entries.filter_map(|entry| {
        let path = entry.expect("an entry").path();
        let name = path.file_name()?.to_str()?;
        if !path.join("COMMIT").exists() {
            return None;
        }
        Some((parse_folder_name(name)?, path.clone()))
    });
    let ((step, _), path) = committed.max().expect("at least one committed checkpoint");
    (step, path)
}

/// Tensors by name and kind, each whole, as its bytes.
pub type Tensors = BTreeMap<(String, TensorKind), Vec<u8>>;

/// Every tensor of a checkpoint: weights and optimizer state alike.
pub fn tensors(folder: &Path) -> Tensors {
    let manifest = fs::read(folder.join("manifest.json")).expect("a manifest");
    let manifest: Manifest = serde_json::from_slice(&manifest).expect("a manifest is JSON");
    assembled(folder, &manifest.tensors, &manifest.files)
}

/// The tensors whose pieces lie in `files` of `folder`, whether or not they are committed.
pub fn assembled(folder: &Path, tensors: &[Tensor], files: &[FileEntry]) -> Tensors {
    let files: BTreeMap<_, _> = files
        .iter()
        .map(|file| (file.name.clone(), fs::read(folder.join(&file.name)).expect("a file of the manifest")))
        .collect();
    let mut all = BTreeMap::new();
    for tensor in tensors {
        let whole = Slice::whole(&tensor.shape);
        let mut bytes = vec![0; 4 * whole.elements() as usize];
        for (piece, slice) in tensor.pieces.iter().zip(tensor.slices().expect("every element once")) {
            let file = safetensors::SafeTensors::deserialize(&files[&piece.file]).expect("safetensors");
            let data = file.tensor(&piece.key).expect("the piece").data();
            for run in slice.overlaps(&whole) {
                let [from, to, length] = [run.first, run.second, run.length].map(|n| 4 * n as usize);
                bytes[to..to + length].copy_from_slice(&data[from..from + length]);
            }
        }
        all.insert((tensor.name.clone(), tensor.kind), bytes);
    }
    all
}

/// One number for all tensors of a checkpoint.
pub fn digest(folder: &Path) -> String {
    let mut hash = blake3::Hasher::new();
    for ((name, kind), bytes) in tensors(folder) {
        hash.update(format!("{name} {kind:?} {}\n", bytes.len()).as_bytes()).update(&bytes);
    }
    hash.finalize().to_hex().to_string()
}
