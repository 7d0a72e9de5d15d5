//! Text of an answer: the form of a plan or an estimate, and the command that follows from it.

use crate::output::PageStyle;
use dtrain_planner::answer::{Answer, COLUMNS};

/// Label before a suggested command, as [`Output::next`](crate::output::Output::next) prints it.
const LABEL: &str = "next: ";

/// Indentation of the further lines of a command.
const INDENT: &str = "    ";

/// Formats an answer with `rows` table rows, so that it fits one screen together with the command `next` and
/// `more` lines of messages.
pub(crate) fn text(
    answer: &Answer,
    rows: usize,
    next: Option<&str>,
    more: usize,
    style: PageStyle,
) -> String {
    let below = next.map_or(0, |command| command.lines().count()) + more;
    answer.text(style.width, rows, below)
}

/// Breaks a command between its arguments so that no line is wider than an answer; each line but the last
/// ends with a backslash. A single argument that is wider stays whole.
pub(crate) fn on_several_lines<'a>(arguments: impl IntoIterator<Item = &'a str>) -> String {
    let (mut text, mut used) = (String::new(), LABEL.len());
    for argument in arguments {
        let length = argument.chars().count();
        // Room for the backslash is left.
        if used > LABEL.len() && used + 1 + length + 2 > COLUMNS {
            text += &format!(" \\\n{INDENT}");
            used = INDENT.len();
        } else if !text.is_empty() {
            text.push(' ');
            used += 1;
        }
        text += argument;
        used += length;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_command_is_continued_on_the_next_line() {
        assert_eq!(on_several_lines(["dtrain run", "recipe.toml"]), "dtrain run recipe.toml");
        let long = ["dtrain plan", "examples/llama-405b/recipe.toml", "--on '2048x8 H100-SXM-80GB'"];
        let text = on_several_lines(long.into_iter().chain(["--emit megatron", "--emit-to FOLDER"]));
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.lines().all(|line| line.len() <= COLUMNS - LABEL.len()), "{text}");
        assert!(text.contains(" \\\n    --"), "{text}");
    }
}
