//! Whether one value fits the shape its key wants. Contradictions between values are for [`super::rules`].

use super::parsed::Parsed;
use crate::document::{Node, Table, Value};
use crate::keys::Shape;
use crate::problem::Problem;
use crate::source::Layer;
use crate::units;

/// The value, or what is wrong with it.
pub(super) fn parse(path: &str, shape: Shape, node: &Node) -> Result<Parsed, Problem> {
    match shape {
        Shape::Text => text(path, node).map(Parsed::Text),
        Shape::Name => name(path, node),
        Shape::Host => host(path, node),
        Shape::Flag => match node.value {
            Value::Flag(flag) => Ok(Parsed::Flag(flag)),
            _ => Err(wrong(path, "true or false", node)),
        },
        Shape::Whole(low, high) => whole(path, node, low, high).map(Parsed::Whole),
        Shape::Above(low, high) => {
            let is_right = |x: f64| x > low && x <= high;
            number(path, node, &format!("above {low} and at most {high}"), is_right).map(Parsed::Real)
        }
        Shape::Below(low, high) => {
            let is_right = |x: f64| x >= low && x < high;
            number(path, node, &format!("from {low} to below {high}"), is_right).map(Parsed::Real)
        }
        Shape::Level => share(path, node, "a finite number", |_| true).map(Parsed::Real),
        Shape::Share => share(path, node, "from 0 to 1", |x| (0.0..=1.0).contains(&x)).map(Parsed::Share),
        Shape::Part => share(path, node, "above 0 and at most 1", |x| x > 0.0 && x <= 1.0).map(Parsed::Share),
        Shape::Epochs => epochs(path, node),
        Shape::Tokens => {
            quantity(path, node, "a number of tokens", |t| units::tokens(t).map(|n| n.0)).map(Parsed::Tokens)
        }
        Shape::Samples => quantity(path, node, "a number of samples", |t| units::samples(t).map(|n| n.0))
            .map(Parsed::Samples),
        Shape::Steps => quantity(path, node, "a number of steps", units::steps).map(Parsed::Steps),
        Shape::Time => time(path, node),
        Shape::Warmup => alternative(
            path,
            node,
            Shape::Steps,
            Shape::Tokens,
            "steps or tokens",
            "\"500 steps\" or \"10M tokens\"",
        ),
        Shape::Period => alternative(
            path,
            node,
            Shape::Steps,
            Shape::Time,
            "steps or a duration",
            "\"100 steps\" or \"5 min\"",
        ),
        Shape::OneOf(words) => one_of(path, node, words),
        Shape::Files => files(path, node),
        Shape::Texts => list(path, node, "a list of texts", |item| text(path, item))
            .map(Parsed::Texts)
            .map_err(|problem| {
                let is_text = matches!(node.value, Value::Text(_));
                if is_text {
                    problem.hint("write each word as a text of its own: [\"python3\", \"train.py\"]")
                } else {
                    problem
                }
            }),
        Shape::Wholes(low, high) => {
            list(path, node, "a list of whole numbers", |item| whole(path, item, low, high))
                .map(Parsed::Wholes)
        }
        Shape::Tokenizer => tokenizer(path, node),
        Shape::Valid => valid(path, node),
        Shape::OrNone(inner) => match &node.value {
            Value::Text(text) if text == "none" => Ok(Parsed::None),
            _ => parse(path, *inner, node),
        },
        Shape::OrAuto(inner) if is_auto(node) => {
            debug_assert!(!matches!(inner, Shape::OrAuto(_)), "auto is said once");
            Ok(Parsed::Auto)
        }
        Shape::OrAuto(inner) => parse(path, *inner, node).map_err(|problem| or_auto(problem)),
        Shape::Choice(_) if is_auto(node) => Ok(Parsed::Auto),
        Shape::Choice(inner) => match &node.value {
            Value::Inline(table) | Value::Section(table) => search(path, *inner, node, table),
            _ => parse(path, *inner, node).map_err(|problem| or_auto(problem)),
        },
    }
}

fn is_auto(node: &Node) -> bool {
    matches!(&node.value, Value::Text(text) if text == "auto")
}

fn or_auto(problem: Problem) -> Problem {
    if problem.hint.is_some() {
        problem
    } else {
        problem.hint("or write \"auto\" and let the planner choose")
    }
}

