//! Error of parsing a condition or a sort order.

use super::columns::{COLUMNS, WORDS};

/// Error of parsing a condition or a sort order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConditionError {
    /// The text is not a comparison.
    #[error("`{0}` is not a condition; expected one such as `batch >= 256` or `status = completed`")]
    NoCondition(String),
    /// The name in the condition is unknown.
    #[error("trials have no `{name}`{}", did_you_mean(.near.as_deref()))]
    Unknown {
        /// Unknown name, as given in the condition.
        name: String,
        /// Known name that resembles it; `None` if none does.
        near: Option<String>,
    },
    /// The name is not one that trials can be sorted by.
    #[error(
        "`{0}` is nothing to sort by; expected newest, best, fastest, or what `--where` compares with a number"
    )]
    NoOrder(String),
    /// The name can only be compared with a word, not with a number.
    #[error("`{0}` is compared with `=` and a word, such as `{0}=WORD`")]
    Word(String),
    /// The status is unknown.
    #[error("{0}")]
    NoStatus(String),
}

fn did_you_mean(near: Option<&str>) -> String {
    match near {
        Some(near) => format!("; did you mean `{near}`?"),
        None => format!(
            "; expected {}, a key of the recipe or the plan, or a recorded figure",
            WORDS.into_iter().chain(COLUMNS).collect::<Vec<_>>().join(", ")
        ),
    }
}
