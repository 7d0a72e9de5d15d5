//! Messages of `dtrain worker predict` and `dtrain worker evaluate`.

use dtrain_recipes::{Data, Model};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A trained model, with the data and the checkpoint that it needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainedModel {
    /// Sizes of the model.
    pub model: Model,
    /// Data on which the model was trained, with its tokenizer or columns.
    pub data: Data,
    /// Folder that relative data paths start from.
    pub data_root: PathBuf,
    /// Folder of a committed checkpoint with the weights.
    pub checkpoint: PathBuf,
    /// Number of threads that compute on the CPU.
    pub threads: u32,
}

/// A request to classify rows of tables, or images.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PredictRequest {
    /// Model to classify with, a trained mlp or cnn.
    pub trained: TrainedModel,
    /// Files or glob patterns, from the working directory: tables, images, or IDX files of images.
    pub inputs: Vec<String>,
    /// Number of most probable classes to return; at least 1.
    pub top: u32,
}

/// A response to a [`PredictRequest`]; any number of `Rows`, then `Done`, `Refused` or `Failed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PredictResponse {
    /// Predicted classes of the next samples, in the order of the inputs.
    Rows(Vec<Prediction>),
    /// All samples are classified.
    Done,
    /// The inputs do not fit the model, for this reason.
    Refused(String),
    /// The request failed, for this reason.
    Failed(String),
}

/// The predicted classes of one sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// File that contains the sample.
    pub file: String,
    /// Row of the sample in a table or an IDX file, from 1; `None` if the file is a single image.
    pub row: Option<u64>,
    /// The most probable classes, best first.
    pub classes: Vec<ClassScore>,
}

/// The score of one class for one sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassScore {
    /// Name of the class, or its number if the data has no names.
    pub class: String,
    /// Probability of the class: the softmax over all classes.
    pub probability: f64,
    /// Score of the class before the softmax.
    pub logit: f32,
}

/// A request to evaluate a model on labeled samples or on text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluateRequest {
    /// Model to evaluate, of any kind but a foreign command.
    pub trained: TrainedModel,
    /// Files or glob patterns, from the working directory, in the format of the data; empty for the
    /// validation data of the recipe.
    pub files: Vec<String>,
    /// Label files of `files`, if these are IDX files.
    pub labels: Vec<String>,
}

/// A response to an [`EvaluateRequest`]; any number of `Progress`, then `Done`, `Refused` or `Failed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvaluateResponse {
    /// The evaluation has made progress.
    Progress {
        /// Number of samples evaluated so far.
        done: u64,
        /// Number of samples to evaluate in total.
        of: u64,
    },
    /// The evaluation is complete, with these figures.
    Done(Evaluation),
    /// The files do not fit the model, for this reason.
    Refused(String),
    /// The request failed, for this reason.
    Failed(String),
}

/// The figures of an evaluation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Number of samples that were evaluated.
    pub samples: u64,
    /// Number of predictions: one per row, or per token.
    pub predictions: u64,
    /// Mean loss per prediction: the cross-entropy in nats.
    pub loss: f64,
    /// Fraction of predictions whose most probable class was right.
    pub accuracy: f64,
    /// Figures of a classifier, an mlp or a cnn; `None` for other models.
    pub classification: Option<Classification>,
}

/// The figures of a classifier.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Classification {
    /// Names of the classes, or their numbers if the data has no names.
    pub classes: Vec<String>,
    /// Confusion matrix: number of samples, as `confusion[actual][predicted]`.
    pub confusion: Vec<Vec<u64>>,
    /// Expected calibration error over ten bins of equal width (Guo et al. 2017), in [0, 1].
    pub calibration_error: f64,
}

impl Classification {
    /// Returns the precision of a class: the fraction of samples predicted as the class that belong to it;
    /// `None` if none was predicted.
    pub fn precision(&self, class: usize) -> Option<f64> {
        ratio(self.confusion[class][class], self.confusion.iter().map(|row| row[class]).sum())
    }

    /// Returns the recall of a class: the fraction of its samples that were predicted as the class; `None` if
    /// it has no samples.
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