/// What a value is, in words, for messages.
pub(super) fn kind_of(node: &Node) -> String {
    let short = |text: &str| match text.char_indices().nth(40) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    };
    match &node.value {
        Value::Text(text) => format!("the text {}", short(text)),
        Value::Whole(number) => format!("the number {number}"),
        Value::Real(number) => {
            // As it was written: 1e30 and not thirty digits.
            let written = node.origin.source().and_then(|source| source.text.get(node.origin.span()));
            written
                .filter(|text| text.len() < 40)
                .map_or(format!("the number {number}"), |text| format!("the number {text}"))
        }
        Value::Flag(flag) => format!("{flag}"),
        Value::Date(date) => format!("the date {date}"),
        Value::List(_) => "a list".to_owned(),
        Value::Inline(_) => "a table `{ … }`".to_owned(),
        Value::Section(_) => "a section".to_owned(),
    }
}

fn wrong(path: &str, wanted: &str, node: &Node) -> Problem {
    Problem::new(format!("`{path}` must be {wanted}, found {}", kind_of(node))).at(&node.origin)
}

fn text(path: &str, node: &Node) -> Result<String, Problem> {
    let is_bare = matches!(node.origin.layer(), Layer::Environment | Layer::Assignment);
    let found = match &node.value {
        Value::Text(text) => text.clone(),
        // Nobody quotes twice in a shell: what looks like a number there is still the text that was wanted.
        Value::Whole(_) | Value::Real(_) | Value::Flag(_) | Value::Date(_) if is_bare => {
            let source = node.origin.source().map_or("", |source| &source.text);
            source.get(node.origin.span()).unwrap_or("").to_owned()
        }
        _ => return Err(wrong(path, "a text in quotes", node)),
    };
    if found.is_empty() {
        return Err(Problem::new(format!("`{path}` is empty")).at(&node.origin));
    }
    if found.contains('\0') {
        return Err(Problem::new(format!("`{path}` contains a NUL character")).at(&node.origin));
    }
    Ok(found)
}

/// Whether a text is a name: letters, digits, `-`, `_`, `.`; at most 128; not beginning with `-` or `.`.
pub(crate) fn is_name(text: &str) -> bool {
    let is_right = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=128).contains(&text.len())
        && text.chars().all(is_right)
        && !text.starts_with(['-', '.'])
        && !text.contains("..")
}

fn name(path: &str, node: &Node) -> Result<Parsed, Problem> {
    let found = text(path, node)?;
    if is_name(&found) {
        return Ok(Parsed::Text(found));
    }
    Err(wrong(path, "a name", node)
        .hint("use at most 128 letters, digits, `-`, `_` and `.`, beginning with a letter, a digit or `_`"))
}

fn host(path: &str, node: &Node) -> Result<Parsed, Problem> {
    let found = text(path, node)?;
    if found.starts_with('-') {
        return Err(wrong(path, "a name that does not begin with `-`", node)
            .note("it would be read as an option of the program that connects"));
    }
    let is_right = |c: char| c.is_ascii_alphanumeric() || "-_.:@[],%".contains(c);
    match found.chars().find(|c| !is_right(*c)) {
        None if found.len() <= 1024 => Ok(Parsed::Text(found)),
        None => Err(wrong(path, "at most 1024 characters long", node)),
        Some(odd) => {
            Err(wrong(path, "a name or an address", node).note(format!("{odd:?} cannot be part of it")))
        }
    }
}

fn whole(path: &str, node: &Node, low: u64, high: u64) -> Result<u64, Problem> {
    let wanted = if high >= i64::MAX as u64 {
        format!("a whole number from {low}")
    } else {
        format!("a whole number from {low} to {high}")
    };
    match &node.value {
        Value::Whole(number) => match u64::try_from(*number) {
            Ok(number) if (low..=high).contains(&number) => Ok(number),
            _ => Err(wrong(path, &wanted, node)),
        },
        Value::Text(text) if text.trim().parse::<u64>().is_ok() => {
            Err(wrong(path, &wanted, node).hint("remove the quotes"))
        }
        _ => Err(wrong(path, &wanted, node)),
    }
}

fn real(node: &Node) -> Option<f64> {
    match &node.value {
        #[expect(clippy::cast_precision_loss, reason = "a rate or a share, not a count")]
        Value::Whole(number) => Some(*number as f64),
        Value::Real(number) => Some(*number),
        _ => None,
    }
}

