//! Out-of-memory errors of devices, recognized by their text, which is the only sign of them.

use dtrain_protocol::Failure;

/// Phrases in the errors of exhausted memory, in lower case.
const WORDS: [&str; 5] = [
    // `OutOfMemory` of CubeCL.
    "out of device memory",
    // `BufferTooBig` and `PageSizesExhausted` of CubeCL.
    "can't allocate",
    // wgpu, drivers and NCCL.
    "out of memory",
    "outofmemory",
    "out_of_memory",
];

/// Start of CubeCL's error about a buffer that is larger than it may ever allocate.
const TOO_LARGE: &str = "can't allocate buffer of size";

/// Converts the error text of a device to a failure: exhausted memory, or anything else.
pub(crate) fn runtime_failure(text: String) -> Failure {
    match out_of_memory_line(&text) {
        Some(detail) => Failure::OutOfMemory { detail },
        None => Failure::Other(text),
    }
}

/// Returns the line of `text` about exhausted memory, without causes and backtraces around it.
pub(crate) fn out_of_memory_line(text: &str) -> Option<String> {
    let tells = |line: &&str| {
        let line = line.to_lowercase();
        WORDS.iter().any(|words| line.contains(words))
    };
    let line = text.lines().map(str::trim).find(tells)?;
    if line.contains(TOO_LARGE) {
        return Some(format!("{line}, which is more than this device gives to one tensor"));
    }
    Some(line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detail(text: String) -> String {
        match runtime_failure(text) {
            Failure::OutOfMemory { detail } => detail,
            failure => panic!("{failure:?}"),
        }
    }

    #[test]
    fn anything_else_is_told_whole() {
        let text = "a launch failed\nCaused by:\n  an illegal address";
        assert_eq!(runtime_failure(text.to_owned()), Failure::Other(text.to_owned()));
    }

    /// CubeCL's own errors, as burn wraps them, in every way that they are printed.
    #[cfg(feature = "device")]
    #[test]
    fn the_errors_of_cubecl_are_known() {
        use cubecl::server::{IoError, ServerError};
        let full = || IoError::OutOfMemory { size: 1 << 30, backtrace: Default::default() };
        let errors = [
            full(),
            IoError::BufferTooBig { size: 1 << 30, backtrace: Default::default() },
            IoError::PageSizesExhausted { size: 1 << 30, backtrace: Default::default() },
            IoError::StorageMappingFailed {
                size: 1 << 30,
                source: Box::new(full()),
                backtrace: Default::default(),
            },
        ];
        for error in errors {
            // Error of reading a buffer that was never written.
            let unwritten = ServerError::Unwritten {
                failure: 1,
                claimed: 3,
                chain: vec!["matmul_entry".into()],
                root: Box::new(error.clone().into()),
                backtrace: Default::default(),
            };
            let read = burn::tensor::ExecutionError::with_context(unwritten.to_string());
            for text in [error.to_string(), format!("{error:?}"), read.to_string(), format!("{read:?}")] {
                let detail = detail(text);
                assert!(detail.contains("1073741824") && !detail.contains('\n'), "{detail}");
            }
        }
        let poisoned =
            ServerError::Generic { reason: "an illegal address".into(), backtrace: Default::default() };
        assert_eq!(out_of_memory_line(&poisoned.to_string()), None);
    }

    /// Mesa's device, which `tests/run` installs, refuses a buffer that no binding can hold.
    #[cfg(feature = "wgpu")]
    #[test]
    fn a_tensor_that_a_device_cannot_hold_ends_as_out_of_memory() {
        use burn::tensor::Tensor;
        let placement = dtrain_protocol::Placement {
            host: 0,
            device: dtrain_protocol::DeviceKind::Wgpu,
            index: 0,
            threads: 1,
        };
        let Ok(device) = crate::device::open(&placement) else {
            return dtrain_skip::skip("there is no Vulkan device; `tests/run` installs Mesa's");
        };
        let read = || {
            // 8 GiB: lengths of bindings are counted in 32 bits.
            drop(Tensor::<1>::empty([1_usize << 31], &device).into_data());
            Ok(())
        };
        let failure = crate::panic_failure::guarded(read).expect_err("no binding is that long");
        let Failure::OutOfMemory { detail } = failure else { panic!("{failure:?}") };
        assert!(
            detail.contains("can't allocate buffer of size") && detail.contains("one tensor"),
            "{detail}"
        );
    }
}
