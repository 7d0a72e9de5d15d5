use super::*;
use crate::training::checkpoint_interval::interval_seconds;
use crate::training::mtbf::job_mtbf_seconds;
use dtrain_protocol::shuffle::splitmix64;
use proptest::prelude::*;

const MINUTE: f64 = 60.0;
const HOUR: f64 = 3600.0;
const DAY: f64 = 86_400.0;

fn hazard(mtbf_seconds: f64, stall_seconds: f64, restart_seconds: f64) -> FailureModel {
    FailureModel { mtbf_seconds, stall_seconds, restart_seconds }
}

/// Returns the best interval by brute force, in steps of 1 ‰ from a millionth of the time between failures.
fn by_trying(failure_model: &FailureModel) -> f64 {
    let tried = (0..20_000).map(|step| failure_model.mtbf_seconds * 1e-6 * 1.001_f64.powi(step));
    tried
        .max_by(|a, b| goodput(failure_model, *a).total_cmp(&goodput(failure_model, *b)))
        .expect("some are tried")
}

#[test]
fn intervals_are_those_that_daly_published() {
    // Captions of Daly's figures 3, 4 and 5, in minutes.
    let check = |mtbf, expected: f64, digit: f64| {
        let minutes = interval_seconds(&hazard(mtbf, 5.0 * MINUTE, 10.0 * MINUTE)) / MINUTE;
        assert!((minutes - expected).abs() <= 0.5 * digit, "{minutes} is not {expected}");
    };
    check(24.0 * HOUR, 117.0, 1.0);
    check(6.0 * HOUR, 57.0, 1.0);
    check(15.0 * MINUTE, 9.1, 0.1);
}

#[test]
fn no_interval_is_much_better_than_the_one_of_the_formula() {
    for hold in [1e-5, 1e-4, 1e-3, 0.01, 0.1, 0.3, 1.0, 1.9, 2.1, 5.0] {
        let failure_model = hazard(HOUR, hold * HOUR, 10.0 * MINUTE);
        let (chosen, best) = (interval_seconds(&failure_model), by_trying(&failure_model));
        let lost = goodput(&failure_model, best) / goodput(&failure_model, chosen) - 1.0;
        let allowed = if hold < 0.5 { 1e-5 } else { 2e-3 };
        assert!(lost < allowed, "δ = {hold} M: {chosen} s loses {lost} against {best} s");
        assert!((chosen / best - 1.0).abs() < 0.15, "δ = {hold} M: {chosen} s is not {best} s");
    }
}

#[test]
fn rare_failures_leave_youngs_interval() {
    let failure_model = hazard(100.0 * DAY, 0.1, 10.0 * MINUTE);
    let young = (2.0 * failure_model.stall_seconds * failure_model.mtbf_seconds).sqrt();
    assert!((interval_seconds(&failure_model) / young - 1.0).abs() < 1e-3);
}

/// Simulates a job: returns its seconds and its failures, which `draw` (uniform from 0 to 1) decides.
fn simulated(
    failure_model: &FailureModel,
    interval: f64,
    work: f64,
    mut draw: impl FnMut() -> f64,
) -> (f64, u32) {
    let mut lifetime = || -failure_model.mtbf_seconds * draw().ln();
    let (mut now, mut saved, mut failed) = (0.0, 0.0, 0);
    let mut fails_at = lifetime();
    let mut restart = 0.0;
    while saved < work {
        let piece = interval.min(work - saved);
        let done_at = now + restart + piece + failure_model.stall_seconds;
        if done_at < fails_at {
            (now, saved, restart) = (done_at, saved + piece, 0.0);
        } else {
            failed += 1;
            (now, restart) = (fails_at, failure_model.restart_seconds);
            fails_at = now + lifetime();
        }
    }
    (now, failed)
}

