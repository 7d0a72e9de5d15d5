//! Tables: one column is the class, the others are numbers, dates or categories.
//!
//! The files are read twice: first for the types of the columns and the number of rows, then for the
//! values, which keep 64 bits. A row is converted to model inputs when it is read.

mod cell;
mod classes;
mod csv;
mod encoding;
mod facts;
mod file;
mod numeric_rows;
mod parquet;
mod profile;
mod row;

pub(super) use facts::facts;
pub use facts::{ColumnFacts, ColumnKind, TableFacts};
pub(super) use file::TabularFormat;
pub(super) use row::RowLocation;

use super::files::{self, DataFile};
use super::split::{Subset, TrainValidationSplit, one_sided};
use super::{Batch, DataError, DataSet, SampleSource, row_shape};
use classes::ClassEncoding;
use dtrain_protocol::{Column, Encoding, Preprocessing};
use dtrain_recipes::{Columns, Data, Model, ValidationSource};
use encoding::CellEncoder;
use file::TableFile;
use numeric_rows::NumericRows;
use profile::ColumnProfile;
use std::path::Path;
use std::sync::Arc;

/// Number of rows that are read at a time.
const ROWS: usize = 1024;

/// The rows of a table as samples, with or without their classes.
pub(super) struct TabularSamples {
    /// Stored numbers of each row: those of the columns, followed by the class if it is known.
    cells: NumericRows,
    columns: Vec<Column>,
    has_classes: bool,
    /// Number of model inputs that a row becomes.
    width: usize,
}

/// The settings for reading the rows of table files.
#[derive(Clone, Copy)]
struct RowDecoding<'a> {
    columns: &'a Columns,
    encodings: &'a [Column],
    /// Class encoding, and the number of classes of the model; `None` if labels are not read.
    classes: Option<(&'a ClassEncoding, u32)>,
    /// Folder for the temporary file of a large table.
    cache: &'a Path,
}

/// Opens the table of a recipe as a data set.
pub(super) fn open(
    data: &Data,
    (format, columns): (TabularFormat, &Columns),
    root: &Path,
    model: &Model,
    cache: &Path,
) -> Result<DataSet, DataError> {
    let (width, most_classes) = row_shape(model).expect("open() hands over models of rows only");
    let mut all = files::find(&data.train, root)?;
    let train_files = open_all(&all, format)?;
    let (profiles, classes) = profile_and_classes(&train_files, columns)?;
    let mut encodings = encoding::columns(&profiles);
    check_width(&train_files[0], &encodings, columns, width)?;
    let reading = RowDecoding { columns, encodings: &[], classes: Some((&classes, most_classes)), cache };
    let mut train = RowDecoding { encodings: &encodings, ..reading }.read(&train_files)?;
    let (fraction, valid_files) = match &data.valid {
        ValidationSource::Fraction(fraction) => (Some(*fraction), Vec::new()),
        ValidationSource::Files(patterns) => {
            let files = files::find(patterns, root)?;
            all.extend(files.iter().cloned());
            (None, open_all(&files, format)?)
        }
    };
    let split = TrainValidationSplit::of(train.len(), fraction, data.fraction, data.mix)?;
    let (sides, mut counts) =
        (split.sides(), [Subset::Train, Subset::Valid].map(|_| vec![0; most_classes as usize]));
    train.count_classes(&sides, &mut counts)?;
    standardise(&mut encodings, &train.cells, &sides)?;
    let valid = if valid_files.is_empty() {
        None
    } else {
        Some(RowDecoding { encodings: &encodings, ..reading }.read(&valid_files)?)
    };
    if let Some(valid) = &valid {
        valid.count_classes(&vec![Subset::Valid; rows_in_memory(valid.len())], &mut counts)?;
    }
    train.columns.clone_from(&encodings);
    let preprocessing = Preprocessing { columns: encodings, classes: classes.list() };
    let mut warnings: Vec<String> = profiles.into_iter().filter_map(|profile| profile.warning).collect();
    warnings.extend(one_sided(&counts, |class| preprocessing.class(class)));
    let (train, valid) = split.cut(Arc::new(train), valid);
    Ok(DataSet {
        train,
        valid,
        files: files::recorded(&all)?,
        tokenizer: None,
        preprocessing: Some(preprocessing),
        warnings,
    })
}

