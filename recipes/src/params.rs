//! Params: values of a recipe that a foreign program reads under names of its own.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The value of a param.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ParamValue {
    /// `true` or `false`.
    Flag(bool),
    /// A whole number.
    Whole(i64),
    /// Any other finite number.
    Real(f64),
    /// A text.
    Text(String),
}

/// The domain of a param: the set of values that it may have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParamDomain {
    /// A log-uniform range between two positive bounds, both included. Values are whole numbers if both
    /// bounds are.
    Log(ParamValue, ParamValue),
    /// A uniform range between two bounds, both included. Values are whole numbers if both bounds are.
    Uniform(ParamValue, ParamValue),
    /// A list of values, never empty.
    Choices(Vec<ParamValue>),
}

/// A range of values that a param may have, with its default and condition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ParamRange {
    /// Set of values that the param may have.
    #[serde(flatten)]
    pub within: ParamDomain,
    /// Value that `dtrain run` takes; `None` takes the middle of the range or the first choice, as
    /// [`ParamRange::value()`] does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<ParamValue>,
    /// Condition: the param exists only if each of these other params has one of its values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub when: BTreeMap<String, Vec<ParamValue>>,
}

impl ParamValue {
    /// Returns the value as a number; `None` for a text or a boolean.
    pub fn number(&self) -> Option<f64> {
        match self {
            #[expect(clippy::cast_precision_loss, reason = "a hyperparameter is far below 2^52")]
            Self::Whole(whole) => Some(*whole as f64),
            Self::Real(real) => Some(*real),
            Self::Flag(_) | Self::Text(_) => None,
        }
    }

    /// Formats the value as a program's argument: a text without quotes.
    pub fn plain(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            other => other.to_string(),
        }
    }
}

/// Formats the value of a param as TOML.
impl fmt::Display for ParamValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Whole(whole) => write!(f, "{whole}"),
            Self::Real(real) => write!(f, "{real:?}"),
            // The escapes of JSON are valid in TOML.
            Self::Text(text) => write!(f, "{}", serde_json::Value::from(text.as_str())),
        }
    }
}

impl ParamDomain {
    /// Returns `true` if the param may have `value`.
    pub fn contains(&self, value: &ParamValue) -> bool {
        match self {
            Self::Choices(all) => all.contains(value),
            Self::Log(low, high) | Self::Uniform(low, high) => {
                let is_whole = matches!((low, high), (ParamValue::Whole(_), ParamValue::Whole(_)));
                let fits = !is_whole || matches!(value, ParamValue::Whole(_));
                let bounds = low.number().zip(high.number());
                let inside = |x| bounds.is_some_and(|(low, high)| (low..=high).contains(&x));
                fits && value.number().is_some_and(inside)
            }
        }
    }

    /// Returns the middle of a range, on its scale and rounded to three digits, or the first of the choices.
    fn middle(&self) -> ParamValue {
        let (low, high, is_log) = match self {
            Self::Choices(all) => return all.first().expect("choices are not empty").clone(),
            Self::Log(low, high) => (low, high, true),
            Self::Uniform(low, high) => (low, high, false),
        };
        let (a, b) = low.number().zip(high.number()).expect("bounds are numbers");
        let middle = if is_log { (f64::midpoint(a.ln(), b.ln())).exp() } else { f64::midpoint(a, b) };
        match (low, high) {
            #[expect(clippy::cast_possible_truncation, reason = "it lies between two whole numbers")]
            (ParamValue::Whole(low), ParamValue::Whole(high)) => {
                ParamValue::Whole((middle.round() as i64).clamp(*low, *high))
            }
            // Rounded through text, for the number that a person would write.
            _ => ParamValue::Real(format!("{middle:.2e}").parse().unwrap_or(middle).clamp(a, b)),
        }
    }
}

/// Formats the domain as it is in TOML, without the braces.
impl fmt::Display for ParamDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Log(low, high) => write!(f, "log = [{low}, {high}]"),
            Self::Uniform(low, high) => write!(f, "uniform = [{low}, {high}]"),
            Self::Choices(all) => write!(f, "choices = [{}]", listed(all)),
        }
    }
}

impl ParamRange {
    /// Returns the value of the param when it is not searched: its default, otherwise the middle of the range
    /// on its scale, or the first choice.
    pub fn value(&self) -> ParamValue {
        self.default.clone().unwrap_or_else(|| self.within.middle())
    }

