//! Mean time between failures: the default for one host, and that of a job on several hosts.

/// Default of `cluster.mtbf`, the mean time between failures of one host, in seconds: 154 days, for eight
/// GPUs.
///
/// A cluster of 2,000 hosts saw 6.50 failures per thousand host-days over eleven months (Kokolis et al.,
/// "Revisiting Reliability in Large-Scale Machine Learning Research Clusters", arXiv 2410.21680). It lies
/// between jobs on 128 of its hosts, with one failure in 7.9 hours, so 42 days per host, and one well-kept
/// job on 2,048 hosts, with 419 failures in 54 days, so 264 days per host (Llama 3, arXiv 2407.21783). An
/// error of a factor of two costs little: a sixteenth more lost time than with the best interval.
pub const HOST_MTBF_SECONDS: f64 = 154.0 * 86_400.0;

/// Returns the mean time between failures, in seconds, of a job on `hosts` hosts that each fail every
/// `host_seconds`: a job that needs all of its hosts fails with the first of them, and the rates of
/// independent failures add up.
pub fn job_mtbf_seconds(host_seconds: f64, hosts: u32) -> f64 {
    host_seconds / f64::from(hosts.max(1))
}
