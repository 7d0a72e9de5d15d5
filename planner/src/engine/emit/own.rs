//! dtrain itself: the plan, which `dtrain run` reads.

use super::source::Source;
use super::{Emitted, File};

/// `plan.json`.
pub(crate) fn emit(source: &Source) -> Emitted {
    let text = serde_json::to_string_pretty(source.plan).expect("a plan is made of plain values") + "\n";
    let file = File { name: "plan.json".into(), text };
    Emitted { files: vec![file], notes: Vec::new(), start: "dtrain run plan.json".into(), checkout: None }
}
