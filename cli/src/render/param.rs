//! Formatting of recipe and plan keys, and their values, for people.

use dtrain_recipes::keys::{ValueType, find};
use dtrain_runner::ledger::TrialParameter;
use serde_json::Value;

/// Returns name, value and source of a trial's parameter as texts.
pub(crate) fn row(param: &TrialParameter) -> [String; 3] {
    [name(&param.path).to_owned(), value(&param.path, &param.value), param.source.word().to_owned()]
}

/// Returns the name of a key for display; fields of a plan are named as in `dtrain plan`.
pub(crate) fn name(path: &str) -> &str {
    match path {
        "plan.split.global" => "batch",
        "plan.split.micro" => "micro_batch",
        path => path,
    }
}

/// Formats the value of the key `path` in its unit.
fn value(path: &str, value: &Value) -> String {
    match value.as_f64() {
        Some(number) => self::number(path, number).unwrap_or_else(|| value.to_string()),
        None => value.as_str().map_or_else(|| value.to_string(), str::to_owned),
    }
}

/// Formats a number in the unit of the key `path`; `None` if the key has no unit.
pub(crate) fn number(path: &str, number: f64) -> Option<String> {
    let is_time = find(path, None).is_some_and(|key| key.shape == ValueType::Time);
    is_time.then(|| duration(number))
}

/// Formats seconds as in a recipe: `2 min`, `1 h 30 min`, `0.5 s`.
fn duration(seconds: f64) -> String {
    if seconds.fract() != 0.0 || seconds < 1.0 {
        return format!("{seconds} s");
    }
    let parts = [(seconds / 3600.0, "h"), (seconds / 60.0 % 60.0, "min"), (seconds % 60.0, "s")];
    let parts = parts.into_iter().filter(|(number, _)| *number >= 1.0);
    parts.map(|(number, unit)| format!("{:.0} {unit}", number.floor())).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn durations_have_units_and_other_values_stay_as_they_are() {
        for (seconds, text) in [
            (120.0, "2 min"),
            (5400.0, "1 h 30 min"),
            (7210.0, "2 h 10 s"),
            (45.0, "45 s"),
            (0.25, "0.25 s"),
            (90.5, "90.5 s"),
        ] {
            assert_eq!(value("objective.stop.time", &json!(seconds)), text);
        }
        assert_eq!(value("train.clip", &json!(120.0)), "120.0");
        assert_eq!(value("train.batch", &json!(32)), "32");
        assert_eq!(value("data.train", &json!("a.txt")), "a.txt");
        assert_eq!(value("train.clip", &Value::Null), "null");
    }

    #[test]
    fn fields_of_a_plan_have_the_names_that_plans_print() {
        let names = ["plan.split.global", "plan.split.micro", "train.batch"].map(name);
        assert_eq!(names, ["batch", "micro_batch", "train.batch"]);
    }
}
