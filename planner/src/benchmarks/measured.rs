//! Measured time and memory of a row, in seconds and bytes.

use super::table::TableRow;

/// Returns the measured seconds per step of a row, or derives them from a throughput.
pub fn step_seconds(row: &TableRow) -> Option<f64> {
    row.positive("step_time_s").or_else(|| derived(row)).filter(|seconds| *seconds > 0.0)
}

/// Derives the seconds per step of a row from a published throughput.
fn derived(row: &TableRow) -> Option<f64> {
    let (value, batch, sequence) =
        (row.positive("value")?, row.positive("global_batch")?, row.positive("seq")?);
    let (tokens, ranks) = (batch * sequence, row.positive("num_gpus")?);
    match row.text("metric") {
        "tokens_per_s" => Some(tokens / value),
        "tokens_per_s_per_gpu" => Some(tokens / (value * ranks)),
        "sequences_per_s" => Some(batch / value),
        "step_time" | "iteration_time" if row.text("unit") == "s" => Some(value),
        "step_time" | "iteration_time" => Some(value / 1e3),
        "tflops_per_gpu" => Some(operations(row)? / (ranks * value * 1e12)),
        _ => None,
    }
}

/// Returns the FLOPs of a step as the paper of the row counts them: with full recompute (Narayanan et al.
/// 2021, equation 3), without recompute (Korthikanti et al. 2022), or six per parameter and token.
fn operations(row: &TableRow) -> Option<f64> {
    let [layers, hidden, s, batch] =
        ["layers", "hidden", "seq", "global_batch"].map(|column| row.positive(column));
    let (layers, hidden, s, batch) = (layers?, hidden?, s?, batch?);
    let by_paper = |factor: f64, head: f64| {
        let vocabulary = super::cells::vocabulary(row);
        factor
            * batch
            * s
            * layers
            * hidden
            * hidden
            * (1.0 + s / (6.0 * hidden) + vocabulary / (head * layers * hidden))
    };
    let unit = row.text("unit");
    match () {
        () if unit.contains("96Bslh") => Some(by_paper(96.0, 16.0)),
        () if unit.contains("72Bslh") => Some(by_paper(72.0, 12.0)),
        () => {
            let parameters = row.positive("params_b")? * 1e9;
            Some((6.0 * parameters + 6.0 * layers * hidden * s) * batch * s)
        }
    }
}

/// Returns the published bytes of peak memory of a row, measured or computed.
pub fn peak_bytes(row: &TableRow) -> Option<f64> {
    let unit = if row.lower("mem_kind").contains("gib") { 1024f64.powi(3) } else { 1e9 };
    row.positive("mem_gb").map(|value| value * unit)
}

/// The part of a process's memory that a publication measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeasuredMemory {
    /// Tensors alone, as PyTorch's `max_memory_allocated`.
    Allocated,
    /// Tensors and what the allocator holds beside them, as PyTorch's `max_memory_reserved`.
    Reserved,
    /// All memory of the process, as the driver reports it.
    Process,
}

impl MeasuredMemory {
    /// Returns the part that the memory of a row covers: all of it unless the row states otherwise.
    pub fn of(row: &TableRow) -> Self {
        let kind = row.lower("mem_kind");
        match () {
            () if kind.contains("allocated") => Self::Allocated,
            () if kind.contains("reserved") => Self::Reserved,
            () => Self::Process,
        }
    }
}

/// Returns `true` if the published memory of a row was computed, from state and activations only.
pub fn is_computed(row: &TableRow) -> bool {
    row.lower("mem_kind").contains("analytic")
}
