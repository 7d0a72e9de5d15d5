//! The learning rate as a pure function of the step: planner, worker and display call the same one.

use dtrain_recipes::Schedule;

/// Learning rate of step `step` (0-based) of `total`, after a linear warm-up of `warmup` steps.
///
/// Rises from `peak / warmup` at step 0 to `peak` at step `warmup - 1`, then falls to
/// `peak · final_fraction` at the last step. Without a known `total` (training stops by time) pass the
/// planner's estimate: steps beyond it keep the final value.
pub fn learning_rate(
    schedule: Schedule,
    peak: f64,
    final_fraction: f64,
    warmup: u64,
    total: u64,
    step: u64,
) -> f64 {
    #![expect(clippy::cast_precision_loss, reason = "step counts are far below 2^52")]
    if step < warmup {
        return peak * (step + 1) as f64 / warmup as f64;
    }
    let span = total.saturating_sub(warmup + 1).max(1) as f64;
    let progress = ((step - warmup) as f64 / span).min(1.0);
    let shape = match schedule {
        Schedule::Constant => return peak,
        Schedule::Linear => 1.0 - progress,
        Schedule::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * progress).cos()),
    };
    peak * (final_fraction + (1.0 - final_fraction) * shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_rises_to_the_peak_and_falls_to_the_final_fraction() {
        for schedule in [Schedule::Cosine, Schedule::Linear] {
            let rate = |step| learning_rate(schedule, 1.0, 0.1, 10, 100, step);
            assert!((rate(0) - 0.1).abs() < 1e-12);
            assert!((rate(9) - 1.0).abs() < 1e-12);
            assert!((rate(10) - 1.0).abs() < 1e-12);
            assert!((rate(99) - 0.1).abs() < 1e-12);
            assert!((rate(500) - 0.1).abs() < 1e-12);
            assert!((10..99).all(|s| rate(s) > rate(s + 1)));
        }
    }
}
