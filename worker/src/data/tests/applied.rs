//! Samples that a trained model is applied to.

use super::*;

/// Returns all samples with their files and rows.
fn all(inputs: &UnlabelledSamples) -> (Vec<(String, Option<u64>)>, Vec<f32>) {
    let (origins, values) = inputs.read(0..inputs.len()).expect("read");
    (origins.into_iter().map(|origin| (origin.file, origin.row)).collect(), values)
}

#[test]
fn rows_are_standardised_as_those_that_were_trained_on() {
    let table = b"x,kind,y\n1,b,7\n3,a,7\n1,b,7\n3,c,7\n100,a,8\n";
    let root = folder(&[
        ("t.csv", table),
        ("new.csv", b"x,y\n3,7\n100,8\n"),
        ("turned.csv", b"y,x\n7,3\n"),
        ("short.csv", b"x\n3\n"),
    ]);
    let (data, model) = (csv(ValidationSource::Fraction(0.2)), mlp(2, 3));
    let preprocessing = opened(&root, &data, &model).expect("opened").preprocessing.expect("a table has one");
    assert_eq!(preprocessing.classes, Some(["a", "b", "c"].map(str::to_owned).to_vec()));
    let json = serde_json::to_vec(&preprocessing).expect("JSON");
    let preprocessing = serde_json::from_slice(&json).expect("what a checkpoint keeps");
    let read = |name: &str| {
        UnlabelledSamples::open(&data, &preprocessing, &model, &[name.to_owned()], (root.path(), root.path()))
    };
    let (origins, values) = all(&read("new.csv").expect("without the target"));
    assert_eq!(values, [1.0, 0.0, 98.0, 1.0]);
    assert_eq!(origins, [("new.csv".to_owned(), Some(1)), ("new.csv".to_owned(), Some(2))]);
    assert_eq!(all(&read("t.csv").expect("with the target")).1[8..], [98.0, 1.0]);
    assert_eq!(all(&read("turned.csv").expect("by name")).1, [1.0, 0.0]);
    let Err(error) = read("short.csv") else { panic!("a column is missing") };
    assert!(error.to_string().contains("column `y` is missing"), "{error}");

    let fixed = TrainedEncoding { preprocessing: &preprocessing, tokenizer: None };
    let root = folder(&[("held.csv", b"x,kind,y\n3,c,7\n1,b,7\n"), ("new.csv", b"x,kind,y\n3,d,7\n")]);
    let measured = |name: &str| {
        labelled(&data, (&[name.to_owned()], &[]), root.path(), &model, &root.path().join("cache"), &fixed)
    };
    let held = measured("held.csv").expect("the training data is not needed");
    assert_eq!(rows(&*held), (vec![1.0, 0.0, -1.0, 0.0], vec![2, 1]));
    let Err(error) = measured("new.csv") else { panic!("no such class was trained on") };
    assert!(error.to_string().contains("`d`"), "{error}");
}

#[test]
fn images_of_idx_files_are_numbered_and_scaled() {
    let mut bytes = vec![0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2];
    bytes.extend([0, 51, 255, 102]);
    let root = folder(&[("new.idx", &bytes), ("short.idx", &bytes[..18])]);
    let labels = DataFormat::Idx { labels: vec!["l".into()], valid_labels: Vec::new() };
    let data = data(labels, &["none"], ValidationSource::Fraction(0.5));
    let read = |name: &str| {
        let preprocessing = dtrain_protocol::Preprocessing::default();
        UnlabelledSamples::open(
            &data,
            &preprocessing,
            &cnn(1, 1, 2, 4),
            &[name.to_owned()],
            (root.path(), root.path()),
        )
    };
    let (origins, values) = all(&read("new.idx").expect("opened"));
    assert_eq!(values, [0.0, 0.2, 1.0, 0.4]);
    assert_eq!(origins[1], ("new.idx".to_owned(), Some(2)));
    assert!(read("short.idx").is_err(), "the file ends within an image");
    assert!(read("none.idx").is_err());
}
