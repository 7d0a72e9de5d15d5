//! Whether one value fits the shape its key wants. Contradictions between values are for `super::rules`.

mod params;
mod quantity;
mod search;
mod text;

pub(in crate::check) use params::params;

use super::parsed::Parsed;
use crate::document::{Node, Value};
use crate::keys::Shape;
use crate::problem::Problem;
use crate::progress::is_metric_name;
use crate::units;
use crate::url::{Url, WrongUrl, ending};
use crate::words::Words;
use quantity::{MOST_STEPS, MOST_TOKENS, alternative, epochs, number, quantity, share, time, whole};
use search::search;
use text::{host, name, network, text};

/// The value, or what is wrong with it.
pub(in crate::check) fn parse(path: &str, shape: Shape, node: &Node) -> Result<Parsed, Problem> {
    match shape {
        Shape::Text => text(path, node).map(Parsed::Text),
        Shape::Name => name(path, node),
        Shape::Host => host(path, node),
        Shape::Network => network(path, node),
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
        Shape::Metric => match &node.value {
            Value::Text(name) if is_metric_name(name) => Ok(Parsed::Text(name.clone())),
            _ => Err(wrong(path, "the name of a metric, such as \"valid.loss\" or \"val/f1\"", node)),
        },
        Shape::Share => share(path, node, "from 0 to 1", |x| (0.0..=1.0).contains(&x)).map(Parsed::Share),
        Shape::Part => share(path, node, "above 0 and at most 1", |x| x > 0.0 && x <= 1.0).map(Parsed::Share),
        Shape::Epochs => epochs(path, node),
        Shape::Tokens => {
            let read = |text: &str| units::tokens(text).map(|n| n.0);
            quantity(path, node, "a number of tokens", MOST_TOKENS, read).map(Parsed::Tokens)
        }
        Shape::Samples(most) => {
            let read = |text: &str| units::samples(text).map(|n| n.0);
            quantity(path, node, "a number of samples", most, read).map(Parsed::Samples)
        }
        Shape::Steps => {
            quantity(path, node, "a number of steps", MOST_STEPS, units::steps).map(Parsed::Steps)
        }
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
        Shape::Folder => folder(path, node),
        Shape::Texts => list(path, node, "a list of texts", |item| text(path, item))
            .map(Parsed::Texts)
            .map_err(|problem| {
                let Value::Text(found) = &node.value else { return problem };
                if path == "model.argv" {
                    problem.hint("write each word as a text of its own: [\"python3\", \"train.py\"]")
                } else {
                    problem.hint(format!("write a list: [{found:?}]"))
                }
            }),
        Shape::Environment => params::environment(path, node).map(Parsed::Environment),
        Shape::Params => params::params(path, node).map(Parsed::Params).map_err(|mut all| all.swap_remove(0)),
        Shape::Settings => params::settings(path, node).map(Parsed::Settings),
        Shape::Variables => {
            list(path, node, "a list of texts", |item| text::variable(path, item)).map(Parsed::Texts)
        }
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
        Shape::OrAuto(_) if is_auto(node) => Ok(Parsed::Auto),
        Shape::OrAuto(inner) => parse(path, *inner, node).map_err(or_auto),
        Shape::Choice(_) if is_auto(node) => Ok(Parsed::Auto),
        Shape::Choice(inner) => match &node.value {
            Value::Inline(table) | Value::Section(table) => search(path, *inner, node, table),
            _ => parse(path, *inner, node).map_err(or_auto),
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
pub(in crate::check) fn kind_of(node: &Node) -> String {
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

fn one_of(path: &str, node: &Node, words: Words) -> Result<Parsed, Problem> {
    let quoted: Vec<String> = words.names().iter().map(|word| format!("{word:?}")).collect();
    let wanted = match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.join(""),
    };
    let Value::Text(found) = &node.value else { return Err(wrong(path, &wanted, node)) };
    if let Some(word) = words.find(found) {
        return Ok(Parsed::Word(word));
    }
    let near = crate::check::suggest::nearest(found, words.names().iter().copied());
    let problem = wrong(path, &wanted, node);
    Err(match (near, elsewhere(path, found)) {
        (_, Some(hint)) => problem.hint(hint),
        (Some(near), None) => problem.hint(format!("did you mean {near:?}?")),
        (None, None) => problem,
    })
}

/// Where a word that a key does not take is understood.
fn elsewhere(path: &str, word: &str) -> Option<&'static str> {
    let is_kubernetes = path == "cluster.launcher" && matches!(word, "kubernetes" | "k8s");
    is_kubernetes.then_some(
        "there is no launcher for Kubernetes; `dtrain plan RECIPE --emit kubernetes` writes a manifest",
    )
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
    let one = |item: &Node| {
        let file = text(path, item)?;
        if Url::is_one(&file) {
            return match Url::parse(&file) {
                Ok(_) => Ok((file, item.origin.clone())),
                Err(WrongUrl { message, hint }) => {
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
        Value::List(_) => list(path, node, "files", one).map(Parsed::Files),
        Value::Text(_) => one(node).map(|file| Parsed::Files(vec![file])),
        _ => Err(wrong(path, "a file, a glob pattern or a list of them", node)),
    }
}

/// A folder on this machine, as a list of one path.
fn folder(path: &str, node: &Node) -> Result<Parsed, Problem> {
    let folder = text(path, node)?;
    if Url::is_one(&folder) || remote(&folder).is_some() {
        let message = format!("`{path}`: a folder is wanted, found {}", kind_of(node));
        return Err(Problem::new(message)
            .at(&node.origin)
            .hint("download it first, for example `hf download ORG/NAME --local-dir NAME`"));
    }
    Ok(Parsed::Files(vec![(folder, node.origin.clone())]))
}

/// How to download what a URL of another kind names; `None` for the path of a file.
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
        // How another scheme is downloaded, its user knows.
        _ => "download it first, and name the file".to_owned(),
    })
}

fn tokenizer(path: &str, node: &Node) -> Result<Parsed, Problem> {
    let wanted = "\"bytes\", { bpe = VOCABULARY } or the path or URL of a tokenizer.json";
    match &node.value {
        Value::Text(text) if text == "bytes" => Ok(Parsed::Bytes),
        Value::Text(text) if ending(text).ends_with(".json") => files(path, node),
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
