//! Data sets: training and validation samples.
//!
//! [`open`] turns the recipe's data section into two numbered lists of samples. The order in which they are
//! read is that of [`dtrain_protocol::shuffle`]. Files are read in place at the offset of a sample, so a
//! data set may be larger than memory, and must not change while it is read. Tables (CSV, Parquet) are kept
//! in memory, and in an unnamed file if they are large; class labels are kept in memory.

mod bpe;
mod cache;
mod chat;
mod corpus;
mod decontaminate;
mod describe;
mod document;
mod download;
mod error;
mod file_lock;
mod file_type;
mod files;
mod http;
mod idx;
mod images;
mod jpeg;
mod json;
mod json_record;
mod labelled;
mod micro_batch_loader;
mod notes;
mod overlap;
mod packing;
mod parquet_file;
mod parquet_pages;
mod parquet_text;
mod prefetch;
mod preparation;
mod split;
mod table;
mod text_corpus;
mod tokenize;
mod tokenizer;
mod tokens;
mod transfer;
mod unlabelled;

#[cfg(test)]
mod tests;

pub use chat::holds_conversations;
pub use describe::{CorpusFacts, FileFacts, corpus, files, table_facts, unpacked_bytes};
pub use download::{downloaded, keep_as_downloaded};
pub use error::DataError;
pub(crate) use file_lock::hold as hold_lock;
pub use files::{kind_of_file, matching};
pub(crate) use http::{BearerToken, HttpClient, HttpError};
pub use labelled::{TrainedEncoding, labelled};
pub(crate) use micro_batch_loader::MicroBatchLoader;
pub use notes::notes;
pub use prefetch::Prefetch;
pub(crate) use preparation::PreparationObserver;
pub use preparation::{DownloadProgress, PreparationStep, TokenizationProgress};
pub use table::{ColumnFacts, ColumnKind, TableFacts};
pub use tokenizer::TextTokenizer;
pub use tokens::TokenRange;
pub(crate) use transfer::{
    Backoff, DownloadError, DownloadSource, FileDigest, beside, download as download_file, on_disk,
};
pub use unlabelled::{SampleOrigin, UnlabelledSamples};

use crate::comm::WorkCounter;
use chat::ChatSettings;
use dtrain_protocol::{InputFile, InputManifest, Preprocessing};
use dtrain_recipes::{Data, DataFormat, InputSignature, Model};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use table::TabularFormat;
use text_corpus::CorpusSettings;

/// The training and validation samples of a recipe.
pub struct DataSet {
    /// Samples to train on, in the order of their numbers.
    pub train: Box<dyn SampleSource>,
    /// Samples for validation, which are never trained on.
    pub valid: Box<dyn SampleSource>,
    /// Data files, in the order in which they are read, with their hashes.
    pub files: Vec<InputFile>,
    /// Tokenizer of the text; `None` if the data is not text.
    pub tokenizer: Option<TextTokenizer>,
    /// Preprocessing of rows and names of classes; `None` for tokens and IDX files.
    pub preprocessing: Option<Preprocessing>,
    /// Warnings about the data, for the user.
    pub warnings: Vec<String>,
}

/// A numbered list of samples, which any thread may read.
pub trait SampleSource: Send + Sync {
    /// Returns the number of samples; at least 1 in a [`DataSet`].
    fn len(&self) -> u64;

    /// Returns `true` if the source has no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the place of the samples in token files; `None` if they are not windows of tokens, and `Err` if
    /// a file cannot be read by another program.
    fn token_windows(&self) -> Option<Result<TokenWindows, DataError>> {
        None
    }

    /// Returns the number of targets that count in the sample number `index`; `None` if all targets of all samples
    /// count. Packed samples are those of which some may not.
    fn counted_targets(&self, _index: u64) -> Option<u64> {
        None
    }

    /// Returns the samples with the numbers `indices`, in this order. Panics if a number is not below
    /// [`SampleSource::len`].
    fn read(&self, indices: &[u64]) -> Result<Batch, DataError>;
}

/// Samples that are windows of tokens in files, for programs that read the files themselves. Sample `i` is the
/// `context + 1` tokens from `first + i * context` on, of the segments joined end to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TokenWindows {
    /// Ranges of token files, joined end to end.
    pub segments: Vec<TokenRange>,
    /// Index of the first token of the first sample.
    pub first: u64,
    /// Number of samples.
    pub samples: u64,
}

