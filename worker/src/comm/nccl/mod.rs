//! NCCL: collectives among NVIDIA's GPUs, from the memory of one to that of another.
//!
//! The existing host group carries the identifier of each communicator. NCCL chooses the order of a sum, so
//! that its last bits may differ from those of the groups on the host.
//!
//! CubeCL has a stream for each thread and shows none of them, but it records an event on the stream of a
//! thread, and any thread may wait for that. So the thread that queued the kernels which write some values
//! takes their address and such an event before it queues anything else, and the thread that calls NCCL,
//! mostly another one, waits for the event: for those kernels and none that follow. The collective then
//! runs on a stream of the communicator, beside the kernels of other threads. The host waits for its end as
//! well, so that any thread may queue kernels that read the result. CubeCL holds the memory from the moment
//! its address is taken until the collective has ended, and after a failure for good.

#![expect(unsafe_code, reason = "NCCL is a C library, and reads the memory of a device by its address")]

pub(crate) mod self_check;

mod library;
mod memory;

pub(super) use memory::{PendingBuffer, is_of_cuda};

use super::{CommError, NCCL_SWITCH, ProcessGroup, WaitPolicy};
use burn::tensor::Tensor;
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError};
use dtrain_protocol::{DeviceKind, Placement};
use library::{
    Comm, CommunicatorConfig, CudaStreamPtr, F32, IN_PROGRESS, Library, REMOTE_ERROR, SUCCESS, SUM, UniqueId,
};
use memory::{CudaBuffer, WriteEvent};
use std::ffi::{CStr, c_int};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time for which a collective is polled without sleeping.
const SPIN: Duration = Duration::from_micros(200);
/// Sleep between two polls of a collective that takes longer.
const SLEEP: Duration = Duration::from_micros(50);

/// Returns the version of the NCCL library in a file, such as `2.27.3`; `Err` says why it cannot be used.
pub fn version_at(path: &Path) -> Result<String, String> {
    let library = Library::at(path)?;
    let words = library::version_text(library.version);
    // The library may have started threads: it is not unloaded.
    std::mem::forget(library);
    Ok(words)
}

/// The state from which a rank creates NCCL communicators.
pub(super) struct CommunicatorBootstrap {
    library: &'static Library,
    context: Arc<CudaContext>,
    limit: Duration,
}

impl CommunicatorBootstrap {
    /// Prepares NCCL for the rank at `placement`, if all ranks of `group`, which call this together, have it
    /// and want it. `None` if the GPUs are not NVIDIA's, or any rank lacks NCCL.
    pub(super) fn agree(
        group: &mut dyn ProcessGroup,
        placement: &Placement,
        waits: &WaitPolicy,
    ) -> Result<Option<Self>, CommError> {
        if placement.device != DeviceKind::Cuda || group.size() == 1 {
            return Ok(None);
        }
        let library =
            Library::get().ok().filter(|_| std::env::var_os(NCCL_SWITCH).is_none_or(|it| it != "off"));
        let mut versions = vec![0.0; group.size() as usize];
        // A version is a whole number below 2^24.
        versions[group.rank() as usize] = library.map_or(0.0, |library| library.version as f32);
        group.all_gather(&mut versions)?;
        let Some(library) = library.filter(|_| !versions.contains(&0.0)) else { return Ok(None) };
        if let Some(other) = versions.iter().position(|version| *version != versions[0]) {
            let [first, other_words] =
                [versions[0], versions[other]].map(|version| library::version_text(version as u32));
            return Err(CommError::Link(format!(
                "rank 0 has NCCL {first}, rank {other} has NCCL {other_words}: install the same version on every host, or \
                 set {NCCL_SWITCH}=off"
            )));
        }
        let context =
            CudaContext::new(placement.index as usize).map_err(|error| driver("the device", error))?;
        Ok(Some(Self { library, context, limit: waits.idle() }))
    }

    /// Creates the NCCL communicator of the ranks of `group`, which call this together.
    pub(super) fn create(&self, group: &mut dyn ProcessGroup) -> Result<GpuCommunicator, CommError> {
        const OPERATION: &str = "the start of NCCL";
        let library = self.library;
        let mut id = UniqueId([0; 32]);
        if group.rank() == 0 {
            // SAFETY: an identifier has room for what is written.
            check(library, OPERATION, unsafe { (library.get_unique_id)(&raw mut id) })?;
        }
        // Bits travel as they are: nothing is added.
        let mut bits = id.0.map(f32::from_bits);
        group.broadcast(0, &mut bits)?;
        let id = UniqueId(bits.map(f32::to_bits));
        let bind = self.context.bind_to_thread();
        let stream =
            bind.and_then(|()| self.context.new_stream()).map_err(|error| driver(OPERATION, error))?;
        let done = self.context.new_event(None).map_err(|error| driver(OPERATION, error))?;
        let (ranks, rank) = (group.size(), group.rank());
        let [c_ranks, c_rank] = [ranks, rank].map(rank_of);
        let (mut comm, mut config): (Comm, _) = (ptr::null_mut(), CommunicatorConfig::non_blocking());
        // SAFETY: the pointers are to values that live until the call returns, and the context of the GPU
        // is this thread's.
        let code =
            unsafe { (library.comm_init_rank_config)(&raw mut comm, c_ranks, id, c_rank, &raw mut config) };
        let communicator =
            GpuCommunicator { library, comm, stream, done, ranks, rank, limit: self.limit, sent: 0 };
        communicator.wait_accepted(OPERATION, code)?;
        Ok(communicator)
    }
}

