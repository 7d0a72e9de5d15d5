//! Names that become names of files.

use crate::failure::{Exit, Failure};
use dtrain_recipes::is_name;

/// `Err` for a name that a user gave and that cannot be the name of a file; `what` is named, such as "a study".
pub(crate) fn refuse_unusable(name: &str, what: &str) -> Result<(), Failure> {
    if is_name(name) {
        return Ok(());
    }
    Err(Failure::new(Exit::Usage, format!("{name:?} cannot be the name of {what}"))
        .hint("use at most 128 letters, digits, `-`, `_` and `.`, beginning with a letter, a digit or `_`"))
}

/// A file name in the current folder for something that is called `name`, which may come from somebody else.
pub(crate) fn file_name(name: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_-.".contains(c);
    let plain: String = name.chars().map(|c| if is_plain(c) { c } else { '-' }).collect();
    let plain = plain.trim_start_matches('.');
    if plain.is_empty() { "unnamed".to_owned() } else { plain.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_named_in_this_folder_whatever_its_subject_is_called() {
        assert_eq!(file_name("a/../b c"), "a-..-b-c");
        assert_eq!(file_name("../x"), "-x");
        assert_eq!(file_name("/etc/passwd"), "-etc-passwd");
        assert_eq!(file_name(".."), "unnamed");
    }

    #[test]
    fn a_name_that_leads_elsewhere_or_has_blanks_is_refused() {
        for name in ["a", "notes-tune-1", "v1.2_b", "9"] {
            assert!(refuse_unusable(name, "a study").is_ok(), "{name}");
        }
        for name in ["", ".", "..", "a b/c", "../../../pwn", "/a", "a/b", "-a", ".a", "a\nb", "ü", "a..b"] {
            let failure = refuse_unusable(name, "a study").expect_err(name);
            assert_eq!(failure.exit(), Exit::Usage);
        }
        assert!(refuse_unusable(&"a".repeat(129), "a study").is_err());
    }
}
