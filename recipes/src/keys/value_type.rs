//! The types that the values of recipe keys can have.

use super::LARGEST_WHOLE;
use crate::keyword_enum::Keywords;
use std::fmt;

/// The type of the value of a recipe key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ValueType {
    /// Any text.
    Text,
    /// A name of at most 128 letters, digits, `-`, `_` and `.`.
    Name,
    /// A host name, a user name, or an address with a range; one word that does not begin with `-`.
    Host,
    /// A range of IP addresses, such as `10.0.0.0/16`.
    Network,
    /// A URL that begins with `http://`.
    HttpUrl,
    /// `true` or `false`.
    Flag,
    /// A whole number between two bounds, both included.
    Whole(u64, u64),
    /// A number above the first bound and at most the second.
    Above(f64, f64),
    /// A number from the first bound to below the second.
    Below(f64, f64),
    /// Any number, or a percentage, such as a target value of a metric.
    Level,
    /// The name of a metric.
    Metric,
    /// A share from 0 to 1, both included; a number or a percentage.
    Share,
    /// A share above 0 and at most 1; a number or a percentage.
    Part,
    /// A number of passes over the training data above 0, with or without the unit `epochs`.
    Epochs,
    /// A number of tokens, at least 1.
    Tokens,
    /// A number of samples, at least 1 and at most this many.
    Samples(u64),
    /// A number of optimizer steps, at least 1.
    Steps,
    /// A number of bytes above 0, with a unit.
    Size,
    /// A duration above 0, with a unit.
    Time,
    /// A length of the warm-up, in steps or tokens.
    Warmup,
    /// An interval, in steps or as a duration.
    Period,
    /// A keyword of an enum.
    OneOf(Keywords),
    /// One file or glob pattern, or a list of them.
    Files,
    /// The path of a model's folder, or the name of a model on the Hugging Face Hub.
    Folder,
    /// A non-empty list of texts.
    Texts,
    /// A table of environment variables, each with a text as its value.
    Environment,
    /// A table of header fields of an HTTP request, each with a text as its value.
    Headers,
    /// A table of params: values or ranges under user-chosen names.
    Params,
    /// A table of settings for a custom network: values under user-chosen names.
    Settings,
    /// A non-empty list of names of environment variables.
    Variables,
    /// A non-empty list of whole numbers between two bounds, both included.
    Wholes(u64, u64),
    /// A tokenizer: `"bytes"`, `{ bpe = 4096 }` or the path of a `tokenizer.json`.
    Tokenizer,
    /// A source of validation samples: a share of the training data below 1, or files.
    Valid,
    /// Either `"none"` or a value of the inner type.
    OrNone(&'static Self),
    /// Either `"auto"` or a value of the inner type.
    OrAuto(&'static Self),
    /// A tunable value: `"auto"`, a value of the inner type, `{ choices = [..] }` or, for ordered values, `{
    /// log = [low, high] }`.
    Choice(&'static Self),
}

impl fmt::Display for ValueType {
    /// Formats the type in words, for error messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text => f.write_str("a text"),
            Self::Name => f.write_str("a name of letters, digits, `-`, `_` and `.`"),
            Self::Host => f.write_str("a name or an address"),
            Self::Network => f.write_str("a network such as \"10.0.0.0/16\""),
            Self::HttpUrl => f.write_str("a URL that begins with http://"),
            Self::Flag => f.write_str("true or false"),
            Self::Whole(low, LARGEST_WHOLE) => write!(f, "a whole number from {low}"),
            Self::Whole(low, high) => write!(f, "a whole number from {low} to {high}"),
            Self::Above(low, high) => write!(f, "a number above {low}, at most {high}"),
            Self::Below(low, high) => write!(f, "a number from {low} to below {high}"),
            Self::Level => f.write_str("a number or a percentage"),
            Self::Metric => f.write_str("the name of a metric"),
            Self::Share => f.write_str("a share from 0 to 1, or a percentage"),
            Self::Part => f.write_str("a share above 0 and at most 1, or a percentage"),
            Self::Epochs => f.write_str("a number of passes"),
            Self::Tokens => f.write_str("tokens, such as \"20M\""),
            Self::Samples(_) => f.write_str("samples, such as \"1M\""),
            Self::Steps => f.write_str("steps, such as 500"),
            Self::Size => f.write_str("a size, such as \"200 MiB\""),
            Self::Time => f.write_str("a time, such as \"30 min\""),
            Self::Warmup => f.write_str("\"500 steps\" or \"10M tokens\""),
            Self::Period => f.write_str("\"100 steps\" or \"5 min\""),
            Self::OneOf(words) => {
                let quoted: Vec<String> = words.names().iter().map(|word| format!("{word:?}")).collect();
                f.write_str(&quoted.join(", "))
            }
            Self::Files => f.write_str("a file or pattern, or a list of them"),
            Self::Folder => f.write_str("the path of a folder, or hf:ORG/NAME@COMMIT"),
            Self::Texts => f.write_str("a list of texts"),
            Self::Environment => f.write_str("a table such as { NAME = \"a text\" }"),
            Self::Headers => f.write_str("a table such as { Metadata = \"true\" }"),
            Self::Params => {
                f.write_str("a section; each value is a number, a text, true or false, or a range")
            }
            Self::Settings => f.write_str("a table of numbers, texts, and true or false"),
            Self::Variables => f.write_str("a list of names of environment variables"),
            Self::Wholes(low, high) => write!(f, "a list of whole numbers from {low} to {high}"),
            Self::Tokenizer => f.write_str("\"bytes\", { bpe = 4096 } or the path of a tokenizer.json"),
            Self::Valid => f.write_str("a share such as \"5%\", or files"),
            Self::OrNone(inner) => write!(f, "{inner}, or \"none\""),
            Self::OrAuto(inner) => write!(f, "{inner}, or \"auto\""),
            Self::Choice(inner @ Self::OneOf(_)) => write!(f, "{inner}, \"auto\", or {{ choices = [..] }}"),
            Self::Choice(inner) => {
                write!(f, "{inner}, \"auto\", {{ choices = [..] }}, or {{ log = [low, high] }}")
            }
        }
    }
}
