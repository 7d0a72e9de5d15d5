//! `dtrain init`: writes a commented recipe, on a terminal after a few questions.

mod pretrained;

use crate::args::{InitArgs, LayerArgs, RecipeTemplate};
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::load_recipe::load_without_running;
use crate::names::refuse_unusable;
use crate::output::shell_quoted;
use crate::render::number::{counted, whole};
use crate::{precheck, rates};
use dtrain_recipes::Model;
use dtrain_recipes::name::is_plain_name;
use dtrain_recipes::number_format;
use serde::Serialize;
use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

/// Answers of the user that a recipe template needs.
#[derive(Clone, Debug, PartialEq)]
struct TemplateAnswers {
    template: RecipeTemplate,
    name: String,
    data: String,
}

#[derive(Serialize)]
struct CreatedRecipe {
    path: PathBuf,
}

/// Number of rows or images below which a warning about too little data is printed.
const FEW_ROWS: u64 = 100;

/// Writes a new recipe, from arguments or from answers on the terminal.
pub(crate) fn run(context: &Context, args: InitArgs) -> CommandResult {
    let path = if args.path.is_dir() { args.path.join("recipe.toml") } else { args.path.clone() };
    if let Some(from) = &args.from {
        return pretrained::run(context, &path, from, &args);
    }
    let wanted = match args.template {
        None if std::io::stdin().is_terminal() && !context.out.json => ask_on_terminal(&path, &args)?,
        template => answers(&path, template.unwrap_or(RecipeTemplate::Decoder), args.name, args.data),
    };
    write(context, &path, &wanted.name, &render_template(&wanted))?;
    if let Some(note) = data_warning(context, &path) {
        context.out.say(&format!("{}: {note}", context.out.paint.yellow("note")));
    }
    context.out.next(&format!("dtrain check {}", shell_quoted(path.display())));
    Ok(ExitReason::Done)
}

/// Writes the text of a recipe to a new file, and prints a message.
fn write(context: &Context, path: &Path, name: &str, text: &str) -> Result<(), CommandError> {
    refuse_unusable(name, "a recipe")?;
    write_new(path, text)?;
    if context.out.json {
        context.out.json("init", &CreatedRecipe { path: path.to_owned() })?;
    }
    context.out.say(&format!("wrote {}", path.display()));
    Ok(())
}

/// Returns a warning about the data of a new recipe; `None` if there is none, or the data must be downloaded
/// first.
fn data_warning(context: &Context, path: &Path) -> Option<String> {
    let loaded = load_without_running(&path.display().to_string(), &LayerArgs::default(), &[]).ok()?;
    if precheck::downloads(&loaded).is_some() {
        return None;
    }
    let model = &loaded.checked.recipe.model;
    match rates::count_samples(context, &loaded) {
        Ok(samples) => overfit_warning(samples?.0, model),
        Err(failure) => Some(format!(
            "the data cannot be read yet: {}; change `[data]` in {}",
            failure.message(),
            path.display()
        )),
    }
}

/// Returns a warning if the model would overfit on `samples` samples.
fn overfit_warning(samples: u64, model: &Model) -> Option<String> {
    match model {
        Model::Decoder(_) => {
            let (tokens, parameters) = (samples * model.sample_tokens(), model.parameters());
            (tokens < parameters).then(|| {
                format!(
                    "the data has {} tokens, and the model {} parameters: it will overfit; use more data",
                    whole(tokens),
                    number_format::parameters(parameters)
                )
            })
        }
        Model::Cnn(_) | Model::Mlp(_) | Model::Custom(_) | Model::Command(_) => (samples < FEW_ROWS)
            .then(|| format!("the data has {} to train on, which is little", counted(samples, "sample"))),
    }
}

fn answers(
    path: &Path,
    template: RecipeTemplate,
    name: Option<String>,
    data: Option<String>,
) -> TemplateAnswers {
    TemplateAnswers {
        template,
        name: name.unwrap_or_else(|| default_name(path)),
        data: data.unwrap_or_else(|| default_data(template).to_owned()),
    }
}

