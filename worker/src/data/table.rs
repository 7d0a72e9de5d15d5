//! Tables, as CSV or Parquet: one column is the class, all others are numbers.
//!
//! Columns are standardised with mean and standard deviation of the rows that are trained on. Class labels that are
//! all integers are used as they are; other labels are numbered in alphabetical order.

use super::files::{self, DataFile};
use super::{Batch, DataError, DataSet, Source, row_shape, split};
use dtrain_protocol::{ColumnScale, Preprocessing};
use dtrain_recipes::{Data, Model, Valid};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Rows in memory.
pub(super) struct Table {
    /// `[rows, width]`.
    values: Vec<f32>,
    /// `[rows]`.
    classes: Vec<u32>,
    width: usize,
}

/// Rows as they were written.
pub(super) struct Raw {
    /// Names of the columns of numbers, in order.
    pub(super) columns: Vec<String>,
    /// Where the names are.
    pub(super) header: Place,
    /// `[rows, columns]`.
    pub(super) values: Vec<f32>,
    pub(super) labels: Vec<Label>,
}

/// A label and where it was found.
pub(super) struct Label {
    pub(super) text: String,
    pub(super) file: Arc<DataFile>,
    pub(super) place: Place,
}

/// Where in a file something was found.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// Counted from 1.
    Line(u64),
    /// Names and types of the columns of a Parquet file.
    Schema,
    /// A row of a row group of a Parquet file, both counted from 0.
    Row { group: usize, row: u64 },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}"),
            Self::Schema => f.write_str("the schema"),
            Self::Row { group, row } => write!(f, "row group {group}, row {row}"),
        }
    }
}

/// Reads a file, in which this column is the class. Without the column, which may lack unless it is needed (`true`), the
/// rows have no labels.
pub(super) type ReadFile = fn(&Arc<DataFile>, &str, bool) -> Result<Raw, DataError>;

/// Opens tables whose files are read by `read_file`.
pub(super) fn open(
    data: &Data,
    read_file: ReadFile,
    target: &str,
    root: &Path,
    model: &Model,
) -> Result<DataSet, DataError> {
    let (width, classes) = row_shape(model).expect("open() hands over models of rows only");
    let mut all = files::find(&data.train, root)?;
    let train = read(&all, read_file, target)?;
    check_columns(&train, width, &all[0], target)?;
    let (valid, fraction) = match &data.valid {
        Valid::Fraction(fraction) => (None, Some(*fraction)),
        Valid::Files(patterns) => {
            let files = files::find(patterns, root)?;
            let raw = read(&files, read_file, target)?;
            same_columns(&raw, &train.columns, &files[0])?;
            all.extend(files);
            (Some(raw), None)
        }
    };
    let rows = train.labels.len() as u64;
    let trained = fraction.map_or(Ok(rows), |fraction| split::train_samples(rows, fraction))?;
    let trained = usize::try_from(split::used(trained, data.fraction)).expect("rows lie in memory");
    let scale = Scale::of(&train.values[..trained * width], &train.columns);
    let names = Names::of(&train.labels);
    let preprocessing = Preprocessing { columns: scale.0.clone(), classes: names.list() };
    let train = table(train, &scale, &names, classes)?;
    let valid = valid.map(|raw| table(raw, &scale, &names, classes)).transpose()?;
    let (train, valid) = split::cut(Arc::new(train), valid, fraction, data.fraction)?;
    Ok(DataSet {
        train,
        valid,
        files: files::recorded(&all)?,
        tokenizer: None,
        preprocessing: Some(preprocessing),
    })
}

/// Rows of `files`, whose columns and classes are those of `preprocessing`.
pub(super) fn labelled(
    files: &[String],
    (read_file, target): (ReadFile, &str),
    root: &Path,
    preprocessing: &Preprocessing,
    classes: u32,
) -> Result<Table, DataError> {
    let files = files::find(files, root)?;
    let raw = read(&files, read_file, target)?;
    let scale = Scale(preprocessing.columns.clone());
    same_columns(&raw, &scale.names(), &files[0])?;
    let names = match &preprocessing.classes {
        None => Names::Integers,
        Some(names) => Names::Sorted(names.iter().cloned().zip(0..).collect()),
    };
    table(raw, &scale, &names, classes)
}

/// The standardised values of a file with or without the column `target`. `[rows, columns]`
pub(super) fn unlabelled(
    file: &Arc<DataFile>,
    read_file: ReadFile,
    target: &str,
    columns: &[ColumnScale],
) -> Result<Vec<f32>, DataError> {
    let mut raw = read_file(file, target, false)?;
    let scale = Scale(columns.to_vec());
    same_columns(&raw, &scale.names(), file)?;
    scale.apply(&mut raw.values);
    Ok(raw.values)
}

fn read(files: &[Arc<DataFile>], read_file: ReadFile, target: &str) -> Result<Raw, DataError> {
    let mut all: Option<Raw> = None;
    for file in files {
        let raw = read_file(file, target, true)?;
        match &mut all {
            None => all = Some(raw),
            Some(all) => {
                same_columns(&raw, &all.columns, file)?;
                all.values.extend(raw.values);
                all.labels.extend(raw.labels);
            }
        }
    }
    let all = all.expect("find() returns at least one file");
    if all.labels.is_empty() {
        return Err(DataError::content(
            &files[0].name,
            all.header.to_string(),
            "there are columns but no row",
        ));
    }
    Ok(all)
}

