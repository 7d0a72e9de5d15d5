//! Messages of `dtrain worker predict` and `dtrain worker evaluate`.

use dtrain_recipes::{Data, Model};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A trained model, with the data and the checkpoint that it needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainedModel {
    /// Sizes of the model.
    pub model: Model,
    /// The data it was trained on.
    pub data: Data,
    /// Base folder of relative data paths.
    pub data_root: PathBuf,
    /// Folder of a committed checkpoint.
    pub checkpoint: PathBuf,
    /// Threads for compute on the CPU.
    pub threads: u32,
}

/// A request to classify rows of tables, or images.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PredictRequest {
    /// A trained mlp or cnn.
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
    /// The classes of the next samples, in the order of the inputs.
    Rows(Vec<Prediction>),
    /// All samples are classified.
    Done,
    /// The inputs do not fit the model, with the reason.
    Refused(String),
    /// The request failed, with the reason.
    Failed(String),
}

/// The predicted classes of one sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// File with the sample.
    pub file: String,
    /// Row in a table or an IDX file, from 1; `None` if the file is one image.
    pub row: Option<u64>,
    /// The most probable classes, best first.
    pub classes: Vec<ClassScore>,
}

/// The score of a class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassScore {
    /// Name of the class, or its number if the data has no names.
    pub class: String,
    /// Softmax over all classes.
    pub probability: f64,
    /// Score before the softmax.
    pub logit: f32,
}

/// A request to evaluate a model on labelled samples or on text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluateRequest {
    /// A trained model of any kind but a foreign command.
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
    /// Progress of the evaluation.
    Progress {
        /// Samples evaluated so far.
        done: u64,
        /// Number of all samples.
        of: u64,
    },
    /// Figures of the evaluation.
    Done(Evaluation),
    /// The files do not fit the model, with the reason.
    Refused(String),
    /// The request failed, with the reason.
    Failed(String),
}

/// The figures of an evaluation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Number of samples.
    pub samples: u64,
    /// Number of predictions: one per row, or per token.
    pub predictions: u64,
    /// Mean loss per prediction; the cross-entropy in nats.
    pub loss: f64,
    /// Fraction of predictions whose most probable class was right.
    pub accuracy: f64,
    /// Figures that only an mlp or a cnn has.
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
    /// Returns the fraction of samples predicted as a class that belong to it; `None` if there are none.
    pub fn precision(&self, class: usize) -> Option<f64> {
        ratio(self.confusion[class][class], self.confusion.iter().map(|row| row[class]).sum())
    }

    /// Returns the fraction of samples of a class that were predicted as such; `None` if there are none.
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