/// Samples that are read and computed together.
#[derive(Clone, Debug, PartialEq)]
pub enum Batch {
    /// Sequences of tokens, for models that read tokens.
    Tokens {
        /// Input tokens, `[samples, length]`.
        inputs: Vec<u32>,
        /// The token that follows each input, `[samples, length]`.
        targets: Vec<u32>,
        /// Number of sequences.
        samples: usize,
        /// Number of tokens in each sequence.
        length: usize,
        /// Documents of packed sequences; `None` if each sequence is one document and every target counts.
        packed: Option<PackedDocuments>,
    },
    /// Rows of numbers, for other models; images are rows `[channel, row, column]`.
    Rows {
        /// Values of all rows, `[samples, width]`.
        values: Vec<f32>,
        /// Class of each row, `[samples]`.
        classes: Vec<u32>,
        /// Number of rows.
        samples: usize,
        /// Number of values in each row.
        width: usize,
    },
}

/// A target that does not count in the loss.
pub const IGNORED: u32 = u32::MAX;

/// The documents that are packed into sequences, and the number of targets that count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedDocuments {
    /// Position of the first token of each token's document, `[samples, length]` of the whole sequences.
    pub starts: Arc<[u32]>,
    /// Number of tokens in each whole sequence, of which a rank may hold a part.
    pub length: usize,
    /// Number of targets that count in all samples of the optimizer step; 0 outside of training.
    pub step_targets: u64,
}

impl Batch {
    /// Returns the number of samples in the batch.
    pub fn samples(&self) -> usize {
        match self {
            Self::Tokens { samples, .. } | Self::Rows { samples, .. } => *samples,
        }
    }
}

impl DataSet {
    /// Returns the description of the data that a checkpoint records.
    pub fn inputs(&self) -> InputManifest {
        let (train_samples, valid_samples) = (self.train.len(), self.valid.len());
        InputManifest { train_samples, valid_samples, files: self.files.clone() }
    }

    /// Fails if the training data has fewer samples than one optimizer step takes.
    pub fn fill_a_batch(&self, batch: u64) -> Result<(), DataError> {
        let found = self.train.len();
        if found >= batch {
            return Ok(());
        }
        let what = format!("{found} samples to train on, and one step takes {batch}");
        Err(DataError::TooFew { what, hint: "use more data, a smaller `train.batch`, or a smaller `valid`" })
    }
}