#[test]
fn simulated_jobs_take_as_long_and_fail_as_often_as_expected() {
    let cases = [
        (hazard(6.0 * HOUR, 5.0 * MINUTE, 10.0 * MINUTE), 57.0 * MINUTE),
        (hazard(HOUR, 5.0 * MINUTE, 20.0 * MINUTE), 20.0 * MINUTE),
        (hazard(15.0 * MINUTE, 5.0 * MINUTE, 10.0 * MINUTE), 9.0 * MINUTE),
        (hazard(30.0 * DAY, 1.0, 10.0 * MINUTE), 2.0 * HOUR),
    ];
    for (seed, (failure_model, interval)) in (1..).zip(cases) {
        let mut drawn = 0;
        let draw = || {
            drawn += 1;
            #[expect(clippy::cast_precision_loss, reason = "53 bits of 64 are kept")]
            let evenly = ((splitmix64(seed, drawn) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
            evenly
        };
        let work = 40_000.0 * interval;
        let (took, failed) = simulated(&failure_model, interval, work, draw);
        let expected = wall_seconds(&failure_model, interval, work);
        assert!((took / expected - 1.0).abs() < 0.02, "{failure_model:?}: {took} s in place of {expected} s");
        let expected = failures(&failure_model, took);
        // The number of failures in a given time has a Poisson distribution, whose variance is its mean.
        assert!((f64::from(failed) - expected).abs() < 3.0 * expected.sqrt(), "{failed} of {expected}");
    }
}

#[test]
fn without_failures_only_checkpoints_take_time() {
    let safe = hazard(f64::INFINITY, 1.0, 600.0);
    assert!(interval_seconds(&safe).is_infinite());
    assert!((goodput(&safe, 99.0) - 0.99).abs() < 1e-12);
    assert!((wall_seconds(&safe, f64::INFINITY, 99.0) - 100.0).abs() < 1e-9, "once, at the end");
    assert!(failures(&safe, 1e9).abs() < 1e-12);
    assert!((goodput(&safe, f64::INFINITY) - 1.0).abs() < 1e-12);
}

#[test]
fn a_job_that_fails_within_every_checkpoint_hardly_gets_on() {
    let hopeless = hazard(1.0, 100.0, 600.0);
    assert!((interval_seconds(&hopeless) - 1.0).abs() < 1e-12, "the time between failures");
    assert!(goodput(&hopeless, 1.0) < 1e-9);
    assert!(wall_seconds(&hazard(1e-3, 100.0, 600.0), 1.0, 10.0).is_infinite());
}

#[test]
fn free_checkpoints_are_made_all_the_time_and_no_work_takes_no_time() {
    assert!(interval_seconds(&hazard(HOUR, 0.0, 1.0)).abs() < 1e-12);
    assert!(wall_seconds(&hazard(HOUR, 1.0, 1.0), 60.0, 0.0).abs() < 1e-12);
}

#[test]
fn a_job_fails_with_the_first_of_its_hosts() {
    assert!((job_mtbf_seconds(42.0 * DAY, 128) - 7.875 * HOUR).abs() < 1.0);
    assert!((job_mtbf_seconds(DAY, 0) - DAY).abs() < 1e-9);
}

proptest! {
    #[test]
    fn whatever_gets_worse_makes_less_of_the_time_useful(
        mtbf in 10.0..1e8_f64,
        hold in 1e-3..1e3_f64,
        restart in 0.0..1e4_f64,
        worse in 1.01..3.0_f64,
    ) {
        let now = hazard(mtbf, hold, restart);
        let best = |failure_model: &FailureModel| goodput(failure_model, interval_seconds(failure_model));
        let share = best(&now);
        prop_assert!((0.0..=1.0).contains(&share), "{share}");
        // Error of the formula relative to the true optimum.
        let limit = share * (1.0 + 2e-3);
        prop_assert!(best(&hazard(mtbf / worse, hold, restart)) <= limit);
        prop_assert!(best(&hazard(mtbf, hold * worse, restart)) <= limit);
        prop_assert!(best(&hazard(mtbf, hold, restart * worse)) <= limit);
    }

    #[test]
    fn dearer_checkpoints_and_safer_machines_mean_rarer_checkpoints(
        mtbf in 10.0..1e8_f64,
        hold in 1e-6..0.5_f64,
        more in 1.01..3.0_f64,
    ) {
        let now = interval_seconds(&hazard(mtbf, hold * mtbf, 0.0));
        prop_assert!(now > 0.0);
        prop_assert!(interval_seconds(&hazard(mtbf, (hold * more).min(0.5) * mtbf, 0.0)) >= now);
        prop_assert!(interval_seconds(&hazard(mtbf * more, hold * mtbf, 0.0)) > now);
    }
}