/// Returns the default name of a recipe: the folder's name for `recipe.toml`, otherwise the file's stem.
fn default_name(path: &Path) -> String {
    let folder = || std::path::absolute(path).ok()?.parent()?.file_name()?.to_str().map(str::to_owned);
    let stem = path.file_stem().and_then(|stem| stem.to_str()).map(str::to_owned);
    let name = if stem.as_deref() == Some("recipe") { folder() } else { stem };
    name.filter(|name| is_plain_name(name)).unwrap_or_else(|| "my-model".to_owned())
}

fn default_data(template: RecipeTemplate) -> &'static str {
    match template {
        RecipeTemplate::Decoder => "data/*.txt",
        RecipeTemplate::Cnn => "train-images-idx3-ubyte",
        RecipeTemplate::Mlp => "train.csv",
    }
}

/// Asks the user on the terminal; an empty answer takes the default in brackets.
fn ask_on_terminal(path: &Path, args: &InitArgs) -> Result<TemplateAnswers, CommandError> {
    let kinds = "  1  decoder   a small language model on text files
  2  cnn       a residual network that classifies images (IDX files)
  3  mlp       a perceptron that classifies the rows of a table (CSV)";
    let template = match prompt(&format!("What do you want to train?\n{kinds}\n"), "1")?.as_str() {
        "2" | "cnn" => RecipeTemplate::Cnn,
        "3" | "mlp" => RecipeTemplate::Mlp,
        "1" | "decoder" => RecipeTemplate::Decoder,
        other => {
            return Err(CommandError::new(ExitReason::Usage, format!("expected 1, 2 or 3, found {other:?}")));
        }
    };
    let wanted = answers(path, template, args.name.clone(), args.data.clone());
    let name = match args.name {
        Some(_) => wanted.name,
        None => prompt("Its name in the history", &wanted.name)?,
    };
    let data = match args.data {
        Some(_) => wanted.data,
        None => prompt("Training data (a file or a pattern)", &wanted.data)?,
    };
    Ok(TemplateAnswers { template, name, data })
}

fn prompt(text: &str, default: &str) -> Result<String, CommandError> {
    let lost = |error: std::io::Error| {
        CommandError::new(ExitReason::Usage, "no answer could be read").cause(error.to_string())
    };
    let mut stderr = std::io::stderr().lock();
    write!(stderr, "{text} [{default}]: ").and_then(|()| stderr.flush()).map_err(lost)?;
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer).map_err(lost)?;
    if read == 0 {
        return Err(CommandError::new(ExitReason::Usage, "no answer: the input ended")
            .hint("give --template, --name and --data"));
    }
    let answer = answer.trim();
    Ok(if answer.is_empty() { default.to_owned() } else { answer.to_owned() })
}

fn write_new(path: &Path, text: &str) -> Result<(), CommandError> {
    let mut options = std::fs::OpenOptions::new();
    let made =
        options.write(true).create_new(true).open(path).and_then(|mut file| file.write_all(text.as_bytes()));
    made.map_err(|error| {
        let failure = CommandError::new(ExitReason::Usage, format!("cannot write {}", path.display()))
            .cause(error.to_string());
        match error.kind() {
            std::io::ErrorKind::AlreadyExists => {
                failure.hint("name another file; an existing one is never overwritten")
            }
            _ => failure,
        }
    })
}

