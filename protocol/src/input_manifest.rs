//! The input data of a training, as its checkpoints record it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Name of the checkpoint file that has the [`InputManifest`] as JSON.
pub const INPUTS: &str = "inputs.json";

/// Name of the checkpoint file that has the tokenizer, if the recipe trains or names one.
pub const TOKENIZER: &str = "tokenizer.json";

/// Name of the checkpoint file that has the [`Preprocessing`] as JSON, if the data has any.
pub const PREPROCESSING: &str = "preprocessing.json";

/// Maximum number of differences that are listed by name; of more, only the number is shown.
const LISTED: usize = 4;

/// The input files of a training, with the numbers of samples.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputManifest {
    /// Number of training samples.
    pub train_samples: u64,
    /// Number of validation samples.
    pub valid_samples: u64,
    /// All input files, in reading order.
    pub files: Vec<InputFile>,
}

/// The preprocessing of rows or images that was used in training.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Preprocessing {
    /// Columns of a table, in the order in which the model reads them; empty for images, whose pixels are
    /// divided by 255.
    pub columns: Vec<Column>,
    /// Names of the classes, in order; `None` if classes are numbers.
    pub classes: Option<Vec<String>>,
}

/// A column of a table, with its encoding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// Name of the column.
    pub name: String,
    /// Conversion of the column's cells into numbers.
    #[serde(flatten)]
    pub encoding: Encoding,
}

/// The conversion of a cell into numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Encoding {
    /// One-hot encoding: 1 for the cell's category, 0 for the others; all are 0 for an unknown category.
    Category {
        /// Categories of the column in alphabetical order; an empty text stands for an empty cell.
        categories: Vec<String>,
    },
    /// Standardization: `(value - mean) / deviation`; an empty cell is 0, which is the mean.
    Number {
        /// Mean of the column over the training rows.
        mean: f64,
        /// Standard deviation of the column over the training rows, or 1 if all values are equal.
        deviation: f64,
        /// `true` if cells are dates, converted to days since 1970-01-01 UTC.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        date: bool,
    },
}

impl Encoding {
    /// Returns the number of values that a model reads per cell.
    pub fn width(&self) -> usize {
        match self {
            Self::Category { categories } => categories.len(),
            Self::Number { .. } => 1,
        }
    }
}

impl Preprocessing {
    /// Returns the name of the class with this number, or the number if classes have no names.
    pub fn class(&self, class: usize) -> String {
        let name = self.classes.as_ref().and_then(|names| names.get(class));
        name.cloned().unwrap_or_else(|| class.to_string())
    }
}

/// A file of the input data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputFile {
    /// Path of the file relative to the base of data paths, the full path of a file elsewhere, or the URL of
    /// a downloaded file.
    pub name: String,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// blake3 hash of the file's contents, in hex; for a large file, of evenly spread blocks.
    pub blake3: String,
}

impl InputManifest {
    /// Returns the blake3 hash over names, lengths and contents of the files in their order, in hex.
    pub fn fingerprint(&self) -> String {
        fingerprint(&self.files)
    }

    /// Returns the differences between this data and `now`, the data of a resumed training, in words; empty
    /// if both give the same samples.
    pub fn differences(&self, now: &Self) -> Vec<String> {
        let mut found = self.changed_files(now);
        if found.is_empty() {
            found.extend(self.first_out_of_order(now));
        }
        if found.len() > LISTED {
            let more = found.len() - LISTED;
            found.truncate(LISTED);
            found.push(format!("{more} more files differ"));
        }
        for (then, now, what) in [
            (self.train_samples, now.train_samples, "training"),
            (self.valid_samples, now.valid_samples, "validation"),
        ] {
            if then != now {
                found.push(format!("it gives {now} {what} samples, expected {then}"));
            }
        }
        found
    }

    fn changed_files(&self, now: &Self) -> Vec<String> {
        let by_name = |inputs: &Self| -> BTreeMap<String, InputFile> {
            inputs.files.iter().map(|file| (file.name.clone(), file.clone())).collect()
        };
        let (then, now) = (by_name(self), by_name(now));
        let changed = then.values().filter_map(|file| match now.get(&file.name) {
            None => Some(format!("`{}` is missing", file.name)),
            Some(found) if found.bytes != file.bytes => {
                Some(format!("`{}` has {} bytes, expected {}", file.name, found.bytes, file.bytes))
            }
            Some(found) if found.blake3 != file.blake3 => {
                Some(format!("the contents of `{}` have changed", file.name))
            }
            Some(_) => None,
        });
        let added = now.keys().filter(|name| !then.contains_key(*name));
        changed.chain(added.map(|name| format!("`{name}` was added"))).collect()
    }

    fn first_out_of_order(&self, now: &Self) -> Option<String> {
        let mut pairs = self.files.iter().zip(&now.files);
        let (then, now) = pairs.find(|(then, now)| then.name != now.name)?;
        Some(format!("the files are in another order: `{}` is read where `{}` was", now.name, then.name))
    }
}

/// Returns the blake3 hash over names, lengths and contents of files in their order, in hex.
pub fn fingerprint(files: &[InputFile]) -> String {
    let mut hasher = blake3::Hasher::new();
    for file in files {
        hasher.update(&(file.name.len() as u64).to_le_bytes());
        hasher.update(file.name.as_bytes());
        hasher.update(&file.bytes.to_le_bytes());
        hasher.update(file.blake3.as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(files: &[(&str, u64, &str)]) -> InputManifest {
        let file = |(name, bytes, blake3): &(&str, u64, &str)| InputFile {
            name: (*name).to_owned(),
            bytes: *bytes,
            blake3: (*blake3).to_owned(),
        };
        InputManifest { train_samples: 90, valid_samples: 10, files: files.iter().map(file).collect() }
    }

    #[test]
    fn the_same_data_has_no_differences() {
        let then = inputs(&[("a", 1, "x"), ("b", 2, "y")]);
        assert_eq!(then.differences(&then), Vec::<String>::new());
    }

    #[test]
    fn every_kind_of_change_is_named() {
        let then = inputs(&[("a", 1, "x"), ("b", 2, "y"), ("c", 3, "z")]);
        let now = inputs(&[("a", 1, "x"), ("b", 2, "w"), ("d", 4, "v")]);
        let expected = ["the contents of `b` have changed", "`c` is missing", "`d` was added"];
        assert_eq!(then.differences(&now), expected);
        let longer = inputs(&[("a", 1, "x"), ("b", 5, "w"), ("c", 3, "z")]);
        assert_eq!(then.differences(&longer), ["`b` has 5 bytes, expected 2"]);
        let turned = inputs(&[("b", 2, "y"), ("a", 1, "x"), ("c", 3, "z")]);
        let expected = "the files are in another order: `b` is read where `a` was";
        assert_eq!(then.differences(&turned), [expected]);
        let fewer = InputManifest { train_samples: 80, ..then.clone() };
        assert_eq!(then.differences(&fewer), ["it gives 80 training samples, expected 90"]);
    }

    #[test]
    fn many_differences_are_counted() {
        let names: Vec<String> = (0..10).map(|index| format!("f{index}")).collect();
        let many: Vec<(&str, u64, &str)> = names.iter().map(|name| (name.as_str(), 1, "x")).collect();
        let found = inputs(&many).differences(&inputs(&[]));
        assert_eq!(found.len(), LISTED + 1);
        assert_eq!(found[LISTED], "6 more files differ");
    }
}
