//! Advice about failures of training engines, by the words with which PyTorch reports them.

use dtrain_protocol::Failure;
use dtrain_recipes::TrainingEngine;
use dtrain_runner::engine_environment;

/// Returns what to do about the failure of a trial that an engine trained; `None` if its last words are not
/// known, and for dtrain's own worker.
pub(crate) fn remedy(engine: TrainingEngine, label: &str, failure: &Failure) -> Option<String> {
    let Failure::Command { last, .. } = failure else { return None };
    let last = last.last().filter(|_| engine.is_foreign())?.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| last.contains(word));
    if has(&["no space left on device"]) {
        return Some(format!("free some space on that disk, and `dtrain resume {label}`"));
    }
    if has(&["no module named", "importerror", "cannot import name"]) {
        return Some(engine_environment::remedy(engine));
    }
    if has(&["eaddrinuse", "address already in use"]) {
        return Some(format!(
            "another program holds the port; `ss -tlnp` shows which one; `dtrain resume {label}` takes another port"
        ));
    }
    if has(&["nccl", "gloo", "watchdog", "distbackenderror", "distnetworkerror"]) {
        return Some(format!(
            "ranks waited for each other in vain: check the network between the hosts; with NCCL_DEBUG=INFO in the environment of each host, `dtrain resume {label}` and `dtrain logs {label}` show where"
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_last_words_of_an_engine_have_advice() {
        let advice = |engine, line: &str| {
            let failure = Failure::Command { code: Some(1), signal: None, last: vec![line.to_owned()] };
            remedy(engine, "tiny-1", &failure)
        };
        let of = |line| advice(TrainingEngine::Fsdp, line).unwrap_or_default();
        assert!(of("OSError: [Errno 28] No space left on device").contains("dtrain resume tiny-1"));
        assert!(of("ModuleNotFoundError: No module named 'torch'").contains("dtrain engine install fsdp"));
        assert!(of("DistNetworkError: … EADDRINUSE, message: address already in use").contains("port"));
        assert!(of("DistBackendError: NCCL error").contains("NCCL_DEBUG"));
        assert_eq!(advice(TrainingEngine::Fsdp, "ValueError: bad"), None);
        assert_eq!(advice(TrainingEngine::Dtrain, "No space left on device"), None);
    }
}
