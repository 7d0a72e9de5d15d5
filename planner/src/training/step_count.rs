//! Conversion of a time to a number of steps.

/// Returns the number of whole steps that end within `seconds`, at least one.
pub(crate) fn steps_in(seconds: f64, step_seconds: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a cast of a float saturates"
    )]
    let steps = (seconds / step_seconds.max(1e-9)).floor() as u64;
    steps.max(1)
}

/// Returns the number of steps whose duration is nearest to `seconds`, at least one.
pub(crate) fn nearest_steps(seconds: f64, step_seconds: f64) -> u64 {
    steps_in(seconds + 0.5 * step_seconds, step_seconds)
}
