//! What checkpoints take from training, dtrain beside `torch.save` and PyTorch's distributed checkpoints: `cargo build --release`,
//! `tests/run foreign` for PyTorch, then `cargo bench --workspace --bench checkpoint`.
//!
//! Everybody trains the same perceptron on two ranks and saves every ten steps. Printed are
//! * the *stall*: how long a rank's training stood still for a checkpoint, as it tells itself,
//! * the time until the checkpoint is *complete*: from the end of its step until all of it is written, of dtrain also recorded by
//!   the controller, and
//! * the *overhead*: how much longer ten steps with a checkpoint take than ten without. Each of the ten places between two
//!   checkpoints has its median over all of them; what they have more than the last four, when all is written, is the overhead.
//!
//! On CPUs a checkpoint competes with training: what copies, hashes and writes it has the same cores as the steps. So the overhead
//! falls with longer steps (`batch=`) and the stall does not. All write to the folder for temporary files.
//! dtrain and the distributed checkpoints sync their files to the disk, `torch.save` does not.
//!
//! Words that follow `--`: `width=2048`, `batch=2048`, `steps=110`, `rounds=1`.

#[expect(dead_code, unused_imports, reason = "nothing is disturbed here")]
#[path = "../shared/mod.rs"]
mod shared;

use dtrain_protocol::Event;
use dtrain_runner::{Fact, TrialEvent};
use dtrain_tests::TestEnv;
use shared::measured::{Better, Row};
use shared::{Words, now_ms, say, seen};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// Steps between two checkpoints.
const EVERY: u64 = 10;

/// Of those, the first that no checkpoint is written beside any more.
const QUIET: u64 = 7;

/// The ways of PyTorch.
const WAYS: [&str; 3] = ["torch.save", "dcp.save", "dcp.async_save"];

/// What a line of a training tells.
enum Told {
    /// The first rank completed a step at a millisecond.
    Step { number: u64, at_ms: u64 },
    /// A rank's training stood still for a checkpoint.
    Saved { number: u64, stall: f64 },
    /// The checkpoint after a step was complete at a millisecond.
    Complete { number: u64, at_ms: u64 },
}

/// What is trained.
#[derive(Clone, Copy)]
struct Size {
    width: u64,
    batch: u64,
    steps: u64,
}

/// What came of the rounds of one way to save.
#[derive(Default)]
struct Figures {
    /// The longest stall over the ranks, of each checkpoint, in seconds.
    stalls: Vec<f64>,
    /// From the end of its step until each checkpoint was complete, in milliseconds.
    complete: Vec<f64>,
    /// Milliseconds of the steps at each place after a checkpoint, from 1.
    places: BTreeMap<u64, Vec<f64>>,
}

impl Figures {
    fn add(&mut self, told: Vec<Told>) {
        let (mut last, mut stalls) = (None, BTreeMap::<u64, f64>::new());
        let (mut ended, mut complete) = (BTreeMap::new(), BTreeMap::<u64, u64>::new());
        for told in told {
            match told {
                Told::Step { number, at_ms } => {
                    // Before the first checkpoint machine and allocator warm up.
                    if let Some(last) = last.filter(|_| number > EVERY) {
                        #[expect(clippy::cast_precision_loss, reason = "some seconds")]
                        let took = (at_ms - last) as f64;
                        self.places.entry((number - 1) % EVERY + 1).or_default().push(took);
                    }
                    last = Some(at_ms);
                    ended.insert(number, at_ms);
                }
                Told::Saved { number, stall } => {
                    let longest = stalls.entry(number).or_default();
                    *longest = longest.max(stall);
                }
                Told::Complete { number, at_ms } => {
                    let latest = complete.entry(number).or_default();
                    *latest = at_ms.max(*latest);
                }
            }
        }
        // The first checkpoint takes the memory that all others use again, and the last has no step after it.
        let last = stalls.keys().max().copied();
        let counts = |number: u64| number > EVERY && Some(number) != last;
        self.stalls.extend(stalls.iter().filter(|(number, _)| counts(**number)).map(|(_, stall)| *stall));
        for (number, at_ms) in complete.into_iter().filter(|(number, _)| counts(*number)) {
            if let Some(ended) = ended.get(&number) {
                #[expect(clippy::cast_precision_loss, reason = "some seconds")]
                self.complete.push(at_ms.saturating_sub(*ended) as f64);
            }
        }
    }

