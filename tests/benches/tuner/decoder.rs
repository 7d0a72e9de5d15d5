//! Settings of a real training, searched by `dtrain tune` and by Optuna for equal training tokens.
//!
//! **What is trained.** A decoder of the Llama family of 2 layers of width 64, about 140 thousand weights, on dtrain's own documents,
//! byte by byte; one rank on the processor. The last 1/32 of each document is held out, the same for all seeds. A whole trial is
//! 98,304 tokens, whatever its batch, with a schedule of its own. Its value is the validation loss after the last token.
//!
//! **What is searched.** The learning rate, 1e-4 to 1e-1; the batch, 8, 16, 32 or 64 sequences of 64 tokens; the warm-up, 1 % to
//! 50 % of the tokens; the weight decay, 1e-3 to 1. Studies of the script begin with the same setting, [`FIRST`]: Optuna has it
//! enqueued, and dtrain has it as the default of each param.
//!
//! **The worker.** `decoder.py train` starts `dtrain run` with a setting, and reports the first validation loss after each eighth of
//! the tokens. Reports have the numbers 1 to 8 with every batch, so pruners compare trials after about as many tokens. `dtrain tune`
//! runs the worker as a script, Optuna as a subprocess. One trial runs at a time. All trials of a study have the study's seed.
//!
//! **The budget.** The tokens of 16 whole trials. The worker counts them, also of trials that end early. No trial begins unless
//! the tokens of a whole one are left, so no study exceeds its budget, and one that prunes has more trials.
//!
//! **The contenders.** Optuna: TPE with its usual settings, and its median pruner, which begins when 5 trials are completed. dtrain:
//! TPE and the median pruner, which begins when 4 other trials have reported as far; `dtrain tune` as it comes, which is a Gaussian
//! process without a pruner; and `dtrain tune` as it comes of the decoder itself rather than of the script. That one cannot search
//! the weight decay, which is 0.1, and the length of its trials is given in steps, so the batch is 16. Its learning rate and
//! warm-up have the same ranges, it begins with what the plan says, and it validates on fewer of the held-out samples.
//!
//! **The score.** What a study recommends (of Optuna the best trial that was completed) is trained anew with five seeds that no
//! study has, and the mean of their validation losses counts. What a lucky trial measured does not.
//!
//! Nothing is cached.

use crate::shared::measured::{Better, Row};
use crate::shared::say;
use dtrain_tests::{TestEnv, program, root};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const SCRIPT: &str = include_str!("decoder.py");

/// Whole trials whose tokens a study has.
const TRIALS: u64 = 16;

/// Tokens of a whole trial; `decoder.py` has the same.
const TOKENS: u64 = 98_304;

/// Tokens of a sequence.
const CONTEXT: u64 = 64;

/// The batch of studies that do not search it.
const BATCH: u64 = 16;

/// Seeds of the trainings that are scored; those of studies are smaller.
const SCORED: [u64; 5] = [1001, 1002, 1003, 1004, 1005];

/// A setting: learning rate, power of two that is the batch, share of the tokens that is warm-up, weight decay.
type Setting = [f64; 4];

/// Where each study begins: usual values, of which the learning rate is too low for so short a training.
const FIRST: Setting = [3e-4, 5.0, 0.1, 0.1];

/// Measures all contenders with so many studies each.
pub(crate) fn measure(studies: u64) {
    let optuna = dtrain_tests::python_with("optuna");
    let python = optuna.clone().unwrap_or_else(|_| "python3".into());
    let bench = Bench::new(python);
    let untuned = bench.score(FIRST);
    say(&format!("decoder    untuned {untuned:.4}"));
    let all = |name: &str, study: &dyn Fn(u64) -> Setting| -> Vec<f64> {
        (0..studies).map(|seed| bench.scored(name, seed, study(seed))).collect()
    };
    let theirs = optuna.as_ref().ok().map(|_| {
        let title = format!("Optuna {} TPE, median pruner", bench.script(&["version"]).trim());
        (title, all("optuna", &|seed| bench.optuna(seed)))
    });
    let missing = optuna.err().map_or(String::new(), |reason| format!(" Optuna is left out: {reason}."));
    let note = format!(
        "Validation loss of what is recommended, trained anew with five other seeds; {untuned:.3} where all studies of the script \
         begin. A study has the tokens of {TRIALS} whole trials.{missing}"
    );
    let row = |what: &str, ours: Vec<f64>| {
        let what = format!("small decoder, equal training tokens: {what}");
        let peer = theirs.as_ref().map(|(title, theirs)| (title.as_str(), theirs.clone()));
        let (section, better) = (super::SECTION, Better::Lower);
        Row { section, what, unit: "nats", better, ours, peer, note: note.clone() }.print();
    };
    let pair = ["--sampler", "tpe", "--pruner", "median"];
    row("TPE, median pruner", all("tpe", &|seed| bench.ours("tpe", &pair, seed)));
    row("Gaussian process and no pruner, as it comes", all("auto", &|seed| bench.ours("auto", &[], seed)));
    row("the same of its own model; batch and weight decay fixed", all("own", &|seed| bench.own_model(seed)));
}

