//! Unlabeled samples to classify: rows of tables with or without the target, images, and IDX files of
//! images.

use super::files::{self, DataFile};
use super::images::{ImageShape, LabelledImage};
use super::preparation::PreparationObserver;
use super::table::{self, TabularFormat, TabularSamples};
use super::{DataError, download, idx, row_shape};
use crate::comm::WorkCounter;
use dtrain_protocol::Preprocessing;
use dtrain_recipes::{Columns, Data, DataFormat, Model};
use rayon::prelude::*;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Samples whose classes are unknown, in the order of their files.
pub struct UnlabelledSamples {
    parts: Vec<FileSamples>,
    /// Cumulative number of samples up to the end of each file, in order.
    ends: Vec<u64>,
    width: usize,
}

/// The unlabeled samples in one file.
enum FileSamples {
    Table {
        file: String,
        table: TabularSamples,
    },
    /// The images in an IDX file, from byte `begin` on.
    Idx {
        file: Arc<DataFile>,
        begin: u64,
    },
    /// One image, in a file of its own.
    Image {
        file: LabelledImage,
        shape: ImageShape,
    },
}

/// The file that a sample is from, and its row there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleOrigin {
    /// Name of the file that has the sample.
    pub file: String,
    /// Number of the sample in the file, counted from 1; `None` if the file is one image.
    pub row: Option<u64>,
}

impl UnlabelledSamples {
    /// Opens the samples in the files that `patterns` name, which start from `root`; URLs are downloaded.
    /// Samples are read like those of `data`: columns are standardized as in `preprocessing`, and pixels
    /// divided by 255. A large table is stored below `cache` while it is used.
    ///
    /// `Err` if there is no such file, or if a file lacks an input of the model.
    pub fn open(
        data: &Data,
        preprocessing: &Preprocessing,
        model: &Model,
        patterns: &[String],
        (root, cache): (&Path, &Path),
    ) -> Result<Self, DataError> {
        let (width, _) = row_shape(model)
            .ok_or_else(|| DataError::Unfit("only an mlp or a cnn classifies rows and images".into()))?;
        let mut parts = Vec::new();
        let mut ends = Vec::new();
        let watch = PreparationObserver { progress: &WorkCounter::default(), tell: &|_| () };
        download::download_all(patterns.iter().map(String::as_str), &watch)?;
        for found in files::resolve_patterns(patterns, root)? {
            let file = Arc::new(found.open()?);
            let path = &found.path;
            let of_table = |format: TabularFormat, columns: &Columns| {
                let table = table::unlabelled(&file, (format, columns), &preprocessing.columns, cache)?;
                let rows = table.count();
                Ok((FileSamples::Table { file: file.name.clone(), table }, rows))
            };
            let (part, samples) = match &data.format {
                DataFormat::Csv(columns) => of_table(TabularFormat::Csv, columns)?,
                DataFormat::Parquet(columns) => of_table(TabularFormat::Parquet, columns)?,
                DataFormat::Idx { .. } => image_rows(&file, path, model, ImageShape::of(model, false)?)?,
                DataFormat::Images { resize } => {
                    image_rows(&file, path, model, ImageShape::of(model, *resize)?)?
                }
                DataFormat::Text { .. } | DataFormat::Chat { .. } | DataFormat::Tokens { .. } => {
                    return Err(DataError::Unfit("data of tokens has no rows to classify".into()));
                }
            };
            parts.push(part);
            ends.push(ends.last().copied().unwrap_or(0) + samples);
        }
        Ok(Self { parts, ends, width })
    }

    /// Returns the number of samples in all files.
    pub fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Returns `true` if there are no samples to classify.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of values of one sample.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the origins of the samples `range`, and their values as `[samples, width]`. Panics if
    /// `range` exceeds [`UnlabelledSamples::len`].
    pub fn read(&self, range: Range<u64>) -> Result<(Vec<SampleOrigin>, Vec<f32>), DataError> {
        let samples: Vec<(SampleOrigin, Vec<f32>)> =
            range.into_par_iter().map(|index| self.sample(index)).collect::<Result<_, _>>()?;
        let (origins, values): (Vec<_>, Vec<_>) = samples.into_iter().unzip();
        Ok((origins, values.concat()))
    }

    fn sample(&self, index: u64) -> Result<(SampleOrigin, Vec<f32>), DataError> {
        let which = self.ends.partition_point(|end| *end <= index);
        let inside = index - if which == 0 { 0 } else { self.ends[which - 1] };
        let scaled = |pixels: &[u8]| pixels.iter().map(|pixel| f32::from(*pixel) / 255.0).collect();
        match &self.parts[which] {
            FileSamples::Table { file, table } => {
                let origin = SampleOrigin { file: file.clone(), row: Some(inside + 1) };
                Ok((origin, table.rows(&[inside])?.0))
            }
            FileSamples::Idx { file, begin } => {
                let mut pixels = vec![0; self.width];
                file.read_at(begin + inside * self.width as u64, &mut pixels)?;
                Ok((SampleOrigin { file: file.name.clone(), row: Some(inside + 1) }, scaled(&pixels)))
            }
            FileSamples::Image { file, shape } => {
                let origin = SampleOrigin { file: file.name().to_owned(), row: None };
                Ok((origin, scaled(&file.decode(*shape)?)))
            }
        }
    }
}

/// Opens an IDX file or an image, and returns its samples and their number.
fn image_rows(
    file: &Arc<DataFile>,
    path: &Path,
    model: &Model,
    shape: ImageShape,
) -> Result<(FileSamples, u64), DataError> {
    let unpacked = file.unpacked()?;
    if !unpacked.read_up_to(0, 3)?.starts_with(&[0, 0, 8]) {
        let sample = LabelledImage::unlabelled(path.to_owned(), file.name.clone());
        return Ok((FileSamples::Image { file: sample, shape }, 1));
    }
    let (width, _) = row_shape(model).expect("only models of rows read images");
    let head = idx::IdxHeader::read(&unpacked, &[3, 4])?;
    idx::check_size(&unpacked, &head.lengths[1..], model, width)?;
    Ok((FileSamples::Idx { file: unpacked, begin: head.bytes }, head.lengths[0]))
}
