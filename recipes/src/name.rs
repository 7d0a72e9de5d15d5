//! Checks names of recipes, packages, trials and studies, which become names of files and folders.

/// Length limit of the name of a recipe or a package, in bytes.
const RECIPE: usize = 128;

/// Length limit of the name of a trial or a study, in bytes: a recipe's name and a suffix that dtrain
/// appends.
const TRIAL: usize = 200;

/// Returns `true` if a text is a valid name of a recipe or a package: letters, digits, `-`, `_`, `.`; at most
/// 128; not beginning with `-` or `.`, and without `..`.
pub fn is_plain_name(text: &str) -> bool {
    is_plain(text, RECIPE)
}

/// Returns `true` if a text is a valid name of a trial or a study: a plain name of at most 200 characters.
pub fn is_trial_name(text: &str) -> bool {
    is_plain(text, TRIAL)
}

/// Turns a text into a file name: a plain name stays as it is; otherwise `-` replaces characters that are not
/// allowed.
pub fn file_name(text: &str) -> String {
    let mut name = String::new();
    for c in text.chars().map(|c| if is_allowed(c) { c } else { '-' }) {
        let is_second_dot = c == '.' && name.ends_with('.');
        name.push(if is_second_dot { '-' } else { c });
    }
    let name: String = name.trim_start_matches(['-', '.']).chars().take(TRIAL).collect();
    if name.is_empty() { "unnamed".to_owned() } else { name }
}

fn is_plain(text: &str, most: usize) -> bool {
    (1..=most).contains(&text.len())
        && text.chars().all(is_allowed)
        && !text.starts_with(['-', '.'])
        && !text.contains("..")
}

fn is_allowed(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_name_cannot_lead_out_of_a_folder_or_steer_a_terminal() {
        for name in ["tiny", "gpt-2.1_b", "7b"] {
            assert!(is_plain_name(name) && is_trial_name(name), "{name}");
            assert_eq!(file_name(name), name);
        }
        let long = "x".repeat(201);
        let odd = [
            "",
            ".",
            "..",
            "../x",
            "a/b",
            "/tmp/x",
            "a..b",
            ".x",
            "-x",
            "a b",
            "a\u{1b}[2J",
            "a\u{202e}",
            "é",
            &long,
        ];
        for name in odd {
            assert!(!is_plain_name(name) && !is_trial_name(name), "{name}");
            assert!(is_trial_name(&file_name(name)), "{name}: {}", file_name(name));
        }
        assert_eq!(file_name("../../a b"), "a-b");
        assert!(!is_plain_name(&"x".repeat(129)) && is_trial_name(&"x".repeat(129)));
    }
}
