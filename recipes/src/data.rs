//! Where samples come from.

use crate::keyword_enum::keyword_enum;
use serde::{Deserialize, Serialize};

/// Training and validation data. Paths are relative to the folder of the recipe that named them; a name may also be a
/// [`Url`](crate::Url).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Data {
    /// How the files are read.
    pub format: DataFormat,
    /// Files, glob patterns or URLs of the training data, in order.
    pub train: Vec<String>,
    /// Validation data.
    pub valid: ValidationSource,
    /// Fraction of the training data that is used, in (0, 1].
    pub fraction: f64,
    /// The seed that mixes the rows of tables and IDX files before `valid` and `fraction` cut them; `None` for other
    /// data, and in recipes of older programs, which cut the rows as they stand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mix: Option<u64>,
}

/// How files are read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "format", rename_all = "snake_case")]
pub enum DataFormat {
    /// Documents of text.
    Text {
        /// How text becomes tokens.
        tokenizer: Tokenizer,
        /// Where a document begins and ends.
        #[serde(default, skip_serializing_if = "Documents::is_files")]
        documents: Documents,
        /// What follows each document.
        #[serde(default, skip_serializing_if = "Separator::is_auto")]
        separator: Separator,
    },
    /// Token shards: raw little-endian `u16` (nanoGPT) or the llm.c shard with its 1,024-byte header.
    Tokens {
        /// The `tokenizer.json` that the shards were made with, where one is named.
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
    /// PNG and JPEG images, of which each lies in the folder of its class.
    Images {
        /// Whether images of another size are made fit.
        resize: bool,
    },
    /// Tables as text with a header row, their fields separated by commas, semicolons, tabs or vertical bars.
    Csv(Columns),
    /// Parquet tables.
    Parquet(Columns),
}

/// What the columns of a table are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Columns {
    /// Name of the column with the class.
    pub target: String,
    /// Names of the columns that are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignore: Vec<String>,
}

impl Columns {
    /// A table with this target, of which every other column is used.
    pub fn of(target: &str) -> Self {
        Self { target: target.to_owned(), ignore: Vec::new() }
    }
}

keyword_enum! {
    /// What kind of files `data.format` names.
    pub enum DataKind {
        /// Documents of text, each a file.
        Text = "text",
        /// JSON lines, each with a document.
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
    /// Whether a model of text reads documents from such files; other models read rows of Parquet tables.
    pub(crate) fn is_text(self) -> bool {
        match self {
            Self::Text | Self::Jsonl | Self::Parquet => true,
            Self::Tokens | Self::Idx | Self::Csv | Self::Images => false,
        }
    }
}

/// What the documents of a text corpus are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Documents {
    /// Each text file is one.
    #[default]
    Files,
    /// Each JSON line is one, with its text in this field.
    JsonLines(String),
    /// Each row of a Parquet file is one, with its text in this column.
    Parquet(String),
}

impl Documents {
    /// Whether each text file is one.
    pub fn is_files(&self) -> bool {
        *self == Self::Files
    }
}

/// How text becomes tokens.
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

/// What follows each document of a text corpus.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Separator {
    /// The end-of-text token of the tokenizer; where it has none, a line break behind each JSON line or row and
    /// nothing behind a text file.
    #[default]
    Auto,
    /// Nothing.
    None,
    /// This token or, where the tokenizer has no such token, the tokens of this text.
    Text(String),
}

impl Separator {
    /// Whether nothing was asked for.
    pub fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

/// Where validation samples come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValidationSource {
    /// This fraction of the training data, in (0, 1), never trained on: the end of text and tokens, and any rows of tables
    /// and images.
    Fraction(f64),
    /// These files, glob patterns or URLs.
    Files(Vec<String>),
}
