//! Precisions that the GPU of a host lacks.

use crate::hardware::{self, GpuSpec};
use crate::layout::rejection::Rejection;
use dtrain_protocol::{DeviceKind, HostFacts};
use dtrain_recipes::Precision;

/// Returns the GPU of `host` if `device` is one that the table knows; `None` otherwise.
pub(crate) fn known_part(host: &HostFacts, device: DeviceKind) -> Option<&'static GpuSpec> {
    let first = host.gpus.first().filter(|_| device == DeviceKind::Cuda)?;
    hardware::gpu(&first.name)
}

/// Returns the rejection of a precision that `part` lacks.
pub(super) fn lacking_precision(part: Option<&GpuSpec>, precision: Precision) -> Option<Rejection> {
    let part = part.filter(|part| !part.has_precision(precision))?;
    Some(Rejection::CannotRun(format!("{} has no products in {}", part.name, precision.name())))
}
