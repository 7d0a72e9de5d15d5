//! `dtrain data`: describes the data of a recipe, and tokenizes it on request.

use crate::args::DataArgs;
use crate::color::ColorMode;
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::load_recipe::load;
use crate::output::shell_quoted;
use crate::rates;
use crate::render::number::{counted, whole};
use dtrain_recipes::{DataFormat, Documents, InputSignature};
use dtrain_worker::data::{self, ColumnFacts, ColumnKind, CorpusFacts, DataError};
use serde::Serialize;

/// Maximum number of categories shown per column in the text output.
const CATEGORIES: usize = 8;

/// Prints what the data of a recipe contains.
pub(crate) fn run(context: &Context, args: &DataArgs) -> CommandResult {
    let loaded = load(context.out, &args.recipe.recipe, &args.recipe.layers, &[])?;
    let recipe = &loaded.checked.recipe;
    let Some(read) = &recipe.data else {
        return Err(CommandError::new(
            ExitReason::Usage,
            "a recipe of kind \"command\" has no data: its program reads its own",
        )
        .hint("name a recipe with a section `[data]`"));
    };
    let wrong = |error: DataError| CommandError::of(ExitReason::Usage, &error);
    rates::fetch(context, read).map_err(wrong)?;
    let files = data::files(read, &loaded.folder).map_err(wrong)?;
    let corpus = data::corpus(read, &loaded.folder, args.samples).map_err(wrong)?;
    let is_text = matches!(read.format, DataFormat::Text { .. } | DataFormat::Chat { .. });
    let table = data::table_facts(read, &loaded.folder).map_err(wrong)?;
    let inputs = match recipe.model.reads() {
        Some(InputSignature::Rows { inputs, .. }) => Some(u64::from(inputs)),
        Some(InputSignature::Tokens { .. }) | None => None,
    };
    // The table is shown even if the recipe does not fit it yet.
    let unfit = table.as_ref().map(|table| table.inputs).filter(|found| Some(*found) != inputs);
    let is_opened = unfit.is_none() && (args.prepare || !is_text);
    let opened = if is_opened { rates::open_set(context, &loaded).map_err(wrong)? } else { None };
    if opened.is_none() {
        rates::print_data_notes(context, read, &loaded.folder).map_err(wrong)?;
    }
    let of_rows = opened.as_ref().map(data::DataSet::shared).transpose().map_err(wrong)?.flatten();
    let classes = opened.as_ref().map(data::DataSet::classes).transpose().map_err(wrong)?.flatten();
    let preprocessing = opened.as_ref().and_then(|opened| opened.preprocessing.clone()).unwrap_or_default();
    let context_length = match recipe.model.reads() {
        Some(InputSignature::Tokens { context, .. }) => Some(u64::from(context)),
        Some(InputSignature::Rows { .. }) | None => None,
    };
    let samples = opened.as_ref().map(|opened| (opened.train.len(), opened.valid.len()));
    let of_text = |number: fn(&CorpusFacts) -> u64| corpus.as_ref().map(number);
    let report = DatasetSummary {
        format: format(&read.format),
        bytes: files.iter().map(|file| file.bytes).sum(),
        files: files.into_iter().map(|file| FileJson { name: file.name, bytes: file.bytes }).collect(),
        documents: of_text(|facts| facts.documents),
        text_bytes: of_text(|facts| facts.bytes),
        duplicates: of_text(|facts| facts.duplicates),
        shared: of_rows.or(corpus.as_ref().and_then(|facts| facts.shared)),
        train_samples: samples.map(|(train, _)| train),
        valid_samples: samples.map(|(_, valid)| valid),
        tokens: samples.zip(context_length).map(|((train, valid), length)| (train + valid) * length),
        classes,
        class_names: preprocessing.classes,
        separator: table.as_ref().and_then(|table| table.separator),
        inputs: table.as_ref().map(|table| table.inputs),
        columns: table.iter().flat_map(|table| &table.columns).map(ColumnJson::of).collect(),
        warnings: match &opened {
            Some(opened) => opened.warnings.clone(),
            None => table.map(|table| table.warnings).unwrap_or_default(),
        },
        samples: corpus.map(|facts| facts.samples).unwrap_or_default(),
    };
    if context.out.json {
        context.out.json("data", &report)?;
    } else {
        context.out.data(&page(&report))?;
        if let Some(sample) = data::chat_sample(read, &loaded.folder, 0).map_err(wrong)? {
            context.out.data(&conversation(&sample, context.out.paint))?;
        }
    }
    let paint = context.out.paint;
    for warning in &report.warnings {
        context.out.say(&format!("{}: {warning}", paint.yellow("warning")));
    }
    if let Some(found) = unfit {
        let was = inputs.unwrap_or_default();
        let warning = paint.yellow("warning");
        context
            .out
            .say(&format!("{warning}: `model.inputs` is {was}; set it to {found} to train on this table"));
    }
    if is_text && !args.prepare {
        context.out.next(&format!("dtrain data {} --prepare", shell_quoted(&args.recipe.recipe)));
    }
    Ok(ExitReason::Done)
}

