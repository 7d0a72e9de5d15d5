//! Values of a recipe that match the types of their keys.

use crate::keyword_enum::{Keyword, KeywordEnum};
use crate::params::{ParamRange, ParamValue};
use crate::source::Origin;
use std::collections::BTreeMap;
use std::fmt;

/// A declared param: a fixed value or a range.
#[derive(Clone, Debug)]
pub(crate) enum DeclaredParam {
    Value(ParamValue),
    Range(ParamRange),
}

/// A value that matches the type of its key.
#[derive(Clone, Debug)]
pub(crate) enum ParsedValue {
    /// The key is not set and has no default.
    Unset,
    Auto,
    None,
    Text(String),
    Word(Keyword),
    Flag(bool),
    Whole(u64),
    Real(f64),
    Share(f64),
    Tokens(u64),
    Samples(u64),
    Steps(u64),
    Time(f64),
    /// A number of bytes.
    Size(u64),
    Texts(Vec<String>),
    Files(Vec<(String, Origin)>),
    Environment(BTreeMap<String, String>),
    Params(BTreeMap<String, (DeclaredParam, Origin)>),
    Settings(BTreeMap<String, ParamValue>),
    Wholes(Vec<u64>),
    /// The byte-level tokenizer, for which each byte is a token.
    Bytes,
    /// A BPE tokenizer with this vocabulary size, to be trained on the data.
    Bpe(u32),
    Among(Vec<Self>),
    Log(Box<Self>, Box<Self>),
}

impl ParsedValue {
    pub(crate) fn whole(&self) -> Option<u64> {
        match self {
            Self::Whole(n) | Self::Tokens(n) | Self::Samples(n) | Self::Steps(n) => Some(*n),
            _ => None,
        }
    }

    pub(crate) fn real(&self) -> Option<f64> {
        match self {
            Self::Real(x) | Self::Share(x) | Self::Time(x) => Some(*x),
            _ => None,
        }
    }

    /// Wraps a variant of a keyword enum as a parsed value.
    pub(crate) fn of<T: KeywordEnum>(value: T) -> Self {
        Self::Word(Keyword::of(value))
    }

    /// Returns the variant of the keyword enum `T`; `None` if the value is "auto" or not a keyword.
    pub(crate) fn one_of<T: KeywordEnum>(&self) -> Option<T> {
        if let Self::Word(word) = self { word.value() } else { None }
    }

    /// Returns `true` if the value is `wanted`, or a search space that includes it.
    pub(crate) fn can_be<T: KeywordEnum>(&self, wanted: T) -> bool {
        match self {
            Self::Among(values) => values.iter().any(|value| value.can_be(wanted)),
            value => value.one_of() == Some(wanted),
        }
    }

    pub(crate) fn flag(&self) -> Option<bool> {
        if let Self::Flag(flag) = self { Some(*flag) } else { None }
    }

    pub(crate) fn texts(&self) -> Option<Vec<String>> {
        if let Self::Texts(texts) = self { Some(texts.clone()) } else { None }
    }

    pub(crate) fn files(&self) -> Option<Vec<String>> {
        let Self::Files(files) = self else { return None };
        Some(files.iter().map(|(file, _)| file.clone()).collect())
    }

    pub(crate) fn text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }
}

/// Formats the value as TOML, the way a recipe spells it.
impl fmt::Display for ParsedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unset => f.write_str(super::NOT_SET),
            Self::Auto => f.write_str("\"auto\""),
            Self::None => f.write_str("\"none\""),
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Word(word) => write!(f, "{:?}", word.name()),
            Self::Bytes => f.write_str("\"bytes\""),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Whole(n) => write!(f, "{n}"),
            Self::Real(x) => write!(f, "{x:?}"),
            Self::Share(x) => write!(f, "\"{}%\"", percent(*x)),
            Self::Tokens(n) => write!(f, "\"{n} tokens\""),
            Self::Samples(n) => write!(f, "{n}"),
            Self::Steps(n) => write!(f, "\"{n} steps\""),
            Self::Size(bytes) => write!(f, "\"{}\"", exact_size(*bytes)),
            Self::Time(s) => write!(f, "\"{s} s\""),
            Self::Texts(texts) => write!(f, "{texts:?}"),
            Self::Files(files) => match files.as_slice() {
                [(one, _)] => write!(f, "{one:?}"),
                many => f.debug_list().entries(many.iter().map(|(file, _)| file)).finish(),
            },
            Self::Environment(variables) => {
                let variable = |(name, value): (&String, &String)| {
                    format!("{name} = {}", ParamValue::Text(value.clone()))
                };
                let variables: Vec<String> = variables.iter().map(variable).collect();
                write!(f, "{{ {} }}", variables.join(", "))
            }
            Self::Params(params) => {
                let param =
                    |(name, (param, _)): (&String, &(DeclaredParam, Origin))| format!("{name} = {param}");
                let params: Vec<String> = params.iter().map(param).collect();
                write!(f, "{{ {} }}", params.join(", "))
            }
            Self::Settings(settings) => {
                let setting = |(name, value): (&String, &ParamValue)| format!("{name} = {value}");
                let settings: Vec<String> = settings.iter().map(setting).collect();
                write!(f, "{{ {} }}", settings.join(", "))
            }
            Self::Wholes(numbers) => write!(f, "{numbers:?}"),
            Self::Bpe(vocab) => write!(f, "{{ bpe = {vocab} }}"),
            Self::Among(values) => {
                let texts: Vec<String> = values.iter().map(ToString::to_string).collect();
                write!(f, "{{ choices = [{}] }}", texts.join(", "))
            }
            Self::Log(low, high) => write!(f, "{{ log = [{low}, {high}] }}"),
        }
    }
}

/// Formats the param as TOML, the way a recipe spells it.
impl fmt::Display for DeclaredParam {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => value.fmt(f),
            Self::Range(range) => range.fmt(f),
        }
    }
}

/// Formats a number of bytes in the largest unit in which it is whole.
fn exact_size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let whole = units.into_iter().find(|(shift, _)| bytes.trailing_zeros() >= *shift && bytes > 0);
    whole.map_or_else(|| format!("{bytes} B"), |(shift, unit)| format!("{} {unit}", bytes >> shift))
}

/// Returns a share as a percentage without rounding noise: 0.07 becomes 7, not 7.000000000000001.
fn percent(share: f64) -> f64 {
    (share * 1e12).round() / 1e10
}