/// Reads the labeled rows of `files`, encoded as `preprocessing` says.
pub(super) fn labelled(
    files: &[String],
    (format, columns): (TabularFormat, &Columns),
    (root, cache): (&Path, &Path),
    preprocessing: &Preprocessing,
    classes: u32,
) -> Result<TabularSamples, DataError> {
    let files = open_all(&files::find(files, root)?, format)?;
    let names = ClassEncoding::of(preprocessing.classes.as_deref());
    let reading =
        RowDecoding { columns, encodings: &preprocessing.columns, classes: Some((&names, classes)), cache };
    reading.read(&files)
}

/// Reads the rows of a file that may lack the class column.
pub(super) fn unlabelled(
    file: &Arc<DataFile>,
    (format, columns): (TabularFormat, &Columns),
    encodings: &[Column],
    cache: &Path,
) -> Result<TabularSamples, DataError> {
    let reading = RowDecoding { columns, encodings, classes: None, cache };
    reading.read(&[TableFile::open(file, format)?])
}

fn open_all(files: &[Arc<DataFile>], format: TabularFormat) -> Result<Vec<TableFile>, DataError> {
    files.iter().map(|file| TableFile::open(file, format)).collect()
}

/// Returns the profiles of the training columns, which are those of the first file, and the encoding of
/// the classes.
fn profile_and_classes(
    files: &[TableFile],
    columns: &Columns,
) -> Result<(Vec<ColumnProfile>, ClassEncoding), DataError> {
    files[0].target(&columns.target)?;
    let inputs = files[0].inputs(columns)?;
    profile::profile_columns(files, &inputs, columns)
}

fn check_width(
    file: &TableFile,
    encodings: &[Column],
    columns: &Columns,
    wanted: usize,
) -> Result<(), DataError> {
    let found = encoding::width(encodings);
    if found == wanted {
        return Ok(());
    }
    let target = &columns.target;
    let detail = format!(
        "the columns besides `{target}` give {found} inputs, the model expects {wanted}; set `model.inputs = {found}` \
         (`dtrain data` shows the columns)"
    );
    Err(file.wrong_header(detail))
}

impl RowDecoding<'_> {
    fn read(&self, files: &[TableFile]) -> Result<TabularSamples, DataError> {
        let inputs: Vec<String> = self.encodings.iter().map(|column| column.name.clone()).collect();
        let keeper = CellEncoder::of(self.encodings);
        let mut cells = NumericRows::new(inputs.len() + usize::from(self.classes.is_some()), self.cache);
        let mut row = Vec::new();
        for file in files {
            let mut places = file.places(&inputs, self.columns)?;
            if self.classes.is_some() {
                places.push(file.target(&self.columns.target)?);
            }
            let has_decimal_comma = file.has_decimal_comma();
            file.rows(&places, &mut |place, found| {
                row.clear();
                for (column, (name, cell)) in inputs.iter().zip(found).enumerate() {
                    row.push(keeper.keep(column, *cell, has_decimal_comma).map_err(|wanted| {
                        let found = cell.name().unwrap_or_else(|| "a date".into());
                        file.error_at(place, format!("column `{name}` has `{found}`, expected {wanted}"))
                    })?);
                }
                if let Some((classes, most)) = self.classes {
                    let label = found[inputs.len()];
                    row.push(classes.class((file, place), label, (&self.columns.target, most))?.into());
                }
                cells.push(&row)
            })?;
        }
        let cells = cells.complete()?;
        if cells.rows() == 0 {
            return Err(files[0].wrong_header("there are columns but no row".to_owned()));
        }
        let (columns, width) = (self.encodings.to_vec(), encoding::width(self.encodings));
        Ok(TabularSamples { cells, columns, has_classes: self.classes.is_some(), width })
    }
}