    /// Returns `true` if the param's condition holds for these values of the other params.
    pub fn applies(&self, values: &BTreeMap<String, ParamValue>) -> bool {
        self.when.iter().all(|(name, wanted)| values.get(name).is_some_and(|value| wanted.contains(value)))
    }
}

/// Formats the range of a param as TOML.
impl fmt::Display for ParamRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{ {}", self.within)?;
        if let Some(default) = &self.default {
            write!(f, ", default = {default}")?;
        }
        if !self.when.is_empty() {
            let condition = |(name, values): (&String, &Vec<ParamValue>)| match values.as_slice() {
                [one] => format!("{name} = {one}"),
                several => format!("{name} = [{}]", listed(several)),
            };
            let all: Vec<String> = self.when.iter().map(condition).collect();
            write!(f, ", when = {{ {} }}", all.join(", "))?;
        }
        f.write_str(" }")
    }
}

fn listed(values: &[ParamValue]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Adds to `values` the default of each range whose condition holds, after the params that the condition
/// depends on.
pub fn resolve_params(
    mut values: BTreeMap<String, ParamValue>,
    ranges: &BTreeMap<String, ParamRange>,
) -> BTreeMap<String, ParamValue> {
    loop {
        let next = ranges
            .iter()
            .find(|(name, range)| !values.contains_key(*name) && range.applies(&values))
            .map(|(name, range)| (name.clone(), range.value()));
        match next {
            Some((name, value)) => values.insert(name, value),
            None => return values,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(within: ParamDomain) -> ParamRange {
        ParamRange { within, default: None, when: BTreeMap::new() }
    }

    #[test]
    fn the_value_without_a_search_is_the_default_or_the_middle_or_the_first() {
        let real = ParamValue::Real;
        let whole = ParamValue::Whole;
        let check = |within, expected: &str| assert_eq!(range(within).value().to_string(), expected);
        check(ParamDomain::Log(real(1e-5), real(1e-2)), "0.000316");
        check(ParamDomain::Uniform(whole(0), real(0.5)), "0.25");
        check(ParamDomain::Uniform(whole(2), whole(9)), "6");
        check(ParamDomain::Log(whole(16), whole(256)), "64");
        check(ParamDomain::Choices(vec![ParamValue::Text("sgd".into()), whole(1)]), "\"sgd\"");
        check(ParamDomain::Log(real(0.1234), real(0.1234)), "0.1234");
        let said =
            ParamRange { default: Some(real(1e-3)), ..range(ParamDomain::Log(real(1e-5), real(1e-2))) };
        assert_eq!(said.value(), real(1e-3));
    }

    #[test]
    fn a_range_of_whole_numbers_has_no_others() {
        let whole = ParamDomain::Uniform(ParamValue::Whole(1), ParamValue::Whole(8));
        assert!(whole.contains(&ParamValue::Whole(8)) && !whole.contains(&ParamValue::Real(2.5)));
        let real = ParamDomain::Uniform(ParamValue::Whole(0), ParamValue::Real(0.5));
        assert!(real.contains(&ParamValue::Whole(0)) && !real.contains(&ParamValue::Real(0.6)));
    }

    #[test]
    fn a_param_exists_only_beside_what_it_depends_on() {
        let when = |name: &str, value: &str| {
            BTreeMap::from([(name.to_owned(), vec![ParamValue::Text(value.into())])])
        };
        let text = |word: &str| ParamDomain::Choices(vec![ParamValue::Text(word.into())]);
        let ranges = BTreeMap::from([
            ("a".to_owned(), ParamRange { when: when("b", "on"), ..range(text("deep")) }),
            ("b".to_owned(), ParamRange { when: when("c", "yes"), ..range(text("on")) }),
        ]);
        let with = |word: &str| {
            let values =
                resolve_params(BTreeMap::from([("c".to_owned(), ParamValue::Text(word.into()))]), &ranges);
            values.keys().cloned().collect::<String>()
        };
        assert_eq!(with("yes"), "abc", "a follows b, which comes later by name");
        assert_eq!(with("no"), "c");
    }

    #[test]
    fn values_keep_their_kind_in_json() {
        let values = [
            ParamValue::Flag(true),
            ParamValue::Whole(-3),
            ParamValue::Real(1.0),
            ParamValue::Real(1e-5),
            ParamValue::Text("1".into()),
        ];
        let json = serde_json::to_string(&values).expect("plain values");
        assert_eq!(json, "[true,-3,1.0,0.00001,\"1\"]");
        assert_eq!(serde_json::from_str::<[ParamValue; 5]>(&json).expect("it was just written"), values);
    }
}