/// An NCCL communicator between the GPUs of a group of ranks. An `Err` of an operation ends it.
pub(super) struct GpuCommunicator {
    library: &'static Library,
    comm: Comm,
    stream: Arc<CudaStream>,
    /// Event recorded behind every collective.
    done: CudaEvent,
    ranks: u32,
    rank: u32,
    limit: Duration,
    sent: u64,
}

// SAFETY: a communicator may be used by any thread, one at a time, which `&mut` sees to.
unsafe impl Send for GpuCommunicator {}

impl GpuCommunicator {
    /// Returns the bytes that this rank sent, counted as in the groups on the host.
    pub(super) fn bytes_sent(&self) -> u64 {
        self.sent
    }

    /// Returns the sum of `values` over the ranks.
    pub(super) fn all_reduce(&mut self, values: PendingBuffer) -> Result<Tensor<1>, CommError> {
        let (library, comm) = (self.library, self.comm);
        // SAFETY: the memory is this call's until it returns, and has that many values.
        let start = |memory: &CudaBuffer, stream| unsafe {
            let at = memory.pointer();
            (library.all_reduce)(at, at, memory.length(), F32, SUM, comm, stream)
        };
        let memory = self.run("all-reduce", values.memory, values.written, start)?;
        self.count(2 * memory.bytes());
        Ok(memory.tensor())
    }

    /// Returns this rank's part of the sum of `values` over the ranks, which divide them evenly.
    pub(super) fn reduce_scatter(&mut self, values: Tensor<1>) -> Result<Tensor<1>, CommError> {
        let PendingBuffer { memory, written } = PendingBuffer::of(values)?;
        let part = memory.length() / self.ranks as usize;
        let begin = part * self.rank as usize;
        let (library, comm) = (self.library, self.comm);
        // SAFETY: as above; NCCL sums in place where the part lies in the whole.
        let start = |memory: &CudaBuffer, stream| unsafe {
            let at = memory.pointer();
            (library.reduce_scatter)(at, at.byte_add(4 * begin), part, F32, SUM, comm, stream)
        };
        let memory = self.run("reduce-scatter", memory, written, start)?;
        self.count(memory.bytes());
        let own = begin..begin + part;
        Ok(memory.tensor().slice([own]))
    }

    /// Returns the parts of all ranks in rank order; this rank contributes `part`, and all have its length.
    pub(super) fn all_gather(&mut self, part: Tensor<1>) -> Result<Tensor<1>, CommError> {
        let whole = Tensor::empty([part.dims()[0] * self.ranks as usize], &part.device());
        let both = (CudaBuffer::of(part)?, CudaBuffer::of(whole)?);
        // Queued kernels may still use the memory that the result now has.
        let written = both.1.written();
        let (library, comm) = (self.library, self.comm);
        // SAFETY: as above.
        let start = |(part, whole): &(CudaBuffer, CudaBuffer), stream| unsafe {
            (library.all_gather)(part.pointer(), whole.pointer(), part.length(), F32, comm, stream)
        };
        let (_, whole) = self.run("all-gather", both, written, start)?;
        self.count(whole.bytes());
        Ok(whole.tensor())
    }

    /// Sends values to one rank and fills `recv` with values from one, both at once.
    pub(super) fn exchange(
        &mut self,
        send: Option<(u32, Tensor<1>)>,
        recv: Option<(u32, Tensor<1>)>,
    ) -> Result<Option<Tensor<1>>, CommError> {
        let memory = |peer: Option<(u32, Tensor<1>)>| {
            let of = |(rank, values)| CudaBuffer::of(values).map(|memory| (rank_of(rank), memory));
            peer.map(of).transpose()
        };
        let (send, recv) = (memory(send)?, memory(recv)?);
        let Some((_, any)) = send.as_ref().or(recv.as_ref()) else { return Ok(None) };
        let written = any.written();
        let (library, comm) = (self.library, self.comm);
        let start = |(send, recv): &(Option<_>, Option<_>), stream| {
            // SAFETY: as above; between start and end of a group nothing is done yet.
            unsafe {
                let mut codes = vec![(library.group_start)()];
                if let Some((to, memory)) = send {
                    let memory: &CudaBuffer = memory;
                    codes.push((library.send)(memory.pointer(), memory.length(), F32, *to, comm, stream));
                }
                if let Some((from, memory)) = recv {
                    let memory: &CudaBuffer = memory;
                    codes.push((library.recv)(memory.pointer(), memory.length(), F32, *from, comm, stream));
                }
                codes.push((library.group_end)());
                let failed = |code: &c_int| !matches!(*code, SUCCESS | IN_PROGRESS);
                let last = codes.last().copied().unwrap_or(SUCCESS);
                codes.into_iter().find(failed).unwrap_or(last)
            }
        };
        let (send, recv) = self.run("exchange", (send, recv), written, start)?;
        self.sent += send.as_ref().map_or(0, |(_, memory)| memory.bytes());
        Ok(recv.map(|(_, memory)| memory.tensor()))
    }

