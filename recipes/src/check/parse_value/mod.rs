//! Parses one value according to the type of its key. `super::rules` finds contradictions between values.

mod params;
mod quantity;
mod search;
mod text;

pub(in crate::check) use params::params;

use super::parsed::ParsedValue;
use crate::document::{SpannedValue, Value};
use crate::hub_model::{HubModel, HubModelError};
use crate::keys::ValueType;
use crate::keyword_enum::Keywords;
use crate::line_template::is_metric_name;
use crate::problem::Problem;
use crate::training_engine::EMITTED_ONLY;
use crate::units;
use crate::url::{Url, UrlError, file_extension};
use quantity::{MOST_STEPS, MOST_TOKENS, alternative, epochs, number, quantity, share, size, time, whole};
use search::search;
use text::{host, name, network, text};

/// Parses the value of a key as type `shape`; `Err` is the problem to report if it does not have that type.
pub(in crate::check) fn parse(
    path: &str,
    shape: ValueType,
    node: &SpannedValue,
) -> Result<ParsedValue, Problem> {
    match shape {
        ValueType::Text => text(path, node).map(ParsedValue::Text),
        ValueType::Name => name(path, node),
        ValueType::Host => host(path, node),
        ValueType::Network => network(path, node),
        ValueType::HttpUrl => text::http_url(path, node),
        ValueType::Flag => match node.value {
            Value::Flag(flag) => Ok(ParsedValue::Flag(flag)),
            _ => Err(wrong(path, "true or false", node)),
        },
        ValueType::Whole(low, high) => whole(path, node, low, high).map(ParsedValue::Whole),
        ValueType::Above(low, high) => {
            let is_right = |x: f64| x > low && x <= high;
            number(path, node, &format!("above {low} and at most {high}"), is_right).map(ParsedValue::Real)
        }
        ValueType::Below(low, high) => {
            let is_right = |x: f64| x >= low && x < high;
            number(path, node, &format!("from {low} to below {high}"), is_right).map(ParsedValue::Real)
        }
        ValueType::Level => share(path, node, "a finite number", |_| true).map(ParsedValue::Real),
        ValueType::Metric => match &node.value {
            Value::Text(name) if is_metric_name(name) => Ok(ParsedValue::Text(name.clone())),
            _ => Err(wrong(path, "the name of a metric, such as \"valid.loss\" or \"val/f1\"", node)),
        },
        ValueType::Share => {
            share(path, node, "from 0 to 1", |x| (0.0..=1.0).contains(&x)).map(ParsedValue::Share)
        }
        ValueType::Part => {
            share(path, node, "above 0 and at most 1", |x| x > 0.0 && x <= 1.0).map(ParsedValue::Share)
        }
        ValueType::Epochs => epochs(path, node),
        ValueType::Tokens => {
            let read = |text: &str| units::tokens(text).map(|n| n.0);
            quantity(path, node, "a number of tokens", MOST_TOKENS, read).map(ParsedValue::Tokens)
        }
        ValueType::Samples(most) => {
            let read = |text: &str| units::samples(text).map(|n| n.0);
            quantity(path, node, "a number of samples", most, read).map(ParsedValue::Samples)
        }
        ValueType::Steps => {
            quantity(path, node, "a number of steps", MOST_STEPS, units::steps).map(ParsedValue::Steps)
        }
        ValueType::Size => size(path, node),
        ValueType::Time => time(path, node),
        ValueType::Warmup => alternative(
            path,
            node,
            ValueType::Steps,
            ValueType::Tokens,
            "steps or tokens",
            "\"500 steps\" or \"10M tokens\"",
        ),
        ValueType::Period => alternative(
            path,
            node,
            ValueType::Steps,
            ValueType::Time,
            "steps or a duration",
            "\"100 steps\" or \"5 min\"",
        ),
        ValueType::OneOf(words) => one_of(path, node, words),
        ValueType::Files => files(path, node),
        ValueType::Folder => folder(path, node),
        ValueType::Texts => list(path, node, "a list of texts", |item| text(path, item))
            .map(ParsedValue::Texts)
            .map_err(|problem| {
                let Value::Text(found) = &node.value else { return problem };
                if path == "model.argv" {
                    problem.hint("write each word as a text of its own: [\"python3\", \"train.py\"]")
                } else {
                    problem.hint(format!("write a list: [{found:?}]"))
                }
            }),
        ValueType::Environment => params::environment(path, node).map(ParsedValue::Environment),
        ValueType::Headers => params::headers(path, node).map(ParsedValue::Environment),
        ValueType::Params => {
            params::params(path, node).map(ParsedValue::Params).map_err(|mut all| all.swap_remove(0))
        }
        ValueType::Settings => params::settings(path, node).map(ParsedValue::Settings),
        ValueType::Variables => {
            list(path, node, "a list of texts", |item| text::variable(path, item)).map(ParsedValue::Texts)
        }
        ValueType::Wholes(low, high) => {
            list(path, node, "a list of whole numbers", |item| whole(path, item, low, high))
                .map(ParsedValue::Wholes)
        }
        ValueType::Tokenizer => tokenizer(path, node),
        ValueType::Valid => valid(path, node),
        ValueType::OrNone(inner) => match &node.value {
            Value::Text(text) if text == "none" => Ok(ParsedValue::None),
            _ => parse(path, *inner, node),
        },
        ValueType::OrAuto(_) if is_auto(node) => Ok(ParsedValue::Auto),
        ValueType::OrAuto(inner) => parse(path, *inner, node).map_err(or_auto),
        ValueType::Choice(_) if is_auto(node) => Ok(ParsedValue::Auto),
        ValueType::Choice(inner) => match &node.value {
            Value::Inline(table) | Value::Section(table) => search(path, *inner, node, table),
            _ => parse(path, *inner, node).map_err(or_auto),
        },
    }
}

