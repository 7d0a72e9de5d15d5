//! Errors of commands, as text and as JSON.

use crate::color::ColorMode;
use crate::exit_code::{EXIT_CODES, ExitReason};
use dtrain_recipes::problem::{Problem, render_all};
use serde::Serialize;
use std::error::Error;
use std::fmt::Write as _;

/// Error that ends a command: its exit reason, message, causes and hint.
#[derive(Debug)]
pub(crate) struct CommandError {
    exit: ExitReason,
    /// Message about the failure: first the wanted state, then the found one; lower case, no full stop.
    /// Empty if everything has been printed already.
    message: String,
    causes: Vec<String>,
    hint: Option<String>,
    /// Problems of a recipe, which are rendered with their places; empty for other errors.
    problems: Vec<Problem>,
}

/// Result of a command: the reason for its exit code, or an error.
pub(crate) type CommandResult = Result<ExitReason, CommandError>;

impl CommandError {
    pub(crate) fn new(exit: ExitReason, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), causes: Vec::new(), hint: None, problems: Vec::new() }
    }

    /// Converts an error and its chain of causes.
    pub(crate) fn of(exit: ExitReason, error: &(dyn Error + 'static)) -> Self {
        let mut failure = Self::new(exit, error.to_string());
        let mut source = error.source();
        while let Some(cause) = source {
            failure.causes.push(cause.to_string());
            source = cause.source();
        }
        failure
    }

    /// Creates an error without a message, for output whose reader closed the pipe.
    pub(crate) fn closed_pipe() -> Self {
        Self::new(ExitReason::Done, "")
    }

    pub(crate) fn problems(problems: Vec<Problem>) -> Self {
        Self { problems, ..Self::new(ExitReason::Usage, "") }
    }

    #[must_use]
    pub(crate) fn cause(mut self, cause: impl Into<String>) -> Self {
        self.causes.push(cause.into());
        self
    }

    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn exit(&self) -> ExitReason {
        self.exit
    }

    /// Returns the error in the format `dtrain.error/2`; `None` if it has no message.
    pub(crate) fn json(&self) -> Option<ErrorJson> {
        let problems: Vec<ProblemJson> = self.problems.iter().map(ProblemJson::of).collect();
        let message = match (self.message.as_str(), &problems[..]) {
            ("", []) => return None,
            ("", [only]) => only.message.clone(),
            ("", several) => format!("{} problems", several.len()),
            (message, _) => message.to_owned(),
        };
        Some(ErrorJson {
            causes: self.causes.clone(),
            hint: self.hint.clone(),
            problems,
            ..ErrorJson::new(self.exit, message)
        })
    }

    /// Returns `true` if the message or any cause contains one of the texts `words`.
    pub(crate) fn says(&self, words: &[&str]) -> bool {
        let texts = || std::iter::once(&self.message).chain(&self.causes);
        words.iter().any(|word| texts().any(|text| text.contains(word)))
    }

    /// Returns the message without causes or hint.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Formats the error as a one-line warning, for a command that continues.
    pub(crate) fn warning(&self, paint: ColorMode) -> String {
        let hint = self.hint.as_ref().map_or_else(String::new, |hint| format!("; {hint}"));
        format!("{}: {}{hint}", paint.yellow("warning"), self.in_one_line())
    }

    /// Returns the message with its causes on one line.
    pub(crate) fn in_one_line(&self) -> String {
        let parts = std::iter::once(&self.message).chain(&self.causes);
        parts.map(|part| part.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>().join(": ")
    }

    /// Returns the problems of the recipe; an empty slice if the error is not about a recipe.
    pub(crate) fn recipe_problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Returns the message with its causes, for use as a cause of another error.
    pub(crate) fn with_causes(&self) -> String {
        let causes = self.causes.iter().flat_map(|cause| cause.lines());
        causes.fold(self.message.clone(), |text, line| format!("{text}\n  | {line}"))
    }

    /// Renders the error for stderr; empty if it has no message.
    pub(crate) fn render(&self, paint: ColorMode) -> String {
        let mut text = paint.adopt(&render_all(&self.problems, paint.is_colored()));
        if !self.message.is_empty() {
            _ = writeln!(text, "{}: {}", paint.red("error"), paint.bold(&self.message));
        }
        for cause in &self.causes {
            for (index, line) in cause.lines().enumerate() {
                _ = writeln!(text, "  {} {line}", paint.blue(if index == 0 { "=" } else { " " }));
            }
        }
        if let Some(hint) = &self.hint {
            _ = writeln!(text, "{}: {hint}", paint.green("hint"));
        }
        text
    }
}

/// JSON of an error, in the format `dtrain.error/2`.
#[derive(Debug, Serialize)]
pub(crate) struct ErrorJson {
    /// Exit code of the command.
    exit: u8,
    /// Meaning of the exit code, in words.
    meaning: &'static str,
    pub(crate) message: String,
    pub(crate) causes: Vec<String>,
    pub(crate) hint: Option<String>,
    /// Problems of a recipe; empty for any other error.
    problems: Vec<ProblemJson>,
}

impl ErrorJson {
    pub(crate) fn new(exit: ExitReason, message: String) -> Self {
        let meaning =
            EXIT_CODES.iter().find(|(known, ..)| *known == exit).map_or("", |(_, _, meaning)| *meaning);
        let (causes, problems) = (Vec::new(), Vec::new());
        Self { exit: exit.exit_code(), meaning, message, causes, hint: None, problems }
    }
}

impl ErrorJson {
    /// Converts the text of clap's usage error: its message, tips and usage line.
    pub(crate) fn of_usage(text: &str) -> Self {
        let mut parts = text.split("\n\n").map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "));
        let first = parts.next().unwrap_or_default();
        let message = first.strip_prefix("error: ").unwrap_or(&first).to_owned();
        let mut error = Self::new(ExitReason::Usage, message);
        for part in parts {
            if let Some(tip) = part.strip_prefix("tip: ") {
                error.hint = Some(tip.to_owned());
            } else if part.starts_with("Usage: ") {
                error.causes.push(part);
            }
        }
        error
    }
}

/// JSON of one problem in a recipe.
#[derive(Debug, Serialize)]
pub(crate) struct ProblemJson {
    message: String,
    /// Location of the problematic value: `recipe.toml:12:9`, `--set`, …
    #[serde(rename = "where")]
    place: Option<String>,
    line: Option<usize>,
    column: Option<usize>,
    notes: Vec<String>,
    hint: Option<String>,
}

impl ProblemJson {
    pub(crate) fn of(problem: &Problem) -> Self {
        let position = problem.origin.as_ref().and_then(dtrain_recipes::Origin::position);
        Self {
            message: problem.message.clone(),
            place: problem.origin.as_ref().map(ToString::to_string),
            line: position.map(|(line, _)| line),
            column: position.map(|(_, column)| column),
            notes: problem.notes.iter().map(|(note, _)| note.clone()).collect(),
            hint: problem.hint.clone(),
        }
    }
}

impl From<Vec<Problem>> for CommandError {
    fn from(problems: Vec<Problem>) -> Self {
        Self::problems(problems)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_errors_are_taken_apart() {
        let text = "error: the following required arguments were not provided:\n  <TRIAL>...\n\n  tip: some\n  words\n\n\
                    Usage: dtrain rm <TRIAL>...\n\nFor more information, try '--help'.\n";
        let error = ErrorJson::of_usage(text);
        assert_eq!(error.message, "the following required arguments were not provided: <TRIAL>...");
        assert_eq!(error.hint.as_deref(), Some("some words"));
        assert_eq!(error.causes, ["Usage: dtrain rm <TRIAL>..."]);
    }

    #[test]
    fn a_failure_tells_its_causes_and_what_to_do() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot open the history")]
        struct WrappedIoError(#[source] std::io::Error);
        let inner = std::io::Error::other("disk is full");
        let failure =
            CommandError::of(ExitReason::Infrastructure, &WrappedIoError(inner)).hint("free some space");
        let text = failure.render(ColorMode::plain());
        assert_eq!(text, "error: cannot open the history\n  = disk is full\nhint: free some space\n");
        assert_eq!(failure.exit().exit_code(), 6);
        let warning = "warning: cannot open the history: disk is full; free some space";
        assert_eq!(failure.warning(ColorMode::plain()), warning);
    }
}
