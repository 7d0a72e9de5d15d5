//! The estimate for a row of a table, and its errors against the measurement.

use super::table::TableRow;
use super::training::ResolvedTraining;
use super::{measured, read};
use crate::analytic::site_calibration::SiteCalibration;
use crate::analytic::uncertainty::{memory_uncertainty, prediction_interval, step_time_uncertainty};
use crate::analytic::{Constants, PeakMemory, StepConfig, StepTimes};
use serde::Serialize;
use std::collections::BTreeMap;

/// A row of a table with its estimate; values that are unknown are `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RowEstimate {
    /// Identifier of the row, from its column `id`.
    pub id: String,
    /// Publication that the row comes from.
    pub source: String,
    /// True if the row could be priced.
    pub supported: bool,
    /// Reason why the row could not be priced; `None` if it could.
    pub reason: Option<String>,
    /// Estimated seconds per step.
    pub step_seconds: Option<f64>,
    /// Lower end of the 80 % prediction interval of the seconds per step.
    pub step_seconds_low: Option<f64>,
    /// Upper end of the 80 % prediction interval of the seconds per step.
    pub step_seconds_high: Option<f64>,
    /// Estimated tokens per second and device.
    pub tokens_per_second_per_device: Option<f64>,
    /// Estimated model FLOPs utilization (MFU).
    pub model_flops_utilization: Option<f64>,
    /// Estimated peak bytes of the heaviest rank.
    pub peak_bytes: Option<f64>,
    /// Lower end of the 80 % prediction interval of the peak bytes.
    pub peak_bytes_low: Option<f64>,
    /// Upper end of the 80 % prediction interval of the peak bytes.
    pub peak_bytes_high: Option<f64>,
    /// True if the training fits into device memory; `None` if it does not and the row leaves the recompute
    /// mode open.
    pub fits: Option<bool>,
    /// Measured seconds per step.
    pub measured_step_seconds: Option<f64>,
    /// Relative error of the step time: estimated over measured, minus one.
    pub error: Option<f64>,
    /// Measured peak bytes of the heaviest rank.
    pub measured_peak_bytes: Option<f64>,
    /// Relative error of the peak bytes: estimated over measured, minus one.
    pub peak_bytes_error: Option<f64>,
    /// Name of the engine's software style.
    pub style: Option<&'static str>,
    /// Assumptions about settings that the row does not state.
    pub assumptions: Vec<String>,
    /// True if the measurement of the row calibrated its site; such a row is not scored.
    #[serde(skip)]
    pub is_known: bool,
    /// Layout and batch of the row; `None` if it could not be priced.
    #[serde(skip)]
    pub config: Option<StepConfig>,
    /// Bytes of memory per device; `None` if the row could not be priced.
    #[serde(skip)]
    pub memory_bytes: Option<f64>,
    /// Tensor-parallel degree of the row, which breaks ties.
    #[serde(skip)]
    pub tensor: f64,
    /// Properties that rows share if they can be compared.
    #[serde(skip)]
    pub group: ComparisonGroup,
}

/// Properties that rows share if they can be compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ComparisonGroup {
    /// Name of the model in the row.
    pub model: String,
    /// Name of the device in the row.
    pub hardware: String,
    /// Number of devices, as text.
    pub devices: String,
    /// Batch, sequence, precision and engine: equal for rows that differ only in layout.
    pub work: String,
    /// True if the model is a mixture of experts.
    pub has_experts: bool,
}

/// Standard deviation of ln(measured / estimated seconds) from a vocabulary or a gate that is assumed: a gate
/// is a third of the products of a feed-forward block.
const UNKNOWN_MODEL: f64 = 0.1;

/// Estimate for a row before any measurement is used.
struct UncorrectedEstimate<'a> {
    training: ResolvedTraining<'a>,
    seconds: f64,
    /// Standard deviation of ln(measured / estimated seconds).
    doubt: f64,
    bytes: f64,
    /// Bytes of the part of memory that the row states, to compare with it.
    counted: f64,
}

/// Estimates all rows, in order. `known` are the ids of rows whose measured time may calibrate the estimates
/// of rows with the same source and hardware.
pub fn estimate_rows(rows: &[TableRow], known: &[String], constants: &Constants) -> Vec<RowEstimate> {
    let estimates: Vec<_> = rows.iter().map(|row| uncorrected(row, constants)).collect();
    let sites = site_calibrations(rows, &estimates, known);
    let priced = |(row, estimate): (&TableRow, Result<UncorrectedEstimate<'_>, String>)| match estimate {
        Err(reason) => RowEstimate { reason: Some(reason), ..without_estimate(row) },
        Ok(estimate) => {
            let site = sites.get(&site_of(row)).copied().unwrap_or(SiteCalibration::NONE);
            RowEstimate {
                is_known: known.contains(&row.id),
                ..with_errors(row, &estimate, row_estimate(row, &estimate, site))
            }
        }
    };
    rows.iter().zip(estimates).map(priced).collect()
}

