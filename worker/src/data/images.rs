//! Folders of images: `FOLDER/CLASS/FILE.png`, one file for each sample.
//!
//! Classes are the names of the folders in alphabetical order. The order of the samples depends on their
//! names alone and mixes the classes, so that a share at the end has some of each. Photographs are rotated
//! as their EXIF data say. Decoded images are kept in memory if all of them are small; otherwise each is
//! decoded when it is read.

use super::{Batch, DataError, DataSet, SampleSource, files, jpeg, row_shape, split::TrainValidationSplit};
use dtrain_protocol::{InputFile, Preprocessing};
use dtrain_recipes::{Data, Model, ValidationSource};
use image::imageops::FilterType;
use image::{DynamicImage, ImageDecoder, ImageError, ImageReader, Limits};
use rayon::prelude::*;
use std::collections::BTreeSet;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Limit on the bytes of decoded images that are kept in memory; others are decoded when they are read.
const KEPT_BYTES: usize = 1 << 30;

/// Limit on the total bytes of images that are hashed; of a larger set, names and lengths are hashed.
const HASHED_BYTES: u64 = 256 << 20;

/// The size of the images that a model reads, and whether others are resized to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ImageShape {
    /// Channels, rows and columns; `None` if any image with `width` values fits.
    size: Option<[u32; 3]>,
    /// Number of values of an image.
    width: usize,
    resize: bool,
}

/// Samples of folders of images, with their classes.
pub(super) struct ImageFolder {
    samples: Vec<LabelledImage>,
    shape: ImageShape,
    /// Decoded images `[samples, width]`; empty if images are decoded when they are read.
    pixels: Vec<u8>,
}

pub(super) struct LabelledImage {
    path: PathBuf,
    /// Path of the image relative to the root if it is below it, otherwise the full path.
    name: String,
    class: u32,
}

/// Opens folders of images as a data set.
pub(super) fn open(data: &Data, resize: bool, root: &Path, model: &Model) -> Result<DataSet, DataError> {
    let (_, classes) = row_shape(model).expect("open() hands over models of rows only");
    let shape = ImageShape::of(model, resize)?;
    let train = files::paths(&data.train, root)?;
    let names: BTreeSet<String> = train.iter().map(|path| class_of(path)).collect();
    if names.len() > classes as usize {
        let (found, list) = (names.len(), names.iter().take(12).cloned().collect::<Vec<_>>().join(", "));
        return Err(DataError::Unfit(format!(
            "the images lie in {found} folders ({list}), one for each class, and the model has {classes} classes; set \
             `model.classes` to {found}"
        )));
    }
    let names: Vec<String> = names.into_iter().collect();
    let mut all = Vec::new();
    let train = ImageFolder::open(train, root, &names, shape, &mut all)?;
    let (valid, fraction) = match &data.valid {
        ValidationSource::Fraction(fraction) => (None, Some(*fraction)),
        ValidationSource::Files(patterns) => {
            (Some(ImageFolder::open(files::paths(patterns, root)?, root, &names, shape, &mut all)?), None)
        }
    };
    let split = TrainValidationSplit::of(train.len(), fraction, data.fraction, data.mix)?;
    let preprocessing = Preprocessing { columns: Vec::new(), classes: Some(names) };
    let classes = (train.classes(), valid.as_ref().map(ImageFolder::classes));
    let warnings = split.one_sided(&classes.0, classes.1.as_deref(), |class| preprocessing.class(class));
    let (train, valid) = split.cut(Arc::new(train), valid);
    Ok(DataSet { train, valid, files: all, tokenizer: None, preprocessing: Some(preprocessing), warnings })
}

/// Returns the name of an image's class, which is that of its folder.
fn class_of(path: &Path) -> String {
    path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned()
}

impl ImageShape {
    /// Returns the shape of the images that `model` reads.
    pub(super) fn of(model: &Model, resize: bool) -> Result<Self, DataError> {
        let (width, _) = row_shape(model).expect("only models of rows read images");
        let size = match model {
            Model::Cnn(cnn) => Some([cnn.channels, cnn.height, cnn.width]),
            _ if resize => {
                let what = "`data.resize` needs a model with `height` and `width`, which a cnn has";
                return Err(DataError::Unfit(what.into()));
            }
            _ => None,
        };
        Ok(Self { size, width, resize })
    }
}

impl ImageFolder {
    fn classes(&self) -> Vec<u32> {
        self.samples.iter().map(|sample| sample.class).collect()
    }

    pub(super) fn open(
        paths: Vec<PathBuf>,
        root: &Path,
        classes: &[String],
        shape: ImageShape,
        all: &mut Vec<InputFile>,
    ) -> Result<Self, DataError> {
        let mut samples = Vec::with_capacity(paths.len());
        for path in paths {
            let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
            let Ok(class) = classes.binary_search(&class_of(&path)) else {
                let detail = format!(
                    "no image to train on lies in a folder `{}`; the classes are {}",
                    class_of(&path),
                    classes.join(", ")
                );
                return Err(DataError::content(&name, "its folder", detail));
            };
            samples.push(LabelledImage {
                path,
                name,
                class: u32::try_from(class).expect("at most the model's classes"),
            });
        }
        all.push(recorded(&samples)?);
        samples.sort_by_cached_key(|sample| *blake3::hash(sample.name.as_bytes()).as_bytes());
        let mut images = Self { samples, shape, pixels: Vec::new() };
        if images.samples.len().saturating_mul(shape.width) <= KEPT_BYTES {
            let decoded: Vec<Vec<u8>> =
                images.samples.par_iter().map(|sample| sample.decode(shape)).collect::<Result<_, _>>()?;
            images.pixels = decoded.concat();
        }
        Ok(images)
    }
}

