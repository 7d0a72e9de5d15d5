//! Search space of a study, read from its stored JSON: dimensions, scales, and positions of values.

use super::parallel_coordinates::CoordinateAxis;
use super::unit::number;
use serde_json::Value;

/// Number of values up to which each value on a scale gets a tick mark.
const MARKS_MOST: usize = 12;

/// A dimension of a study's search space, parsed from JSON so that studies of every version can be drawn.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RecordedDimension {
    pub(super) name: String,
    scale: DimensionScale,
}

#[derive(Clone, Debug, PartialEq)]
enum DimensionScale {
    /// A numeric range on a logarithmic or linear scale.
    Range { low: f64, high: f64, is_log: bool },
    /// A list of values, evenly spaced.
    Values(Vec<Value>),
}

impl RecordedDimension {
    /// Parses the dimensions of a study; those in an unknown format get the values in `tried`.
    pub(super) fn of_study(study: &Value, tried: &[Vec<Value>]) -> Vec<Self> {
        let all = study["study"]["space"].as_array().map_or(&[][..], Vec::as_slice);
        let named = all.iter().enumerate().map(|(place, one)| {
            let name = one["name"].as_str().unwrap_or("?").to_owned();
            let scale = scale(&one["scale"]).unwrap_or_else(|| observed_values(tried, place));
            Self { name, scale }
        });
        named.collect()
    }

    /// Returns the position of a value on the dimension's scale, from 0 to 1; `None` without a value.
    pub(super) fn place(&self, value: &Value) -> Option<f64> {
        match &self.scale {
            DimensionScale::Range { low, high, is_log } => {
                let value = value.as_f64()?;
                let of = |value: f64| if *is_log { value.max(f64::MIN_POSITIVE).ln() } else { value };
                Some(((of(value) - of(*low)) / (of(*high) - of(*low))).clamp(0.0, 1.0))
            }
            DimensionScale::Values(all) => {
                all.iter().position(|one| same(one, value)).map(|at| middle(at, all.len()))
            }
        }
    }

    /// Returns the dimension's axis with its tick marks.
    pub(super) fn axis(&self) -> CoordinateAxis {
        let marks = match &self.scale {
            DimensionScale::Range { low, high, is_log } => {
                let scale = if *is_log {
                    super::svg::AxisScale::of_ratios((*low, *high), (0.0, 1.0))
                } else {
                    super::svg::AxisScale::even((*low, *high), (0.0, 1.0))
                };
                scale.few_marks(3).into_iter().map(|mark| (scale.at(mark), number(mark))).collect()
            }
            DimensionScale::Values(all) => {
                let every = all.len().div_ceil(MARKS_MOST).max(1);
                let marks = all.iter().enumerate().step_by(every);
                marks.map(|(at, value)| (middle(at, all.len()), to_text(value))).collect()
            }
        };
        CoordinateAxis { name: self.name.clone(), marks }
    }
}

/// Formats a value of a setting for display.
pub(super) fn to_text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(word) => word.clone(),
        Value::Number(count) if count.is_u64() || count.is_i64() => count.to_string(),
        Value::Number(real) => real.as_f64().map_or_else(|| real.to_string(), number),
        other => other.to_string(),
    }
}

fn scale(json: &Value) -> Option<DimensionScale> {
    let (kind, told) = json.as_object()?.iter().next()?;
    match kind.as_str() {
        "log" | "counts" | "uniform" | "integers" => {
            let (low, high) = (told["low"].as_f64()?, told["high"].as_f64()?);
            let is_log = matches!(kind.as_str(), "log" | "counts") && low > 0.0;
            (low < high).then_some(DimensionScale::Range { low, high, is_log })
        }
        "levels" | "names" => told.as_array().map(|all| DimensionScale::Values(all.clone())),
        _ => None,
    }
}

/// Collects as a scale the distinct values that were tried in dimension `place`, in ascending order.
fn observed_values(tried: &[Vec<Value>], place: usize) -> DimensionScale {
    let mut all: Vec<Value> = Vec::new();
    for value in tried.iter().filter_map(|values| values.get(place)).filter(|value| !value.is_null()) {
        if !all.iter().any(|one| same(one, value)) {
            all.push(value.clone());
        }
    }
    all.sort_by(|a, b| a.as_f64().unwrap_or(f64::INFINITY).total_cmp(&b.as_f64().unwrap_or(f64::INFINITY)));
    DimensionScale::Values(all)
}

/// Returns `true` if two JSON values are equal; `1` equals `1.0`.
fn same(one: &Value, other: &Value) -> bool {
    one == other || one.as_f64().zip(other.as_f64()).is_some_and(|(a, b)| a.total_cmp(&b).is_eq())
}

#[expect(clippy::cast_precision_loss, reason = "values are few")]
fn middle(at: usize, all: usize) -> f64 {
    (at as f64 + 0.5) / all as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_lie_where_their_scale_says() {
        let study = json!({ "study": { "space": [
            { "name": "a", "scale": { "log": { "low": 1e-4, "high": 1e-2 } } },
            { "name": "b", "scale": { "uniform": { "low": -1.0, "high": 3.0 } } },
            { "name": "c", "scale": { "names": ["sgd", "adam"] }, "when": [[0, [1]]] },
            { "name": "d", "scale": { "of a later version": 3 } },
        ] } });
        let tried = vec![
            vec![json!(1e-3), json!(0), json!(null), json!(7)],
            vec![json!(1), json!(1), json!("sgd"), json!(2)],
        ];
        let all = RecordedDimension::of_study(&study, &tried);
        let places: Vec<_> = all.iter().zip(&tried[0]).map(|(one, value)| one.place(value)).collect();
        assert!(places[0].is_some_and(|place| (place - 0.5).abs() < 1e-12), "{places:?}");
        assert_eq!(places[1..], [Some(0.25), None, Some(0.75)]);
        assert_eq!(all[2].place(&json!("sgd")), Some(0.25));
        assert_eq!(all[0].place(&json!(1.0)), Some(1.0), "beyond the bounds it lies at the edge");
        assert_eq!(all[0].axis().marks.iter().filter(|(_, words)| words == "0.001").count(), 1);
        assert!(RecordedDimension::of_study(&json!({}), &[]).is_empty());
    }
}
