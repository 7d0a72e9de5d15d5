//! Trained classifiers and decoders in use: predictions, figures, ONNX. `tests/run interop` installs what the comparison with
//! ONNX Runtime needs; without it that test is skipped.

use dtrain_protocol::Rank;
use dtrain_runner::ledger::History;
use dtrain_tests::{TestEnv, python_with, root};
use parquet::data_type::{DoubleType, Int32Type};
use parquet::file::writer::SerializedFileWriter;
use serde_json::Value;
use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// A house in which an example was trained for some epochs.
fn trained(example: &str, more: &[&str]) -> TestEnv {
    let house = TestEnv::default();
    let recipe = root().join("examples").join(example).join("recipe.toml").display().to_string();
    let fixed = ["run", &recipe, "--quiet", "--no-sample", "--set", "objective.stop={ epochs = 6 }"];
    house.expect(0, fixed.iter().chain(more).copied());
    house
}

fn example(name: &str) -> String {
    root().join("examples").join(name).display().to_string()
}

fn stdout(house: &TestEnv, arguments: &[&str]) -> String {
    String::from_utf8(house.expect(0, arguments).stdout).expect("UTF-8")
}

fn json(house: &TestEnv, arguments: &[&str]) -> Value {
    serde_json::from_str(&stdout(house, arguments)).expect("JSON")
}

/// The last value of a series of the newest trial.
fn last(house: &TestEnv, key: &str) -> f64 {
    let history = History::open_read_only(&house.history()).expect("a history");
    let trial = history.find("last").expect("a trial");
    history.series(&trial, key, Rank(0)).expect("a series").last().expect("it was measured").value
}

/// A path below the house.
fn below(house: &TestEnv, name: &str) -> PathBuf {
    house.state().with_file_name(name)
}

#[test]
fn predictions_of_a_table_need_neither_its_target_nor_the_training_data() {
    let house = TestEnv::default();
    let table = fs::read_to_string(example("table-mlp/rings.csv")).expect("a table");
    let named = table
        .lines()
        .enumerate()
        .map(|(number, line)| {
            let (values, ring) = line.rsplit_once(',').expect("columns");
            let ring = if number == 0 {
                ring
            } else {
                ["inner", "middle", "outer"][ring.parse::<usize>().expect("0 to 2")]
            };
            format!("{values},{ring}\n")
        })
        .collect::<String>();
    house.file("rings.csv", &named);
    let recipe = fs::read_to_string(example("table-mlp/recipe.toml")).expect("a recipe");
    let recipe = house.file("recipe.toml", recipe);
    let stop = "objective.stop={ epochs = 6 }";
    house.expect(0, ["run", recipe.to_str().expect("UTF-8"), "--quiet", "--set", stop]);
    let without: String =
        named.lines().map(|line| format!("{}\n", line.rsplit_once(',').expect("columns").0)).collect();
    house.file("new.csv", without);
    fs::remove_file(below(&house, "rings.csv")).expect("it was there");
    house.file("seen.csv", &named);

    let rows = stdout(&house, &["model", "predict", "last", "new.csv"]);
    assert_eq!(
        rows,
        stdout(&house, &["model", "predict", "last", "seen.csv"]).replace("seen.csv", "new.csv")
    );
    let mut lines = rows.lines();
    assert_eq!(lines.next(), Some("file,row,rank,class,probability"));
    let actual = named.lines().skip(1).map(|line| line.rsplit_once(',').expect("columns").1);
    let (mut hits, mut count) = (0, 0);
    for (line, actual) in lines.zip(actual) {
        let fields: Vec<&str> = line.split(',').collect();
        count += 1;
        assert_eq!(fields[..3], ["new.csv", &count.to_string(), "1"], "{line}");
        hits += usize::from(fields[3] == actual);
    }
    assert_eq!(count, named.lines().count() - 1, "a prediction for each row");
    let found = json(&house, &["model", "evaluate", "last", "--data", "seen.csv", "--json"]);
    let accuracy = found["accuracy"].as_f64().expect("a number");
    assert!((accuracy - hits as f64 / count as f64).abs() < 1e-12, "{accuracy}, and {hits} of {count}");
    assert_eq!(found["classes"][1]["class"], "middle");

    let top = stdout(&house, &["model", "predict", "last", "new.csv", "--top", "3", "--json"]);
    let first: Value = serde_json::from_str(top.lines().next().expect("a line")).expect("JSON");
    let classes = first["classes"].as_array().expect("a list");
    let sum: f64 = classes.iter().map(|one| one["probability"].as_f64().expect("a number")).sum();
    assert!(classes.len() == 3 && (sum - 1.0).abs() < 1e-9, "{first}");
    house.expect(0, ["model", "predict", "last", "new.csv", "--output", "out.csv"]);
    assert_eq!(fs::read_to_string(below(&house, "out.csv")).expect("it was written"), rows);

    house.file("other.csv", "a,b,c\n1,2,3\n");
    let refused = house.expect(2, ["model", "predict", "last", "other.csv", "--output", "none.csv"]);
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(words.contains("other.csv, line 1") && words.contains("column `d` is missing"), "{words}");
    assert!(!below(&house, "none.csv").exists(), "nothing is left of what failed");
    house.file("text.csv", "a,b,c,d\n1,2,3,4\n1,2,what,4\n");
    let refused = house.expect(2, ["model", "predict", "last", "text.csv"]);
    assert_eq!(String::from_utf8_lossy(&refused.stdout), "", "nothing looks like a result");
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(words.contains("text.csv, line 3") && words.contains("what"), "{words}");
    let refused = house.expect(2, ["model", "predict", "last", "other.csv"]);
    assert!(refused.stdout.is_empty(), "no titles stand before what failed");
    house.expect(2, ["model", "evaluate", "last", "--data", "other.csv"]);
}