    /// Percent that ten steps with a checkpoint take longer than ten without, and the milliseconds of a step without.
    fn overhead(&self) -> (f64, f64) {
        let typical: BTreeMap<u64, f64> =
            self.places.iter().map(|(place, took)| (*place, quantile(took, 0.5))).collect();
        let quiet: Vec<f64> = typical.range(QUIET..).map(|(_, took)| *took).collect();
        let base = quantile(&quiet, 0.5);
        let more: f64 = typical.values().map(|took| took - base).sum();
        #[expect(clippy::cast_precision_loss, reason = "ten")]
        let overhead = 100.0 * more / (base * EVERY as f64);
        (overhead, base)
    }

    fn words(&self) -> String {
        let (overhead, base) = self.overhead();
        format!(
            "{:9.1} {:9.1} {:9.1}   {overhead:8.2} %   {base:7.0} ms   {}",
            1e3 * quantile(&self.stalls, 0.5),
            1e3 * quantile(&self.stalls, 0.99),
            1e3 * quantile(&self.stalls, 1.0),
            self.stalls.len(),
        )
    }
}

fn main() {
    let words = Words::of_the_command_line();
    let number = |name, usual| words.number(name, usual);
    let size =
        Size { width: number("width", 2048), batch: number("batch", 2048), steps: number("steps", 110) };
    // Objects that ranks send each other are arrays of NumPy.
    let python = dtrain_tests::python_with("torch").and_then(|_| dtrain_tests::python_with("numpy"));
    if let Err(reason) = &python {
        say(&format!("PyTorch is left out: {reason}"));
    }
    let mut all: Vec<(&str, Figures)> =
        std::iter::once("dtrain").chain(WAYS).map(|way| (way, Figures::default())).collect();
    for round in 1..=number("rounds", 1) {
        for (way, figures) in &mut all {
            let told = match (&python, *way) {
                (_, "dtrain") => ours(size),
                (Ok(python), way) => theirs(python, way, size),
                (Err(_), _) => continue,
            };
            figures.add(told);
            say(&format!("round {round}, {way}: {}", figures.words()));
        }
    }
    let head = "stall p50       p99       max   overhead     a step     checkpoints";
    let mut table = format!("{:16} {head}   (milliseconds)\n", "");
    for (way, figures) in all.iter().filter(|(_, figures)| !figures.places.is_empty()) {
        writeln!(table, "{way:16} {}", figures.words()).expect("a string grows");
    }
    say(table.trim_end());
    let (ours, theirs) = all.split_first().expect("dtrain is the first");
    for (way, figures) in theirs {
        let note = match &python {
            Ok(_) if *way == "torch.save" => {
                "`torch.save` does not sync its file to the disk; the others do".to_owned()
            }
            Ok(_) => String::new(),
            Err(reason) => reason.clone(),
        };
        // Without it a stall would seem to be all that a checkpoint takes.
        let beside = "dtrain copies while the next step computes; what that takes is in the row of ten steps";
        let stall_note = if note.is_empty() { beside.to_owned() } else { format!("{beside}. {note}") };
        let row = |what: &str, unit, values: fn(&Figures) -> Vec<f64>, note: &str| Row {
            section: "Checkpoints",
            what: what.to_owned(),
            unit,
            better: Better::Lower,
            ours: values(&ours.1),
            peer: Some((way, if figures.places.is_empty() { Vec::new() } else { values(figures) })),
            note: note.to_owned(),
        };
        let stalls =
            |figures: &Figures| figures.stalls.iter().map(|seconds| 1e3 * seconds).collect::<Vec<f64>>();
        row("training stands still for a checkpoint", "ms", stalls, &stall_note).print();
        let complete = |figures: &Figures| figures.complete.clone();
        row("a checkpoint is complete, after the end of its step", "ms", complete, &note).print();
        let overhead = |figures: &Figures| vec![figures.overhead().0];
        row("ten steps with a checkpoint over ten without", "% more", overhead, &note).print();
    }
}