/// A house with the worker, and a Python that runs it.
struct Bench {
    house: TestEnv,
    python: PathBuf,
    script: PathBuf,
}

impl Bench {
    fn new(python: PathBuf) -> Self {
        let house = TestEnv::default();
        let script = house.file("decoder.py", SCRIPT);
        house.file("decoder.toml", recipe());
        let [train, valid] = texts();
        house.file("train.txt", train);
        house.file("valid.txt", valid);
        let [rate, power, warmup, decay] = FIRST;
        let first = json!({ "rate": rate, "power": power, "warmup": warmup, "decay": decay });
        house.file("first.json", first.to_string());
        Self { house, python, script }
    }

    /// What the script prints.
    fn script(&self, words: &[&str]) -> String {
        let mut command = Command::new(&self.python);
        command.arg(&self.script).args(words).stdin(Stdio::null()).stderr(Stdio::inherit());
        let output = command.output().expect("it starts");
        assert!(output.status.success(), "decoder.py {words:?}: {}", output.status);
        String::from_utf8(output.stdout).expect("it prints text")
    }

    /// Tokens of the trials of a study, as the worker counted them.
    fn tokens(&self, study: &str) -> Vec<u64> {
        let path = self.script.with_file_name(format!("{study}.jsonl"));
        let text = fs::read_to_string(path).unwrap_or_default();
        let tokens = |line: &str| serde_json::from_str::<Value>(line).ok()?["tokens"].as_u64();
        text.lines().map(|line| tokens(line).expect("each line tells tokens")).collect()
    }

    /// A study of `dtrain tune` over the script.
    fn ours(&self, name: &str, flags: &[&str], seed: u64) -> Setting {
        let study = format!("{name}-{seed}");
        let recipe = self.house.file(&format!("{study}.toml"), self.study_recipe(&study));
        let recipe = recipe.to_str().expect("UTF-8");
        let seeded = format!("train.seed={seed}");
        let mut trials = TRIALS;
        loop {
            let count = trials.to_string();
            let mut words = vec![recipe, "--study", &study, "--trials", &count, "--set", &seeded];
            words.extend(flags);
            let tuned = self.tuned(&words);
            let left = (TRIALS * TOKENS).checked_sub(self.tokens(&study).iter().sum());
            match left.expect("no trial begins without its tokens") / TOKENS {
                0 => {
                    let params = &tuned["plan"]["recipe"]["params"];
                    return ["rate", "power", "warmup", "decay"].map(|name| number(&params[name]));
                }
                // What was pruned left the tokens of so many more.
                more => trials += more,
            }
        }
    }

    /// A study of `dtrain tune` over the decoder itself.
    fn own_model(&self, seed: u64) -> Setting {
        let recipe = self.script.with_file_name("decoder.toml");
        let (study, count) = (format!("own-{seed}"), TRIALS.to_string());
        let steps = (TOKENS / (BATCH * CONTEXT)).to_string();
        let sets = [
            format!("train.seed={seed}"),
            format!("train.batch={BATCH}"),
            "train.learning_rate={ log = [1e-4, 1e-1] }".to_owned(),
            format!("train.warmup={{ log = [\"{} tokens\", \"{} tokens\"] }}", TOKENS / 100, TOKENS / 2),
            format!("train.optimizer.weight_decay={}", FIRST[3]),
        ];
        let mut words = vec![recipe.to_str().expect("UTF-8"), "--study", &study];
        words.extend(["--trials", &count, "--steps", &steps, "--layouts", "0"]);
        words.extend(sets.iter().flat_map(|set| ["--set", set]));
        let tuned = self.tuned(&words);
        let [rate, warmup] = [0usize, 1].map(|place| number(&tuned["recommended"]["values"][place]));
        #[expect(clippy::cast_precision_loss, reason = "small powers of two")]
        let (power, whole) = ((BATCH as f64).log2(), TOKENS as f64);
        [rate, power, warmup / whole, FIRST[3]]
    }

