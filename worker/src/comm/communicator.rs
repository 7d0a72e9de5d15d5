//! Communicator: a group of ranks that exchanges values in host memory or on devices.

use super::{CommError, Incoming, Outgoing, ProcessGroup, WaitPolicy};
use burn::tensor::{Device, Tensor, TensorData};
use dtrain_protocol::Placement;

/// Device values that one thread hands to another for reduction. Created by the thread that queued the
/// kernels which write them, before it queues others.
pub struct QueuedTensor(QueuedStorage);

enum QueuedStorage {
    /// A tensor of a runtime that orders reads by any thread after the kernels that write the values.
    Tensor(Tensor<1>),
    /// A CUDA buffer: each thread has a CUDA stream of its own, so a read need not wait for the kernels of
    /// another thread.
    #[cfg(feature = "cuda")]
    Cuda(super::nccl::PendingBuffer),
}

impl QueuedTensor {
    /// Wraps `values`. `Err` if their memory on the device cannot be found.
    pub fn of(values: Tensor<1>) -> Result<Self, CommError> {
        #[cfg(feature = "cuda")]
        if super::nccl::is_of_cuda(&values) {
            return Ok(Self(QueuedStorage::Cuda(super::nccl::PendingBuffer::of(values)?)));
        }
        Ok(Self(QueuedStorage::Tensor(values)))
    }
}

/// The direct connections between the devices of an attempt's ranks.
#[derive(Default)]
pub struct DeviceLinks {
    #[cfg(feature = "cuda")]
    nccl: Option<super::nccl::CommunicatorBootstrap>,
}

impl DeviceLinks {
    /// Agrees with all ranks of `group`, which call this together, on the direct connections between their
    /// devices. This rank computes at `placement`.
    #[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "only GPUs of CUDA have such links"))]
    pub fn agree(
        group: &mut dyn ProcessGroup,
        placement: &Placement,
        waits: &WaitPolicy,
    ) -> Result<Self, CommError> {
        #[cfg(feature = "cuda")]
        return Ok(Self { nccl: super::nccl::CommunicatorBootstrap::agree(group, placement, waits)? });
        #[cfg(not(feature = "cuda"))]
        Ok(Self {})
    }

    /// Creates a communicator for the ranks of `host`, which call this together.
    pub fn communicator(&self, host: Box<dyn ProcessGroup>) -> Result<Communicator, CommError> {
        #[cfg(feature = "cuda")]
        return Communicator::of(host, self.nccl.as_ref());
        #[cfg(not(feature = "cuda"))]
        Ok(Communicator::staged(host))
    }
}

/// A group of ranks that exchanges device values: by NCCL if all ranks have it, otherwise through host
/// memory.
pub struct Communicator {
    host: Box<dyn ProcessGroup>,
    #[cfg(feature = "cuda")]
    nccl: Option<super::nccl::GpuCommunicator>,
}

impl Communicator {
    /// Creates a communicator that sends all values through `host`.
    pub fn staged(host: Box<dyn ProcessGroup>) -> Self {
        Self {
            host,
            #[cfg(feature = "cuda")]
            nccl: None,
        }
    }

    /// Creates a communicator that uses NCCL if `founder` is given. All ranks of `host` call this together.
    #[cfg(feature = "cuda")]
    fn of(
        mut host: Box<dyn ProcessGroup>,
        founder: Option<&super::nccl::CommunicatorBootstrap>,
    ) -> Result<Self, CommError> {
        let founder = founder.filter(|_| host.size() > 1);
        let nccl = founder.map(|founder| founder.create(host.as_mut())).transpose()?;
        Ok(Self { host, nccl })
    }

    /// Returns the process group of the same ranks for values in host memory.
    pub fn host(&mut self) -> &mut dyn ProcessGroup {
        self.host.as_mut()
    }

    /// Returns the index of this rank in the group.
    pub fn rank(&self) -> u32 {
        self.host.rank()
    }

    /// Returns the number of ranks in the group.
    pub fn size(&self) -> u32 {
        self.host.size()
    }

