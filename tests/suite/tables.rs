//! A table as people have it: texts, empty cells, an id, quotes, semicolons and decimal commas.

use dtrain_tests::{TestEnv, python_with, root};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

const ROWS: usize = 2000;

const RECIPE: &str = r#"
name = "churn"

[model]
kind = "mlp"
inputs = 8
hidden = [16]
classes = 2

[data]
train = "customers.csv"
target = "churned?"
ignore = ["Customer ID"]
valid = "20%"

[objective]
metric = "valid.accuracy"
stop = { epochs = 40 }
"#;

/// Returns a row: customers in Bonn with high spending leave. Every 7th age and every 11th city is missing.
fn row(number: usize) -> String {
    let city = ["Berlin", "\"Bonn; \"\"West\"\"\"", "Köln"][number * 7 % 3];
    let spend = number * 31 % 100;
    let leaves = city.contains("Bonn") && spend > 30;
    let city = if number.is_multiple_of(11) { "" } else { city };
    let age = if number.is_multiple_of(7) { String::new() } else { (20 + number * 13 % 50).to_string() };
    let (month, day) = (1 + number % 12, 1 + number % 28);
    let leaves = if leaves { "yes" } else { "no" };
    format!(
        "C{number:05};{age};{spend},50;{city};2024-{month:02}-{day:02};{};{leaves}",
        1_700_000_000 + number
    )
}

/// A house with the table and its recipe, trained.
fn trained() -> TestEnv {
    let house = TestEnv::default();
    let mut table =
        "\u{feff}Customer ID;Age (years);monthly spend;city;since;seen at;churned?\r\n".to_owned();
    for number in 0..ROWS {
        write!(table, "{}\r\n", row(number)).expect("written");
    }
    let folder = folder(&house);
    fs::write(folder.join("customers.csv"), table).expect("written");
    house.file("churn.toml", RECIPE);
    house.expect(0, ["run", "churn.toml", "--quiet", "--no-sample"]);
    house
}

fn folder(house: &TestEnv) -> PathBuf {
    house.state().parent().expect("a house").to_owned()
}

fn stdout(house: &TestEnv, arguments: &[&str]) -> String {
    String::from_utf8(house.expect(0, arguments).stdout).expect("UTF-8")
}

#[test]
fn a_table_as_people_have_it_trains_predicts_and_evaluates() {
    let house = trained();
    let shown = stdout(&house, &["data", "churn.toml"]);
    for line in [
        "separator    semicolons",
        "inputs       8",
        "column Customer ID ignored",
        "column Age (years) number; 286 empty, filled with the mean",
        "column city  category, one of 4: (empty), Berlin, Bonn; \"West\", Köln; 182 empty, a category of their own",
        "column since date, as days since 1970-01-01",
        "column churned? class",
    ] {
        assert!(shown.lines().any(|found| found == line), "`{line}` in:\n{shown}");
    }
    let evaluated = stdout(&house, &["model", "evaluate", "last", "--json"]);
    let evaluated: Value = serde_json::from_str(&evaluated).expect("JSON");
    let accuracy = evaluated["accuracy"].as_f64().expect("a number");
    assert!(accuracy > 0.9, "{evaluated}");
    let again = stdout(&house, &["model", "evaluate", "last", "--data", "customers.csv", "--json"]);
    let again: Value = serde_json::from_str(&again).expect("JSON");
    assert_eq!(again["samples"], ROWS);
    // Other separators, another order, no target, a city that was never seen, and empty cells.
    house.file(
        "new.csv",
        "city,since,monthly spend,seen at,Age (years)\n\"Bonn; \"\"West\"\"\",2024-03-03,90.5,1700000002,\n\
         Berlin,2024-03-03,90.5,1700000002,30\nParis,,,,\n",
    );
    let predicted = stdout(&house, &["model", "predict", "last", "new.csv", "--json"]);
    let classes: Vec<Value> =
        predicted.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let class = |row: usize| classes[row]["classes"][0]["class"].as_str().expect("a class");
    assert_eq!((class(0), class(1)), ("yes", "no"), "{predicted}");
    assert_eq!(classes.len(), 3);
}

#[test]
fn what_the_table_gives_is_told_where_the_recipe_has_another_number() {
    let house = TestEnv::default();
    fs::write(folder(&house).join("customers.csv"), "a;b;churned?\n1;x;0\n2;y;1\n3;z;0\n").expect("written");
    house.file("churn.toml", RECIPE.replace("ignore = [\"Customer ID\"]\n", ""));
    let output = house.expect(0, ["data", "churn.toml"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("`model.inputs` is 8; set it to 4"), "{said}");
    let refused = house.expect(2, ["run", "churn.toml"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("model.inputs = 4"), "{said}");
}

/// The name has the word that `tests/run interop` looks for.
#[test]
fn onnx_interop_of_a_table_as_people_have_it_gives_the_logits_of_predict() {
    let python = match python_with("onnxruntime") {
        Ok(python) => python,
        Err(missing) => return dtrain_skip::skip_large(missing),
    };
    let house = trained();
    house.expect(0, ["model", "export", "last", "--to", "onnx", "--out", "out"]);
    let predict =
        ["model", "predict", "last", "customers.csv", "--top", "9", "--json", "--output", "lines.jsonl"];
    house.expect(0, predict);
    let check = Command::new(python)
        .arg(root().join("tests/data/onnx_check.py"))
        .arg(folder(&house).join("out/model.onnx"))
        .arg(folder(&house).join("customers.csv"))
        .arg("churned?")
        .arg(folder(&house).join("lines.jsonl"))
        .output()
        .expect("python starts");
    let said = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
    let mut words = said.split_whitespace();
    assert_eq!(words.next(), Some("2000"));
    let difference: f64 = words.next().and_then(|word| word.parse().ok()).expect("a number");
    assert!(difference < 1e-4, "{said}");
}

/// Rows that take a few KiB compressed and 300 MB otherwise.
#[test]
fn check_looks_at_what_comes_out_of_a_file_and_not_at_its_size() {
    let house = TestEnv::default();
    let row = b"1.0,2.0,3.0,4.0,1\n";
    let mut rows = zstd::Encoder::new(Vec::new(), 1).expect("an encoder");
    rows.write_all(b"a,b,c,d,churned?\n").expect("compressed");
    let some = row.repeat(1 << 16);
    for _ in 0..256 {
        rows.write_all(&some).expect("compressed");
    }
    let file = rows.finish().expect("compressed");
    assert!(file.len() < 1 << 20, "{}", file.len());
    house.file("customers.csv.zst", file);
    let recipe =
        RECIPE.replace("ignore = [\"Customer ID\"]\n", "").replace("customers.csv", "customers.csv.zst");
    house.file("churn.toml", recipe);
    let output = house.expect(0, ["check", "churn.toml"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("the data was not opened: more than 256 MiB come out of it"), "{said}");
}
