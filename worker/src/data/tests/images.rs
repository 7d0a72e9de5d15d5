//! Images and their labels.

use super::*;

fn idx(dimensions: &[u32], payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, dimensions.len() as u8];
    bytes.extend(dimensions.iter().flat_map(|length| length.to_be_bytes()));
    bytes.extend(payload);
    bytes
}

fn idx_data(valid: ValidationSource) -> Data {
    let valid_labels =
        if matches!(valid, ValidationSource::Files(_)) { vec!["vl".into()] } else { Vec::new() };
    data(DataFormat::Idx { labels: vec!["l*".into()], valid_labels }, &["i*"], valid)
}

#[test]
fn images_of_several_files_are_scaled_and_labelled() {
    let root = folder(&[
        ("i1", &idx(&[2, 2, 3], &[0, 51, 102, 153, 204, 255, 255, 0, 0, 0, 0, 0])),
        ("l1", &idx(&[2], &[3, 1])),
        ("i2", &idx(&[2, 2, 3], &[9; 12])),
        ("l2", &idx(&[2], &[2, 0])),
    ]);
    let set = opened(&root, &idx_data(ValidationSource::Fraction(0.25)), &cnn(1, 2, 3, 4)).expect("opened");
    let (values, classes) = rows(&*set.train);
    assert_eq!(classes, [3, 1, 2]);
    assert_eq!(values[..6], [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]);
    assert_eq!(rows(&*set.valid).1, [0]);
    assert!(
        opened(&root, &idx_data(ValidationSource::Fraction(0.25)), &mlp(6, 4)).is_ok(),
        "an mlp takes images as rows"
    );
}

#[test]
fn images_may_have_channels_and_validation_files() {
    let image: Vec<u8> = (0..12).collect();
    let root = folder(&[
        ("i", &idx(&[1, 3, 2, 2], &image)),
        ("l", &idx(&[1], &[1])),
        ("v", &idx(&[1, 3, 2, 2], &[7; 12])),
        ("vl", &idx(&[1], &[0])),
    ]);
    let set = opened(&root, &idx_data(files(&["v"])), &cnn(3, 2, 2, 2)).expect("opened");
    assert_eq!((rows(&*set.train).1, rows(&*set.valid).1), (vec![1], vec![0]));
}

#[test]
fn wrong_images_are_told_with_file_and_offset() {
    let half = idx_data(ValidationSource::Fraction(0.5));
    let good = idx(&[2, 2, 2], &[0; 8]);
    let labels = idx(&[2], &[0, 1]);
    let check = |images: &[u8], labels: &[u8], expected: &[&str]| {
        check_error(&[("i", images), ("l", labels)], &half, &cnn(1, 2, 2, 2), expected);
    };
    check(b"\x1f\x8b\x08zzzzzz", &labels, &["i, byte 0", "compressed", ".gz"]);
    check(b"hello world", &labels, &["i, byte 0", "68656c6c", "00000803"]);
    check(&good[..good.len() - 1], &labels, &["i, byte 4", "[2, 2, 2]"]);
    check(&idx(&[u32::MAX; 3], &[0; 8]), &labels, &["i, byte 4"]);
    check(&idx(&[2, 2, 3], &[0; 12]), &labels, &["i, byte 8", "2 × 3", "1 channels of 2 × 2"]);
    check(&good, &idx(&[3], &[0, 1, 1]), &["l, byte 4", "2 images", "3 labels"]);
    check(&good, &idx(&[2], &[0, 2]), &["l, byte 9", "label 2", "2 classes"]);
    check(&good, &good, &["l, byte 0", "00000801"]);
    check_error(
        &[("i", &good), ("l", &labels), ("l2", &labels)],
        &half,
        &cnn(1, 2, 2, 2),
        &["1 image files", "2 label"],
    );
}