fn number(path: &str, node: &Node, range: &str, is_right: impl Fn(f64) -> bool) -> Result<f64, Problem> {
    let wanted = format!("a number {range}");
    match real(node) {
        Some(x) if x.is_finite() && is_right(x) => Ok(x),
        Some(_) => Err(wrong(path, &wanted, node)),
        None => {
            let is_quoted = matches!(&node.value, Value::Text(text) if text.trim().parse::<f64>().is_ok());
            let problem = wrong(path, &wanted, node);
            Err(if is_quoted { problem.hint("remove the quotes") } else { problem })
        }
    }
}

fn share(path: &str, node: &Node, range: &str, is_right: impl Fn(f64) -> bool) -> Result<f64, Problem> {
    let found = match &node.value {
        Value::Text(text) => match units::fraction(text) {
            Ok(x) => x,
            Err(error) => return Err(unit(path, "a number or a percentage", node, &error)),
        },
        _ => real(node).ok_or_else(|| wrong(path, "a number or a percentage", node))?,
    };
    let article = if range.starts_with("a ") { "" } else { "a share " };
    let problem = || {
        let problem = wrong(path, &format!("{article}{range}"), node);
        if found > 1.0 && found <= 100.0 {
            problem.hint(format!("did you mean \"{found}%\"?"))
        } else {
            problem
        }
    };
    if found.is_finite() && is_right(found) { Ok(found) } else { Err(problem()) }
}

fn unit(path: &str, wanted: &str, node: &Node, error: &units::UnitError) -> Problem {
    let text = error.to_string();
    let (fact, hint) = text.split_once("; ").map_or((text.as_str(), None), |(fact, hint)| (fact, Some(hint)));
    let problem = Problem::new(format!("`{path}` must be {wanted}: {fact}")).at(&node.origin);
    match hint {
        Some(hint) => problem.hint(hint),
        None => problem,
    }
}

fn quantity(
    path: &str,
    node: &Node,
    wanted: &str,
    read: impl Fn(&str) -> Result<u64, units::UnitError>,
) -> Result<u64, Problem> {
    let found = match &node.value {
        Value::Whole(number) => u64::try_from(*number).map_err(|_| wrong(path, wanted, node))?,
        Value::Real(number) if number.fract() == 0.0 && (0.0..9e15).contains(number) => {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and in range")]
            let number = *number as u64;
            number
        }
        Value::Text(text) => read(text).map_err(|error| unit(path, wanted, node, &error))?,
        _ => return Err(wrong(path, wanted, node)),
    };
    if found == 0 {
        Err(Problem::new(format!("`{path}` must be at least 1, found 0")).at(&node.origin))
    } else {
        Ok(found)
    }
}

fn epochs(path: &str, node: &Node) -> Result<Parsed, Problem> {
    let found = match &node.value {
        Value::Text(text) => {
            units::epochs(text).map_err(|error| unit(path, "a number of epochs", node, &error))?
        }
        _ => real(node).ok_or_else(|| wrong(path, "a number of epochs", node))?,
    };
    if found.is_finite() && found > 0.0 {
        Ok(Parsed::Real(found))
    } else {
        Err(wrong(path, "a number of epochs above 0", node))
    }
}

fn time(path: &str, node: &Node) -> Result<Parsed, Problem> {
    let found = match &node.value {
        Value::Text(text) => units::seconds(text).map_err(|error| unit(path, "a duration", node, &error))?,
        Value::Whole(_) | Value::Real(_) => {
            return Err(wrong(path, "a duration with its unit", node)
                .hint("write for example \"90 s\", \"30 min\" or \"1h 30min\""));
        }
        _ => return Err(wrong(path, "a duration", node)),
    };
    if found.0 > 0.0 { Ok(Parsed::Time(found.0)) } else { Err(wrong(path, "a duration above 0", node)) }
}

/// One of two quantities; a text that is neither gets a message of its own.
fn alternative(
    path: &str,
    node: &Node,
    a: Shape,
    b: Shape,
    wanted: &str,
    example: &str,
) -> Result<Parsed, Problem> {
    let first = parse(path, a, node);
    match (&node.value, first) {
        (_, Ok(value)) => Ok(value),
        (Value::Text(_), Err(_)) => parse(path, b, node)
            .map_err(|_| wrong(path, wanted, node).hint(format!("write for example {example}"))),
        (_, Err(_)) => Err(wrong(path, wanted, node).hint(format!("write for example {example}"))),
    }
}

