//! `check` refuses everything that `run` would refuse, with the line to change, before anything starts.

use dtrain_tests::TestEnv;
use serde_json::Value;

const RECIPE: &str = "[model]
kind = \"decoder\"
layers = 1
hidden = 16
heads = 2
context = 16

[data]
train = \"text.txt\"

[objective]
stop = { steps = 5 }

[train]
batch = 8

[cluster]
launcher = \"local\"
";

/// The only problem that `check` tells of this recipe, beside a text of 4,000 bytes.
fn problem(text: &str) -> Value {
    let house = TestEnv::default();
    house.file("text.txt", "0123456789".repeat(400));
    house.file("folder/part.txt", "0123456789");
    house.file("recipe.toml", text);
    let checked = house.expect(2, ["check", "recipe.toml", "--json"]);
    let report: Value = serde_json::from_slice(&checked.stdout).expect("JSON");
    assert_eq!(report["valid"], false);
    let problems = report["problems"].as_array().expect("a list");
    assert_eq!(problems.len(), 1, "{report}");
    // The same is refused by `run`, which starts nothing.
    let run = house.dtrain(["run", "recipe.toml"]).output().expect("it starts");
    assert!([2, 4].contains(&run.status.code().expect("it ends")), "{run:?}");
    assert!(!house.state().join("trials").exists(), "nothing was recorded");
    problems[0].clone()
}

/// Asserts that `check` refuses the recipe with `to` in place of `from`, at this line, with these words.
fn refuses(from: &str, to: &str, line: u64, words: &str) {
    assert!(RECIPE.contains(from), "{from}");
    let problem = problem(&RECIPE.replace(from, to));
    let hint = problem["hint"].as_str().unwrap_or_default();
    let told = format!("{}; {hint}", problem["message"].as_str().expect("a message"));
    assert!(told.contains(words), "{to}: {told}");
    assert_eq!((&problem["line"], problem["column"].is_u64()), (&line.into(), true), "{problem}");
}

#[test]
fn check_refuses_data_that_cannot_be_trained_on() {
    refuses("batch = 8", "batch = 4000", 15, "train.batch is 4000, and the data has 236 samples");
    refuses("context = 16", "context = 5000", 9, "4000 tokens; one sample to train on takes 5001");
    refuses("text.txt", "folder", 9, "name the files in it, for example \"folder/*.txt\"");
}

#[test]
fn check_refuses_paths_that_are_none() {
    let home = std::env::var("HOME").expect("tests have a home");
    refuses("text.txt", "~/text.txt", 9, &format!("write the absolute path {home}/text.txt"));
    let download = "downloaded from https:// and http://, found the text \"ftp://host/a.txt\"; download it first, for \
        example `curl -O ftp://host/a.txt`";
    refuses("text.txt", "ftp://host/a.txt", 9, download);
    let digits = "a sha256 has 64 hexadecimal digits, found 2 digits in the URL; copy the digits";
    refuses("text.txt", "https://host/a.txt#sha256=12", 9, digits);
    refuses("text.txt", "https://host/", 9, "the URL names no file");
    refuses("text.txt", "hf://datasets/me/words/a.txt", 9, "`hf download me/words --repo-type dataset");
    refuses("text.txt", "s3://bucket/a.txt", 9, "`aws s3 cp s3://bucket/a.txt .`");
    refuses("text.txt", "gs://bucket/a.txt", 9, "`gcloud storage cp gs://bucket/a.txt .`");
    refuses("text.txt", "file:///a.txt", 9, "write the path alone: \"/a.txt\"");
}

#[test]
fn check_refuses_absurd_sizes() {
    refuses("layers = 1", "layers = 60000", 3, "a whole number from 1 to 16384");
    let (from, to) = ("layers = 1\nhidden = 16", "layers = 16000\nhidden = 262144");
    refuses(from, to, 3, "T parameters is too large: at most 1,000 T");
    let many = "launcher = \"local\"\nranks = 100000";
    refuses("launcher = \"local\"", many, 19, "at most 1024 ranks on each");
}

#[test]
fn check_refuses_a_launcher_that_does_not_exist() {
    refuses("local", "kubernetes", 18, "`dtrain plan RECIPE --emit kubernetes` writes a manifest");
}

#[test]
fn check_refuses_cuda_where_there_is_none() {
    if !dtrain_worker::device::gpus().is_empty() {
        return dtrain_skip::skip("this machine has a GPU");
    }
    let cuda = "launcher = \"local\"\ndevices = \"cuda\"";
    refuses("launcher = \"local\"", cuda, 19, "has no CUDA device");
}

#[test]
fn check_refuses_a_network_that_another_program_has() {
    let model = "kind = \"decoder\"\nlayers = 1\nhidden = 16\nheads = 2\n";
    let own = "kind = \"own\"\nnetwork = \"mine\"\n";
    refuses(model, own, 3, "this program has no network \"mine\"; it has none of its own");
    refuses(model, own, 3, "dtrain::Program::new().network(NAME, build)");
}
