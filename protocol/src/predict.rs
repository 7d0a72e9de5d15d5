//! What is asked of `dtrain worker predict` and `dtrain worker evaluate`, and what they answer.

use dtrain_recipes::{Data, Model};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A trained model, and how to read what it is applied to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainedModel {
    /// The model.
    pub model: Model,
    /// The data it was trained on.
    pub data: Data,
    /// Folder that relative data paths start from.
    pub data_root: PathBuf,
    /// Folder of a committed checkpoint.
    pub checkpoint: PathBuf,
    /// Threads for compute on the CPU.
    pub threads: u32,
}

/// Classify rows of tables, or images.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PredictRequest {
    /// The model; an mlp or a cnn.
    pub trained: TrainedModel,
    /// Files or glob patterns, from the working directory: tables, images, or IDX files of images.
    pub inputs: Vec<String>,
    /// How many of the most probable classes are given; at least 1.
    pub top: u32,
}

/// An answer to a [`PredictRequest`]; any number of `Rows`, then `Done`, `Refused` or `Failed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PredictResponse {
    /// The classes of the next samples, in the order of the inputs.
    Rows(Vec<Prediction>),
    /// All samples are classified.
    Done,
    /// What the user named is not what the model reads, and why.
    Refused(String),
    /// The request cannot be met, and why.
    Failed(String),
}

/// The classes of one sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// The file it is in.
    pub file: String,
    /// Its number in a table or an IDX file, from 1; `None` where the file is one image.
    pub row: Option<u64>,
    /// The most probable classes, best first.
    pub classes: Vec<ClassScore>,
}

/// How much speaks for a class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassScore {
    /// Its name, or its number where the data has no names.
    pub class: String,
    /// By the softmax over all classes.
    pub probability: f64,
    /// The score before the softmax.
    pub logit: f32,
}

/// Measure a model on samples whose classes or next tokens are known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluateRequest {
    /// The model, of any kind but a foreign command.
    pub trained: TrainedModel,
    /// Files or glob patterns, from the working directory, in the format of the data; empty: the validation data of the
    /// recipe.
    pub files: Vec<String>,
    /// The label files of `files`, where these are IDX files.
    pub labels: Vec<String>,
}

/// An answer to an [`EvaluateRequest`]; any number of `Progress`, then `Done`, `Refused`
/// or `Failed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvaluateResponse {
    /// How far it is.
    Progress {
        /// Samples measured.
        done: u64,
        /// Samples in all.
        of: u64,
    },
    /// What was measured.
    Done(Evaluation),
    /// What the user named is not what the model reads, and why.
    Refused(String),
    /// The request cannot be met, and why.
    Failed(String),
}

/// Figures of a model on some samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Samples.
    pub samples: u64,
    /// Predictions: one for each row, or for each token.
    pub predictions: u64,
    /// Mean loss of a prediction, in nats where it is the cross-entropy.
    pub loss: f64,
    /// Fraction of predictions whose most probable class was right.
    pub accuracy: f64,
    /// What only an mlp and a cnn have.
    pub classification: Option<Classification>,
}

/// Figures of a classifier.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Classification {
    /// Names of the classes, or their numbers where the data has no names.
    pub classes: Vec<String>,
    /// `confusion[actual][predicted]`: samples.
    pub confusion: Vec<Vec<u64>>,
    /// Expected calibration error over ten bins of equal width (Guo et al. 2017), in [0, 1].
    pub calibration_error: f64,
}

impl Classification {
    /// Of the samples that were predicted to be of a class, the fraction that is; `None` where there is none.
    pub fn precision(&self, class: usize) -> Option<f64> {
        ratio(self.confusion[class][class], self.confusion.iter().map(|row| row[class]).sum())
    }

    /// Of the samples of a class, the fraction that was predicted to be; `None` where there is none.
    pub fn recall(&self, class: usize) -> Option<f64> {
        ratio(self.confusion[class][class], self.confusion[class].iter().sum())
    }
}

#[expect(clippy::cast_precision_loss, reason = "sample counts are far below 2^52")]
fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn precision_counts_columns_and_recall_counts_rows() {
        let confusion = vec![vec![3, 1, 0], vec![2, 4, 0], vec![0, 0, 0]];
        let found = Classification { confusion, ..Classification::default() };
        assert_eq!((found.precision(0), found.recall(0)), (Some(0.6), Some(0.75)));
        assert_eq!((found.precision(2), found.recall(2)), (None, None));
    }
}
