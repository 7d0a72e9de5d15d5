//! The templates in `progress` of a recipe, and their matches in the output of a program.

use crate::command_error::CommandError;
use crate::exit_code::ExitReason;
use dtrain_recipes::line_template::{LineSplitter, LineTemplate, Tryout, plain};
use dtrain_recipes::{Model, Recipe};
use std::io::{self, Read};

/// Number of bytes per read of the output.
const CHUNK: usize = 64 << 10;

/// Returns the line templates of a recipe; empty if its model is not a command.
pub(crate) fn templates(recipe: &Recipe) -> Result<Vec<LineTemplate>, CommandError> {
    let Model::Command(command) = &recipe.model else { return Ok(Vec::new()) };
    let parse = |text: &String| {
        LineTemplate::parse(text)
            .map_err(|error| CommandError::new(ExitReason::Usage, format!("`{text}`: {error}")))
    };
    command.progress.iter().map(parse).collect()
}

/// Matches line templates against all lines of a program's output.
pub(crate) fn try_on(mut from: impl Read, tryout: &mut Tryout<'_>) -> io::Result<()> {
    let mut take = |number: u64, line: &[u8]| {
        let text = plain(line);
        text.lines().filter(|line| !line.is_empty()).for_each(|line| tryout.line(number, line));
    };
    let mut lines = LineSplitter::default();
    let mut chunk = vec![0; CHUNK];
    loop {
        match from.read(&mut chunk) {
            Ok(0) => break,
            Ok(length) => lines.feed(&chunk[..length], &mut take),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    lines.finish(take);
    Ok(())
}