    /// Returns the bytes of values that this rank has sent so far, by NCCL and through host memory.
    pub fn bytes_sent(&self) -> u64 {
        #[cfg(feature = "cuda")]
        let of_devices = self.nccl.as_ref().map_or(0, super::nccl::GpuCommunicator::bytes_sent);
        #[cfg(not(feature = "cuda"))]
        let of_devices = 0;
        self.host.bytes_sent() + of_devices
    }

    /// Returns the sum of `values` over the ranks.
    pub fn all_reduce(&mut self, values: Tensor<1>) -> Result<Tensor<1>, CommError> {
        #[cfg(feature = "cuda")]
        if let Some(nccl) = &mut self.nccl {
            return nccl.all_reduce(super::nccl::PendingBuffer::of(values)?);
        }
        let (device, mut values) = fetch(values);
        self.host.all_reduce(&mut values)?;
        Ok(put(values, &device))
    }

    /// Returns the sum over the ranks of `values`, whose kernels another thread queued.
    pub fn all_reduce_queued(&mut self, values: QueuedTensor) -> Result<Tensor<1>, CommError> {
        match values.0 {
            QueuedStorage::Tensor(values) => self.all_reduce(values),
            #[cfg(feature = "cuda")]
            QueuedStorage::Cuda(values) => match &mut self.nccl {
                Some(nccl) => nccl.all_reduce(values),
                None => self.all_reduce(values.wait()?),
            },
        }
    }

    /// Returns this rank's part of the sum of `values` over the ranks; the ranks divide the values evenly.
    pub fn reduce_scatter(&mut self, values: Tensor<1>) -> Result<Tensor<1>, CommError> {
        #[cfg(feature = "cuda")]
        if let Some(nccl) = &mut self.nccl {
            return nccl.reduce_scatter(values);
        }
        let (device, mut values) = fetch(values);
        let own = self.host.reduce_scatter(&mut values)?;
        Ok(put(values[own].to_vec(), &device))
    }

    /// Returns the parts of all ranks, joined in rank order; this rank contributes `part`. All parts have the
    /// same length.
    pub fn all_gather(&mut self, part: Tensor<1>) -> Result<Tensor<1>, CommError> {
        #[cfg(feature = "cuda")]
        if let Some(nccl) = &mut self.nccl {
            return nccl.all_gather(part);
        }
        let (device, part) = fetch(part);
        let mut all = vec![0.0; part.len() * self.size() as usize];
        all[self.rank() as usize * part.len()..][..part.len()].copy_from_slice(&part);
        self.host.all_gather(&mut all)?;
        Ok(put(all, &device))
    }

    /// Sends values to one rank and receives `recv` values from one (the same or another) at the same time.
    pub fn exchange(
        &mut self,
        send: Option<(u32, Tensor<1>)>,
        recv: Option<(u32, usize)>,
        device: &Device,
    ) -> Result<Option<Tensor<1>>, CommError> {
        #[cfg(feature = "cuda")]
        if let Some(nccl) = &mut self.nccl {
            let recv = recv.map(|(from, values)| (from, Tensor::empty([values], device)));
            return nccl.exchange(send, recv);
        }
        let send = send.map(|(to, values)| (to, fetch(values).1));
        let mut received = recv.map(|(from, values)| (from, vec![0.0; values]));
        self.host.exchange(
            send.as_ref().map(|(to, values)| Outgoing { to: *to, values }),
            received.as_mut().map(|(from, values)| Incoming { from: *from, values }),
        )?;
        Ok(received.map(|(_, values)| put(values, device)))
    }
}

/// Returns the device of `values`, and a copy of them in host memory.
fn fetch(values: Tensor<1>) -> (Device, Vec<f32>) {
    let device = values.device();
    (device, values.into_data().try_to_vec().expect("values that travel are f32"))
}

/// Copies `values` to `device`.
fn put(values: Vec<f32>, device: &Device) -> Tensor<1> {
    let length = values.len();
    Tensor::from_data(TensorData::new(values, [length]), device)
}