/// Downloads the files of a recipe's data whose URLs this host has not downloaded yet. `tell` receives
/// the progress.
pub fn fetch(data: &Data, tell: &dyn Fn(PreparationStep<'_>)) -> Result<(), DataError> {
    download::fetch(data, &PreparationObserver { progress: &WorkCounter::default(), tell })
}

/// Opens the data of a recipe for `model`. Relative paths start from `root`; `cache` stores trained
/// tokenizers and tokenized text. Several ranks may call this at once.
pub fn open(data: &Data, root: &Path, model: &Model, cache: &Path) -> Result<DataSet, DataError> {
    open_with(data, root, model, cache, None, &WorkCounter::default(), &|_| ())
}

/// Opens data like [`open`], with the tokenizer of a checkpoint, as JSON, instead of training one.
///
/// Validation files are not trained on, even if both keys name them; [`notes()`] lists them.
///
/// While files are downloaded and text is tokenized, which may take hours, `progress` advances and `tell`
/// receives the progress.
pub fn open_with(
    data: &Data,
    root: &Path,
    model: &Model,
    cache: &Path,
    trained: Option<&[u8]>,
    progress: &WorkCounter,
    tell: &dyn Fn(PreparationStep<'_>),
) -> Result<DataSet, DataError> {
    let watch = PreparationObserver { progress, tell };
    download::fetch(data, &watch)?;
    open_apart(&*decontaminate::without_validation_files(data, root)?, root, model, cache, trained, &watch)
}

/// Opens data whose files are all on this host, without removing validation files from the training
/// files.
fn open_apart(
    data: &Data,
    root: &Path,
    model: &Model,
    cache: &Path,
    trained: Option<&[u8]>,
    watch: &PreparationObserver<'_>,
) -> Result<DataSet, DataError> {
    let Some(reads) = model.reads() else {
        return Err(DataError::Unfit("a foreign command reads its own data".into()));
    };
    match (&data.format, reads) {
        (DataFormat::Text { tokenizer, documents, separator }, InputSignature::Tokens { context, vocab }) => {
            let text = CorpusSettings { tokenizer, documents, separator };
            let sequences = Sequences { context, vocab };
            text.open(data, root, sequences, cache, trained, watch)
        }
        (DataFormat::Chat { .. }, InputSignature::Tokens { context, vocab }) => {
            let settings = chat_settings(&data.format).expect("the format is chat");
            settings.open(data, root, Sequences { context, vocab }, cache, watch)
        }
        (DataFormat::Tokens { tokenizer }, InputSignature::Tokens { context, vocab }) => {
            tokens::open(data, tokenizer.as_deref(), root, Sequences { context, vocab })
        }
        (DataFormat::Idx { labels, valid_labels }, InputSignature::Rows { .. }) => {
            idx::open(data, labels, valid_labels, root, model)
        }
        (DataFormat::Csv(columns), InputSignature::Rows { .. }) => {
            table::open(data, (TabularFormat::Csv, columns), root, model, cache)
        }
        (DataFormat::Parquet(columns), InputSignature::Rows { .. }) => {
            table::open(data, (TabularFormat::Parquet, columns), root, model, cache)
        }
        (DataFormat::Images { resize }, InputSignature::Rows { .. }) => images::open(data, *resize, root, model),
        (DataFormat::Text { .. } | DataFormat::Chat { .. } | DataFormat::Tokens { .. }, InputSignature::Rows { .. }) => Err(DataError::Unfit(
            "an mlp or a cnn reads rows of numbers (`csv`, `parquet`, `idx` or `images`), not tokens; a decoder \
             reads tokens"
                .into(),
        )),
        (
            DataFormat::Idx { .. }
            | DataFormat::Csv { .. }
            | DataFormat::Parquet { .. }
            | DataFormat::Images { .. },
            InputSignature::Tokens { .. },
        ) => Err(DataError::Unfit(
            "a decoder reads tokens (`text`, `jsonl`, `parquet`, `chat` or `tokens`), not rows of numbers; an mlp or a cnn \
             reads rows"
                .into(),
        )),
    }
}

/// Returns the names of the files in `cache` that opening a recipe's data would use or write. `trained`
/// are tokenizers of checkpoints, as JSON, that may be used with the data.
pub fn cached(data: &Data, root: &Path, cache: &Path, trained: &[Vec<u8>]) -> Result<Vec<String>, DataError> {
    match &data.format {
        DataFormat::Text { tokenizer, documents, separator } => {
            CorpusSettings { tokenizer, documents, separator }.cached(
                &*decontaminate::without_validation_files(data, root)?,
                root,
                cache,
                trained,
            )
        }
        DataFormat::Chat { .. } => match chat_settings(&data.format) {
            Some(settings) => settings.cached(data, root),
            None => Ok(Vec::new()),
        },
        DataFormat::Tokens { .. }
        | DataFormat::Idx { .. }
        | DataFormat::Csv { .. }
        | DataFormat::Parquet { .. }
        | DataFormat::Images { .. } => Ok(Vec::new()),
    }
}

/// Returns the settings of conversations; `None` for other formats.
fn chat_settings(format: &DataFormat) -> Option<ChatSettings<'_>> {
    let DataFormat::Chat { tokenizer, template, loss_on, packing } = format else { return None };
    Some(ChatSettings { tokenizer, template: template.as_deref(), loss_on: *loss_on, packing: *packing })
}

/// Returns the tokens of training conversation number `index`, each as text with whether it counts in the loss;
/// `None` if there are fewer, or the data has another format.
pub fn chat_sample(data: &Data, root: &Path, index: usize) -> Result<Option<Vec<(String, bool)>>, DataError> {
    match chat_settings(&data.format) {
        Some(settings) => settings.sample(data, root, index),
        None => Ok(None),
    }
}

/// Returns the files in `cache` that [`open`] has written, and the unfinished files of processes that are
/// gone.
pub fn all_cached(cache: &Path) -> Vec<PathBuf> {
    cache::list_cached(cache)
}

/// Removes a file that [`all_cached`] lists; returns `Ok(false)` if a process is writing or opening it.
pub fn discard_cached(path: &Path) -> Result<bool, DataError> {
    cache::discard(path)
}

/// Returns the number of values of one sample and the number of classes that `model` expects; `None` if
/// it reads tokens.
fn row_shape(model: &Model) -> Option<(usize, u32)> {
    match model.reads() {
        Some(InputSignature::Rows { inputs, classes }) => Some((inputs as usize, classes)),
        Some(InputSignature::Tokens { .. }) | None => None,
    }
}

/// Length and vocabulary of the token sequences that a model expects.
#[derive(Clone, Copy, Debug)]
struct Sequences {
    /// Number of tokens in each sequence.
    context: u32,
    /// Size of the model's vocabulary.
    vocab: u32,
}
