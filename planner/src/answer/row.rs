//! The answer for one row of a table of trainings.

use super::layout_words::clauses;
use super::{Answer, Assumption, MemoryAnswer, StepAnswer, TrainingValue};
use crate::benchmarks::RowEstimate;

impl Answer {
    /// Returns the answer for a row; `None` if it has no estimate.
    pub fn of_row(row: &RowEstimate) -> Option<Self> {
        let (seconds, config) = (row.step_seconds?, row.config?);
        let group = &row.group;
        let model = if group.model.is_empty() { "model" } else { &group.model };
        let hardware = if group.hardware.is_empty() { "GPUs" } else { &group.hardware };
        let style = row.style.map_or_else(String::new, |style| format!(", engine style {style}"));
        let mut confidence = vec!["from data sheets, engine profile fitted to published runs".to_owned()];
        if row.is_known {
            confidence.push("corrected by this row's own measurement".into());
        }
        if row.fits.is_none() {
            confidence.push("memory is exceeded unless the run recomputes more or offloads".into());
        }
        Some(Self {
            subject: format!("{}: {model} on {} {hardware}{style}", row.id, group.devices),
            runs: clauses(&config.arrangement, config.micro_batch),
            step: Some(StepAnswer {
                seconds,
                interval: row.step_seconds_low.zip(row.step_seconds_high),
                throughput: row.tokens_per_second_per_device.map(|rate| (rate, "tokens/s/GPU")),
                utilization: row.model_flops_utilization,
                measured: row.measured_step_seconds,
            }),
            memory: row.peak_bytes.map(|peak| MemoryAnswer {
                peak,
                available: row.memory_bytes,
                high: row.peak_bytes_high,
                holder: "on the fullest GPU".into(),
                measured: row.measured_peak_bytes,
            }),
            training: vec![TrainingValue { value: format!("batch {}", config.batch), rule: String::new() }],
            assumptions: row
                .assumptions
                .iter()
                .map(|what| Assumption { what: what.clone(), correction: None, is_minor: false })
                .collect(),
            confidence,
            ..Self::empty()
        })
    }
}