/// Returns the first conversation as text, its tokens that count in the loss in colour, or in brackets where there
/// are no colours.
fn conversation(tokens: &[(String, bool)], paint: ColorMode) -> String {
    let mut text = String::new();
    for part in tokens.chunk_by(|(_, left), (_, right)| left == right) {
        let joined: String = part.iter().map(|(token, _)| token.as_str()).collect();
        if part[0].1 {
            let counted = paint.green(&joined);
            text.push_str(&if counted == joined { format!("[{joined}]") } else { counted });
        } else {
            text.push_str(&joined);
        }
    }
    let counted = tokens.iter().filter(|(_, counts)| *counts).count();
    format!("first conversation: {} tokens, {counted} count in the loss\n\n{text}", tokens.len())
}

/// Returns the name of a data format for display.
fn format(format: &DataFormat) -> &'static str {
    match format {
        DataFormat::Text { documents: Documents::Files, .. } => "text",
        DataFormat::Text { documents: Documents::JsonLines(_), .. } => "records of JSON",
        DataFormat::Text { documents: Documents::Parquet(_), .. } => "text in Parquet files",
        DataFormat::Chat { .. } => "conversations",
        DataFormat::Tokens { .. } => "token shards",
        DataFormat::Idx { .. } => "IDX images",
        DataFormat::Images { .. } => "images in folders",
        DataFormat::Csv { .. } => "CSV tables",
        DataFormat::Parquet { .. } => "Parquet tables",
    }
}

/// Formats the summary as text for the terminal.
fn page(report: &DatasetSummary) -> String {
    let mut lines = Vec::new();
    let mut line = |name: &str, value: String| lines.push(format!("{name:<12} {value}"));
    line("format", report.format.to_owned());
    line("files", format!("{}, {} bytes", counted(report.files.len() as u64, "file"), whole(report.bytes)));
    if let Some(documents) = report.documents {
        line("documents", whole(documents));
    }
    if let Some(bytes) = report.text_bytes {
        line("text", format!("{} bytes", whole(bytes)));
    }
    if let Some(duplicates) = report.duplicates {
        line("duplicates", whole(duplicates));
    }
    if let Some(shared) = report.shared {
        line("in both", format!("{} to validate on are also trained on", whole(shared)));
    }
    if let (Some(train), Some(valid)) = (report.train_samples, report.valid_samples) {
        line("samples", format!("{} to train on, {} to validate on", whole(train), whole(valid)));
    }
    if let Some(tokens) = report.tokens {
        line("tokens", whole(tokens));
    }
    if let Some(separator) = report.separator {
        line("separator", separator.to_owned());
    }
    if let Some(inputs) = report.inputs {
        line("inputs", whole(inputs));
    }
    for column in &report.columns {
        line(&format!("column {}", column.name), column.summary());
    }
    for (class, count) in report.classes.iter().flatten().enumerate() {
        let name = report.class_names.as_ref().and_then(|names| names.get(class));
        line(&format!("class {}", name.cloned().unwrap_or_else(|| class.to_string())), whole(*count));
    }
    for (number, sample) in (1..).zip(&report.samples) {
        line(&format!("document {number}"), format!("{sample:?}"));
    }
    lines.join("\n")
}

