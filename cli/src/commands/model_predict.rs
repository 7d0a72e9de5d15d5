//! `dtrain model predict`: classifies samples with a trained model.

use crate::args::PredictArgs;
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::model_query::{data_refused, query_worker, worker_failed};
use crate::output::document;
use crate::render::table::csv;
use crate::trained_model::trained_checkpoint;
use crate::trials;
use dtrain_protocol::{PredictRequest, PredictResponse, Prediction};
use dtrain_recipes::Model;
use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// Classifies samples with the model in the newest checkpoint of a trial.
pub(crate) fn run(context: &Context, args: &PredictArgs) -> CommandResult {
    let history = trials::read_history(context)?;
    let trial = trials::trial(context, &history, &args.trial)?;
    let (trained, _) = trained_checkpoint(context, &trial, args.step, |model| match model {
        Model::Mlp(_) | Model::Cnn(_) => Ok(()),
        Model::Decoder(_) => Err("is a decoder, which `dtrain model sample` asks for text".into()),
        Model::Custom(_) | Model::Command(_) => {
            Err("is a model of your own; an mlp or a cnn predicts classes".into())
        }
    })?;
    let request = PredictRequest { trained, inputs: args.inputs.clone(), top: args.top };
    let mut to = PredictionSink::open(context, args.output.as_deref())?;
    // The header is written with the first rows, so that an early failure prints nothing that looks like a
    // result.
    let titles = ["file", "row", "rank", "class", "probability"].map(Cow::Borrowed).to_vec();
    let mut titles = if context.out.json { String::new() } else { csv([titles]) };
    let what = "the model could not predict";
    let failed = worker_failed(what);
    query_worker("predict", &request, &failed, &mut |answer| match answer {
        PredictResponse::Rows(predictions) => {
            let text = if context.out.json { lines(&predictions)? } else { rows(&predictions) };
            to.write(&(std::mem::take(&mut titles) + &text)).map(ControlFlow::Continue)
        }
        PredictResponse::Done => to.write(&titles).map(ControlFlow::Break),
        PredictResponse::Refused(reason) => Err(data_refused(what, reason)),
        PredictResponse::Failed(reason) => Err(failed(reason)),
    })?;
    to.finish()?;
    Ok(ExitReason::Done)
}

/// Formats predictions as CSV, one row per class of each sample.
fn rows(predictions: &[Prediction]) -> String {
    let of_class = |prediction: &Prediction| {
        let row = prediction.row.map(|row| row.to_string()).unwrap_or_default();
        let file = prediction.file.clone();
        let ranked = prediction.classes.clone().into_iter().zip(1u32..);
        ranked.map(move |(class, rank)| {
            let probability = format!("{:.6}", class.probability);
            [file.clone(), row.clone(), rank.to_string(), class.class, probability]
                .map(Cow::<'static, str>::Owned)
                .to_vec()
        })
    };
    csv(predictions.iter().flat_map(of_class))
}

fn lines(predictions: &[Prediction]) -> Result<String, CommandError> {
    predictions.iter().map(|prediction| Ok(document("prediction", prediction, false)? + "\n")).collect()
}

/// Destination of predictions.
enum PredictionSink<'a> {
    Stdout(&'a Context),
    /// A file with a temporary name, renamed when complete.
    File {
        file: BufWriter<File>,
        temporary: PathBuf,
        path: PathBuf,
    },
}

impl<'a> PredictionSink<'a> {
    fn open(context: &'a Context, path: Option<&Path>) -> Result<Self, CommandError> {
        let Some(path) = path else { return Ok(Self::Stdout(context)) };
        let Some(name) = path.file_name() else {
            return Err(CommandError::new(
                ExitReason::Usage,
                format!("{} is not the name of a file", path.display()),
            ));
        };
        let temporary = path.with_file_name(format!(".{}.new", name.to_string_lossy()));
        let file = File::create(&temporary).map_err(|error| cannot(path, &error))?;
        Ok(Self::File { file: BufWriter::new(file), temporary, path: path.to_owned() })
    }

    fn write(&mut self, text: &str) -> Result<(), CommandError> {
        match self {
            Self::Stdout(context) => context.out.file(text),
            Self::File { file, path, .. } => {
                file.write_all(text.as_bytes()).map_err(|error| cannot(path, &error))
            }
        }
    }

    fn finish(mut self) -> Result<(), CommandError> {
        let Self::File { file, temporary, path } = &mut self else { return Ok(()) };
        file.flush().and_then(|()| fs::rename(&*temporary, &*path)).map_err(|error| cannot(path, &error))
    }
}

impl Drop for PredictionSink<'_> {
    fn drop(&mut self) {
        if let Self::File { temporary, .. } = self {
            // An incomplete temporary file is removed, so that it is not mistaken for a result.
            drop(fs::remove_file(temporary));
        }
    }
}

fn cannot(path: &Path, error: &io::Error) -> CommandError {
    CommandError::new(ExitReason::Infrastructure, format!("cannot write {}", path.display()))
        .cause(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_protocol::ClassScore;

    #[test]
    fn every_class_of_a_sample_has_a_row_and_images_have_no_number() {
        let class = |class: &str, probability| ClassScore { class: class.into(), probability, logit: 1.0 };
        let predictions = [
            Prediction {
                file: "a,b.csv".into(),
                row: Some(2),
                classes: vec![class("x", 0.75), class("y", 0.25)],
            },
            Prediction { file: "c.png".into(), row: None, classes: vec![class("x", 1.0)] },
        ];
        assert_eq!(
            rows(&predictions),
            "\"a,b.csv\",2,1,x,0.750000\n\"a,b.csv\",2,2,y,0.250000\nc.png,,1,x,1.000000\n"
        );
    }
}