    /// Adds the bytes that one of `n` ranks sends for a collective over `bytes`: all but its own part.
    fn count(&mut self, bytes: u64) {
        let ranks = u64::from(self.ranks);
        self.sent += bytes * (ranks - 1) / ranks;
    }

    /// Starts a collective on `memory`, once its values are written, and returns the memory when the
    /// collective is done. After a failure the memory is never freed, because the GPU may still work on it:
    /// the process ends with the attempt.
    fn run<M>(
        &mut self,
        operation: &'static str,
        memory: M,
        written: WriteEvent,
        start: impl FnOnce(&M, CudaStreamPtr) -> c_int,
    ) -> Result<M, CommError> {
        let of_driver = |error| driver(operation, error);
        self.stream.context().bind_to_thread().map_err(of_driver)?;
        written.wait()?;
        let memory = ManuallyDrop::new(memory);
        let code = start(&memory, self.stream.cu_stream().cast());
        self.wait_accepted(operation, code)?;
        self.done.record(&self.stream).map_err(of_driver)?;
        self.wait(operation, || self.done.try_is_complete().map_err(of_driver))?;
        Ok(ManuallyDrop::into_inner(memory))
    }

    /// Waits until NCCL accepts a call that returned `code`.
    fn wait_accepted(&self, operation: &'static str, code: c_int) -> Result<(), CommError> {
        match code {
            SUCCESS => Ok(()),
            IN_PROGRESS => self.wait(operation, || Ok(self.state(operation)? == SUCCESS)),
            code => Err(self.abort(failure(self.library, operation, code))),
        }
    }

    /// Polls `is_done` until it returns `true`; `Err` if a rank failed or the time limit has passed.
    fn wait(
        &self,
        operation: &'static str,
        is_done: impl Fn() -> Result<bool, CommError>,
    ) -> Result<(), CommError> {
        let began = Instant::now();
        loop {
            let waited = began.elapsed();
            match is_done() {
                Ok(true) => return Ok(()),
                Ok(false) if waited >= self.limit => {
                    let detail = format!("not done after {:.0} s", waited.as_secs_f64());
                    return Err(self.abort(CommError::Nccl { operation, detail, is_of_peer: true }));
                }
                Ok(false) => {}
                Err(error) => return Err(self.abort(error)),
            }
            if waited < SPIN {
                std::thread::yield_now();
                continue;
            }
            if let Err(error) = self.state(operation) {
                return Err(self.abort(error));
            }
            std::thread::sleep(SLEEP);
        }
    }

    /// Returns the state of the last call, `SUCCESS` or `IN_PROGRESS`; `Err` if a call that had returned
    /// failed later.
    fn state(&self, operation: &'static str) -> Result<c_int, CommError> {
        let mut state = SUCCESS;
        // SAFETY: the communicator lives as long as `self`.
        let asked = unsafe { (self.library.comm_get_async_error)(self.comm, &raw mut state) };
        let code = if asked == SUCCESS { state } else { asked };
        match code {
            SUCCESS | IN_PROGRESS => Ok(code),
            code => Err(failure(self.library, operation, code)),
        }
    }

    /// Aborts the communicator, which the other ranks notice, and returns `error`.
    fn abort(&self, error: CommError) -> CommError {
        if !self.comm.is_null() {
            // SAFETY: after this only `drop` follows, which frees nothing: the process ends with the attempt.
            unsafe { (self.library.comm_abort)(self.comm) };
        }
        error
    }
}

/// Converts the number of a rank to NCCL's type.
fn rank_of(rank: u32) -> c_int {
    c_int::try_from(rank).unwrap_or(c_int::MAX)
}

fn check(library: &Library, operation: &'static str, code: c_int) -> Result<(), CommError> {
    if code == SUCCESS { Ok(()) } else { Err(failure(library, operation, code)) }
}

fn failure(library: &Library, operation: &'static str, code: c_int) -> CommError {
    // SAFETY: NCCL has a constant text for every number.
    let text = unsafe { (library.get_error_string)(code) };
    let detail = if text.is_null() {
        format!("error {code}")
    } else {
        // SAFETY: the text ends with a zero and is never freed.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    };
    CommError::Nccl { operation, detail, is_of_peer: code == REMOTE_ERROR }
}

fn driver(operation: &'static str, error: DriverError) -> CommError {
    CommError::Nccl { operation, detail: format!("the CUDA driver: {error}"), is_of_peer: false }
}
