//! Folders of images.

use super::*;
use image::{DynamicImage, GrayImage, ImageFormat, RgbImage};
use std::io::Cursor;

fn encoded(image: DynamicImage, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    image.write_to(&mut bytes, format).expect("encoded");
    bytes.into_inner()
}

/// A grey PNG of 2 rows and 3 columns.
fn grey(pixels: [u8; 6]) -> Vec<u8> {
    encoded(GrayImage::from_raw(3, 2, pixels.to_vec()).expect("six pixels").into(), ImageFormat::Png)
}

fn images(resize: bool, valid: ValidationSource) -> Data {
    data(DataFormat::Images { resize }, &["train/*/*"], valid)
}

#[test]
fn classes_are_folders_in_alphabetical_order() {
    let (first, second) = (grey([0, 51, 102, 153, 204, 255]), grey([255, 0, 0, 0, 0, 0]));
    let root = folder(&[
        ("train/dog/1.png", &grey([7; 6])),
        ("train/cat/1.png", &second),
        ("train/dog/copy.png", &first),
        ("valid/dog/x.png", &first),
    ]);
    let set = opened(&root, &images(false, files(&["valid/*/*.png"])), &cnn(1, 2, 3, 2)).expect("opened");
    assert_eq!(rows(&*set.valid), (vec![0.0, 0.2, 0.4, 0.6, 0.8, 1.0], vec![1]));
    let mut classes = rows(&*set.train).1;
    classes.sort_unstable();
    assert_eq!(classes, [0, 1]);
    let set = opened(&root, &images(false, ValidationSource::Fraction(0.5)), &mlp(6, 2))
        .expect("an mlp takes them as rows");
    assert_eq!((set.train.len(), set.valid.len()), (1, 2));
}

#[test]
fn colours_are_channels_and_sizes_may_be_made_fit() {
    let colours = RgbImage::from_raw(2, 1, vec![255, 0, 51, 0, 255, 102]).expect("two pixels");
    let png = encoded(colours.into(), ImageFormat::Png);
    let root = folder(&[("train/a/1.png", &png), ("train/b/2.png", &png)]);
    let set =
        opened(&root, &images(false, ValidationSource::Fraction(0.5)), &cnn(3, 1, 2, 2)).expect("opened");
    assert_eq!(rows(&*set.train).0, [1.0, 0.0, 0.0, 1.0, 0.2, 0.4]);
    let jpeg = encoded(RgbImage::from_pixel(9, 7, image::Rgb([128; 3])).into(), ImageFormat::Jpeg);
    let root = folder(&[("train/a/1.jpg", &jpeg), ("train/b/2.jpg", &jpeg)]);
    let set =
        opened(&root, &images(true, ValidationSource::Fraction(0.5)), &cnn(1, 2, 3, 2)).expect("opened");
    let (values, _) = rows(&*set.train);
    assert!(values.len() == 6 && values.iter().all(|value| (value - 0.5).abs() < 0.02), "{values:?}");
}

/// The JPEG image with this EXIF orientation.
fn oriented(jpeg: &[u8], orientation: u8) -> Vec<u8> {
    let mut exif = b"\xff\xe1\0\x22Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0".to_vec();
    exif.extend([orientation, 0, 0, 0, 0, 0, 0, 0]);
    [&jpeg[..2], &exif, &jpeg[2..]].concat()
}

/// 16 rows of 8 columns; the upper half is bright.
fn photograph() -> Vec<u8> {
    let image = GrayImage::from_fn(8, 16, |_, row| image::Luma([if row < 8 { 250 } else { 5 }]));
    encoded(image.into(), ImageFormat::Jpeg)
}

#[test]
fn photographs_are_turned_as_their_exif_data_say() {
    let jpeg = photograph();
    let is_bright =
        |values: &[f32], row: usize, column: usize, width: usize| values[row * width + column] > 0.5;
    for (orientation, [height, width], bright, dark) in [
        (1, [16, 8], (2, 4), (13, 4)),
        (3, [16, 8], (13, 4), (2, 4)),
        (6, [8, 16], (4, 13), (4, 2)),
        (8, [8, 16], (4, 2), (4, 13)),
    ] {
        let turned = oriented(&jpeg, orientation);
        let root = folder(&[("new.jpg", &turned)]);
        let data = images(false, ValidationSource::Fraction(0.5));
        let model = cnn(1, height, width, 2);
        let fixed = Preprocessing { columns: Vec::new(), classes: Some(vec!["a".into()]) };
        let inputs = UnlabelledSamples::open(
            &data,
            &fixed,
            &model,
            &["new.jpg".to_owned()],
            (root.path(), root.path()),
        );
        let (_, values) = inputs.expect("the size is that of the turned image").read(0..1).expect("read");
        let at = |(row, column)| is_bright(&values, row, column, width as usize);
        assert!(at(bright) && !at(dark), "orientation {orientation}");
    }
    let (first, second) = (oriented(&jpeg, 3), oriented(&jpeg, 3));
    let root = folder(&[("train/a/1.jpg", &first), ("train/b/2.jpg", &second)]);
    let set =
        opened(&root, &images(false, ValidationSource::Fraction(0.5)), &cnn(1, 16, 8, 2)).expect("opened");
    assert!(
        rows(&*set.train).0[13 * 8] > 0.5 && rows(&*set.valid).0[13 * 8] > 0.5,
        "trained on like that, too"
    );
}

