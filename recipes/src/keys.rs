//! Recipe keys, which the checker, the JSON Schema and `dtrain recipe keys` read.

mod kind;
mod table;
mod value_type;

pub use kind::Kind;
pub use table::KEYS;
pub use value_type::ValueType;

/// The meaning of an absent recipe key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// An absent key is an error.
    Required,
    /// An absent key has this default value, or one computed by this rule, in words.
    Default(&'static str),
    /// An absent key has no value; the text explains the effect.
    Optional(&'static str),
}

/// A recipe key, with its type and documentation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Key {
    /// Dotted path of the key; `cluster.hosts.*` are the keys of each host.
    pub path: &'static str,
    /// Type of the key's value.
    pub shape: ValueType,
    /// Meaning of a recipe without the key.
    pub need: Requirement,
    /// Kinds of model that have the key.
    pub kinds: &'static [Kind],
    /// One-line description of the key for users.
    pub doc: &'static str,
}

/// Largest whole number of a TOML file.
const LARGEST_WHOLE: u64 = i64::MAX as u64;

/// Maximum number of ranks on one host.
pub(crate) const RANKS_OF_A_HOST: u64 = 1024;

/// Maximum number of parameters of a model: a thousand times the largest model trained so far.
pub(crate) const MOST_PARAMETERS: u64 = 1_000_000_000_000_000;

/// Returns all recipe keys, for printing.
pub fn keys() -> &'static [Key] {
    KEYS
}

/// Returns the key with this path for this kind of model; if `kind` is `None`, the first key with this path.
pub fn find(path: &str, kind: Option<Kind>) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path == path && kind.is_none_or(|kind| key.kinds.contains(&kind)))
}

/// Returns `true` if `path` is a section: at least one key lies below it.
pub fn is_section(path: &str) -> bool {
    KEYS.iter().any(|key| key.path.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')))
}
