//! `dtrain check --try`: matches a recipe's line templates against a program's output.

use crate::args::RecipeArgs;
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::load_recipe::load;
use crate::output::shell_quoted;
use crate::progress_templates::{templates, try_on};
use crate::render::number::counted;
use crate::render::template_match;
use dtrain_recipes::line_template::{TemplateReport, Tryout};
use serde::Serialize;
use std::fs::File;
use std::io;
use std::path::Path;

/// JSON document that `dtrain check --try --json` prints.
#[derive(Serialize)]
struct TemplateMatchReport<'a> {
    /// Number of non-empty lines in the program's output.
    lines: u64,
    templates: &'a [TemplateReport],
}

/// Matches the line templates of a recipe against a program's output: a file, or `-` for standard input.
pub(crate) fn run(context: &Context, args: &RecipeArgs, output: &Path) -> CommandResult {
    let loaded = load(context.out, &args.recipe, &args.layers, &[])?;
    let templates = templates(&loaded.checked.recipe)?;
    if templates.is_empty() {
        let message = format!("{} has no templates to try", args.recipe);
        return Err(CommandError::new(ExitReason::Usage, message)
            .hint("a recipe of a command has them in `progress`, below `[model]`"));
    }
    let is_standard_input = output == Path::new("-");
    let mut tryout = Tryout::new(&templates);
    let read = if is_standard_input {
        try_on(io::stdin().lock(), &mut tryout)
    } else {
        File::open(output).and_then(|file| try_on(file, &mut tryout))
    };
    read.map_err(|error| {
        CommandError::new(ExitReason::Usage, format!("cannot read {}", output.display()))
            .cause(error.to_string())
    })?;
    if context.out.json {
        context.out.json(
            "template_matches",
            &TemplateMatchReport { lines: tryout.lines(), templates: tryout.tried() },
        )?;
    } else {
        let page: Vec<String> =
            tryout.tried().iter().flat_map(template_match::template_match_lines).collect();
        context.out.data(&page.join("\n"))?;
    }
    if tryout.has_match() {
        context.out.next(&format!("dtrain run {}", shell_quoted(&args.recipe)));
        return Ok(ExitReason::Done);
    }
    let name = if is_standard_input { "standard input".to_owned() } else { output.display().to_string() };
    let message = format!("no line of {name} matches a template; it has {}", counted(tryout.lines(), "line"));
    Err(CommandError::new(ExitReason::Usage, message)
        .hint("`{name}` stands for a number, `*` for any text, a blank for blanks, all else for itself"))
}
