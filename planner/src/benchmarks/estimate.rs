//! The price of a row, and how near it is to what was measured.

use super::table::TableRow;
use super::training::ResolvedTraining;
use super::{measured, read};
use crate::analytic::site_calibration::SiteCalibration;
use crate::analytic::uncertainty::{memory_uncertainty, prediction_interval, step_time_uncertainty};
use crate::analytic::{Constants, PeakMemory, StepTimes};
use serde::Serialize;
use std::collections::BTreeMap;

/// A row with its price. What is not known is `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RowEstimate {
    /// Its `id`.
    pub id: String,
    /// Where it was published.
    pub source: String,
    /// Whether it could be priced.
    pub supported: bool,
    /// Why not.
    pub reason: Option<String>,
    /// Seconds of a step.
    pub step_seconds: Option<f64>,
    /// Nine steps in ten take at least this …
    pub step_seconds_low: Option<f64>,
    /// … and nine in ten at most this.
    pub step_seconds_high: Option<f64>,
    /// Tokens a second of one device.
    pub tokens_per_second_per_device: Option<f64>,
    /// Share of the data sheet's peak that the formulas of the model ask for.
    pub model_flops_utilization: Option<f64>,
    /// Bytes of the heaviest rank at its peak.
    pub peak_bytes: Option<f64>,
    /// Low end of its 80 % interval.
    pub peak_bytes_low: Option<f64>,
    /// High end of it.
    pub peak_bytes_high: Option<f64>,
    /// Whether that is within the memory of the device; not known where it is not, and the row does not say what is
    /// computed again.
    pub fits: Option<bool>,
    /// Seconds of a step as measured.
    pub measured_step_seconds: Option<f64>,
    /// Estimated over measured seconds, less one.
    pub error: Option<f64>,
    /// Bytes as measured.
    pub measured_peak_bytes: Option<f64>,
    /// Estimated over measured bytes, less one.
    pub peak_bytes_error: Option<f64>,
    /// Style of the engine.
    pub style: Option<&'static str>,
    /// What the row leaves open and was taken to be so.
    pub assumptions: Vec<String>,
    /// Whether what was measured corrected the estimates of its cluster; it is not scored then.
    #[serde(skip)]
    pub is_known: bool,
    /// The row's tensor-parallel ranks, which decide among ties.
    #[serde(skip)]
    pub tensor: f64,
    /// What the row shares with those it may be compared to.
    #[serde(skip)]
    pub group: ComparisonGroup,
}

/// What rows have in common that may be compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ComparisonGroup {
    /// Name of the model.
    pub model: String,
    /// The part.
    pub hardware: String,
    /// Number of devices.
    pub devices: String,
    /// Batch, sequence, precision, engine: what else must be equal for rows that differ in layout alone.
    pub work: String,
    /// Whether it has experts.
    pub has_experts: bool,
}

/// A row's estimate, before anything measured is looked at.
struct UncorrectedEstimate<'a> {
    training: ResolvedTraining<'a>,
    seconds: f64,
    /// Standard deviation of the logarithm of measured over estimated seconds.
    doubt: f64,
    bytes: f64,
    /// State and activations alone, which papers that compute memory count.
    counted: f64,
}

/// Prices all rows, in their order. `known` are the ids of rows whose measured time may be used: they correct all rows of
/// the same source and hardware.
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

/// What the rows that may be looked at tell of their clusters.
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
    let step = StepTimes::of(&case);
    Ok(UncorrectedEstimate {
        seconds: step.total(),
        doubt: step_time_uncertainty(&case, training.gpu, training.unknown).deviation(),
        bytes: PeakMemory::of(&case).total(),
        counted: PeakMemory::state_and_activations(&case),
        training,
    })
}

/// A row without its price.
fn without_estimate(row: &TableRow) -> RowEstimate {
    let name = |column| row.text(column).to_owned();
    let work = ["global_batch", "seq", "precision", "framework"].map(|column| row.text(column)).join(" | ");
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

/// The price of a row, corrected by what its site told.
fn row_estimate(row: &TableRow, estimate: &UncorrectedEstimate<'_>, site: SiteCalibration) -> RowEstimate {
    let UncorrectedEstimate { training, bytes, .. } = estimate;
    let case = training.case();
    let seconds = estimate.seconds * site.factor;
    let (low, high) = prediction_interval(seconds, site.corrected_deviation(estimate.doubt));
    let (bytes_low, bytes_high) = prediction_interval(*bytes, memory_uncertainty(&case, training.unknown));
    // Where it is not known what is computed again, a run that exists computed enough again.
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
        ..without_estimate(row)
    }
}

/// The price beside what was measured.
fn with_errors(row: &TableRow, estimate: &UncorrectedEstimate<'_>, priced: RowEstimate) -> RowEstimate {
    let (seconds, bytes) = (measured::step_seconds(row), measured::peak_bytes(row));
    let estimated = if measured::is_computed(row) { Some(estimate.counted) } else { priced.peak_bytes };
    let error = |estimated: Option<f64>, measured: Option<f64>| Some(estimated? / measured? - 1.0);
    RowEstimate {
        measured_step_seconds: seconds,
        error: error(priced.step_seconds, seconds),
        measured_peak_bytes: bytes,
        peak_bytes_error: error(estimated, bytes),
        ..priced
    }
}
