//! Training and validation data of a recipe: formats, tokenizers and files.

use crate::keyword_enum::keyword_enum;
use serde::{Deserialize, Serialize};

/// The training and validation data of a recipe. Paths are relative to the folder of the recipe that names
/// them; a path may also be a [`Url`](crate::Url).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Data {
    /// Format of the data files.
    pub format: DataFormat,
    /// Files, glob patterns or URLs of the training data, in order.
    pub train: Vec<String>,
    /// Source of the validation samples.
    pub valid: ValidationSource,
    /// Fraction of the training data that is used, in (0, 1].
    pub fraction: f64,
    /// Seed of the shuffle that tables and IDX files get before `valid` and `fraction` split them; `None` for
    /// other data, and in recipes of older versions, which split rows in file order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mix: Option<u64>,
}

/// The format of data files, with its options.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "format", rename_all = "snake_case")]
pub enum DataFormat {
    /// Text files, JSON lines or Parquet files that hold documents of text.
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
    /// JSON records of conversations, which a chat template turns into text.
    Chat {
        /// Path of the `tokenizer.json`; the chat template is beside it unless `template` names one.
        tokenizer: String,
        /// Path of the chat template; `None` for that of the tokenizer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        template: Option<String>,
        /// Tokens that count in the loss.
        loss_on: LossOn,
        /// `true` if several conversations share a sequence, apart from each other.
        packing: bool,
    },
    /// Token shards: raw little-endian `u16` (nanoGPT) or the llm.c shard with its 1,024-byte header.
    Tokens {
        /// Path of the `tokenizer.json` that made the token shards; `None` if the recipe names none.
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
    /// PNG and JPEG images, each in a folder named after its class.
    Images {
        /// `true` to resize images that do not have the model's height and width.
        resize: bool,
    },
    /// CSV tables with a header row, fields separated by commas, semicolons, tabs or vertical bars.
    Csv(Columns),
    /// Parquet tables, whose rows are samples.
    Parquet(Columns),
}

/// The roles of the columns of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Columns {
    /// Name of the column that holds the class.
    pub target: String,
    /// Names of the columns that the model does not read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignore: Vec<String>,
}

impl Columns {
    /// Returns the column roles of a table with the class in `target`, in which the model reads every other
    /// column.
    pub fn of(target: &str) -> Self {
        Self { target: target.to_owned(), ignore: Vec::new() }
    }
}

keyword_enum! {
    /// A keyword for `data.format`.
    pub enum DataKind {
        /// Text files, each one document.
        Text = "text",
        /// JSON lines, each one document.
        Jsonl = "jsonl",
        /// JSON records of conversations.
        Chat = "chat",
        /// Token shards, which hold tokens instead of text.
        Tokens = "tokens",
        /// IDX images and labels.
        Idx = "idx",
        /// CSV tables with a header row.
        Csv = "csv",
        /// Parquet files, which hold documents of text or rows of a table.
        Parquet = "parquet",
        /// PNG and JPEG images.
        Images = "images",
    }
}

keyword_enum! {
    /// The tokens of a conversation that count in the loss.
    pub enum LossOn {
        /// Those that the model writes: answers, and the ends of their turns.
        Answers = "answers",
        /// All tokens.
        All = "all",
    }
}

impl DataKind {
    /// Returns `true` if text models read documents from files of this format; other models read the rows of
    /// Parquet files as tables.
    pub(crate) fn is_text(self) -> bool {
        match self {
            Self::Text | Self::Jsonl | Self::Parquet => true,
            Self::Chat | Self::Tokens | Self::Idx | Self::Csv | Self::Images => false,
        }
    }
}

/// The unit of a text corpus that counts as one document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Documents {
    /// Each text file is a document.
    #[default]
    Files,
    /// Each JSON line is a document, with its text in this field.
    JsonLines(String),
    /// Each row of a Parquet file is a document, with its text in this column.
    Parquet(String),
}

impl Documents {
    /// Returns `true` if each text file is a document ([`Documents::Files`]).
    pub fn is_files(&self) -> bool {
        *self == Self::Files
    }
}

/// A tokenizer, which turns text into tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tokenizer {
    /// Each byte is a token; the vocabulary size is 256.
    Bytes,
    /// A byte-level BPE tokenizer with this vocabulary size, trained on the training text.
    Bpe(u32),
    /// The tokenizer in this `tokenizer.json`, a path or a URL, in the format of Hugging Face tokenizers.
    File(String),
}

/// The token or text that is inserted after each document of a text corpus.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Separator {
    /// The end-of-text token of the tokenizer; without one, a line break after each JSON line or row and
    /// nothing after a text file.
    #[default]
    Auto,
    /// Documents follow each other without a separator.
    None,
    /// This token or, if the tokenizer has no such token, the tokens of this text.
    Text(String),
}

impl Separator {
    /// Returns `true` if the tokenizer decides the separator ([`Separator::Auto`]).
    pub fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

/// The source of the validation samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValidationSource {
    /// This fraction of the training data, in (0, 1), held out from training: the end of text and tokens, or
    /// random rows of tables and images.
    Fraction(f64),
    /// Separate validation data: these files, glob patterns or URLs.
    Files(Vec<String>),
}
