//! A trial owns its inputs: other data is refused at resume with what changed, or accepted on purpose and recorded.

use dtrain_runner::ledger::History;
use dtrain_runner::ledger::TrialActivity;
use dtrain_tests::{TestEnv, newest_checkpoint};
use std::fs;
use std::path::{Path, PathBuf};

/// Lines of text; other ones for every `kind`.
fn text(kind: usize, lines: usize) -> String {
    (0..lines).map(|line| format!("{} and {} give {kind}\n", line % 13, line * kind % 7)).collect()
}

/// A recipe that reads two files, and a trial of it that was stopped at step 40 of 80.
struct Stopped {
    house: TestEnv,
    corpus: PathBuf,
}

const RECIPE: &str = r#"
name = "owner"
[model]
kind = "decoder"
layers = 1
hidden = 16
heads = 2
context = 16
vocab = 300
[data]
train = "corpus/*.txt"
valid = "10%"
tokenizer = { bpe = 300 }
[objective]
stop = { steps = 40 }
[train]
batch = 8
learning_rate = 0.001
[checkpoint]
every = "20 steps"
[cluster]
ranks = 1
"#;

impl Stopped {
    fn new() -> Self {
        let house = TestEnv::default();
        let corpus = house.file("corpus/a.txt", text(2, 400));
        house.file("corpus/b.txt", text(3, 400));
        let recipe = house.file("recipe.toml", RECIPE);
        house.expect(0, ["run", path(&recipe), "--quiet", "--no-sample"]);
        let corpus = corpus.parent().expect("a folder").to_owned();
        Self { house, corpus }
    }

    /// What `resume` with these arguments prints on standard error, and its exit code.
    fn resume(&self, arguments: &[&str]) -> (i32, String) {
        let longer = ["resume", "owner-1", "--set", "objective.stop.steps=60"];
        let output = self.house.dtrain(longer.iter().chain(arguments)).output().expect("it starts");
        let words = String::from_utf8_lossy(&output.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
        (output.status.code().expect("an exit code"), words)
    }

    /// Refused with these words, accepted with the flag, and recorded.
    fn refused_and_accepted(&self, difference: &str) {
        let (code, words) = self.resume(&[]);
        assert_eq!(code, 2, "{words}");
        assert!(words.contains("the data of owner-1 has changed"), "{words}");
        assert!(words.contains(difference), "expected `{difference}` in: {words}");
        assert!(words.contains("--accept-data"), "{words}");
        let (code, words) = self.resume(&["--accept-data"]);
        assert_eq!(code, 0, "{words}");
        let history = History::open_read_only(&self.house.history()).expect("a history");
        let id = history.find("last").expect("a trial");
        let trial = history.trial(&id, &|_| TrialActivity::None).expect("a trial");
        let parent = trial.parent.expect("it continues another");
        assert_eq!((parent.label.as_str(), parent.step.0), ("owner-1", 40));
        assert!(parent.changes.iter().any(|change| change.contains(difference)), "{:?}", parent.changes);
        assert!(parent.inputs.is_some(), "the data it was accepted with");
        assert_eq!(trial.row.step, 60);
    }
}

fn path(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn a_file_that_was_added_or_lost_one_byte_or_another_order() {
    let stopped = Stopped::new();
    fs::write(stopped.corpus.join("c.txt"), text(5, 100)).expect("written");
    stopped.refused_and_accepted("`corpus/c.txt` was added");
    fs::remove_file(stopped.corpus.join("c.txt")).expect("removed");

    let a = stopped.corpus.join("a.txt");
    let mut bytes = fs::read(&a).expect("read");
    bytes[100] ^= 1;
    fs::write(&a, &bytes).expect("written");
    stopped.refused_and_accepted("the contents of `corpus/a.txt` have changed");
    bytes[100] ^= 1;
    fs::write(&a, &bytes).expect("written");

    let b = stopped.corpus.join("b.txt");
    fs::rename(&b, stopped.corpus.join("0.txt")).expect("renamed");
    stopped.refused_and_accepted("`corpus/b.txt` is missing");
    fs::rename(stopped.corpus.join("0.txt"), &b).expect("renamed");

    // The same two files, the second first: another recipe, so that it must be accepted too.
    let turned = ["--set", r#"data.train=["corpus/b.txt", "corpus/a.txt"]"#];
    let (code, words) = stopped.resume(&turned);
    assert!(code == 2 && words.contains("was trained on other data"), "{code}: {words}");
    let (code, words) = stopped.resume(&[turned[0], turned[1], "--accept-data"]);
    assert_eq!(code, 0, "{words}");
    assert!(words.contains("the files are in another order"), "{words}");

    let (code, words) = stopped.resume(&[]);
    assert_eq!(code, 0, "the data as it was needs no flag: {words}");
}

#[test]
fn the_worker_itself_refuses_other_data() {
    let house = TestEnv::default();
    house.file("corpus/a.txt", text(2, 400));
    let recipe = house.file("recipe.toml", RECIPE);
    let longer = ["run", path(&recipe), "--no-sample", "--set", "objective.stop.steps=100000"];
    let mut run = house.dtrain(longer).spawn().expect("it starts");
    let saved = |house: &TestEnv| {
        house.find_newest_trial().is_some_and(|trial| {
            fs::read_dir(trial.join("checkpoints")).is_ok_and(|mut all| {
                all.any(|entry| entry.is_ok_and(|entry| entry.path().join("COMMIT").exists()))
            })
        })
    };
    while !saved(&house) {
        assert!(run.try_wait().expect("it can be asked").is_none(), "it ended before a checkpoint");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    house.expect(0, ["stop", "owner-1"]);
    run.wait().expect("it ends");
    house.file("corpus/a.txt", text(4, 400));
    let output = house.expect(5, ["resume", "owner-1"]);
    let words = String::from_utf8_lossy(&output.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("its data has changed: the contents of `corpus/a.txt` have changed"), "{words}");
    assert!(words.contains("--accept-data"), "{words}");
}

#[test]
fn a_text_is_written_without_the_data_and_not_without_the_tokenizer() {
    let stopped = Stopped::new();
    let sample = |code| {
        let arguments = ["model", "sample", "owner-1", "--tokens", "12", "--temperature", "0"];
        stopped.house.expect(code, arguments)
    };
    let written = sample(0).stdout;
    fs::write(stopped.corpus.join("a.txt"), text(6, 50)).expect("written");
    assert_eq!(sample(0).stdout, written, "other text, the same tokenizer");
    fs::rename(&stopped.corpus, stopped.corpus.with_file_name("away")).expect("renamed");
    fs::remove_dir_all(stopped.house.state().join("cache")).expect("removed");
    assert_eq!(sample(0).stdout, written, "no text, the same tokenizer");

    fs::rename(stopped.corpus.with_file_name("away"), &stopped.corpus).expect("renamed");
    let (_, folder) = newest_checkpoint(&stopped.house.newest_trial());
    let tokenizer = folder.join("tokenizer.json");
    fs::rename(&tokenizer, folder.join("elsewhere")).expect("renamed");
    let words = String::from_utf8_lossy(&sample(0).stderr).into_owned();
    let has_gone_back =
        words.contains("tokenizer.json at byte 0: the file is missing") && words.contains("going back");
    assert!(has_gone_back, "{words}");
    let (code, words) = stopped.resume(&[]);
    assert_eq!(code, 2, "a checkpoint without its tokenizer is none: {words}");
}
