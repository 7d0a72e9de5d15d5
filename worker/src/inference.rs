//! Inference on the CPU: classifies samples, and evaluates models on samples with known answers.

use crate::checkpoint::{CheckpointError, TensorReader};
use crate::comm::WorkCounter;
use crate::data::{self, Batch, DataError, DataSet, SampleSource, TrainedEncoding, UnlabelledSamples};
use crate::device;
use crate::network::ModelInput;
use crate::session;
use crate::stage::{LossFigures, Stage};
use dtrain_protocol::input_manifest::{INPUTS, PREPROCESSING, TOKENIZER};
use dtrain_protocol::{
    ClassScore, Classification, DeviceKind, EvaluateRequest, Evaluation, Failure, InputManifest, Placement,
    PredictRequest, Prediction, Preprocessing, TrainedModel,
};
use dtrain_recipes::{DataFormat, InputSignature, Model, Precision, Recompute, Url};
use std::path::{Path, PathBuf};

/// Number of rows or images in one forward pass.
const ROWS: u64 = 64;

/// Number of tokens in one forward pass, which has at least one sequence.
const TOKENS: u64 = 4096;

/// Number of bins for the expected calibration error.
const BINS: usize = 10;

/// Loads the whole of `model` on the CPU with the weights of `checkpoint`; returns the opened checkpoint
/// and the model.
pub(crate) fn open(model: &Model, checkpoint: &Path, threads: u32) -> Result<(TensorReader, Stage), Failure> {
    let other = |words: String| Failure::Other(words);
    let placement = Placement { host: 0, device: DeviceKind::Cpu, index: 0, threads };
    let device = device::open(&placement).map_err(|error| other(error.to_string()))?;
    let mut stage = Stage::build(model, 0..model.blocks(), 0, Precision::F32, Recompute::None, &device)
        .map_err(|error| other(error.to_string()))?;
    let corrupt = corrupt(checkpoint);
    let reader = TensorReader::open(checkpoint).map_err(&corrupt)?;
    session::weights(&reader, &mut stage).map_err(&corrupt)?;
    Ok((reader, stage))
}

/// Returns a conversion of errors from reading the checkpoint in `folder` to failures.
pub(crate) fn corrupt(folder: &Path) -> impl Fn(CheckpointError) -> Failure + use<> {
    let folder = folder.to_owned();
    move |error| Failure::CorruptCheckpoint { folder: folder.clone(), detail: error.to_string() }
}

/// Classifies the inputs of `request`; passes the predictions to `more`, some at a time.
///
/// `Err` unless the model is an mlp or a cnn and every input has its shape.
pub fn predict(request: &PredictRequest, more: &mut dyn FnMut(Vec<Prediction>)) -> Result<(), Failure> {
    let trained = &request.trained;
    if !matches!(trained.model, Model::Mlp(_) | Model::Cnn(_)) {
        return Err(Failure::Other(
            "only an mlp or a cnn predicts classes; this model is of another kind".into(),
        ));
    }
    let (reader, stage) = open(&trained.model, &trained.checkpoint, trained.threads)?;
    let preprocessing = preprocessing(&reader, trained)?;
    let root = working_directory()?;
    let cache = session::cache(trained.checkpoint.parent().unwrap_or(&trained.checkpoint));
    let inputs = UnlabelledSamples::open(
        &trained.data,
        &preprocessing,
        &trained.model,
        &request.inputs,
        (&root, &cache),
    )
    .map_err(data_failure)?;
    let mut begin = 0;
    while begin < inputs.len() {
        let end = inputs.len().min(begin + ROWS);
        let (origins, values) = inputs.read(begin..end).map_err(data_failure)?;
        let (samples, width) = (origins.len(), inputs.width());
        let scores = stage.scores(&ModelInput::Rows { values: &values, classes: &[], samples, width });
        let rows = origins.into_iter().zip(scores.chunks_exact(scores.len() / samples));
        let predictions = rows.map(|(origin, scores)| Prediction {
            file: origin.file,
            row: origin.row,
            classes: best(scores, request.top, &preprocessing),
        });
        more(predictions.collect());
        begin = end;
    }
    Ok(())
}

/// Returns the `top` classes with the highest scores, the highest first.
fn best(scores: &[f32], top: u32, preprocessing: &Preprocessing) -> Vec<ClassScore> {
    let probabilities = softmax(scores);
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
    let score = |class: usize| ClassScore {
        class: preprocessing.class(class),
        probability: probabilities[class],
        logit: scores[class],
    };
    order.into_iter().take(top.max(1) as usize).map(score).collect()
}

