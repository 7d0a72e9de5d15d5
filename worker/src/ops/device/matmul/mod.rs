//! Matrix products on a device, each by the fastest of several kernels.
//!
//! The fastest one depends on the device and on the sizes. For a product of new sizes, candidates run on
//! its own factors until all were tried or time is over; the best one is used from then on, and stored in a
//! table beside the compiled kernels. A candidate is skipped if it does not compile, asks for memory that
//! the device lacks, gives another result than the first one, or crashed a process.

mod autotune;
mod candidates;
mod gemm_shape;
mod kernel_table;

use super::{CubeValues, values};
use autotune::KernelTuner;
use burn::backend::Cube;
use burn::tensor::{DType, Device, Tensor};
use cubecl::prelude::*;
use std::sync::{Arc, Mutex, PoisonError};

/// Returns the matrix product `lhs · rhs`, in the type of both factors.
///
/// The last two dimensions are those of the matrices, all others are equal in both.
pub(crate) fn matmul<const D: usize>(lhs: Tensor<D>, rhs: Tensor<D>) -> Tensor<D> {
    let tuning = of_device(&lhs.device());
    let mut tuning = tuning.lock().unwrap_or_else(PoisonError::into_inner);
    Tensor::from_primitive::<Cube>(tuning.matmul::<D>(values(lhs), values(rhs)))
}

/// Returns the kernel tuner of a device.
fn of_device(device: &Device) -> Arc<Mutex<KernelTuner>> {
    static ALL: Mutex<Vec<(Device, Arc<Mutex<KernelTuner>>)>> = Mutex::new(Vec::new());
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, tuning)) = all.iter().find(|(other, _)| other == device) {
        return Arc::clone(tuning);
    }
    let tuning = Arc::new(Mutex::new(KernelTuner::of(device)));
    all.push((device.clone(), Arc::clone(&tuning)));
    tuning
}

/// Fills a result with values that no product has, so that a kernel that writes nothing is noticed.
fn spoil(out: &CubeValues) {
    let (out, stride) = super::rows(out.clone());
    let all = super::buffer(&out, stride);
    let (cubes, cube, indices) = super::of_each(all.len(), [&out]);
    match out.dtype {
        DType::BF16 => spoil_values::launch::<half::bf16>(&out.client, cubes, cube, indices, all),
        DType::F16 => spoil_values::launch::<half::f16>(&out.client, cubes, cube, indices, all),
        _ => spoil_values::launch::<f32>(&out.client, cubes, cube, indices, all),
    }
}

#[cube(launch, address_type = "dynamic")]
fn spoil_values<F: Float>(values: &mut [F]) {
    if ABSOLUTE_POS < values.len() {
        values[ABSOLUTE_POS] = F::new(30_000.0);
    }
}

/// Returns a report of the kernels chosen on a device so far.
pub(crate) fn report(device: &Device) -> Option<dtrain_protocol::device_check::KernelTuning> {
    let tuning = of_device(device);
    let tuning = tuning.lock().unwrap_or_else(PoisonError::into_inner);
    tuning.report()
}
