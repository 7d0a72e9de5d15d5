//! The backoff before a restart, and the failure budgets: the number of lost attempts after which a trial
//! fails.

/// Number of attempts without progress, lost to failures of the training, after which a trial fails. A
/// durable checkpoint is progress, and so is a step that no earlier attempt reached.
pub(super) const ATTEMPTS_OF_TRAINING: u32 = 5;

/// Number of attempts without progress, lost to machine failures, after which a trial fails. Their backoff
/// alone adds up to a day.
pub(super) const ATTEMPTS_OF_MACHINES: u32 = 1_440;

/// Milliseconds of machine failures without progress after which a trial fails: a day.
pub(super) const MACHINES_FAIL_FOR_MS: u64 = 24 * 60 * 60 * 1000;

/// Returns the milliseconds of exponential backoff before a restart after `failures` lost attempts: 0.2, 0.8,
/// 3.2, 12.8, 51.2 s, then a minute.
pub(super) fn backoff_ms(failures: u32) -> u64 {
    200u64.saturating_mul(4u64.saturating_pow(failures.saturating_sub(1))).min(60_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_end_at_a_minute() {
        assert_eq!([0, 1, 2, 3, 4, 5, 60].map(backoff_ms), [200, 200, 800, 3200, 12_800, 51_200, 60_000]);
    }

    #[test]
    fn the_pauses_of_all_attempts_lost_to_machines_add_up_to_a_day() {
        let pauses: u64 = (1..=ATTEMPTS_OF_MACHINES).map(backoff_ms).sum();
        assert!(pauses.abs_diff(MACHINES_FAIL_FOR_MS) < 600_000, "{pauses}");
    }
}
