//! Notes for the user about the files of a recipe: formats that their names do not tell, and excluded
//! files.

use super::DataError;
use super::decontaminate::DistinctFiles;
use super::file_type::{self, FileCompression};
use super::files::{self, DataFile};
use dtrain_recipes::{Data, DataFormat, Documents, Tokenizer, ValidationSource, url};
use std::path::Path;

/// File extensions of text files. Any other extension says nothing about the format of a file, or
/// something else.
const TEXT: [&str; 33] = [
    "txt", "text", "md", "markdown", "rst", "tex", "adoc", "org", "html", "htm", "xml", "log", "srt", "py",
    "rs", "c", "h", "cc", "cpp", "hpp", "cu", "js", "ts", "java", "go", "rb", "sh", "sql", "toml", "yaml",
    "yml", "ini", "lua",
];

/// Number of file names that a note lists.
const LISTED: usize = 3;

/// Returns the notes about the files of a recipe, one line each. Paths start from `root`; URLs must have
/// been downloaded.
pub fn notes(data: &Data, root: &Path) -> Result<Vec<String>, DataError> {
    let mut notes: Vec<String> = overlap_note(data, root)?.into_iter().collect();
    let DataFormat::Text { tokenizer, documents, .. } = &data.format else { return Ok(notes) };
    let mut found = files::resolve_patterns(&data.train, root)?;
    if let ValidationSource::Files(patterns) = &data.valid {
        found.extend(files::resolve_patterns(patterns, root)?);
    }
    let mut told: Vec<(String, Vec<String>)> = Vec::new();
    for found in found {
        for what in file_notes(&found.open()?, documents, tokenizer)? {
            match told.iter_mut().find(|(other, _)| *other == what) {
                Some((_, names)) => names.push(found.name.clone()),
                None => told.push((what, vec![found.name.clone()])),
            }
        }
    }
    notes.extend(told.iter().map(|(what, names)| format_note(what, names)));
    Ok(notes)
}

/// Returns a note that names the files that are both training and validation files; `None` if there are
/// none.
fn overlap_note(data: &Data, root: &Path) -> Result<Option<String>, DataError> {
    let DistinctFiles { train, shared } = DistinctFiles::of(data, root)?;
    let names: Vec<&str> = (0..)
        .zip(&train)
        .filter(|(number, _)| shared.contains(number))
        .map(|(_, found)| &*found.name)
        .collect();
    let what = if names.len() == train.len() {
        "all training files are in both the training and the validation data, so validation says nothing about new data"
    } else {
        "in both the training and the validation data, so only validated on"
    };
    Ok((!names.is_empty()).then(|| format_note(what, &names)))
}

/// Formats a note such as `what: a.txt, b.txt and 3 more`.
fn format_note(what: &str, names: &[impl AsRef<str>]) -> String {
    let listed: Vec<&str> = names.iter().take(LISTED).map(AsRef::as_ref).collect();
    let more = names.len() - listed.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{what}: {}{more}", listed.join(", "))
}

/// Returns the notes about one text file of a recipe.
fn file_notes(
    file: &DataFile,
    documents: &Documents,
    tokenizer: &Tokenizer,
) -> Result<Vec<String>, DataError> {
    let mut notes = Vec::new();
    let compression = file.compression();
    if compression != FileCompression::Plain && file.compression_by_name().is_none() {
        notes.push(format!("read as compressed with {}, as the first bytes say", compression.name()));
    }
    let name = url::file_extension(&file.name).to_ascii_lowercase();
    let name = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(&name);
    let ending = Path::new(name).extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    match documents {
        Documents::Files => {
            let head = file.head()?;
            if file_type::is_json(&head) {
                let what = "read as text, with the braces and names of fields of its JSON; `data.format = \"jsonl\"` reads \
                            a text of each record";
                notes.push(what.to_owned());
            } else if !TEXT.contains(&ending) {
                notes.push(
                    "read as text, as the name says nothing else; `data.format` names another format"
                        .to_owned(),
                );
            }
            if *tokenizer == Tokenizer::Bytes && file_type::not_utf8(&head).is_some() {
                let what = "not UTF-8, perhaps Latin-1 or no text; the bytes are read as they are";
                notes.push(what.to_owned());
            }
        }
        Documents::JsonLines(field) if !["jsonl", "ndjson"].contains(&ending) => {
            let list = file.head()?.trim_ascii_start().starts_with(b"[");
            let records = if list { "a list of JSON objects" } else { "JSON lines" };
            notes.push(format!("read as {records}, with the text in the field `{field}`"));
        }
        Documents::JsonLines(_) | Documents::Parquet(_) => {}
    }
    Ok(notes)
}
