//! IDX files of images and labels, the format of MNIST.
//!
//! `[0, 0, type, dimensions][u32 length of each dimension, big-endian][data]`, type 8 being unsigned bytes.

use super::files::{self, DataFile};
use super::{Batch, DataError, DataSet, SampleSource, row_shape, split::TrainValidationSplit};
use dtrain_recipes::{Data, Model, ValidationSource};
use std::path::Path;
use std::sync::Arc;

/// Images with their labels, from several IDX files.
pub(super) struct IdxImages {
    parts: Vec<IdxFile>,
    /// Cumulative number of images up to the end of each file.
    ends: Vec<u64>,
    width: usize,
}

struct IdxFile {
    images: Arc<DataFile>,
    /// Offset of the first image in the file, in bytes.
    begin: u64,
    labels: Vec<u8>,
}

/// Opens files of images and of labels as a data set.
pub(super) fn open(
    data: &Data,
    labels: &[String],
    valid_labels: &[String],
    root: &Path,
    model: &Model,
) -> Result<DataSet, DataError> {
    let mut all = Vec::new();
    let train = IdxImages::open(&data.train, labels, root, model, &mut all)?;
    let (valid, fraction) = match &data.valid {
        ValidationSource::Fraction(fraction) => (None, Some(*fraction)),
        ValidationSource::Files(patterns) => {
            (Some(IdxImages::open(patterns, valid_labels, root, model, &mut all)?), None)
        }
    };
    let split = TrainValidationSplit::of(train.len(), fraction, data.fraction, data.mix)?;
    let warnings =
        split.one_sided(&train.classes(), valid.as_ref().map(IdxImages::classes).as_deref(), |class| {
            class.to_string()
        });
    let (train, valid) = split.cut(Arc::new(train), valid);
    let files = files::recorded(&all)?;
    Ok(DataSet { train, valid, files, tokenizer: None, preprocessing: None, warnings })
}

impl IdxImages {
    fn classes(&self) -> Vec<u32> {
        self.parts.iter().flat_map(|part| part.labels.iter().copied().map(u32::from)).collect()
    }

    pub(super) fn open(
        images: &[String],
        labels: &[String],
        root: &Path,
        model: &Model,
        all: &mut Vec<Arc<DataFile>>,
    ) -> Result<Self, DataError> {
        let (images, labels) = (files::find(images, root)?, files::find(labels, root)?);
        if images.len() != labels.len() {
            let (images, labels) = (images.len(), labels.len());
            let detail =
                format!("{images} image files have {labels} label files; name one for each, in order");
            return Err(DataError::Unfit(detail));
        }
        let (width, classes) = row_shape(model).expect("open() hands over models of rows only");
        let mut parts = Vec::new();
        for (images, labels) in images.iter().zip(&labels) {
            parts.push(IdxFile::open(&images.unpacked()?, &*labels.unpacked()?, model, width, classes)?);
        }
        all.extend(images);
        all.extend(labels);
        let ends = parts.iter().scan(0, |end, part| {
            *end += part.labels.len() as u64;
            Some(*end)
        });
        Ok(Self { ends: ends.collect(), parts, width })
    }
}

impl IdxFile {
    fn open(
        images: &Arc<DataFile>,
        labels: &DataFile,
        model: &Model,
        width: usize,
        classes: u32,
    ) -> Result<Self, DataError> {
        let image_head = IdxHeader::read(images, &[3, 4])?;
        let label_head = IdxHeader::read(labels, &[1])?;
        check_size(images, &image_head.lengths[1..], model, width)?;
        if image_head.lengths[0] != label_head.lengths[0] {
            let (have, found) = (image_head.lengths[0], label_head.lengths[0]);
            let detail = format!("{} has {have} images, this file {found} labels", images.name);
            return Err(DataError::content(&labels.name, "byte 4", detail));
        }
        let values = labels.read_up_to(label_head.bytes, labels.bytes)?;
        if let Some(bad) = values.iter().position(|label| u32::from(*label) >= classes) {
            let detail =
                format!("label {} is outside of the model's {classes} classes (0 is the first)", values[bad]);
            return Err(DataError::content(
                &labels.name,
                format!("byte {}", label_head.bytes + bad as u64),
                detail,
            ));
        }
        Ok(Self { images: Arc::clone(images), begin: image_head.bytes, labels: values })
    }
}