fn one_of(path: &str, node: &Node, words: &'static [&'static str]) -> Result<Parsed, Problem> {
    let quoted: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
    let wanted = match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.join(""),
    };
    let Value::Text(found) = &node.value else { return Err(wrong(path, &wanted, node)) };
    if let Some(word) = words.iter().find(|word| *word == found) {
        return Ok(Parsed::Word(word));
    }
    let near = super::suggest::nearest(found, words.iter().copied());
    let problem = wrong(path, &wanted, node);
    Err(match near {
        Some(near) => problem.hint(format!("did you mean {near:?}?")),
        None => problem,
    })
}

fn list<T>(
    path: &str,
    node: &Node,
    wanted: &str,
    read: impl Fn(&Node) -> Result<T, Problem>,
) -> Result<Vec<T>, Problem> {
    let Value::List(items) = &node.value else { return Err(wrong(path, wanted, node)) };
    if items.is_empty() {
        return Err(Problem::new(format!("`{path}` is an empty list")).at(&node.origin));
    }
    items.iter().map(read).collect()
}

fn files(path: &str, node: &Node) -> Result<Parsed, Problem> {
    let one = |item: &Node| Ok((text(path, item)?, item.origin.clone()));
    match &node.value {
        Value::List(_) => list(path, node, "files", one).map(Parsed::Files),
        Value::Text(_) => one(node).map(|file| Parsed::Files(vec![file])),
        _ => Err(wrong(path, "a file, a glob pattern or a list of them", node)),
    }
}

fn tokenizer(path: &str, node: &Node) -> Result<Parsed, Problem> {
    let wanted = "\"bytes\" or { bpe = VOCABULARY }";
    match &node.value {
        Value::Text(text) if text == "bytes" => Ok(Parsed::Word("bytes")),
        Value::Inline(table) | Value::Section(table) if table.len() == 1 && table.contains_key("bpe") => {
            let vocab = whole(&format!("{path}.bpe"), &table["bpe"].node, 257, 1_048_576)?;
            Ok(Parsed::Bpe(u32::try_from(vocab).unwrap_or(u32::MAX)))
        }
        _ => Err(wrong(path, wanted, node)),
    }
}

fn valid(path: &str, node: &Node) -> Result<Parsed, Problem> {
    let is_share = match &node.value {
        Value::Text(text) => text.trim_end().ends_with('%') || units::fraction(text).is_ok(),
        Value::Whole(_) | Value::Real(_) => true,
        Value::List(_) => return files(path, node),
        _ => return Err(wrong(path, "a share such as \"5%\", or files", node)),
    };
    if is_share {
        share(path, node, "above 0 and below 1", |x| x > 0.0 && x < 1.0).map(Parsed::Share)
    } else {
        files(path, node)
    }
}

fn search(path: &str, inner: Shape, node: &Node, table: &Table) -> Result<Parsed, Problem> {
    let is_ordered = !matches!(inner, Shape::OneOf(_));
    let forms = if is_ordered { "{ choices = [..] } or { log = [low, high] }" } else { "{ choices = [..] }" };
    let mut entries = table.iter();
    let (Some((key, entry)), None) = (entries.next(), entries.next()) else {
        return Err(Problem::new(format!("`{path}` must be a value, \"auto\", {forms}")).at(&node.origin));
    };
    let item = |item: &Node| parse(path, inner, item);
    match key.as_str() {
        "choices" => {
            list(&format!("{path}.choices"), &entry.node, "a list of values", item).map(Parsed::Among)
        }
        "log" if is_ordered => {
            let values = list(&format!("{path}.log"), &entry.node, "a list of two bounds", item)?;
            bounds(path, &entry.node, values)
        }
        other => {
            let problem = Problem::new(format!("unknown key `{path}.{other}`; a search is {forms}"));
            Err(problem.at(&entry.key))
        }
    }
}

fn bounds(path: &str, node: &Node, values: Vec<Parsed>) -> Result<Parsed, Problem> {
    let found = values.len();
    let Ok([low, high]) = <[Parsed; 2]>::try_from(values) else {
        let message = format!("`{path}.log` must have two bounds, a low and a high one, found {found}");
        return Err(Problem::new(message).at(&node.origin));
    };
    let is_rising = match (&low, &high) {
        (Parsed::Steps(_), Parsed::Tokens(_)) | (Parsed::Tokens(_), Parsed::Steps(_)) => {
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
        return Ok(Parsed::Log(Box::new(low), Box::new(high)));
    }
    let message = format!("the bounds of `{path}.log` fall: {low} is above {high}");
    Err(Problem::new(message).at(&node.origin).hint(format!("write {{ log = [{high}, {low}] }}")))
}
