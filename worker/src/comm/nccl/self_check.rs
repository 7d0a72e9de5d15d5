//! Self-check of NCCL with one rank: every call on real memory, on a host with one GPU. Each call returns
//! the rank's own values.

use super::{CommunicatorBootstrap, GpuCommunicator, Library, PendingBuffer, driver};
use crate::comm::CommError;
use crate::comm::loopback::SingleRank;
use burn::tensor::{Device, Tensor, TensorData};
use cudarc::driver::CudaContext;
use dtrain_protocol::device_check::NcclCall;
use std::time::{Duration, Instant};

/// Time limit of each call.
const LIMIT: Duration = Duration::from_secs(15);

/// Number of values in each call: odd, so that no alignment helps.
const VALUES: usize = 1_000_003;

/// Runs all calls of NCCL in order, the last of which aborts the communicator. Stops at a call that NCCL
/// refuses. `Err` if no communicator can be created.
pub(crate) fn calls(index: u32, device: &Device) -> Result<Vec<NcclCall>, CommError> {
    let library =
        Library::get().map_err(|reason| CommError::Link(format!("NCCL cannot be used: {reason}")))?;
    let context = CudaContext::new(index as usize).map_err(|error| driver("the device", error))?;
    let mut communicator =
        CommunicatorBootstrap { library, context, limit: LIMIT }.create(&mut SingleRank)?;
    let mut calls = Vec::new();
    let all: [(&str, SelfCollective); 4] = [
        ("all-reduce", summed),
        ("reduce-scatter", GpuCommunicator::reduce_scatter),
        ("all-gather", GpuCommunicator::all_gather),
        ("send and receive", to_itself),
    ];
    for (name, call) in all {
        match check_call(name, &mut communicator, call, device) {
            Ok(made) => calls.push(made),
            // The communicator was aborted with it.
            Err(error) => {
                let (call, detail) = (name.to_owned(), Some(error.to_string()));
                calls.push(NcclCall { call, values: VALUES as u64, seconds: 0.0, agrees: false, detail });
                return Ok(calls);
            }
        }
    }
    let began = Instant::now();
    drop(communicator.abort(CommError::Link("nothing is left to do".to_owned())));
    let seconds = began.elapsed().as_secs_f64();
    let agrees = began.elapsed() < LIMIT;
    calls.push(NcclCall { call: "abort".to_owned(), values: 0, seconds, agrees, detail: None });
    Ok(calls)
}

/// A collective that one rank runs alone.
type SelfCollective = fn(&mut GpuCommunicator, Tensor<1>) -> Result<Tensor<1>, CommError>;

/// Reduces the values over one rank.
fn summed(communicator: &mut GpuCommunicator, values: Tensor<1>) -> Result<Tensor<1>, CommError> {
    communicator.all_reduce(PendingBuffer::of(values)?)
}

/// Sends the values from this rank to itself.
fn to_itself(communicator: &mut GpuCommunicator, values: Tensor<1>) -> Result<Tensor<1>, CommError> {
    let room = Tensor::zeros([values.dims()[0]], &values.device());
    let received = communicator.exchange(Some((0, values)), Some((0, room)))?;
    received.ok_or_else(|| CommError::Link("nothing was received".to_owned()))
}

/// Runs one call, and compares the values that it returns with the given ones. `Err` if NCCL refuses the
/// call.
fn check_call(
    name: &str,
    communicator: &mut GpuCommunicator,
    call: SelfCollective,
    device: &Device,
) -> Result<NcclCall, CommError> {
    let given: Vec<f32> = (0..VALUES).map(|at| (at % 4093) as f32 - 2000.5).collect();
    let tensor = Tensor::from_data(TensorData::new(given.clone(), [VALUES]), device);
    let began = Instant::now();
    let found = call(communicator, tensor)?;
    let seconds = began.elapsed().as_secs_f64();
    let detail = difference(&found.into_data().try_to_vec().unwrap_or_default(), &given);
    Ok(NcclCall { call: name.to_owned(), values: VALUES as u64, seconds, agrees: detail.is_none(), detail })
}

/// Describes the first value of `found` that differs from `given`; `None` if all are equal.
fn difference(found: &[f32], given: &[f32]) -> Option<String> {
    if found.len() != given.len() {
        return Some(format!("{} values came back of {}", found.len(), given.len()));
    }
    let wrong = |(_, (found, given)): &(usize, (&f32, &f32))| found.to_bits() != given.to_bits();
    let (at, (found, given)) = found.iter().zip(given).enumerate().find(wrong)?;
    Some(format!("value {at} is {found}, not {given}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_that_differs_is_named() {
        assert_eq!(difference(&[1.0, -2.0], &[1.0, -2.0]), None);
        assert_eq!(difference(&[1.0, 3.0], &[1.0, -2.0]).as_deref(), Some("value 1 is 3, not -2"));
        assert_eq!(difference(&[1.0], &[1.0, 2.0]).as_deref(), Some("1 values came back of 2"));
    }
}