#[test]
fn a_damaged_image_is_an_error_in_every_format() {
    let (jpeg, png) = (photograph(), grey([9; 6]));
    let half = images(false, ValidationSource::Fraction(0.5));
    let mut broken = png.clone();
    let middle = broken.len() - 20;
    broken[middle] ^= 0xff;
    for (name, bytes, model) in [
        ("train/a/1.jpg", &jpeg[..jpeg.len() - 2], cnn(1, 16, 8, 2)),
        ("train/a/1.jpg", &jpeg[..jpeg.len() - 30], cnn(1, 16, 8, 2)),
        ("train/a/1.png", &png[..png.len() - 16], cnn(1, 2, 3, 2)),
        ("train/a/1.png", &broken, cnn(1, 2, 3, 2)),
    ] {
        let good = if name.ends_with("jpg") { &jpeg } else { &png };
        check_error(&[(name, bytes), ("train/b/2.png", good)], &half, &model, &[name]);
    }
    let film = [&jpeg[..], b"ftyp and a film \xff\xda\0\x10"].concat();
    let root = folder(&[("train/a/1.jpg", &film), ("train/b/2.jpg", &jpeg)]);
    assert!(opened(&root, &half, &cnn(1, 16, 8, 2)).is_ok(), "what follows an image is not a part of it");
}

#[test]
fn a_changed_or_renamed_image_is_other_data() {
    let print = |name: &str, pixels: [u8; 6]| {
        let root = folder(&[(name, &grey(pixels)), ("train/b/2.png", &grey([0; 6]))]);
        let set =
            opened(&root, &images(false, ValidationSource::Fraction(0.5)), &cnn(1, 2, 3, 2)).expect("opened");
        set.inputs().fingerprint()
    };
    let one = print("train/a/1.png", [1; 6]);
    assert_eq!(one, print("train/a/1.png", [1; 6]));
    assert_ne!(one, print("train/a/1.png", [2; 6]));
    assert_ne!(one, print("train/a/3.png", [1; 6]));
}

#[test]
fn wrong_images_in_folders_are_told_with_their_file() {
    let good = grey([0; 6]);
    let check = |contents: &[(&str, &[u8])], data: &Data, model: &Model, expected: &[&str]| {
        check_error(contents, data, model, expected);
    };
    let half = images(false, ValidationSource::Fraction(0.5));
    let two: [(&str, &[u8]); 2] = [("train/a/1.png", &good), ("train/b/2.png", &good)];
    check(&two, &half, &cnn(1, 4, 4, 2), &["2 × 3 pixels", "4 × 4", "data.resize"]);
    check(&two, &half, &cnn(2, 2, 3, 2), &["1 channel (grey) or 3", "expects 2"]);
    check(&two, &half, &mlp(7, 2), &["2 × 3 pixels", "7 numbers", "model.inputs"]);
    check(&two, &images(true, ValidationSource::Fraction(0.5)), &mlp(6, 2), &["data.resize", "cnn"]);
    let three = [two[0], two[1], ("train/c/3.png", good.as_slice())];
    check(&three, &half, &cnn(1, 2, 3, 2), &["3 folders (a, b, c)", "2 classes", "`model.classes` to 3"]);
    let another = grey([1; 6]);
    let other = [two[0], two[1], ("valid/z/3.png", another.as_slice())];
    let valid = images(false, files(&["valid/*/*"]));
    check(&other, &valid, &cnn(1, 2, 3, 2), &["valid/z/3.png", "folder `z`", "a, b"]);
    check(&[two[0], ("train/b/2.png", b"text")], &half, &cnn(1, 2, 3, 2), &["train/b/2.png", "PNG or JPEG"]);
}
