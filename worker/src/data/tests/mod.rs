//! Data formats: their samples, and the messages about wrong files.

mod applied;
mod columns;
mod corpora;
mod decontaminate;
mod folders;
mod images;
mod looked_at;
mod places;
mod shards;
mod tables;
mod text;

use super::*;
use dtrain_recipes::{
    Cnn, Columns, Decoder, Documents, Mlp, MlpActivation, Separator, Tokenizer, ValidationSource,
};
use std::fs;
use std::sync::Arc;

fn decoder(context: u32, vocab: u32) -> Model {
    Model::Decoder(Decoder {
        layers: 1,
        hidden: 8,
        heads: 1,
        kv_heads: 1,
        ffn: 8,
        vocab,
        context,
        ..Decoder::small_llama()
    })
}

fn mlp(inputs: u32, classes: u32) -> Model {
    Model::Mlp(Mlp { inputs, hidden: vec![4], classes, activation: MlpActivation::Relu })
}

fn cnn(channels: u32, height: u32, width: u32, classes: u32) -> Model {
    Model::Cnn(Cnn { channels, height, width, stages: vec![4], blocks: 1, classes })
}

/// Returns the format of text files with this tokenizer.
fn read_as(tokenizer: Tokenizer) -> DataFormat {
    DataFormat::Text { tokenizer, documents: Documents::Files, separator: Separator::Auto }
}

fn text() -> DataFormat {
    read_as(Tokenizer::Bytes)
}

fn data(format: DataFormat, train: &[&str], valid: ValidationSource) -> Data {
    Data { format, train: train.iter().map(|s| (*s).to_owned()).collect(), valid, fraction: 1.0, mix: None }
}

fn files(names: &[&str]) -> ValidationSource {
    ValidationSource::Files(names.iter().map(|s| (*s).to_owned()).collect())
}

fn csv(valid: ValidationSource) -> Data {
    data(DataFormat::Csv(Columns::of("kind")), &["t.csv"], valid)
}

/// Creates a folder with these files.
fn folder(contents: &[(&str, &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, bytes) in contents {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("below the folder")).expect("made");
        fs::write(path, bytes).expect("written");
    }
    folder
}

fn opened(root: &tempfile::TempDir, data: &Data, model: &Model) -> Result<DataSet, DataError> {
    open(data, root.path(), model, &root.path().join("cache"))
}

/// Returns all inputs and targets of a source, sample by sample.
fn tokens(source: &dyn SampleSource) -> Vec<(Vec<u32>, Vec<u32>)> {
    (0..source.len())
        .map(|index| match source.read(&[index]).expect("read") {
            Batch::Tokens { inputs, targets, .. } => (inputs, targets),
            Batch::Rows { .. } => panic!("tokens are expected"),
        })
        .collect()
}

/// Returns the tokens of all samples, training first; with a context of one, these are all but the last.
fn inputs(set: &DataSet) -> Vec<u32> {
    [&set.train, &set.valid]
        .into_iter()
        .flat_map(|source| tokens(&**source))
        .flat_map(|(inputs, _)| inputs)
        .collect()
}

fn rows(source: &dyn SampleSource) -> (Vec<f32>, Vec<u32>) {
    match source.read(&(0..source.len()).collect::<Vec<_>>()).expect("read") {
        Batch::Rows { values, classes, .. } => (values, classes),
        Batch::Tokens { .. } => panic!("rows are expected"),
    }
}

/// Expects that opening these files or reading all of them fails, with every part of `expected` in the
/// message.
fn check_error(contents: &[(&str, &[u8])], data: &Data, model: &Model, expected: &[&str]) {
    let root = folder(contents);
    let result = opened(&root, data, model).and_then(|set| {
        set.train.read(&(0..set.train.len()).collect::<Vec<_>>())?;
        set.valid.read(&(0..set.valid.len()).collect::<Vec<_>>())
    });
    let error = result.map(drop).expect_err(&expected.join(" … ")).to_string();
    for part in expected {
        assert!(error.contains(part), "expected `{part}` in: {error}");
    }
}

#[test]
fn a_model_and_data_that_do_not_fit_are_told() {
    check_error(
        &[("t.csv", b"x,kind\n1,0\n")],
        &csv(ValidationSource::Fraction(0.5)),
        &decoder(2, 9),
        &["decoder reads tokens"],
    );
    check_error(
        &[("t", b"abc")],
        &data(text(), &["t"], ValidationSource::Fraction(0.5)),
        &mlp(2, 2),
        &["rows of numbers"],
    );
}

#[test]
fn batches_read_ahead_come_in_order_and_end_with_the_first_error() {
    let root = folder(&[("t", &(0..100).collect::<Vec<u8>>())]);
    let set = opened(&root, &data(text(), &["t"], ValidationSource::Fraction(0.1)), &decoder(3, 60))
        .expect("opened");
    let source: Arc<dyn SampleSource> = Arc::from(set.train);
    let mut ahead = Prefetch::new(Arc::clone(&source), (0..30).map(|index| vec![index]));
    for index in 0..19 {
        assert_eq!(ahead.next().expect("more").expect("read"), source.read(&[index]).expect("read"));
    }
    assert!(ahead.next().expect("the error").is_err(), "token 60 is outside of the vocabulary");
    assert!(ahead.next().is_none());
    // A prefetch that is not read to its end does not hang.
    drop(Prefetch::new(source, std::iter::repeat(vec![0])));
}