fn check_columns(raw: &Raw, width: usize, file: &DataFile, target: &str) -> Result<(), DataError> {
    let found = raw.columns.len();
    if found == width {
        return Ok(());
    }
    let detail = format!(
        "there are {found} columns besides `{target}`, the model expects {width} inputs; set `model.inputs = {found}`"
    );
    Err(DataError::content(&file.name, raw.header.to_string(), detail))
}

fn same_columns(raw: &Raw, first: &[String], file: &DataFile) -> Result<(), DataError> {
    if raw.columns == first {
        return Ok(());
    }
    let (found, expected) = (raw.columns.join(", "), first.join(", "));
    let detail = format!("the columns are {found}; those of the first training file are {expected}");
    Err(DataError::content(&file.name, raw.header.to_string(), detail))
}

/// Mean and standard deviation of each column.
struct Scale(Vec<ColumnScale>);

impl Scale {
    #[expect(clippy::cast_precision_loss, reason = "row counts are far below 2^52")]
    fn of(values: &[f32], names: &[String]) -> Self {
        let width = names.len();
        let rows = (values.len() / width) as f64;
        let column = |column: usize| values.iter().skip(column).step_by(width).map(|value| f64::from(*value));
        Self(
            names
                .iter()
                .enumerate()
                .map(|(c, name)| {
                    let mean = column(c).sum::<f64>() / rows;
                    let variance = column(c).map(|value| (value - mean).powi(2)).sum::<f64>() / rows;
                    // A constant column tells nothing: it becomes zero.
                    let deviation = if variance > 0.0 { variance.sqrt() } else { 1.0 };
                    ColumnScale { name: name.clone(), mean, deviation }
                })
                .collect(),
        )
    }

    fn names(&self) -> Vec<String> {
        self.0.iter().map(|column| column.name.clone()).collect()
    }

    #[expect(clippy::cast_possible_truncation, reason = "values are f32")]
    fn apply(&self, values: &mut [f32]) {
        for row in values.chunks_exact_mut(self.0.len()) {
            for (value, ColumnScale { mean, deviation, .. }) in row.iter_mut().zip(&self.0) {
                *value = ((f64::from(*value) - mean) / deviation) as f32;
            }
        }
    }
}

/// How labels become classes.
enum Names {
    /// They are classes already.
    Integers,
    /// Alphabetical order.
    Sorted(BTreeMap<String, u32>),
}

impl Names {
    fn of(labels: &[Label]) -> Self {
        if labels.iter().all(|label| label.text.parse::<u32>().is_ok()) {
            return Self::Integers;
        }
        let names: std::collections::BTreeSet<_> = labels.iter().map(|label| &label.text).collect();
        Self::Sorted(names.into_iter().cloned().zip(0..).collect())
    }

    /// The names in the order of their classes; `None` where classes are numbers.
    fn list(&self) -> Option<Vec<String>> {
        match self {
            Self::Integers => None,
            Self::Sorted(names) => Some(names.keys().cloned().collect()),
        }
    }

    fn class(&self, label: &Label, classes: u32) -> Result<u32, DataError> {
        let bad = |detail: String| DataError::content(&label.file.name, label.place.to_string(), detail);
        let text = &label.text;
        let class = match self {
            Self::Integers => text.parse().map_err(|_| {
                bad(format!("class `{text}` is not an integer, as those of the training data are"))
            })?,
            Self::Sorted(names) => *names
                .get(text)
                .ok_or_else(|| bad(format!("class `{text}` does not occur in the training data")))?,
        };
        if class < classes {
            return Ok(class);
        }
        let found = match self {
            Self::Integers => format!("class {class}; integers are used as they are, from 0 on"),
            Self::Sorted(names) => {
                format!("class `{text}`, number {class} of {} in alphabetical order", names.len())
            }
        };
        Err(bad(format!(
            "the model has {classes} classes, found {found}; change `model.classes` or the labels"
        )))
    }
}

fn table(mut raw: Raw, scale: &Scale, names: &Names, classes: u32) -> Result<Table, DataError> {
    scale.apply(&mut raw.values);
    let classes = raw.labels.iter().map(|label| names.class(label, classes)).collect::<Result<_, _>>()?;
    Ok(Table { values: raw.values, classes, width: raw.columns.len() })
}

impl Source for Table {
    fn len(&self) -> u64 {
        self.classes.len() as u64
    }

    fn read(&self, indices: &[u64]) -> Result<Batch, DataError> {
        let rows = indices.iter().map(|index| usize::try_from(*index).expect("rows lie in memory"));
        let values = rows.clone().flat_map(|row| &self.values[row * self.width..][..self.width]).copied();
        Ok(Batch::Rows {
            values: values.collect(),
            classes: rows.map(|row| self.classes[row]).collect(),
            samples: indices.len(),
            width: self.width,
        })
    }
}