/// Trains with dtrain.
fn ours(Size { width, batch, steps }: Size) -> Vec<Told> {
    let house = TestEnv::default();
    let recipe = format!(
        "name = \"checkpoint\"\n[model]\nkind = \"mlp\"\ninputs = 64\nhidden = [{width}, {width}, {width}, {width}]\n\
         classes = 10\n[data]\ntrain = \"rows.csv\"\ntarget = \"class\"\n[objective]\nstop = {{ steps = {steps} }}\n\
         [train]\nbatch = {batch}\nlearning_rate = 1e-3\nprecision = \"f32\"\n[layout]\ndata = 2\nzero = 0\nmicro_batch = {}\n\
         [checkpoint]\nevery = \"{EVERY} steps\"\n[cluster]\nranks = 2\n",
        batch / 2
    );
    let recipe = house.file("recipe.toml", recipe);
    house.file("rows.csv", dtrain_tests::random_rows(4096));
    let mut command = house.dtrain(["run", "--no-sample", "--json"]);
    told(command.arg(recipe), |line| {
        let said = match seen(line)? {
            TrialEvent::Event(said) => said,
            TrialEvent::Record(Fact::CheckpointCommitted { step, .. }) => {
                return Some(Told::Complete { number: step.0, at_ms: now_ms() });
            }
            TrialEvent::Record(_) | TrialEvent::Status(_) => return None,
        };
        match said.event {
            Event::Step(figures) if said.rank.0 == 0 => {
                Some(Told::Step { number: figures.step.0, at_ms: said.at_ms })
            }
            Event::Saved { step, stall_seconds, .. } => {
                Some(Told::Saved { number: step.0, stall: stall_seconds })
            }
            _ => None,
        }
    })
}

/// Trains with PyTorch.
fn theirs(python: &Path, way: &str, Size { width, batch, steps }: Size) -> Vec<Told> {
    let house = TestEnv::default();
    let script = house.file("train.py", include_str!("train.py"));
    let folder = script.parent().expect("a file has a folder");
    let mut command = Command::new(python);
    command
        .args(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"])
        .arg(&script)
        .arg(folder);
    command.arg(way).args([width, batch, steps].map(|number| number.to_string()));
    told(&mut command, |line| {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["step", "0", number, at_ms] => {
                Some(Told::Step { number: number.parse().ok()?, at_ms: at_ms.parse().ok()? })
            }
            ["complete", _, number, at_ms] => {
                Some(Told::Complete { number: number.parse().ok()?, at_ms: at_ms.parse().ok()? })
            }
            ["saved", _, number, stall] => {
                Some(Told::Saved { number: number.parse().ok()?, stall: stall.parse().ok()? })
            }
            _ => None,
        }
    })
}

/// What the lines of a command tell.
fn told(command: &mut Command, tell: impl Fn(&str) -> Option<Told>) -> Vec<Told> {
    let mut process = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let lines = BufReader::new(process.stdout.take().expect("it is piped")).lines().map_while(Result::ok);
    let told = lines.filter_map(|line| tell(&line)).collect();
    let output = process.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
    told
}

/// The value below which a share `q` of `values` lies.
fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a place"
    )]
    let place = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(place.max(1) - 1).copied().unwrap_or(f64::NAN)
}