    /// What `dtrain tune --json` says at the end.
    fn tuned(&self, words: &[&str]) -> Value {
        let output = self.house.expect(0, ["tune", "--json", "--quiet"].iter().chain(words));
        let text = String::from_utf8(output.stdout).expect("it prints text");
        let last = text.lines().last().expect("it tells what it found");
        serde_json::from_str(last).expect("each line is JSON")
    }

    /// A study of Optuna.
    fn optuna(&self, seed: u64) -> Setting {
        let (study, trials) = (format!("optuna-{seed}"), TRIALS.to_string());
        let program = program();
        let program = program.to_str().expect("UTF-8");
        let found = self.script(&["study", program, &study, &seed.to_string(), &trials]);
        serde_json::from_str(&found).expect("it prints a setting")
    }

    /// The score of what a study found, told with its trials.
    fn scored(&self, name: &str, seed: u64, found: Setting) -> f64 {
        let tokens = self.tokens(&format!("{name}-{seed}"));
        let pruned = tokens.iter().filter(|tokens| **tokens < TOKENS).count();
        let score = self.score(found);
        let [rate, power, warmup, decay] = found;
        let trials = match tokens.len() {
            0 => format!("{TRIALS} trials"),
            all => format!("{all} trials, {pruned} of them pruned"),
        };
        say(&format!(
            "decoder    {name} {seed}: {score:.4} at learning rate {rate:.2e}, batch {}, warm-up {warmup:.3}, decay {decay:.2e}; \
             {trials}",
            power.exp2()
        ));
        score
    }

    /// The mean validation loss of a setting with other seeds.
    fn score(&self, setting: Setting) -> f64 {
        let program = program();
        let program = program.to_str().expect("UTF-8");
        let words = setting.map(|value| value.to_string());
        let losses = SCORED.map(|seed| {
            let seed = seed.to_string();
            let mut all = vec!["train", program, "score", &seed];
            all.extend(words.iter().map(String::as_str));
            let text = self.script(&all);
            let last = text.lines().last().and_then(|line| line.rsplit(' ').next());
            last.and_then(|loss| loss.parse::<f64>().ok()).expect("it reports a loss")
        });
        losses.iter().sum::<f64>() / 5.0
    }

    /// The recipe of a study over the script.
    fn study_recipe(&self, study: &str) -> String {
        let (program, [rate, power, warmup, decay]) = (program(), FIRST);
        let [python, script, program] = [&self.python, &self.script, &program].map(|path| path.display());
        format!(
            r#"
[model]
kind = "command"
argv = [
    '{python}', '{script}', "train", '{program}', "{study}", "{{train.seed}}",
    "{{params.rate}}", "{{params.power}}", "{{params.warmup}}", "{{params.decay}}",
]
progress = ["eighth {{step}} valid {{valid_loss}}"]

[params]
rate = {{ log = [1e-4, 1e-1], default = {rate} }}
power = {{ uniform = [3, 6], default = {power} }}
warmup = {{ log = [0.01, 0.5], default = {warmup} }}
decay = {{ log = [1e-3, 1.0], default = {decay} }}

[cluster]
ranks = 1
"#
        )
    }
}

/// The recipe of the decoder.
fn recipe() -> String {
    format!(
        r#"
[model]
kind = "decoder"
family = "llama"
layers = 2
hidden = 64
heads = 4
context = {CONTEXT}

[data]
train = "train.txt"
valid = "valid.txt"

[objective]
stop = {{ tokens = {TOKENS} }}

[train]
precision = "f32"

[layout]
micro_batch = 8

[cluster]
ranks = 1
probe = "2 s"
"#
    )
}

/// The documents, in the order of their names, and what is held out of them. The page that benches write is left out.
fn texts() -> [Vec<u8>; 2] {
    let folder = fs::read_dir(root().join("docs")).expect("there are documents");
    let mut paths: Vec<PathBuf> = folder.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "md") && !path.ends_with("measured.md"));
    paths.sort();
    let [mut train, mut valid] = [Vec::new(), Vec::new()];
    for path in paths {
        let text = fs::read(path).expect("a document");
        let (most, last) = text.split_at(text.len() - text.len() / 32);
        train.extend_from_slice(most);
        valid.extend_from_slice(last);
    }
    [train, valid]
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("it is a number")
}
