//! Labeled samples that are not part of the recipe's data, to evaluate a trained model on.

use super::images::{ImageFolder, ImageShape};
use super::preparation::PreparationObserver;
use super::table::{self, TabularFormat};
use super::{DataError, SampleSource, download, files, idx, open_apart, row_shape};
use crate::comm::WorkCounter;
use dtrain_protocol::Preprocessing;
use dtrain_recipes::{Columns, Data, DataFormat, Model, Tokenizer, ValidationSource};
use std::path::Path;

/// The encoding of data that training fixed: how a trained model must be given rows or text.
pub struct TrainedEncoding<'a> {
    /// Preprocessing of rows, and the names of the classes.
    pub preprocessing: &'a Preprocessing,
    /// Tokenizer in the checkpoint, as JSON; `None` if it has none.
    pub tokenizer: Option<&'a [u8]>,
}

/// Opens the labeled samples in `files`, which are in the format of `data`, as the model was trained to
/// read them. `labels` are the label files of IDX files. Paths start from `root`, the folder that the
/// paths of `data` start from.
///
/// URLs are downloaded.
///
/// `Err` if there is no such file, or if a file lacks an input of the model.
pub fn labelled(
    data: &Data,
    (files, labels): (&[String], &[String]),
    root: &Path,
    model: &Model,
    cache: &Path,
    fixed: &TrainedEncoding<'_>,
) -> Result<Box<dyn SampleSource>, DataError> {
    let TrainedEncoding { preprocessing, tokenizer } = fixed;
    if !matches!(data.format, DataFormat::Idx { .. }) && !labels.is_empty() {
        return Err(DataError::Unfit("only IDX files have label files".into()));
    }
    let watch = PreparationObserver { progress: &WorkCounter::default(), tell: &|_| () };
    download::download_all(files.iter().chain(labels).map(String::as_str), &watch)?;
    let of_table = |format: TabularFormat, columns: &Columns| {
        let (_, classes) = row_shape(model).expect("data and model of a trained checkpoint fit");
        let table = table::labelled(files, (format, columns), (root, cache), preprocessing, classes)?;
        Ok(Box::new(table) as Box<dyn SampleSource>)
    };
    match &data.format {
        DataFormat::Csv(columns) => of_table(TabularFormat::Csv, columns),
        DataFormat::Parquet(columns) => of_table(TabularFormat::Parquet, columns),
        DataFormat::Images { resize } => {
            let names = preprocessing.classes.as_deref().unwrap_or_default();
            let shape = ImageShape::of(model, *resize)?;
            Ok(Box::new(ImageFolder::open(files::paths(files, root)?, root, names, shape, &mut Vec::new())?))
        }
        DataFormat::Idx { .. } => {
            Ok(Box::new(idx::IdxImages::open(files, labels, root, model, &mut Vec::new())?))
        }
        DataFormat::Text { .. } | DataFormat::Chat { .. } | DataFormat::Tokens { .. } => {
            // A trained tokenizer that the checkpoint lacks is trained again on the same text.
            let is_trained = matches!(&data.format, DataFormat::Text { tokenizer: Tokenizer::Bpe(_), .. });
            let train = if is_trained && tokenizer.is_none() { data.train.clone() } else { files.to_vec() };
            let data =
                Data { train, valid: ValidationSource::Files(files.to_vec()), fraction: 1.0, ..data.clone() };
            download::fetch(&data, &watch)?;
            open_apart(&data, root, model, cache, *tokenizer, &watch).map(|opened| opened.valid)
        }
    }
}