#[test]
fn figures_are_those_of_the_validation_while_training() {
    // So few that each validation takes all of them.
    let house = TestEnv::default();
    let table = fs::read_to_string(example("table-mlp/rings.csv")).expect("a table");
    let lines: Vec<&str> = table.lines().collect();
    house.file("rings.csv", lines[..871].join("\n"));
    house.file("valid.csv", [&lines[..1], &lines[871..]].concat().join("\n"));
    let recipe = fs::read_to_string(example("table-mlp/recipe.toml")).expect("a recipe");
    let recipe = house.file("recipe.toml", recipe.replace("valid = \"20%\"", "valid = \"valid.csv\""));
    let stop = "objective.stop={ epochs = 6 }";
    house.expect(0, ["run", recipe.to_str().expect("UTF-8"), "--quiet", "--set", stop]);
    let found = json(&house, &["model", "evaluate", "last", "--json"]);
    assert_eq!(found["samples"], 30);
    let (loss, accuracy) = (last(&house, "valid.loss"), last(&house, "valid.accuracy"));
    assert!((found["loss"].as_f64().expect("a number") - loss).abs() < 1e-5, "{found}, {loss}");
    assert!((found["accuracy"].as_f64().expect("a number") - accuracy).abs() < 1e-9, "{found}, {accuracy}");
    let counts =
        found["confusion"].as_array().expect("a list").iter().flat_map(|row| row.as_array().expect("a list"));
    assert_eq!(
        counts.map(|count| count.as_u64().expect("a count")).sum::<u64>(),
        found["samples"].as_u64().expect("a count")
    );
}

