//! Failures from panics: a panic in a rank becomes a failure with its message.

use crate::out_of_memory;
use dtrain_protocol::Failure;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `work`; a panic in it becomes a failure with the panic's message.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(panic_failure(panic.as_ref())))
}

/// Returns the failure that a panic stands for. Device runtimes report exhausted memory only in the message.
fn panic_failure(panic: &(dyn Any + Send)) -> Failure {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message");
    match out_of_memory::out_of_memory_line(text) {
        Some(detail) => Failure::OutOfMemory { detail },
        None => Failure::Other(format!("the worker panicked: {text}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_told_with_its_message() {
        let failure = guarded::<()>(|| panic!("shapes {} and {} differ", 2, 3)).unwrap_err();
        assert_eq!(failure, Failure::Other("the worker panicked: shapes 2 and 3 differ".into()));
        let failure = guarded::<()>(|| panic!("CUDA_ERROR_OUT_OF_MEMORY")).unwrap_err();
        assert!(matches!(failure, Failure::OutOfMemory { .. }), "{failure:?}");
    }
}