/// Standardizes the columns of numbers: sets the mean and deviation of each to those of the training
/// rows.
#[expect(clippy::cast_precision_loss, reason = "row counts are far below 2^52")]
fn standardise(encodings: &mut [Column], cells: &NumericRows, sides: &[Subset]) -> Result<(), DataError> {
    let count = encodings.len();
    // Two passes, because squares of large numbers lose small differences.
    let (mut sums, mut known) = (vec![0.0_f64; count], vec![0_u64; count]);
    each_trained(cells, sides, |row| {
        for ((sum, known), value) in
            sums.iter_mut().zip(&mut known).zip(row).filter(|(_, value)| !value.is_nan())
        {
            *sum += value;
            *known += 1;
        }
    })?;
    let means: Vec<f64> = sums.iter().zip(&known).map(|(sum, known)| sum / (*known).max(1) as f64).collect();
    let mut squares = vec![0.0_f64; count];
    each_trained(cells, sides, |row| {
        for ((square, mean), value) in
            squares.iter_mut().zip(&means).zip(row).filter(|(_, value)| !value.is_nan())
        {
            *square += (value - mean).powi(2);
        }
    })?;
    for (at, column) in encodings.iter_mut().enumerate() {
        if let Encoding::Number { mean, deviation, .. } = &mut column.encoding {
            let found = (squares[at] / known[at].max(1) as f64).sqrt();
            // A constant column carries no information: it becomes zero. The mean of equal numbers may be
            // rounded.
            let is_constant = found <= means[at].abs() * 1e-13;
            (*mean, *deviation) = (means[at], if is_constant { 1.0 } else { found });
        }
    }
    Ok(())
}

/// Calls `of` with the stored numbers of each training row.
fn each_trained(cells: &NumericRows, sides: &[Subset], mut of: impl FnMut(&[f64])) -> Result<(), DataError> {
    cells.each(ROWS, |index, row| {
        if sides[index] == Subset::Train {
            of(row);
        }
    })
}

fn rows_in_memory(rows: u64) -> usize {
    usize::try_from(rows).expect("a byte for each row lies in memory")
}

impl TabularSamples {
    /// Adds the number of training and of validation rows of each class to `train` and `valid`.
    fn count_classes(&self, sides: &[Subset], [train, valid]: &mut [Vec<u64>; 2]) -> Result<(), DataError> {
        self.cells.each(ROWS, |index, row| {
            let class = class(row);
            match sides[index] {
                Subset::Train => train[class] += 1,
                Subset::Valid => valid[class] += 1,
                Subset::Unused => {}
            }
        })
    }

    /// Returns the model inputs of the rows `indices`, one row after another, and their classes if they
    /// are known.
    pub(super) fn rows(&self, indices: &[u64]) -> Result<(Vec<f32>, Vec<u32>), DataError> {
        let mut kept = vec![0.0; self.columns.len() + usize::from(self.has_classes)];
        let (mut values, mut classes) = (Vec::with_capacity(indices.len() * self.width), Vec::new());
        for index in indices {
            self.cells.read(*index, &mut kept)?;
            encoding::encode(&self.columns, &kept, &mut values);
            if self.has_classes {
                classes.push(u32::try_from(class(&kept)).expect("a class is a u32"));
            }
        }
        Ok((values, classes))
    }

    /// Returns the number of rows of the table.
    pub(super) fn count(&self) -> u64 {
        self.cells.rows()
    }
}

/// Returns the class in a stored row that has one.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it was a u32")]
fn class(kept: &[f64]) -> usize {
    kept[kept.len() - 1] as usize
}

impl SampleSource for TabularSamples {
    fn len(&self) -> u64 {
        self.count()
    }

    fn read(&self, indices: &[u64]) -> Result<Batch, DataError> {
        let (values, classes) = self.rows(indices)?;
        Ok(Batch::Rows { values, classes, samples: indices.len(), width: self.width })
    }
}