#[test]
fn a_decoder_has_the_loss_of_its_validation_and_predicts_no_classes() {
    let house = TestEnv::default();
    let recipe = root().join("tests/data/tiny/recipe.toml").display().to_string();
    // Few validation samples, so that each validation takes all of them.
    house.expect(0, ["run", &recipe, "--quiet", "--no-sample", "--set", "data.valid=5%"]);
    let found = json(&house, &["model", "evaluate", "last", "--json"]);
    let (loss, wanted) = (found["loss"].as_f64().expect("a number"), last(&house, "valid.loss"));
    assert!((loss - wanted).abs() < 1e-4, "{loss}, {wanted} while training");
    let perplexity = found["perplexity"].as_f64().expect("a number");
    assert!((perplexity - loss.exp()).abs() < 1e-9 * perplexity, "{found}");
    house.file("other.txt", "Another text, some windows of it. ".repeat(26));
    let other = json(&house, &["model", "evaluate", "last", "--data", "other.txt", "--json"]);
    let tokens = other["tokens"].as_u64().expect("a count");
    assert!(
        (800..=900).contains(&tokens) && tokens.is_multiple_of(32),
        "windows of 32 of 884 bytes: {other}"
    );
    assert_ne!(other["loss"], found["loss"]);
    let refused = house.expect(2, ["model", "predict", "last", "other.txt"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("is a decoder"));
    house.expect(2, ["model", "export", "last", "--to", "onnx", "--out", "none"]);
}

/// The name has the word that `tests/run interop` looks for.
#[test]
fn onnx_interop_gives_the_logits_of_predict() {
    let python = match python_with("onnxruntime") {
        Ok(python) => python,
        Err(missing) => return dtrain_skip::skip_large(missing),
    };
    let cases = [
        ("table-mlp", "rings.csv", "ring", &[][..]),
        ("table-mlp", "rings.csv", "ring", &["--set", "model.activation=gelu"]),
        ("digits-cnn", "images.idx", "", &[]),
        ("digits-cnn", "images.idx", "", &["--set", "model.stages=[6, 9, 16]", "--set", "model.blocks=2"]),
    ];
    for (name, data, target, more) in cases {
        let house = trained(name, more);
        let data = example(&format!("{name}/{data}"));
        compare(&python, &house, [&data, &data], target);
    }
    let house = TestEnv::default();
    rings_in_parquet(&house);
    house.expect(0, ["run", "rings.toml", "--quiet", "--set", "objective.stop={ epochs = 6 }"]);
    compare(&python, &house, ["rings.parquet", &example("table-mlp/rings.csv")], "ring");
    let house = TestEnv::default();
    let same = digits_in_folders(&house);
    house.expect(0, ["run", "digits.toml", "--quiet", "--set", "objective.stop={ epochs = 6 }"]);
    compare(&python, &house, ["digits/*/*.png", &same], "");
}

/// Compares `predict` of the newest trial with ONNX Runtime. What `predict` reads is also a table or an IDX file.
fn compare(python: &Path, house: &TestEnv, [data, same]: [&str; 2], target: &str) {
    house.expect(0, ["model", "export", "last", "--to", "onnx", "--out", "out"]);
    house.expect(0, ["model", "predict", "last", data, "--top", "99", "--json", "--output", "lines.jsonl"]);
    let check = Command::new(python)
        .arg(root().join("tests/data/onnx_check.py"))
        .arg(below(house, "out/model.onnx"))
        .args([same, target])
        .arg(below(house, "lines.jsonl"))
        .output()
        .expect("python starts");
    let said = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(check.status.success(), "{data}: {}", String::from_utf8_lossy(&check.stderr));
    let difference: f64 =
        said.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number");
    assert!(difference < 1e-4, "{data}: {said}");
}

/// Writes the table of the example as a Parquet file, with a recipe.
fn rings_in_parquet(house: &TestEnv) {
    let table = fs::read_to_string(example("table-mlp/rings.csv")).expect("a table");
    let mut lines = table.lines();
    let names: Vec<&str> = lines.next().expect("a header").split(',').collect();
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    let (target, inputs) = names.split_last().expect("columns");
    let columns: String = inputs.iter().map(|name| format!("REQUIRED DOUBLE {name};")).collect();
    let schema = format!("message rows {{ {columns} REQUIRED INT32 {target}; }}");
    let schema = parquet::schema::parser::parse_message_type(&schema).expect("a schema");
    let mut bytes = Vec::new();
    let mut file = SerializedFileWriter::new(&mut bytes, Arc::new(schema), Arc::default()).expect("a file");
    for rows in rows.chunks(400) {
        let mut group = file.next_row_group().expect("a row group");
        for place in 0..names.len() {
            let field = |row: &Vec<&str>| row[place].parse::<f64>().expect("a number");
            let values: Vec<f64> = rows.iter().map(field).collect();
            let mut column = group.next_column().expect("the ones before").expect("a column");
            let written = if place < inputs.len() {
                column.typed::<DoubleType>().write_batch(&values, None, None)
            } else {
                let classes: Vec<i32> = values.iter().map(|value| *value as i32).collect();
                column.typed::<Int32Type>().write_batch(&classes, None, None)
            };
            written.expect("written");
            column.close().expect("a column");
        }
        group.close().expect("a row group");
    }
    file.close().expect("a file");
    house.file("rings.parquet", bytes);
    let recipe = fs::read_to_string(example("table-mlp/recipe.toml")).expect("a recipe");
    house.file("rings.toml", recipe.replace("rings.csv", "rings.parquet"));
}

/// Writes the images of the example as PNG files in a folder for each class, with a recipe; gives an IDX file of the same
/// images in the order of the files.
fn digits_in_folders(house: &TestEnv) -> String {
    const SIDE: usize = 12;
    let [images, labels] = ["images", "labels"]
        .map(|name| fs::read(example(&format!("digits-cnn/{name}.idx"))).expect("a file"));
    let (images, labels) = (&images[16..], &labels[8..]);
    let mut numbered: Vec<(u8, usize)> = labels.iter().copied().zip(0..).take(300).collect();
    numbered.sort_unstable();
    let mut same = vec![0, 0, 8, 3];
    for length in [numbered.len(), SIDE, SIDE] {
        same.extend(u32::try_from(length).expect("small").to_be_bytes());
    }
    for (label, number) in numbered {
        let pixels = &images[number * SIDE * SIDE..][..SIDE * SIDE];
        same.extend(pixels);
        let image = image::GrayImage::from_raw(12, 12, pixels.to_vec()).expect("its size");
        let mut png = Cursor::new(Vec::new());
        image.write_to(&mut png, image::ImageFormat::Png).expect("written");
        house.file(&format!("digits/{label}/{number:04}.png"), png.into_inner());
    }
    let recipe = fs::read_to_string(example("digits-cnn/recipe.toml")).expect("a recipe");
    let recipe = recipe.replace(
        "format = \"idx\"\ntrain = \"images.idx\"\nlabels = \"labels.idx\"",
        "train = \"digits/*/*.png\"",
    );
    assert!(recipe.contains("digits/"), "{recipe}");
    house.file("digits.toml", recipe);
    house.file("same.idx", same).display().to_string()
}

#[test]
fn tables_in_parquet_and_images_in_folders_are_classified() {
    let house = TestEnv::default();
    rings_in_parquet(&house);
    house.expect(0, ["run", "rings.toml", "--quiet", "--set", "objective.stop={ epochs = 6 }"]);
    let as_parquet = stdout(&house, &["model", "predict", "last", "rings.parquet"]);
    let found = json(&house, &["model", "evaluate", "last", "--json"]);
    let other = trained("table-mlp", &[]);
    let table = example("table-mlp/rings.csv");
    let as_csv = stdout(&other, &["model", "predict", "last", &table]);
    let only = |rows: &str| {
        rows.lines().map(|line| line.split_once(',').expect("a file").1.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(only(&as_parquet), only(&as_csv), "the same rows make the same model");
    assert_eq!(found["accuracy"], json(&other, &["model", "evaluate", "last", "--json"])["accuracy"]);

    let house = TestEnv::default();
    let same = digits_in_folders(&house);
    house.expect(0, ["run", "digits.toml", "--quiet", "--set", "objective.stop={ epochs = 3 }"]);
    let as_png = stdout(&house, &["model", "predict", "last", "digits/*/*.png"]);
    let as_idx = stdout(&house, &["model", "predict", "last", &same]);
    let classes = |rows: &str| {
        rows.lines().map(|line| line.split(',').skip(2).map(str::to_owned).collect()).collect::<Vec<Vec<_>>>()
    };
    assert_eq!(classes(&as_png), classes(&as_idx));
    assert_eq!(as_png.lines().count(), 301);
}