fn softmax(scores: &[f32]) -> Vec<f64> {
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f64> =
        scores.iter().map(|score| (f64::from(*score) - f64::from(largest)).exp()).collect();
    let sum = powers.iter().sum::<f64>();
    powers.into_iter().map(|power| power / sum).collect()
}

/// Evaluates the model of `request`; `tell` receives the number of samples done, and the number of all
/// samples.
pub fn evaluate(request: &EvaluateRequest, tell: &mut dyn FnMut(u64, u64)) -> Result<Evaluation, Failure> {
    let trained = &request.trained;
    let (reader, mut stage) = open(&trained.model, &trained.checkpoint, trained.threads)?;
    let (source, preprocessing) = samples(request, &reader)?;
    let of = source.len();
    let at_a_time = match trained.model.reads() {
        Some(InputSignature::Tokens { context, .. }) => (TOKENS / u64::from(context.max(1))).max(1),
        Some(InputSignature::Rows { .. }) | None => ROWS,
    };
    let mut figures = LossFigures::default();
    let mut counts = match (&trained.model, trained.model.reads()) {
        (Model::Mlp(_) | Model::Cnn(_), Some(InputSignature::Rows { classes, .. })) => {
            Some(ClassifierTotals::new(classes as usize))
        }
        _ => None,
    };
    let mut begin = 0;
    tell(0, of);
    while begin < of {
        let end = of.min(begin + at_a_time);
        let batch = source.read(&(begin..end).collect::<Vec<_>>()).map_err(data_failure)?;
        match (&mut counts, &batch) {
            (Some(counts), Batch::Rows { classes, samples, .. }) => {
                let scores = stage.scores(&ModelInput::of(&batch));
                for (scores, actual) in scores.chunks_exact(scores.len() / samples).zip(classes) {
                    counts.add(scores, *actual as usize, &mut figures);
                }
            }
            _ => {
                let found = stage.evaluate(&ModelInput::of(&batch));
                figures.loss_sum += found.loss_sum;
                figures.hits += found.hits;
                figures.count += found.count;
            }
        }
        begin = end;
        tell(begin, of);
    }
    Ok(Evaluation {
        samples: of,
        predictions: figures.count,
        loss: figures.loss_sum / figures.count as f64,
        accuracy: figures.hits as f64 / figures.count as f64,
        classification: counts.map(|counts| counts.classification(&preprocessing)),
    })
}

/// Returns the samples that the model is evaluated on, and the names of their classes.
fn samples(
    request: &EvaluateRequest,
    reader: &TensorReader,
) -> Result<(Box<dyn SampleSource>, Preprocessing), Failure> {
    let EvaluateRequest { trained, files, labels } = request;
    if files.is_empty() {
        let opened = recipe_data(reader, trained)?;
        let recorded = reader.file(INPUTS).map_err(corrupt(&trained.checkpoint))?;
        let recorded = recorded.and_then(|json| serde_json::from_slice::<InputManifest>(&json).ok());
        let differences = recorded.map(|then| then.differences(&opened.inputs())).unwrap_or_default();
        if !differences.is_empty() {
            return Err(Failure::Data(format!(
                "the data has changed since training: {}; restore it, or name files with `--data`",
                differences.join("; ")
            )));
        }
        return Ok((opened.valid, opened.preprocessing.unwrap_or_default()));
    }
    let preprocessing = preprocessing(reader, trained)?;
    let tokenizer = reader.file(TOKENIZER).map_err(corrupt(&trained.checkpoint))?;
    let root = working_directory()?;
    let absolute = |patterns: &[String]| {
        let absolute = |name: &String| {
            if Url::is_url(name) { name.clone() } else { root.join(name).display().to_string() }
        };
        patterns.iter().map(absolute).collect::<Vec<_>>()
    };
    let (files, labels) = (absolute(files), absolute(labels));
    let fixed = TrainedEncoding { preprocessing: &preprocessing, tokenizer: tokenizer.as_deref() };
    let cache = session::cache(trained.checkpoint.parent().unwrap_or(&trained.checkpoint));
    let source =
        data::labelled(&trained.data, (&files, &labels), &trained.data_root, &trained.model, &cache, &fixed)
            .map_err(data_failure)?;
    Ok((source, preprocessing))
}

