//! `dtrain model evaluate`: measures loss and accuracy of a trained model on data.

use crate::args::EvaluateArgs;
use crate::command_error::CommandResult;
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::model_query::{data_refused, query_worker, worker_failed};
use crate::output::PageStyle;
use crate::render::number::{loss, plain};
use crate::render::table::{StyledText, TableColumn, table};
use crate::trained_model::trained_checkpoint;
use crate::trials;
use dtrain_protocol::{Classification, EvaluateRequest, EvaluateResponse, Evaluation, StepId};
use dtrain_recipes::Model;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::fmt::Write as _;
use std::ops::ControlFlow;

/// JSON document that `dtrain model evaluate --json` prints.
#[derive(Serialize)]
struct EvaluationReport<'a> {
    trial: &'a str,
    step: StepId,
    samples: u64,
    predictions: u64,
    loss: f64,
    accuracy: f64,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    text: Option<PerplexityFigures>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    classes: Option<ClassificationFigures<'a>>,
}

/// Results that only a decoder has.
#[derive(Serialize)]
struct PerplexityFigures {
    tokens: u64,
    perplexity: f64,
    bits_per_token: f64,
}

/// Results that only a classifier has.
#[derive(Serialize)]
struct ClassificationFigures<'a> {
    calibration_error: f64,
    classes: Vec<ClassFigures<'a>>,
    /// Number of samples by class, as `confusion[actual][predicted]`.
    confusion: &'a [Vec<u64>],
}

/// Results of one class. Precision is `None` if the class was never predicted, recall if it does not occur.
#[derive(Serialize)]
struct ClassFigures<'a> {
    class: &'a str,
    samples: u64,
    precision: Option<f64>,
    recall: Option<f64>,
}

/// Evaluates the model in the newest checkpoint of a trial.
pub(crate) fn run(context: &Context, args: &EvaluateArgs) -> CommandResult {
    let history = trials::read_history(context)?;
    let trial = trials::trial(context, &history, &args.trial.trial)?;
    let (trained, step) = trained_checkpoint(context, &trial, args.step, |model| match model {
        Model::Command(_) => Err("is a program of yours, which measures its own weights".into()),
        _ => Ok(()),
    })?;
    let is_decoder = matches!(trained.model, Model::Decoder(_));
    let request = EvaluateRequest { trained, files: args.data.clone(), labels: args.labels.clone() };
    let bar = bar(context);
    let what = "the model could not be evaluated";
    let failed = worker_failed(what);
    let found = query_worker("evaluate", &request, &failed, &mut |answer| match answer {
        EvaluateResponse::Progress { done, of } => {
            bar.set_length(of);
            bar.set_position(done);
            Ok(ControlFlow::Continue(()))
        }
        EvaluateResponse::Done(found) => Ok(ControlFlow::Break(found)),
        EvaluateResponse::Refused(reason) => Err(data_refused(what, reason)),
        EvaluateResponse::Failed(reason) => Err(failed(reason)),
    });
    bar.finish_and_clear();
    let found = found?;
    let report = report(&trial.row.label, step, &found, is_decoder);
    if context.out.json {
        context.out.json("evaluation", &report)?;
    } else {
        context.out.data(&page(&report, context.out.style()))?;
    }
    Ok(ExitReason::Done)
}

fn bar(context: &Context) -> ProgressBar {
    if !context.out.draws() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("  {bar:30} {pos}/{len} samples   {eta} left");
    ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr())
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn report<'a>(trial: &'a str, step: StepId, found: &'a Evaluation, is_decoder: bool) -> EvaluationReport<'a> {
    let text = PerplexityFigures {
        tokens: found.predictions,
        perplexity: found.loss.exp(),
        bits_per_token: found.loss / std::f64::consts::LN_2,
    };
    EvaluationReport {
        trial,
        step,
        samples: found.samples,
        predictions: found.predictions,
        loss: found.loss,
        accuracy: found.accuracy,
        text: is_decoder.then_some(text),
        classes: found.classification.as_ref().map(classification_figures),
    }
}