/// Returns one record with the number, bytes and hash of all images, under the name of the first: a
/// record for each image would be long.
fn recorded(samples: &[LabelledImage]) -> Result<InputFile, DataError> {
    let mut lengths = Vec::with_capacity(samples.len());
    for sample in samples {
        lengths.push(std::fs::metadata(&sample.path).map_err(|source| sample.unreadable(source))?.len());
    }
    let bytes = lengths.iter().sum();
    let mut hasher = blake3::Hasher::new();
    for (sample, length) in samples.iter().zip(lengths) {
        hasher.update(sample.name.as_bytes()).update(&[0]).update(&length.to_le_bytes());
        if bytes <= HASHED_BYTES {
            hasher.update(&std::fs::read(&sample.path).map_err(|source| sample.unreadable(source))?);
        }
    }
    let first = samples.first().map_or("", |sample| &sample.name);
    let name = format!("{first} and {} more images", samples.len().saturating_sub(1));
    Ok(InputFile { name, bytes, blake3: hasher.finalize().to_hex().to_string() })
}

impl LabelledImage {
    /// Creates an image of unknown class.
    pub(super) fn unlabelled(path: PathBuf, name: String) -> Self {
        Self { path, name, class: 0 }
    }

    /// Returns the path of the image relative to the folder that was searched.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    fn unreadable(&self, source: std::io::Error) -> DataError {
        DataError::Io { file: self.name.clone(), source }
    }

    /// Decodes the image to pixels `[channel, row, column]`.
    pub(super) fn decode(&self, shape: ImageShape) -> Result<Vec<u8>, DataError> {
        let bytes = std::fs::read(&self.path).map_err(|source| self.unreadable(source))?;
        let bad = |detail: String| DataError::content(&self.name, "the whole", detail);
        let image =
            upright(&bytes).map_err(|error| bad(format!("expected a PNG or JPEG image ({error})")))?;
        if bytes.starts_with(b"\xff\xd8") && !jpeg::is_whole(&bytes) {
            return Err(bad("the JPEG image has no end; is the file whole?".into()));
        }
        let image = match shape.size {
            Some([_, height, width])
                if shape.resize && (image.height(), image.width()) != (height, width) =>
            {
                image.resize_exact(width, height, FilterType::Triangle)
            }
            _ => image,
        };
        let (height, width) = (image.height(), image.width());
        let own = if image.color().has_color() { 3 } else { 1 };
        let channels = shape.size.map_or(own, |[channels, ..]| channels);
        let wanted = match shape.size {
            Some([_, rows, columns]) if (rows, columns) != (height, width) => Some(format!(
                "{rows} × {columns} pixels; set `data.resize = true`, or `model.height` and `model.width`"
            )),
            None if own as usize * height as usize * width as usize != shape.width => {
                Some(format!("{} numbers; set `model.inputs`", shape.width))
            }
            _ => None,
        };
        if let Some(wanted) = wanted {
            let found = format!("{height} × {width} pixels in {own} channels");
            return Err(bad(format!("the image has {found}, the model expects {wanted}")));
        }
        match channels {
            1 => Ok(image.into_luma8().into_raw()),
            3 => {
                let pixels = image.into_rgb8().into_raw();
                Ok((0..3).flat_map(|channel| pixels.iter().skip(channel).step_by(3)).copied().collect())
            }
            other => Err(DataError::Unfit(format!(
                "PNG and JPEG images have 1 channel (grey) or 3 (colour), the model expects {other}; set `model.channels`"
            ))),
        }
    }
}

/// Decodes an image and rotates it as its EXIF data say.
fn upright(bytes: &[u8]) -> Result<DynamicImage, ImageError> {
    let reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format()?;
    let mut decoder = reader.into_decoder()?;
    Limits::default().reserve(decoder.total_bytes())?;
    let orientation = decoder.orientation()?;
    let mut image = DynamicImage::from_decoder(decoder)?;
    image.apply_orientation(orientation);
    Ok(image)
}

impl SampleSource for ImageFolder {
    fn len(&self) -> u64 {
        self.samples.len() as u64
    }

    fn read(&self, indices: &[u64]) -> Result<Batch, DataError> {
        let width = self.shape.width;
        let mut values = Vec::with_capacity(indices.len() * width);
        let rows: Vec<usize> =
            indices.iter().map(|index| usize::try_from(*index).expect("samples lie in memory")).collect();
        let scaled = |pixel: &u8| f32::from(*pixel) / 255.0;
        if self.pixels.is_empty() {
            let decoded: Vec<Vec<u8>> =
                rows.par_iter().map(|row| self.samples[*row].decode(self.shape)).collect::<Result<_, _>>()?;
            values.extend(decoded.iter().flatten().map(scaled));
        } else {
            values.extend(rows.iter().flat_map(|row| &self.pixels[row * width..][..width]).map(scaled));
        }
        let classes = rows.iter().map(|row| self.samples[*row].class).collect();
        Ok(Batch::Rows { values, classes, samples: indices.len(), width })
    }
}
