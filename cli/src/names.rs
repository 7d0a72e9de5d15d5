//! Validation of names that become names of files.

use crate::command_error::CommandError;
use crate::exit_code::ExitReason;
use dtrain_recipes::name::is_plain_name;

/// Returns `Err` if the name that a user chose cannot be a file name; `what` is its kind, such as "a study".
pub(crate) fn refuse_unusable(name: &str, what: &str) -> Result<(), CommandError> {
    if is_plain_name(name) {
        return Ok(());
    }
    Err(CommandError::new(ExitReason::Usage, format!("{name:?} cannot be the name of {what}"))
        .hint("use at most 128 letters, digits, `-`, `_` and `.`, beginning with a letter, a digit or `_`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_leads_elsewhere_or_has_blanks_is_refused() {
        for name in ["a", "notes-tune-1", "v1.2_b", "9"] {
            assert!(refuse_unusable(name, "a study").is_ok(), "{name}");
        }
        for name in ["", ".", "..", "a b/c", "../../../pwn", "/a", "a/b", "-a", ".a", "a\nb", "ü", "a..b"] {
            let failure = refuse_unusable(name, "a study").expect_err(name);
            assert_eq!(failure.exit(), ExitReason::Usage);
        }
        assert!(refuse_unusable(&"a".repeat(129), "a study").is_err());
    }
}