fn is_auto(node: &SpannedValue) -> bool {
    matches!(&node.value, Value::Text(text) if text == "auto")
}

fn or_auto(problem: Problem) -> Problem {
    if problem.hint.is_some() {
        problem
    } else {
        problem.hint("or write \"auto\" and let the planner choose")
    }
}

/// Describes the type of a value in words, for error messages.
pub(in crate::check) fn kind_of(node: &SpannedValue) -> String {
    let short = |text: &str| match text.char_indices().nth(40) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    };
    match &node.value {
        Value::Text(text) => format!("the text {}", short(text)),
        Value::Whole(number) => format!("the number {number}"),
        Value::Real(number) => {
            // The number as the user wrote it: 1e30 and not thirty digits.
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

fn wrong(path: &str, wanted: &str, node: &SpannedValue) -> Problem {
    Problem::new(format!("`{path}` must be {wanted}, found {}", kind_of(node))).at(&node.origin)
}

fn one_of(path: &str, node: &SpannedValue, words: Keywords) -> Result<ParsedValue, Problem> {
    let quoted: Vec<String> = words.names().iter().map(|word| format!("{word:?}")).collect();
    let wanted = match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.join(""),
    };
    let Value::Text(found) = &node.value else { return Err(wrong(path, &wanted, node)) };
    if let Some(word) = words.find(found) {
        return Ok(ParsedValue::Word(word));
    }
    let near = crate::check::suggestion::closest_suggestion(found, words.names().iter().copied());
    let problem = wrong(path, &wanted, node);
    if path == "engine" && EMITTED_ONLY.contains(&found.as_str()) {
        return Err(problem.hint(format!(
            "files for {found} are emitted only, and started by hand: `dtrain plan --on … --emit`"
        )));
    }
    Err(match (near, other_launcher_hint(path, found)) {
        (_, Some(hint)) => problem.hint(hint),
        (Some(near), None) => problem.hint(format!("did you mean {near:?}?")),
        (None, None) => problem,
    })
}

/// Returns a hint for a launcher name that is no keyword of dtrain but that it supports in another way.
fn other_launcher_hint(path: &str, word: &str) -> Option<&'static str> {
    let is_kubernetes = path == "cluster.launcher" && matches!(word, "kubernetes" | "k8s");
    is_kubernetes.then_some(
        "there is no launcher for Kubernetes; `dtrain plan RECIPE --emit kubernetes` writes a manifest",
    )
}

fn list<T>(
    path: &str,
    node: &SpannedValue,
    wanted: &str,
    read: impl Fn(&SpannedValue) -> Result<T, Problem>,
) -> Result<Vec<T>, Problem> {
    let Value::List(items) = &node.value else { return Err(wrong(path, wanted, node)) };
    if items.is_empty() {
        return Err(Problem::new(format!("`{path}` is an empty list")).at(&node.origin));
    }
    items.iter().map(read).collect()
}

