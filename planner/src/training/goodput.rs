//! Goodput: the useful share of time when hosts fail, since a failure throws a job back to its last
//! checkpoint.
//!
//! Failures are assumed independent and equally likely at all times, as in large clusters (Kokolis et al.,
//! arXiv 2410.21680). The time of a checkpoint is an input.

/// Seconds from a failure to the first repeated step: to notice it, find and replace the host, start all
/// processes and load the checkpoint.
///
/// MegaScale (Jiang et al., arXiv 2402.15627, section 6.3) notices and diagnoses in less than ten minutes on
/// average.
pub const RESTART_SECONDS: f64 = 600.0;

/// Failure model of a training job: failure rate, checkpoint cost and restart time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FailureModel {
    /// Mean time between failures of the job, above 0; infinite without failures.
    pub mtbf_seconds: f64,
    /// Seconds by which a checkpoint stalls training, at least 0.
    pub stall_seconds: f64,
    /// Seconds from a failure to the first repeated step, at least 0.
    pub restart_seconds: f64,
}

/// Returns the goodput: the useful fraction of time, with a checkpoint after every `interval_seconds` of work
/// (above 0).
///
/// A piece of work `τ` with its checkpoint takes `M·e^(R/M)·(e^((τ+δ)/M) − 1)` seconds on average, with
/// `R = restart_seconds`; it includes lost work, checkpoints, and restarts that fail themselves (Daly 2006).
pub fn goodput(failure_model: &FailureModel, interval_seconds: f64) -> f64 {
    let FailureModel { mtbf_seconds, stall_seconds, restart_seconds } = *failure_model;
    if mtbf_seconds.is_infinite() {
        return 1.0 / (1.0 + stall_seconds / interval_seconds);
    }
    let piece = ((interval_seconds + stall_seconds) / mtbf_seconds).exp_m1();
    interval_seconds / (mtbf_seconds * (restart_seconds / mtbf_seconds).exp() * piece)
}

/// Returns the average number of seconds that `work_seconds` of work take, with a checkpoint after every
/// `interval_seconds` of them and at the end. Infinite where they would practically never end.
pub fn wall_seconds(failure_model: &FailureModel, interval_seconds: f64, work_seconds: f64) -> f64 {
    if work_seconds <= 0.0 {
        return 0.0;
    }
    work_seconds / goodput(failure_model, interval_seconds.min(work_seconds))
}

/// Returns the expected number of failures in `wall_seconds` seconds, including those during restarts.
pub fn failures(failure_model: &FailureModel, wall_seconds: f64) -> f64 {
    if failure_model.mtbf_seconds.is_infinite() { 0.0 } else { wall_seconds / failure_model.mtbf_seconds }
}

#[cfg(test)]
mod tests;
