//! How much of the time is useful where machines fail: a failure throws a job back to its last checkpoint.
//!
//! Failures are taken to be independent and equally likely at every moment, which is what large clusters show (Kokolis et
//! al., arXiv 2410.21680). Nothing here knows how long a checkpoint takes.

/// Seconds between two failures of one host, where nobody says `cluster.mtbf`: 154 days, of eight GPUs.
///
/// A cluster of 2,000 hosts saw 6.50 failures in a thousand days of a host over eleven months (Kokolis et al., "Revisiting
/// Reliability in Large-Scale Machine Learning Research Clusters", arXiv 2410.21680). It lies between what jobs on 128 of
/// its hosts met, one failure in 7.9 hours, so 42 days a host, and what one well-kept job on 2,048 hosts did, 419 in 54
/// days, so 264 days a host (Llama 3, arXiv 2407.21783). Twice too much or too little costs little: the time lost is that
/// of the best interval and a sixteenth.
pub const HOST_MTBF_SECONDS: f64 = 154.0 * 86_400.0;

/// Seconds from a failure to the first step that is done again: to notice it, find and replace the host, start all
/// processes and load the checkpoint.
///
/// MegaScale (Jiang et al., arXiv 2402.15627, section 6.3) notices and diagnoses in less than ten minutes on average.
pub const RESTART_SECONDS: f64 = 600.0;

/// What befalls a job, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FailureModel {
    /// Mean time between failures of the job, above 0; infinite where nothing fails.
    pub mtbf_seconds: f64,
    /// For how long a checkpoint holds training up, at least 0.
    pub stall_seconds: f64,
    /// From a failure to the first step that is done again, at least 0.
    pub restart_seconds: f64,
}

/// Mean time between failures of a job on `hosts` hosts, in seconds, each of which fails every `host_seconds`: a job that
/// needs all of its hosts fails with the first of them, and the rates of independent failures add up.
pub fn job_mtbf_seconds(host_seconds: f64, hosts: u32) -> f64 {
    host_seconds / f64::from(hosts.max(1))
}

/// Seconds of work between two checkpoints that lose the least time.
///
/// With `δ = stall_seconds` and `M = mtbf_seconds` it is `√(2δM)·(1 + ⅓√(δ/2M) + ⅑·δ/2M) − δ` where `δ < 2M`, and `M`
/// otherwise: J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation
/// Computer Systems 22 (2006). Its first term is that of J. W. Young, "A first order approximation to the
/// optimum checkpoint interval", Communications of the ACM 17 (1974). How long a restart takes does not matter. Infinite
/// where nothing fails.
pub fn interval_seconds(failure_model: &FailureModel) -> f64 {
    let FailureModel { mtbf_seconds, stall_seconds, .. } = *failure_model;
    if mtbf_seconds.is_infinite() || stall_seconds >= 2.0 * mtbf_seconds {
        return mtbf_seconds;
    }
    let half = stall_seconds / (2.0 * mtbf_seconds);
    (2.0 * stall_seconds * mtbf_seconds).sqrt() * (1.0 + half.sqrt() / 3.0 + half / 9.0) - stall_seconds
}

/// Share of the time that is useful, from 0 to 1, where a checkpoint follows every `interval_seconds` of work (above 0).
///
/// A piece of work `τ` with its checkpoint takes `M·e^(R/M)·(e^((τ+δ)/M) − 1)` seconds on average, `R` being
/// `restart_seconds`; the work that is lost, checkpoints and restarts that fail themselves are all in it (Daly
/// 2006).
pub fn goodput(failure_model: &FailureModel, interval_seconds: f64) -> f64 {
    let FailureModel { mtbf_seconds, stall_seconds, restart_seconds } = *failure_model;
    if mtbf_seconds.is_infinite() {
        return 1.0 / (1.0 + stall_seconds / interval_seconds);
    }
    let piece = ((interval_seconds + stall_seconds) / mtbf_seconds).exp_m1();
    interval_seconds / (mtbf_seconds * (restart_seconds / mtbf_seconds).exp() * piece)
}

/// Seconds that `work_seconds` of work take on average, with a checkpoint after every `interval_seconds` of them and at
/// the end. Infinite where it never ends within any time worth a number.
pub fn wall_seconds(failure_model: &FailureModel, interval_seconds: f64, work_seconds: f64) -> f64 {
    if work_seconds <= 0.0 {
        return 0.0;
    }
    work_seconds / goodput(failure_model, interval_seconds.min(work_seconds))
}

/// Failures to be expected in `wall_seconds`, those during restarts among them.
pub fn failures(failure_model: &FailureModel, wall_seconds: f64) -> f64 {
    if failure_model.mtbf_seconds.is_infinite() { 0.0 } else { wall_seconds / failure_model.mtbf_seconds }
}

#[cfg(test)]
mod tests;
