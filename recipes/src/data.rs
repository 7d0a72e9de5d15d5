//! Training and validation data of a recipe: formats, tokenizers and files.

use crate::keyword_enum::keyword_enum;
use serde::{Deserialize, Serialize};

/// Training and validation data. Paths are relative to the folder of the recipe that named them; a path may
/// also be a [`Url`](crate::Url).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Data {
    /// Format of the files.
    pub format: DataFormat,
    /// Files, glob patterns or URLs of the training data, in order.
    pub train: Vec<String>,
    /// Validation data.
    pub valid: ValidationSource,
    /// Fraction of the training data that is used, in (0, 1].
    pub fraction: f64,
    /// Seed of the shuffle that tables and IDX files get before `valid` and `fraction` split them; `None` for
    /// other data, and in recipes of older versions, which split rows in file order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mix: Option<u64>,
}

/// Format of data files, with its options.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "format", rename_all = "snake_case")]
pub enum DataFormat {
    /// Documents of text.
    Text {
        /// Tokenizer that turns text into tokens.
        tokenizer: Tokenizer,
        /// Unit of text that is one document.
        #[serde(default, skip_serializing_if = "Documents::is_files")]
        documents: Documents,
        /// Token or text after each document.
        #[serde(default, skip_serializing_if = "Separator::is_auto")]
        separator: Separator,
    },
    /// Token shards: raw little-endian `u16` (nanoGPT) or the llm.c shard with its 1,024-byte header.
    Tokens {
        /// The `tokenizer.json` that made the shards, if the recipe names one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tokenizer: Option<String>,
    },
    /// IDX images and labels (the MNIST files).
    Idx {
        /// Label files, one for each image file of `train`.
        labels: Vec<String>,
        /// Label files for the images of `valid`, when `valid` names files.
        valid_labels: Vec<String>,
    },
    /// PNG and JPEG images, each in the folder of its class.
    Images {
        /// `true` to resize images of other sizes.
        resize: bool,
    },
    /// CSV tables with a header row, fields separated by commas, semicolons, tabs or vertical bars.
    Csv(Columns),
    /// Parquet tables.
    Parquet(Columns),
}

/// Roles of the columns of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Columns {
    /// Name of the column that holds the class.
    pub target: String,
    /// Names of the columns that are ignored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignore: Vec<String>,
}

impl Columns {
    /// Returns a table with this target that uses every other column.
    pub fn of(target: &str) -> Self {
        Self { target: target.to_owned(), ignore: Vec::new() }
    }
}

keyword_enum! {
    /// A value of `data.format`.
    pub enum DataKind {
        /// Text files, each one document.
        Text = "text",
        /// JSON lines, each one document.
        Jsonl = "jsonl",
        /// Token shards.
        Tokens = "tokens",
        /// IDX images and labels.
        Idx = "idx",
        /// Comma-separated values.
        Csv = "csv",
        /// Parquet tables: of text, or of numbers.
        Parquet = "parquet",
        /// PNG and JPEG images.
        Images = "images",
    }
}

impl DataKind {
    /// Returns `true` if text models read documents from such files; other models read rows of Parquet
    /// tables.
    pub(crate) fn is_text(self) -> bool {
        match self {
            Self::Text | Self::Jsonl | Self::Parquet => true,
            Self::Tokens | Self::Idx | Self::Csv | Self::Images => false,
        }
    }
}

/// Unit of a text corpus that is one document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Documents {
    /// Each text file.
    #[default]
    Files,
    /// Each JSON line, with its text in this field.
    JsonLines(String),
    /// Each row of a Parquet file, with its text in this column.
    Parquet(String),
}

impl Documents {
    /// Returns `true` for [`Documents::Files`].
    pub fn is_files(&self) -> bool {
        *self == Self::Files
    }
}

/// A tokenizer, which turns text into tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tokenizer {
    /// Each byte is a token; the vocabulary is 256.
    Bytes,
    /// Byte-level BPE trained on the training text, with this vocabulary size.
    Bpe(u32),
    /// This `tokenizer.json`, a path or a URL, in the format of Hugging Face tokenizers.
    File(String),
}

/// Token or text after each document of a text corpus.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Separator {
    /// The end-of-text token of the tokenizer; without one, a line break after each JSON line or row and
    /// nothing after a text file.
    #[default]
    Auto,
    /// No separator.
    None,
    /// This token or, if the tokenizer has no such token, the tokens of this text.
    Text(String),
}

impl Separator {
    /// Returns `true` for [`Separator::Auto`].
    pub fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

/// Source of the validation samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValidationSource {
    /// This fraction of the training data, in (0, 1), held out from training: the end of text and tokens, or
    /// random rows of tables and images.
    Fraction(f64),
    /// These files, glob patterns or URLs.
    Files(Vec<String>),
}
