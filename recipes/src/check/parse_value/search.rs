//! Parses search spaces of a value: `{ choices = [..] }` and `{ log = [low, high] }`.

use super::{list, parse};
use crate::check::parsed::ParsedValue;
use crate::document::{SpannedValue, Table};
use crate::keys::ValueType;
use crate::problem::Problem;

pub(super) fn search(
    path: &str,
    inner: ValueType,
    node: &SpannedValue,
    table: &Table,
) -> Result<ParsedValue, Problem> {
    let is_ordered = !matches!(inner, ValueType::OneOf(_));
    let forms = if is_ordered { "{ choices = [..] } or { log = [low, high] }" } else { "{ choices = [..] }" };
    let mut entries = table.iter();
    let (Some((key, entry)), None) = (entries.next(), entries.next()) else {
        return Err(Problem::new(format!("`{path}` must be a value, \"auto\", {forms}")).at(&node.origin));
    };
    let item = |item: &SpannedValue| parse(path, inner, item);
    match key.as_str() {
        "choices" => {
            list(&format!("{path}.choices"), &entry.node, "a list of values", item).map(ParsedValue::Among)
        }
        "log" if is_ordered => {
            let values = list(&format!("{path}.log"), &entry.node, "a list of two bounds", item)?;
            bounds(path, &entry.node, values)
        }
        // Any other key is an error.
        other => {
            let problem = Problem::new(format!("unknown key `{path}.{other}`; a search is {forms}"));
            Err(problem.at(&entry.key))
        }
    }
}

fn bounds(path: &str, node: &SpannedValue, values: Vec<ParsedValue>) -> Result<ParsedValue, Problem> {
    let found = values.len();
    let Ok([low, high]) = <[ParsedValue; 2]>::try_from(values) else {
        let message = format!("`{path}.log` must have two bounds, a low and a high one, found {found}");
        return Err(Problem::new(message).at(&node.origin));
    };
    let is_rising = match (&low, &high) {
        (ParsedValue::Steps(_), ParsedValue::Tokens(_)) | (ParsedValue::Tokens(_), ParsedValue::Steps(_)) => {
            return Err(
                Problem::new(format!("the bounds of `{path}.log` have different units")).at(&node.origin)
            );
        }
        (low, high) => match (low.whole(), high.whole(), low.real(), high.real()) {
            (Some(low), Some(high), _, _) => low <= high,
            (_, _, Some(low), Some(high)) => low <= high,
            _ => false,
        },
    };
    if is_rising {
        return Ok(ParsedValue::Log(Box::new(low), Box::new(high)));
    }
    let message = format!("the bounds of `{path}.log` are descending: {low} is above {high}");
    Err(Problem::new(message).at(&node.origin).hint(format!("write {{ log = [{high}, {low}] }}")))
}