/// Returns the preprocessing in the checkpoint, otherwise that of the training data.
pub(crate) fn preprocessing(reader: &TensorReader, trained: &TrainedModel) -> Result<Preprocessing, Failure> {
    if let Some(json) = reader.file(PREPROCESSING).map_err(corrupt(&trained.checkpoint))? {
        return serde_json::from_slice(&json).map_err(|error| Failure::CorruptCheckpoint {
            folder: trained.checkpoint.clone(),
            detail: format!("{PREPROCESSING}: {error}"),
        });
    }
    match trained.data.format {
        // An older version wrote the checkpoint, or it is of step 0.
        DataFormat::Csv { .. } | DataFormat::Parquet { .. } | DataFormat::Images { .. } => {
            Ok(recipe_data(reader, trained)?.preprocessing.unwrap_or_default())
        }
        DataFormat::Idx { .. }
        | DataFormat::Text { .. }
        | DataFormat::Chat { .. }
        | DataFormat::Tokens { .. } => Ok(Preprocessing::default()),
    }
}

/// Opens the data of the model's recipe, with the tokenizer in the checkpoint.
fn recipe_data(reader: &TensorReader, trained: &TrainedModel) -> Result<DataSet, Failure> {
    let TrainedModel { model, data, data_root, checkpoint, .. } = trained;
    let tokenizer = reader.file(TOKENIZER).map_err(corrupt(checkpoint))?;
    let cache = session::cache(checkpoint.parent().unwrap_or(checkpoint));
    data::open_with(data, data_root, model, &cache, tokenizer.as_deref(), &WorkCounter::default(), &|_| ())
        .map_err(|error| Failure::Data(error.to_string()))
}

/// Converts an error about data files that the user named on the command line to a failure.
fn data_failure(error: DataError) -> Failure {
    Failure::Data(match error {
        DataError::NoFile { pattern, .. } => {
            format!("no file matches `{pattern}`; paths start from the working directory")
        }
        error => error.to_string(),
    })
}

fn working_directory() -> Result<PathBuf, Failure> {
    std::env::current_dir().map_err(|error| Failure::Other(format!("the working directory: {error}")))
}

/// Totals over the samples that a classifier was evaluated on.
struct ClassifierTotals {
    /// Confusion matrix: number of samples, as `[actual class][predicted class]`.
    confusion: Vec<Vec<u64>>,
    /// Number of samples, sum of confidences, and number of hits in each bin.
    bins: [(u64, f64, u64); BINS],
}

impl ClassifierTotals {
    fn new(classes: usize) -> Self {
        Self { confusion: vec![vec![0; classes]; classes], bins: [(0, 0.0, 0); BINS] }
    }

    fn add(&mut self, scores: &[f32], actual: usize, figures: &mut LossFigures) {
        let probabilities = softmax(scores);
        let largest = |best: usize, class: usize| if scores[class] > scores[best] { class } else { best };
        let predicted = (1..scores.len()).fold(0, largest);
        let is_hit = predicted == actual;
        // Not the logarithm of the probability, which may underflow.
        let top = f64::from(scores[predicted]);
        let sum = scores.iter().map(|score| (f64::from(*score) - top).exp()).sum::<f64>();
        figures.loss_sum += sum.ln() + top - f64::from(scores[actual]);
        figures.hits += u64::from(is_hit);
        figures.count += 1;
        self.confusion[actual][predicted] += 1;
        let confidence = probabilities[predicted];
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in 0..=BINS")]
        // Bins are closed above: (0, 0.1], (0.1, 0.2], …
        let bin = ((confidence * BINS as f64).ceil() as usize).clamp(1, BINS) - 1;
        let (samples, sum, hits) = &mut self.bins[bin];
        *samples += 1;
        *sum += confidence;
        *hits += u64::from(is_hit);
    }

    /// Returns the expected calibration error: the mean distance between accuracy and confidence, each
    /// bin weighted by its number of samples.
    fn calibration_error(&self) -> f64 {
        let samples: u64 = self.bins.iter().map(|(samples, ..)| samples).sum();
        let distance: f64 =
            self.bins.iter().map(|(_, confidence, hits)| (confidence - *hits as f64).abs()).sum();
        distance / samples.max(1) as f64
    }

    fn classification(self, preprocessing: &Preprocessing) -> Classification {
        Classification {
            classes: (0..self.confusion.len()).map(|class| preprocessing.class(class)).collect(),
            calibration_error: self.calibration_error(),
            confusion: self.confusion,
        }
    }
}

#[cfg(test)]
mod tests;