/// Fails unless the images in `file`, of size `found`, have the size that the model reads.
pub(super) fn check_size(
    file: &DataFile,
    found: &[u64],
    model: &Model,
    width: usize,
) -> Result<(), DataError> {
    let is_right = match (model, found) {
        (Model::Cnn(cnn), [rows, columns]) => {
            cnn.channels == 1 && *rows == u64::from(cnn.height) && *columns == u64::from(cnn.width)
        }
        (Model::Cnn(cnn), sides) => *sides == [cnn.channels, cnn.height, cnn.width].map(u64::from),
        _ => found.iter().product::<u64>() == width as u64,
    };
    if is_right {
        return Ok(());
    }
    let wanted = match model {
        Model::Cnn(cnn) => format!("{} channels of {} × {} pixels", cnn.channels, cnn.height, cnn.width),
        _ => format!("{width} inputs"),
    };
    let found = found.iter().map(u64::to_string).collect::<Vec<_>>().join(" × ");
    let detail = format!("images are {found}, the model expects {wanted}");
    Err(DataError::content(&file.name, "byte 8", detail))
}

/// The header of an IDX file: type and dimensions of its data.
pub(super) struct IdxHeader {
    /// Length of each dimension; all at least 1.
    pub(super) lengths: Vec<u64>,
    /// Length of the header in bytes.
    pub(super) bytes: u64,
}

impl IdxHeader {
    pub(super) fn read(file: &DataFile, dimensions: &[u8]) -> Result<Self, DataError> {
        let head = file.read_up_to(0, 20)?;
        let bad = |place: &str, detail: String| Err(DataError::content(&file.name, place, detail));
        let count = match head[..] {
            [0, 0, 8, count, ..] if dimensions.contains(&count) => usize::from(count),
            [0x1f, 0x8b, ..] => {
                return bad("byte 0", "the file is compressed; add `.gz` to its name".into());
            }
            _ => {
                let kinds = dimensions.iter().map(|d| format!("0000080{d}")).collect::<Vec<_>>().join(" or ");
                let found: String = head.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
                return bad("byte 0", format!("an IDX file begins with {kinds}, found {found}"));
            }
        };
        let bytes = 4 + 4 * count;
        if head.len() < bytes {
            return bad("the end", format!("the head has {bytes} bytes, the file {}", head.len()));
        }
        let words = head[4..bytes].as_chunks::<4>().0;
        let lengths: Vec<u64> = words.iter().map(|word| u64::from(u32::from_be_bytes(*word))).collect();
        let data = lengths.iter().try_fold(1u64, |product, length| product.checked_mul(*length));
        let expected = data.and_then(|data| data.checked_add(bytes as u64));
        if data == Some(0) || expected != Some(file.bytes) {
            let detail = format!("the header announces {lengths:?} bytes, the file has {}", file.bytes);
            return bad("byte 4", detail);
        }
        Ok(Self { lengths, bytes: bytes as u64 })
    }
}

impl SampleSource for IdxImages {
    fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    fn read(&self, indices: &[u64]) -> Result<Batch, DataError> {
        let width = self.width;
        let mut pixels = vec![0; width];
        let mut values = Vec::with_capacity(indices.len() * width);
        let mut classes = Vec::with_capacity(indices.len());
        for index in indices {
            let which = self.ends.partition_point(|end| end <= index);
            let part = &self.parts[which];
            let inside = index - (self.ends[which] - part.labels.len() as u64);
            part.images.read_at(part.begin + inside * width as u64, &mut pixels)?;
            values.extend(pixels.iter().map(|pixel| f32::from(*pixel) / 255.0));
            #[expect(clippy::cast_possible_truncation, reason = "labels lie in memory")]
            classes.push(u32::from(part.labels[inside as usize]));
        }
        Ok(Batch::Rows { values, classes, samples: indices.len(), width })
    }
}
