//! Export of the state of trials in the Prometheus text format (version 0.0.4).

use crate::ledger::{Summary, TrialDetails, TrialStatus};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Media type of a [`MetricsPage`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Name and value of a label.
type Label<'a> = (&'a str, String);

/// Page of Prometheus metrics that is being written, trial by trial.
#[derive(Debug)]
pub struct MetricsPage {
    counts: FamilyWriter,
    /// Writers in the order of [`FAMILIES`]: all samples of a family must be adjacent.
    families: Vec<FamilyWriter>,
    now_ms: u64,
}

impl MetricsPage {
    /// Starts a page with the number of trials by status at `now_ms`, in milliseconds since the Unix epoch.
    pub fn new(counts: &BTreeMap<TrialStatus, u64>, now_ms: u64) -> Self {
        let mut text = FamilyWriter::of("dtrain_trials", "gauge", "Trials of the history by status.");
        for status in TrialStatus::ALL {
            let count = counts.get(&status).copied().unwrap_or(0);
            text.sample(&[("status", word(status))], exact(count));
        }
        let families = FAMILIES.iter().map(|family| FamilyWriter::of(family.name, family.kind, family.help));
        Self { counts: text, families: families.collect(), now_ms }
    }

    /// Adds the metrics of a trial.
    pub fn add(&mut self, trial: &TrialDetails) {
        let of = ("trial", trial.row.label.clone());
        for (family, text) in FAMILIES.iter().zip(&mut self.families) {
            (family.write)(trial, self.now_ms, &mut |labels, value| {
                let labels: Vec<_> = std::iter::once(of.clone()).chain(labels).collect();
                text.sample(&labels, value);
            });
        }
    }

    /// Returns the text of the page.
    pub fn finish(self) -> String {
        let rest: usize = self.families.iter().map(|family| family.text.len()).sum();
        let mut page = self.counts.text;
        page.reserve_exact(rest);
        for family in self.families {
            page += &family.text;
        }
        page
    }
}

/// Prometheus metric family: its name, kind and help, and the function that writes a trial's samples.
struct MetricFamily {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    write: fn(&TrialDetails, u64, EmitSample<'_, '_>),
}

/// Callback that takes the labels of a sample, other than those of the trial, and its value.
type EmitSample<'a, 'b> = &'a mut (dyn FnMut(Vec<Label<'static>>, f64) + 'b);

const FAMILIES: [MetricFamily; 14] = [
    MetricFamily {
        name: "dtrain_trial_info",
        kind: "gauge",
        help: "1; what is known of the trial is in the labels.",
        write: |trial, _, put| {
            let row = &trial.row;
            let study = row.study.clone().unwrap_or_default();
            let labels = [("id", row.id.0.clone()), ("recipe", row.recipe.clone()), ("study", study)];
            put(labels.into_iter().chain([("layout", row.layout.clone())]).collect(), 1.0);
        },
    },
    MetricFamily {
        name: "dtrain_trial_status",
        kind: "gauge",
        help: "1 for the status that the trial has, 0 for the others.",
        write: |trial, _, put| {
            for status in TrialStatus::ALL {
                put(vec![("status", word(status))], f64::from(u8::from(status == trial.row.status)));
            }
        },
    },
    MetricFamily {
        name: "dtrain_trial_step",
        kind: "gauge",
        help: "Steps completed. Falls when the trial continues from an older checkpoint.",
        write: |trial, _, put| {
            let steps = trial.figures.iter().map(|figure| figure.last_step).filter(|step| *step < EPOCH);
            put(Vec::new(), exact(steps.fold(trial.row.step, u64::max)));
        },
    },
    MetricFamily {
        name: "dtrain_trial_loss",
        kind: "gauge",
        help: "The newest training loss.",
        write: |trial, _, put| {
            if let Some(loss) = figure(trial, "loss") {
                put(Vec::new(), last(loss));
            }
        },
    },
    MetricFamily {
        name: "dtrain_trial_objective",
        kind: "gauge",
        help: "The best value of the objective so far.",
        write: |trial, _, put| {
            if let Some(best) = trial.row.best {
                put(vec![("metric", trial.row.objective.clone())], best);
            }
        },
    },
    MetricFamily {
        name: "dtrain_trial_tokens_per_second",
        kind: "gauge",
        help: "Tokens per second of the newest step, over all ranks.",
        write: |trial, _, put| {
            if let Some(speed) = figure(trial, "tokens_per_second") {
                put(Vec::new(), last(speed));
            }
        },
    },
    MetricFamily {
        name: "dtrain_trial_attempts_total",
        kind: "counter",
        help: "Launches of the trial.",
        write: |trial, _, put| put(Vec::new(), exact(trial.attempts.len() as u64)),
    },
    MetricFamily {
        name: "dtrain_trial_started_timestamp_seconds",
        kind: "gauge",
        help: "When the trial was launched, in seconds since the Unix epoch.",
        write: |trial, _, put| {
            if let Some(at_ms) = trial.row.started_ms {
                put(Vec::new(), exact(at_ms) / 1000.0);
            }
        },
    },
    MetricFamily {
        name: "dtrain_trial_checkpoints",
        kind: "gauge",
        help: "Committed checkpoints that count.",
        write: |trial, _, put| {
            let count = trial.checkpoints.iter().filter(|checkpoint| checkpoint.refused.is_none()).count();
            put(Vec::new(), exact(count as u64));
        },
    },
    MetricFamily {
        name: "dtrain_trial_checkpoint_step",
        kind: "gauge",
        help: "Steps completed in the newest committed checkpoint.",
        write: |trial, _, put| {
            if let Some((step, _)) = checkpoint(trial) {
                put(Vec::new(), exact(step));
            }
        },
    },
    MetricFamily {
        name: "dtrain_trial_checkpoint_age_seconds",
        kind: "gauge",
        help: "Seconds since the newest checkpoint was committed.",
        write: |trial, now_ms, put| {
            if let Some((_, at_ms)) = checkpoint(trial) {
                put(Vec::new(), exact(now_ms.saturating_sub(at_ms)) / 1000.0);
            }
        },
    },
    MetricFamily {
        name: "dtrain_rank_memory_bytes",
        kind: "gauge",
        help: "Peak memory of a rank in its newest step.",
        write: |trial, _, put| by_rank(trial, "memory_bytes", put),
    },
    MetricFamily {
        name: "dtrain_rank_step_seconds",
        kind: "gauge",
        help: "Seconds of the newest step of a rank.",
        write: |trial, _, put| by_rank(trial, "step_seconds", put),
    },
    MetricFamily {
        name: "dtrain_metric",
        kind: "gauge",
        help: "The newest value of every series, by its key.",
        write: |trial, _, put| {
            for figure in &trial.figures {
                put(vec![("key", figure.key.clone()), ("rank", figure.rank.to_string())], last(figure));
            }
        },
    },
];