fn render_template(wanted: &TemplateAnswers) -> String {
    let head = format!(
        "# Keys that are not set are chosen by dtrain or have a default:\n\
         #   dtrain show --resolved FILE   shows every value and where it came from\n\
         #   dtrain recipe keys            lists every key\n\
         name = {:?}\n",
        wanted.name
    );
    let data = &wanted.data;
    let body = match wanted.template {
        RecipeTemplate::Decoder => format!(
            r#"
[model]
kind = "decoder"
family = "llama"          # or "gpt2"
layers = 4
hidden = 128
heads = 4
context = 128             # tokens of one sample

[data]
train = {data:?}
valid = "5%"              # share held back, or files
format = "text"           # "tokens" for shards of token numbers
tokenizer = "bytes"       # or {{ bpe = 4096 }}

[objective]
# Ends with what is reached first: two minutes, or 16 passes over the data, after which repeating it teaches little.
# To train longer: time = "30 min". Also: steps = 600, tokens = "20M", target = 1.2.
stop = {{ time = "2 min", epochs = 16 }}

[train]
# batch, learning_rate, warmup and precision are "auto": the planner decides. To pin one:
# learning_rate = 1e-3
seed = 1

[checkpoint]
every = "auto"
keep = 3
"#
        ),
        RecipeTemplate::Cnn => {
            let labels = data.replace("images", "labels").replace("idx3", "idx1");
            format!(
                r#"
[model]
kind = "cnn"
channels = 1
height = 28
width = 28
stages = [16, 32]         # channels; each stage after the first halves the image
blocks = 1                # residual blocks in each stage
classes = 10

[data]
format = "idx"
train = {data:?}
labels = {labels:?}
valid = "10%"

[objective]
metric = "valid.accuracy"
stop = {{ time = "2 min", epochs = 10 }}    # what is reached first; to train longer: time = "30 min"

[train]
seed = 1
"#
            )
        }
        RecipeTemplate::Mlp => format!(
            r#"
[model]
kind = "mlp"
inputs = 4                # numbers of a row; `dtrain data` counts them
hidden = [64, 64]
classes = 3

[data]
format = "csv"
train = {data:?}
target = "class"          # the column with the class; ignore = ["id"] leaves columns out
valid = "20%"

[objective]
metric = "valid.accuracy"
stop = {{ time = "2 min", epochs = 50 }}    # what is reached first; to train longer: time = "30 min"

[train]
seed = 1
"#
        ),
    };
    head + &body
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_recipes::{CheckContext, ConfigLayer, Document, Source, check};

    #[test]
    fn every_template_is_a_valid_recipe() {
        for template in [RecipeTemplate::Decoder, RecipeTemplate::Cnn, RecipeTemplate::Mlp] {
            let wanted = answers(Path::new("new.toml"), template, None, None);
            let source = Source::new("new.toml", ConfigLayer::Recipe, render_template(&wanted));
            let document = Document::parse(&source).expect("valid TOML");
            let checked = check(&document, &CheckContext::of_file(Path::new("new.toml")));
            let checked = checked.unwrap_or_else(|problems| {
                panic!("{template:?}:\n{}", dtrain_recipes::render_all(&problems, false))
            });
            assert_eq!(checked.recipe.name, "new");
        }
    }

    #[test]
    fn what_would_be_learned_by_heart_is_told() {
        let model = |template| {
            let wanted = answers(Path::new("new.toml"), template, None, None);
            let source = Source::new("new.toml", ConfigLayer::Recipe, render_template(&wanted));
            let document = Document::parse(&source).expect("valid TOML");
            let context = CheckContext::of_file(Path::new("new.toml"));
            check(&document, &context).unwrap_or_else(|_| panic!("{template:?}")).recipe.model
        };
        let decoder = model(RecipeTemplate::Decoder);
        let note = overfit_warning(313, &decoder).expect("40,064 tokens are few");
        assert!(note.starts_with("the data has 40.1 k tokens, and the model "), "{note}");
        assert_eq!(overfit_warning(100_000, &decoder), None);
        assert!(overfit_warning(99, &model(RecipeTemplate::Mlp)).is_some());
        assert_eq!(overfit_warning(100, &model(RecipeTemplate::Mlp)), None);
    }

    #[test]
    fn an_existing_file_is_kept() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("recipe.toml");
        write_new(&path, "first").expect("it is new");
        assert!(write_new(&path, "second").is_err());
        assert_eq!(std::fs::read_to_string(&path).expect("it is there"), "first");
    }
}