/// Returns the calibration of each site (source and hardware) from its `known` rows.
fn site_calibrations(
    rows: &[TableRow],
    estimates: &[Result<UncorrectedEstimate<'_>, String>],
    known: &[String],
) -> BTreeMap<(String, String), SiteCalibration> {
    let mut ratios: BTreeMap<_, Vec<(f64, f64)>> = BTreeMap::new();
    for (row, estimate) in rows.iter().zip(estimates).filter(|(row, _)| known.contains(&row.id)) {
        if let (Ok(estimate), Some(seconds)) = (estimate, measured::step_seconds(row)) {
            ratios.entry(site_of(row)).or_default().push(((seconds / estimate.seconds).ln(), estimate.doubt));
        }
    }
    ratios.into_iter().map(|(site, pairs)| (site, SiteCalibration::of(&pairs))).collect()
}

fn site_of(row: &TableRow) -> (String, String) {
    (row.text("source").to_owned(), row.text("hardware").to_owned())
}

fn uncorrected<'a>(row: &TableRow, constants: &'a Constants) -> Result<UncorrectedEstimate<'a>, String> {
    let training = read::resolve_training(row, constants)?;
    let case = training.case();
    let (step, peak) = (StepTimes::of(&case), PeakMemory::of(&case));
    Ok(UncorrectedEstimate {
        seconds: step.total(),
        doubt: step_time_uncertainty(&case, training.gpu, training.unknown)
            .deviation()
            .hypot(if training.is_model_assumed { UNKNOWN_MODEL } else { 0.0 }),
        bytes: peak.total(),
        counted: match measured::MeasuredMemory::of(row) {
            _ if measured::is_computed(row) => PeakMemory::state_and_activations(&case),
            measured::MeasuredMemory::Allocated => peak.allocated(),
            measured::MeasuredMemory::Reserved => peak.allocated() + peak.fragments,
            measured::MeasuredMemory::Process => peak.total(),
        },
        training,
    })
}

/// Returns the result for a row that could not be priced.
fn without_estimate(row: &TableRow) -> RowEstimate {
    let name = |column| row.text(column).to_owned();
    let first = |columns: [&'static str; 2]| {
        columns.map(|column| row.text(column)).into_iter().find(|cell| !cell.is_empty())
    };
    let work = [
        row.text("global_batch"),
        row.text("seq"),
        first(["precision", "products"]).unwrap_or_default(),
        first(["framework", "style"]).unwrap_or_default(),
    ]
    .join(" | ");
    RowEstimate {
        id: row.id.clone(),
        source: name("source"),
        group: ComparisonGroup {
            model: name("model"),
            hardware: name("hardware"),
            devices: name("num_gpus"),
            work,
            has_experts: row.positive("moe_experts").is_some(),
        },
        ..RowEstimate::default()
    }
}

/// Returns the estimate for a row, corrected by the calibration of its site.
fn row_estimate(row: &TableRow, estimate: &UncorrectedEstimate<'_>, site: SiteCalibration) -> RowEstimate {
    let UncorrectedEstimate { training, bytes, .. } = estimate;
    let case = training.case();
    let seconds = estimate.seconds * site.factor;
    let (low, high) = prediction_interval(seconds, site.corrected_deviation(estimate.doubt));
    let (bytes_low, bytes_high) = prediction_interval(*bytes, memory_uncertainty(&case, training.unknown));
    // If the recompute mode is open, the run exists, so it recomputed enough to fit.
    let is_open = training.unknown.recompute && *bytes > training.memory;
    let within = |bytes: f64| if is_open { bytes.min(training.memory) } else { bytes };
    let mut assumptions = training.assumptions.clone();
    if is_open {
        assumptions.push("not enough memory: the run recomputes more or offloads".to_owned());
    }
    RowEstimate {
        supported: true,
        step_seconds: Some(seconds),
        step_seconds_low: Some(low),
        step_seconds_high: Some(high),
        tokens_per_second_per_device: Some(
            case.config.batch() * case.model.sequence / (case.config.ranks() * seconds),
        ),
        model_flops_utilization: Some(case.model_flops_utilization(seconds, training.gpu.peak())),
        peak_bytes: Some(within(*bytes)),
        peak_bytes_low: Some(within(bytes_low)),
        peak_bytes_high: Some(within(bytes_high)),
        fits: (!is_open).then_some(*bytes <= training.memory),
        style: Some(training.engine.style.name()),
        assumptions,
        tensor: case.config.tensor(),
        config: Some(case.config),
        memory_bytes: Some(training.memory),
        ..without_estimate(row)
    }
}

/// Adds the measurements of a row, and the errors against them, to its estimate.
fn with_errors(row: &TableRow, estimate: &UncorrectedEstimate<'_>, priced: RowEstimate) -> RowEstimate {
    let (seconds, bytes) = (measured::step_seconds(row), measured::peak_bytes(row));
    let is_partial =
        measured::is_computed(row) || measured::MeasuredMemory::of(row) != measured::MeasuredMemory::Process;
    let estimated = if is_partial { Some(estimate.counted) } else { priced.peak_bytes };
    let error = |estimated: Option<f64>, measured: Option<f64>| Some(estimated? / measured? - 1.0);
    RowEstimate {
        measured_step_seconds: seconds,
        error: error(priced.step_seconds, seconds),
        measured_peak_bytes: bytes,
        peak_bytes_error: error(estimated, bytes),
        ..priced
    }
}