/// JSON document that `dtrain data --json` prints.
#[derive(Serialize)]
struct DatasetSummary {
    /// Name of the format in which the files are read.
    format: &'static str,
    files: Vec<FileJson>,
    /// Total size of the files as stored, in bytes.
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    documents: Option<u64>,
    /// Size of the text in bytes after decompression; `None` for data that is not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    text_bytes: Option<u64>,
    /// Number of documents that repeat an earlier one; `None` for data that is not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    duplicates: Option<u64>,
    /// Number of validation documents, rows or images that also occur in the training data; `None` if
    /// unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    shared: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    train_samples: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    valid_samples: Option<u64>,
    /// Number of tokens in all samples; `None` if samples are no token sequences or were not prepared.
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<u64>,
    /// Number of samples of each class; `None` without classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    classes: Option<Vec<u64>>,
    /// Names of the classes, in the order of `classes`; `None` if they have no names.
    #[serde(skip_serializing_if = "Option::is_none")]
    class_names: Option<Vec<String>>,
    /// Separator of a table's fields, in words; `None` for data that is no table.
    #[serde(skip_serializing_if = "Option::is_none")]
    separator: Option<&'static str>,
    /// Number of inputs that a table gives a model per row; `None` for data that is no table.
    #[serde(skip_serializing_if = "Option::is_none")]
    inputs: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    columns: Vec<ColumnJson>,
    /// Warnings about unusual data.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    /// Beginnings of the first documents.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    samples: Vec<String>,
}

/// JSON of one column of a table.
#[derive(Serialize)]
struct ColumnJson {
    name: String,
    /// Kind of the column: `number`, `date`, `category`, `class` or `ignored`.
    kind: &'static str,
    /// Categories in alphabetical order, with an empty text for empty cells; `None` unless the kind is
    /// `category`.
    #[serde(skip_serializing_if = "Option::is_none")]
    categories: Option<Vec<String>>,
    /// Number of the column's cells without a value.
    empty: u64,
}

impl ColumnJson {
    fn of(column: &ColumnFacts) -> Self {
        let (kind, categories) = match &column.kind {
            ColumnKind::Number => ("number", None),
            ColumnKind::Date => ("date", None),
            ColumnKind::Category(categories) => ("category", Some(categories.clone())),
            ColumnKind::Class => ("class", None),
            ColumnKind::Ignored => ("ignored", None),
        };
        Self { name: column.name.clone(), kind, categories, empty: column.empty }
    }

    /// Describes the values of the column in words.
    fn summary(&self) -> String {
        let mut words = match (self.kind, &self.categories) {
            (_, Some(categories)) => {
                let name = |name: &String| if name.is_empty() { "(empty)".to_owned() } else { name.clone() };
                let some: Vec<String> = categories.iter().take(CATEGORIES).map(name).collect();
                let more = if categories.len() > CATEGORIES { ", …" } else { "" };
                format!("category, one of {}: {}{more}", categories.len(), some.join(", "))
            }
            ("date", None) => "date, as days since 1970-01-01".to_owned(),
            (kind, None) => kind.to_owned(),
        };
        if self.empty > 0 {
            let filled =
                if self.categories.is_some() { "a category of their own" } else { "filled with the mean" };
            words += &format!("; {} empty, {filled}", whole(self.empty));
        }
        words
    }
}

#[derive(Serialize)]
struct FileJson {
    name: String,
    bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_a_line_for_each_fact() {
        let files = vec![FileJson { name: "a".into(), bytes: 12_345 }];
        let mut report = DatasetSummary {
            format: "text",
            files,
            bytes: 12_345,
            documents: Some(3),
            text_bytes: Some(20_000),
            duplicates: Some(1),
            shared: Some(2),
            train_samples: Some(9),
            valid_samples: Some(1),
            tokens: Some(80),
            classes: Some(vec![4, 6]),
            class_names: None,
            separator: None,
            inputs: Some(3),
            columns: vec![
                ColumnJson { name: "age".into(), kind: "number", categories: None, empty: 2 },
                ColumnJson {
                    name: "city".into(),
                    kind: "category",
                    categories: Some(vec![String::new(), "Rome".into()]),
                    empty: 1,
                },
            ],
            warnings: Vec::new(),
            samples: vec!["a \"b\"\n".into()],
        };
        let found = page(&report);
        for line in [
            "documents    3",
            "duplicates   1",
            "in both      2 to validate on are also trained on",
            "class 1      6",
            "document 1   \"a \\\"b\\\"\\n\"",
            "inputs       3",
            "column age   number; 2 empty, filled with the mean",
            "column city  category, one of 2: (empty), Rome; 1 empty, a category of their own",
        ] {
            assert!(found.lines().any(|found| found == line), "`{line}` in:\n{found}");
        }
        report.class_names = Some(vec!["no".into(), "yes".into()]);
        let found = page(&report);
        assert!(found.lines().any(|line| line == "class yes    6"), "{found}");
    }
}
