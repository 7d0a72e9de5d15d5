//! The data that a training reads, as its checkpoints record it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Name of the file of a checkpoint that holds its [`InputManifest`] as JSON.
pub const INPUTS: &str = "inputs.json";

/// Name of the file of a checkpoint that holds the tokenizer, where one was trained or named.
pub const TOKENIZER: &str = "tokenizer.json";

/// Name of the file of a checkpoint that holds the [`Preprocessing`] as JSON, where the data has one.
pub const PREPROCESSING: &str = "preprocessing.json";

/// Differences that are listed by name; of more only the number is told.
const LISTED: usize = 4;

/// The files that a training reads, and how many samples they give.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputManifest {
    /// Samples to train on.
    pub train_samples: u64,
    /// Samples to validate on.
    pub valid_samples: u64,
    /// All files, in the order in which they are read.
    pub files: Vec<InputFile>,
}

/// What samples of rows become before a model reads them, as it was when the model was trained.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Preprocessing {
    /// The columns of a table, in the order in which the model reads them; empty for images, whose pixels are divided by
    /// 255.
    pub columns: Vec<Column>,
    /// The name of each class, in order; `None` where classes are numbers.
    pub classes: Option<Vec<String>>,
}

/// A column of a table and what a model reads of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// How a cell becomes numbers.
    #[serde(flatten)]
    pub encoding: Encoding,
}

/// How a cell becomes numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Encoding {
    /// One number for each of these texts: 1 for that of the cell, 0 for the others. A text that is not among them is 0
    /// everywhere.
    Category {
        /// In alphabetical order; an empty text stands for an empty cell.
        categories: Vec<String>,
    },
    /// `(value - mean) / deviation`; an empty cell is 0, which is the mean.
    Number {
        /// Mean of the rows that were trained on.
        mean: f64,
        /// Standard deviation of these rows, or 1 where they are all the same.
        deviation: f64,
        /// Whether the value is a date, as days since 1970-01-01 UTC.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        date: bool,
    },
}

impl Encoding {
    /// Numbers that a model reads of a cell.
    pub fn width(&self) -> usize {
        match self {
            Self::Category { categories } => categories.len(),
            Self::Number { .. } => 1,
        }
    }
}

impl Preprocessing {
    /// The name of a class, or its number where classes have no names.
    pub fn class(&self, class: usize) -> String {
        let name = self.classes.as_ref().and_then(|names| names.get(class));
        name.cloned().unwrap_or_else(|| class.to_string())
    }
}

/// One file of the data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputFile {
    /// Path below the folder that data paths start from; a full path for a file elsewhere; the URL of a file that was
    /// downloaded.
    pub name: String,
    /// Length in bytes.
    pub bytes: u64,
    /// blake3 of the contents, in hex; of a long file that of evenly spread blocks.
    pub blake3: String,
}

impl InputManifest {
    /// blake3 over names, lengths and contents of the files in their order, in hex.
    pub fn fingerprint(&self) -> String {
        fingerprint(&self.files)
    }

    /// What differs where training is to go on with `now`, in words; empty where both give the same samples.
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

/// blake3 over names, lengths and contents of files in their order, in hex.
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
