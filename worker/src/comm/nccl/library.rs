//! The functions of NCCL that dtrain calls, loaded when they are first needed.
//!
//! Signatures and numbers are those of `nccl.h` 2.14 and later
//! (<https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api.html>). The library is searched under
//! the name in NVIDIA's packages, `libnccl.so.2`, and as `libnccl.so`.

use libloading::Library as Loaded;
use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use std::sync::OnceLock;

/// File names under which the library is searched.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// The oldest supported release, 2.14: its communicators return before a call is done, so that a lost peer
/// blocks no rank.
const OLDEST: u32 = 21_400;

/// `ncclSuccess`: the call succeeded.
pub(super) const SUCCESS: c_int = 0;
/// `ncclRemoteError`: a call failed because of another rank.
pub(super) const REMOTE_ERROR: c_int = 6;
/// `ncclInProgress`: the call has returned, and its work is not done yet.
pub(super) const IN_PROGRESS: c_int = 7;
/// `ncclFloat32`: the type of all values that are sent.
pub(super) const F32: c_int = 7;
/// `ncclSum`: the reduction that adds values.
pub(super) const SUM: c_int = 0;

/// `ncclComm_t`: a handle of a communicator.
pub(super) type Comm = *mut c_void;
/// `cudaStream_t`: a handle of a CUDA stream.
pub(super) type CudaStreamPtr = *mut c_void;

/// `ncclUniqueId`: the address at which the ranks of a communicator meet. Stored as words, so that it
/// travels like any values.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct UniqueId(pub(super) [u32; 32]);

/// `ncclConfig_t` as of 2.14. Later releases have more fields, and use defaults for those that an older
/// caller lacks.
#[repr(C)]
pub(super) struct CommunicatorConfig {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

impl CommunicatorConfig {
    /// Creates a configuration in which calls return before they are done.
    pub(super) fn non_blocking() -> Self {
        Self { size: size_of::<Self>(), magic: 0xcafe_beef, version: OLDEST, blocking: 0 }
    }
}

type GetVersionFn = unsafe extern "C" fn(*mut c_int) -> c_int;
type AllReduceFn =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, CudaStreamPtr) -> c_int;
type AllGatherFn =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Comm, CudaStreamPtr) -> c_int;

/// The loaded functions of NCCL. Each returns `SUCCESS`, `IN_PROGRESS` or an error.
pub(super) struct Library {
    /// Version as `ncclGetVersion` encodes it: 22703 for 2.27.3.
    pub(super) version: u32,
    pub(super) get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    pub(super) comm_init_rank_config:
        unsafe extern "C" fn(*mut Comm, c_int, UniqueId, c_int, *mut CommunicatorConfig) -> c_int,
    pub(super) comm_get_async_error: unsafe extern "C" fn(Comm, *mut c_int) -> c_int,
    pub(super) comm_abort: unsafe extern "C" fn(Comm) -> c_int,
    pub(super) get_error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    pub(super) all_reduce: AllReduceFn,
    pub(super) reduce_scatter: AllReduceFn,
    pub(super) all_gather: AllGatherFn,
    pub(super) send: unsafe extern "C" fn(*const c_void, usize, c_int, c_int, Comm, CudaStreamPtr) -> c_int,
    pub(super) recv: unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Comm, CudaStreamPtr) -> c_int,
    pub(super) group_start: unsafe extern "C" fn() -> c_int,
    pub(super) group_end: unsafe extern "C" fn() -> c_int,
    _loaded: Loaded,
}

impl Library {
    /// Returns the NCCL library, which this process loads once; `Err` gives the reason why it has none.
    pub(super) fn get() -> Result<&'static Self, &'static str> {
        static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
        LIBRARY.get_or_init(Self::load).as_ref().map_err(String::as_str)
    }

    /// Loads the library from the file at `path`.
    pub(super) fn at(path: &Path) -> Result<Self, String> {
        // SAFETY: the initialisers of NVIDIA's library may run in any thread.
        Self::of(unsafe { Loaded::new(path) }.map_err(|error| error.to_string())?)
    }

    fn load() -> Result<Self, String> {
        let mut first = None;
        for name in NAMES {
            // SAFETY: the initialisers of NVIDIA's library may run in any thread.
            match unsafe { Loaded::new(name) } {
                Ok(loaded) => return Self::of(loaded).map_err(|detail| format!("{name}: {detail}")),
                Err(error) => _ = first.get_or_insert_with(|| error.to_string()),
            }
        }
        Err(first.unwrap_or_default())
    }

    fn of(loaded: Loaded) -> Result<Self, String> {
        /// Returns the function called `name` of a loaded library.
        ///
        /// # Safety
        ///
        /// `T` is the type of the function called `name`.
        unsafe fn function<T: Copy>(loaded: &Loaded, name: &str) -> Result<T, String> {
            // SAFETY: as the caller promises.
            unsafe { loaded.get::<T>(name) }.map(|symbol| *symbol).map_err(|error| error.to_string())
        }
        let mut version = 0;
        // SAFETY: types and names are those of `nccl.h`; the version is written to a `c_int`.
        let library = unsafe {
            let get_version: GetVersionFn = function(&loaded, "ncclGetVersion")?;
            if get_version(&raw mut version) != SUCCESS {
                return Err("ncclGetVersion failed".into());
            }
            Self {
                version: u32::try_from(version).unwrap_or(0),
                get_unique_id: function(&loaded, "ncclGetUniqueId")?,
                comm_init_rank_config: function(&loaded, "ncclCommInitRankConfig")?,
                comm_get_async_error: function(&loaded, "ncclCommGetAsyncError")?,
                comm_abort: function(&loaded, "ncclCommAbort")?,
                get_error_string: function(&loaded, "ncclGetErrorString")?,
                all_reduce: function(&loaded, "ncclAllReduce")?,
                reduce_scatter: function(&loaded, "ncclReduceScatter")?,
                all_gather: function(&loaded, "ncclAllGather")?,
                send: function(&loaded, "ncclSend")?,
                recv: function(&loaded, "ncclRecv")?,
                group_start: function(&loaded, "ncclGroupStart")?,
                group_end: function(&loaded, "ncclGroupEnd")?,
                _loaded: loaded,
            }
        };
        if library.version < OLDEST {
            let [found, oldest] = [library.version, OLDEST].map(version_text);
            return Err(format!("this is NCCL {found}, and at least {oldest} is needed"));
        }
        Ok(library)
    }
}

/// Formats an encoded version of NCCL: 2.27.3 for 22703.
pub(super) fn version_text(version: u32) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}