fn classification_figures(found: &Classification) -> ClassificationFigures<'_> {
    let classes = found.classes.iter().enumerate().map(|(index, class)| ClassFigures {
        class,
        samples: found.confusion[index].iter().sum(),
        precision: found.precision(index),
        recall: found.recall(index),
    });
    ClassificationFigures {
        calibration_error: found.calibration_error,
        classes: classes.collect(),
        confusion: &found.confusion,
    }
}

/// Formats the report as text for the terminal.
fn page(report: &EvaluationReport<'_>, style: PageStyle) -> String {
    let mut page = String::new();
    let mut line = |name: &str, value: &str| _ = writeln!(page, "{name:<18} {value}");
    line("trial", &format!("{}, step {}", report.trial, report.step));
    line("samples", &report.samples.to_string());
    if let Some(text) = &report.text {
        line("tokens", &text.tokens.to_string());
    }
    line("loss", &loss(report.loss));
    if let Some(text) = &report.text {
        line("perplexity", &plain(text.perplexity));
        line("bits per token", &plain(text.bits_per_token));
    }
    line("accuracy", &percent(Some(report.accuracy)));
    let Some(of) = &report.classes else { return page };
    line("calibration error", &percent(Some(of.calibration_error)));
    let column =
        |title: String, is_right| TableColumn { title: title.into(), is_right, rank: 9, least: None };
    let titles = [("CLASS", false), ("SAMPLES", true), ("PRECISION", true), ("RECALL", true)];
    let columns: Vec<_> = titles.map(|(title, is_right)| column(title.to_owned(), is_right)).to_vec();
    let rows: Vec<Vec<StyledText>> = of
        .classes
        .iter()
        .map(|one| {
            let cells =
                [one.class.to_owned(), one.samples.to_string(), percent(one.precision), percent(one.recall)];
            cells.map(StyledText::from).to_vec()
        })
        .collect();
    page += &format!("\n{}", table(&columns, &rows, style));
    let predicted = of.classes.iter().map(|one| column(one.class.to_owned(), true));
    let columns: Vec<_> =
        std::iter::once(column("ACTUAL \\ PREDICTED".to_owned(), false)).chain(predicted).collect();
    let rows: Vec<Vec<StyledText>> = of
        .confusion
        .iter()
        .zip(&of.classes)
        .map(|(counts, one)| {
            let counts = counts.iter().map(|count| StyledText::from(count.to_string()));
            std::iter::once(StyledText::from(one.class)).chain(counts).collect()
        })
        .collect();
    page += &format!("\n{}", table(&columns, &rows, style));
    page
}

/// Formats a share as `97.25%`; a dash for `None`.
fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.2}%", 100.0 * share))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::table::tests::plain as style;

    #[test]
    fn a_page_has_the_confusion_matrix_by_name() {
        let classification = Classification {
            classes: vec!["cat".into(), "dog".into()],
            confusion: vec![vec![3, 1], vec![0, 0]],
            calibration_error: 0.125,
        };
        let found = Evaluation {
            samples: 4,
            predictions: 4,
            loss: 0.5,
            accuracy: 0.75,
            classification: Some(classification),
        };
        let page = page(&report("pets-1", StepId(9), &found, false), style(80));
        for line in [
            "calibration error  12.50%",
            "cat          4    100.00%  75.00%",
            "dog          0      0.00%       -",
        ] {
            assert!(page.lines().any(|found| found == line), "`{line}` in:\n{page}");
        }
        assert!(page.contains("ACTUAL \\ PREDICTED  cat  dog\ncat                   3    1\n"), "{page}");
    }

    #[test]
    fn a_decoder_has_a_perplexity() {
        let found = Evaluation { predictions: 8, loss: 2f64.ln(), ..Evaluation::default() };
        let text = report("t", StepId(1), &found, true).text.expect("figures of text");
        assert!((text.perplexity - 2.0).abs() < 1e-12 && (text.bits_per_token - 1.0).abs() < 1e-12);
    }
}
