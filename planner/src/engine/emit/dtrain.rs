//! Emits the plan itself, for `dtrain run`.

use super::source::DecoderPlan;
use super::{ConfigFile, ConfigFiles};

/// Emits `plan.json`.
pub(crate) fn emit(source: &DecoderPlan) -> ConfigFiles {
    let text = serde_json::to_string_pretty(source.plan).expect("a plan is made of plain values") + "\n";
    let file = ConfigFile { name: "plan.json".into(), text };
    ConfigFiles { files: vec![file], notes: Vec::new(), start: "dtrain run plan.json".into(), checkout: None }
}
