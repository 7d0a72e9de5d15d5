//! Reports about files whose names do not tell their format, and about files that are listed twice.

use dtrain_tests::TestEnv;
use std::process::Output;

const RECIPE: &str = "[model]
kind = \"decoder\"
layers = 1
hidden = 16
heads = 2
context = 16

[data]
train = \"*.txt\"
valid = [\"valid.txt\"]

[objective]
stop = { steps = 2 }

[train]
batch = 2
learning_rate = 1e-3

[cluster]
ranks = 1
";

/// What was printed, with all white space as one space.
fn said(output: &Output) -> String {
    let bytes = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8_lossy(&bytes).split_whitespace().collect::<Vec<_>>().join(" ")
}

const COMMANDS: [&[&str]; 3] =
    [&["check", "recipe.toml"], &["data", "recipe.toml"], &["run", "recipe.toml", "--no-sample"]];

#[test]
fn a_validation_file_in_the_training_data_is_told_by_every_command() {
    let house = TestEnv::default();
    house.file("recipe.toml", RECIPE);
    house.file("a.txt", "one two three\n".repeat(100));
    house.file("valid.txt", "four five six\n".repeat(100));
    for command in COMMANDS {
        let said = said(&house.expect(0, command));
        let note = "note: in both the training and the validation data, so only validated on: valid.txt";
        assert_eq!(said.matches(note).count(), 1, "{command:?}: {said}");
    }
    let output = house.expect(0, ["data", "recipe.toml", "--json"]);
    let facts: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let facts = facts.get("data").unwrap_or(&facts);
    assert_eq!((&facts["documents"], &facts["shared"]), (&2.into(), &0.into()), "{facts}");
}

#[test]
fn what_a_name_does_not_say_is_told_by_every_command() {
    let house = TestEnv::default();
    let recipe = RECIPE.replace("valid = [\"valid.txt\"]\n", "");
    house.file("a.json", "{\"text\": \"one two three\", \"loss\": NaN}\n".repeat(100));
    house.file("dump", "one two three\n".repeat(100));
    for (train, note) in [
        ("a.json", "note: read as JSON lines, with the text in the field `text`: a.json"),
        (
            "dump",
            "note: read as text, as the name says nothing else; `data.format` names another format: dump",
        ),
    ] {
        house.file("recipe.toml", recipe.replace("*.txt", train));
        for command in COMMANDS {
            let said = said(&house.expect(0, command));
            assert_eq!(said.matches(note).count(), 1, "{command:?}: {said}");
        }
    }
    let utf16: Vec<u8> = "\u{feff}one two three".encode_utf16().flat_map(u16::to_le_bytes).collect();
    house.file("dump", utf16);
    for command in COMMANDS {
        assert!(said(&house.expect(2, command)).contains("UTF-16"), "{command:?}");
    }
}
