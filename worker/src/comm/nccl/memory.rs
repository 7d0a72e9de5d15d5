//! GPU memory that NCCL works on, and the event behind the kernels that write it.

use super::super::CommError;
use burn::backend::Cube;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Tensor};
use cubecl::cuda::CudaRuntime;
use cubecl::future::DynFut;
use cubecl::server::ServerError;
use cubecl_runtime::runtime::Runtime;
use cubecl_runtime::server::ServerStorage;
use cubecl_runtime::storage::{ComputeStorage, ManagedResource};
use std::any::TypeId;
use std::ffi::c_void;
use std::fmt::Display;

type Server = <CudaRuntime as Runtime>::Server;
type Resource = <<Server as ServerStorage>::Storage as ComputeStorage>::Resource;

/// CUDA values that are to be reduced, and the event after which they are written. Made by the thread that
/// queued the kernels which write them, for the thread that calls NCCL.
pub(in crate::comm) struct PendingBuffer {
    pub(super) memory: CudaBuffer,
    pub(super) written: WriteEvent,
}

impl PendingBuffer {
    /// Wraps CUDA values, for which this thread queued all kernels.
    pub(in crate::comm) fn of(values: Tensor<1>) -> Result<Self, CommError> {
        let memory = CudaBuffer::of(values)?;
        let written = memory.written();
        Ok(Self { memory, written })
    }

    /// Waits until the values are written, and returns them.
    pub(in crate::comm) fn wait(self) -> Result<Tensor<1>, CommError> {
        self.written.wait()?;
        Ok(self.memory.tensor())
    }
}

/// Contiguous values of a CUDA tensor that this process uses nowhere else.
///
/// While it lives CubeCL neither frees the memory nor reuses nor moves it, so that its address holds. A
/// tensor alone keeps its memory, but CubeCL may move it when the device is nearly full.
pub(super) struct CudaBuffer {
    tensor: FloatTensor<Cube>,
    resource: ManagedResource<Resource>,
}

impl CudaBuffer {
    /// Takes the memory of `values`, for which this thread queued all kernels. They need not be written
    /// yet.
    pub(super) fn of(values: Tensor<1>) -> Result<Self, CommError> {
        let tensor =
            values.try_into_primitive::<Cube>().map_err(|error| unreadable(&format!("{error:?}")))?;
        let tensor = burn_cubecl::kernel::into_contiguous(tensor);
        let tensor = if tensor.can_mut() { tensor } else { tensor.copy() };
        assert_eq!(tensor.dtype, DType::F32, "values that travel are f32");
        let resource = tensor.client.get_resource::<Server>(tensor.handle.clone());
        let resource = resource.map_err(|error| unreadable(&error))?;
        Ok(Self { tensor, resource })
    }

    /// Returns an event behind all work that this thread has queued so far.
    pub(super) fn written(&self) -> WriteEvent {
        WriteEvent(self.tensor.client.sync())
    }

    pub(super) fn pointer(&self) -> *mut c_void {
        self.resource.resource().ptr as *mut c_void
    }

    /// Returns the number of values in the buffer.
    pub(super) fn length(&self) -> usize {
        self.tensor.meta.num_elements()
    }

    pub(super) fn bytes(&self) -> u64 {
        4 * self.length() as u64
    }

    pub(super) fn tensor(self) -> Tensor<1> {
        Tensor::from_primitive::<Cube>(self.tensor)
    }
}

/// An event that CubeCL recorded on the stream of a thread; any thread may wait for it.
pub(super) struct WriteEvent(DynFut<Result<(), ServerError>>);

impl WriteEvent {
    /// Waits until the GPU has reached the event.
    pub(super) fn wait(self) -> Result<(), CommError> {
        cubecl::future::block_on(self.0).map_err(|error| unreadable(&error))
    }
}

/// Returns `true` if `values` are on a CUDA GPU.
pub(in crate::comm) fn is_of_cuda(values: &Tensor<1>) -> bool {
    let tensor = values.clone().try_into_primitive::<Cube>();
    tensor.is_ok_and(|tensor| tensor.client.service_id().service == TypeId::of::<Server>())
}

fn unreadable(error: &dyn Display) -> CommError {
    CommError::Link(format!("values for the other ranks could not be found on the device: {error}"))
}