fn files(path: &str, node: &SpannedValue) -> Result<ParsedValue, Problem> {
    let one = |item: &SpannedValue| {
        let file = text(path, item)?;
        if Url::is_url(&file) {
            return match Url::parse(&file) {
                Ok(_) => Ok((file, item.origin.clone())),
                Err(UrlError { message, hint }) => {
                    Err(Problem::new(format!("`{path}`: {message}")).at(&item.origin).hint(hint))
                }
            };
        }
        match remote(&file) {
            Some(hint) => Err(Problem::new(format!(
                "`{path}`: data is read from files and downloaded from https:// and http://, found {}",
                kind_of(item)
            ))
            .at(&item.origin)
            .hint(hint)),
            None => Ok((file, item.origin.clone())),
        }
    };
    match &node.value {
        Value::List(_) => list(path, node, "files", one).map(ParsedValue::Files),
        Value::Text(_) => one(node).map(|file| ParsedValue::Files(vec![file])),
        _ => Err(wrong(path, "a file, a glob pattern or a list of them", node)),
    }
}

/// Parses the path of a folder on this machine or the name of a model on the Hub; the result is a file list
/// with one element.
fn folder(path: &str, node: &SpannedValue) -> Result<ParsedValue, Problem> {
    let folder = text(path, node)?;
    if HubModel::is_named(&folder) {
        let wrong = |error: HubModelError| {
            Problem::new(format!("`{path}`: {}", error.message)).at(&node.origin).hint(error.hint)
        };
        HubModel::parse(&folder).map_err(wrong)?;
        return Ok(ParsedValue::Files(vec![(folder, node.origin.clone())]));
    }
    if Url::is_url(&folder) || remote(&folder).is_some() {
        let message = format!("`{path}`: a folder is wanted, found {}", kind_of(node));
        return Err(Problem::new(message).at(&node.origin).hint(
            "write hf:ORG/NAME for a model of the Hugging Face Hub, or download it first and name its folder",
        ));
    }
    Ok(ParsedValue::Files(vec![(folder, node.origin.clone())]))
}

/// Returns a hint on how to download a file from a URL scheme that dtrain does not read; `None` for a local
/// path.
fn remote(file: &str) -> Option<String> {
    let (scheme, rest) = file.split_once("://")?;
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    if !is_scheme {
        return None;
    }
    let file: String = file.chars().take(200).collect();
    Some(match scheme.to_ascii_lowercase().as_str() {
        "file" => format!("write the path alone: {rest:?}"),
        "hf" => {
            let name = rest.trim_start_matches("datasets/");
            let name: Vec<&str> = name.split('/').take(2).collect();
            let name = name.join("/");
            format!(
                "download it first, for example `hf download {name} --repo-type dataset --local-dir data`"
            )
        }
        "s3" => format!("download it first, for example `aws s3 cp {file} .`"),
        "gs" => format!("download it first, for example `gcloud storage cp {file} .`"),
        "ftp" => format!("download it first, for example `curl -O {file}`"),
        // Any other scheme: no command can be suggested.
        _ => "download it first, and name the file".to_owned(),
    })
}

fn tokenizer(path: &str, node: &SpannedValue) -> Result<ParsedValue, Problem> {
    let wanted = "\"bytes\", { bpe = VOCABULARY } or the path or URL of a tokenizer.json";
    match &node.value {
        Value::Text(text) if text == "bytes" => Ok(ParsedValue::Bytes),
        Value::Text(text) if file_extension(text).ends_with(".json") => files(path, node),
        Value::Inline(table) | Value::Section(table) if table.len() == 1 && table.contains_key("bpe") => {
            let vocab = whole(&format!("{path}.bpe"), &table["bpe"].node, 257, 1_048_576)?;
            Ok(ParsedValue::Bpe(u32::try_from(vocab).unwrap_or(u32::MAX)))
        }
        _ => Err(wrong(path, wanted, node)),
    }
}

fn valid(path: &str, node: &SpannedValue) -> Result<ParsedValue, Problem> {
    let is_share = match &node.value {
        Value::Text(text) => text.trim_end().ends_with('%') || units::fraction(text).is_ok(),
        Value::Whole(_) | Value::Real(_) => true,
        Value::List(_) => return files(path, node),
        _ => return Err(wrong(path, "a share such as \"5%\", or files", node)),
    };
    if is_share {
        share(path, node, "above 0 and below 1", |x| x > 0.0 && x < 1.0).map(ParsedValue::Share)
    } else {
        files(path, node)
    }
}
