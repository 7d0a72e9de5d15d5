//! Overlap of communication with computation, and the communication time that stays exposed.

use dtrain_protocol::DeviceKind;

/// Returns the fraction of a pass during which communication can overlap with it: none on a CPU, whose cores
/// do both.
pub(super) fn overlap_share(device: DeviceKind) -> f64 {
    match device {
        DeviceKind::Cpu => 0.0,
        DeviceKind::Cuda | DeviceKind::Wgpu => 0.5,
    }
}

/// Seconds of communication in one phase of a step, and the number of transfers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CommTime {
    seconds: f64,
    pieces: u64,
}

impl CommTime {
    pub(super) fn add(&mut self, seconds: f64, times: u64) {
        #[expect(clippy::cast_precision_loss, reason = "a small count")]
        let all = seconds * times as f64;
        self.seconds += all;
        self.pieces += times;
    }

    /// Returns the exposed seconds of communication: the part that does not overlap with `overlap` ×
    /// `compute` seconds of computing.
    pub(super) fn exposed(&self, compute: f64, overlap: f64) -> f64 {
        if self.pieces == 0 { 0.0 } else { exposed_reduction(self.seconds, self.pieces, compute, overlap) }
    }
}

/// Returns the exposed seconds of a reduction of gradients in `buckets` buckets.
///
/// The reduction of each bucket starts when its gradients are ready, during the last backward; `overlap` is
/// the share of that backward that communication can overlap with. The last bucket is ready only when
/// backward ends, so it is always exposed.
fn exposed_reduction(reduction: f64, buckets: u64, last_backward: f64, overlap: f64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "buckets are few")]
    let last_bucket = reduction / buckets.max(1) as f64;
    (reduction - overlap * last_backward).max(last_bucket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_bucket_is_always_exposed() {
        assert!((exposed_reduction(1.0, 4, 100.0, 1.0) - 0.25).abs() < 1e-12);
        assert!((exposed_reduction(1.0, 1, 100.0, 1.0) - 1.0).abs() < 1e-12);
        assert!((exposed_reduction(1.0, 4, 1.0, 0.5) - 0.5).abs() < 1e-12);
    }
}