/// Smallest number that is taken as a time in seconds since the Unix epoch: no training has so many steps.
const EPOCH: u64 = 1_000_000_000;

/// Returns the summary of the series `key`, from the lowest rank that reports it.
fn figure<'a>(trial: &'a TrialDetails, key: &str) -> Option<&'a Summary> {
    trial.figure(key)
}

fn by_rank(trial: &TrialDetails, key: &str, put: EmitSample<'_, '_>) {
    for figure in trial.figures.iter().filter(|figure| figure.key == key) {
        put(vec![("rank", figure.rank.to_string())], last(figure));
    }
}

fn last(figure: &Summary) -> f64 {
    figure.last.unwrap_or(f64::NAN)
}

/// Returns the step and the time of the newest valid checkpoint of a trial.
fn checkpoint(trial: &TrialDetails) -> Option<(u64, u64)> {
    let counts = trial.checkpoints.iter().filter(|checkpoint| checkpoint.refused.is_none());
    counts.map(|checkpoint| (checkpoint.step.0, checkpoint.at_ms)).max()
}

fn word(status: TrialStatus) -> String {
    status.word().replace(' ', "_")
}

#[expect(clippy::cast_precision_loss, reason = "a value of Prometheus is a double")]
fn exact(count: u64) -> f64 {
    count as f64
}

/// Writer for the samples of one metric family.
#[derive(Debug)]
struct FamilyWriter {
    text: String,
    family: &'static str,
}

impl FamilyWriter {
    fn of(family: &'static str, kind: &str, help: &str) -> Self {
        Self { text: format!("# HELP {family} {help}\n# TYPE {family} {kind}\n"), family }
    }

    /// Writes a sample of the family as one line.
    fn sample(&mut self, labels: &[Label<'_>], value: f64) {
        let labels: Vec<_> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let value = match value {
            value if value.is_nan() => "NaN".to_owned(),
            f64::INFINITY => "+Inf".to_owned(),
            f64::NEG_INFINITY => "-Inf".to_owned(),
            value => format!("{value:?}"),
        };
        // Writing to a string cannot fail.
        _ = writeln!(self.text, "{}{{{}}} {value}", self.family, labels.join(","));
    }
}

/// Escapes the value of a label as the text format requires.
fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_numbers_that_are_not_finite_are_named() {
        let mut page = FamilyWriter::of("a", "gauge", "Help.");
        page.sample(&[("x", "\\ \" \n".into())], f64::NAN);
        page.sample(&[], f64::NEG_INFINITY);
        page.sample(&[], 0.1);
        let wanted = "# HELP a Help.\n# TYPE a gauge\na{x=\"\\\\ \\\" \\n\"} NaN\na{} -Inf\na{} 0.1\n";
        assert_eq!(page.text, wanted);
        let page = MetricsPage::new(&BTreeMap::from([(TrialStatus::OutOfMemory, 2)]), 0).finish();
        assert!(page.contains("dtrain_trials{status=\"out_of_memory\"} 2.0\n"), "{page}");
    }
}
