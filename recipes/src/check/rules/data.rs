//! Finds contradictions between a model and its data.

use super::Rules;
use crate::check::parsed::ParsedValue;
use crate::data::DataKind::{self, Chat, Csv, Idx, Images, Jsonl, Parquet, Text, Tokens};
use crate::keys::Kind;
use crate::url::{Url, file_extension};

/// Data formats that text models read. The first three are text, and like conversations are tokenized when training
/// starts; token shards already hold tokens.
const TEXT: [DataKind; 5] = [Text, Jsonl, Parquet, Chat, Tokens];

impl Rules<'_> {
    pub(super) fn data(&mut self) {
        let (Some(kind), Some(format)) = (self.values.kind, self.values.one_of("data.format")) else {
            return;
        };
        let wanted: &[DataKind] = match kind {
            Kind::Decoder => &TEXT,
            Kind::Custom if self.values.reads_tokens() => &[Text, Jsonl, Parquet, Tokens],
            Kind::Mlp | Kind::Cnn | Kind::Custom => &[Csv, Parquet, Idx, Images],
            Kind::Command => return,
        };
        if self.compressed(format) || self.images_of_urls(format) {
            return;
        }
        if !wanted.contains(&format) {
            self.unfit(kind, format, wanted);
            return;
        }
        let is_table = format == Csv || (format == Parquet && !self.values.reads_tokens());
        if is_table && self.values.get("data.target").is_none() {
            self.wrong(
                "missing `data.target`: name of the column with the class".to_owned(),
                &["data.train"],
                "write for example `target = \"class\"` below `[data]`",
            );
        }
        let target = self.values.text("data.target");
        if let Some(ParsedValue::Texts(ignored)) = self.values.get("data.ignore")
            && target.is_some_and(|target| ignored.contains(&target))
        {
            self.wrong(
                "`data.ignore` leaves out the column with the class, which `data.target` names".to_owned(),
                &["data.ignore", "data.target"],
                "remove it from the list",
            );
        }
        // For token shards the tokenizer is optional and only decodes; only a file makes sense.
        let is_file = matches!(self.values.get("data.tokenizer"), Some(ParsedValue::Files(_)));
        let of_text = &TEXT[..3];
        let of_tokenizer = if is_file { &TEXT } else { of_text };
        for (key, owners) in [
            ("data.tokenizer", of_tokenizer),
            ("data.template", &[Chat]),
            ("data.loss_on", &[Chat]),
            ("data.packing", &[Chat]),
            ("data.field", &[Jsonl, Parquet]),
            ("data.separator", of_text),
            ("data.resize", &[Images]),
            ("data.target", &[Csv, Parquet]),
            ("data.ignore", &[Csv, Parquet]),
            ("data.labels", &[Idx]),
            ("data.valid_labels", &[Idx]),
        ] {
            if !owners.contains(&format) && self.values.said(key).is_some() {
                let (owner, owners) = (owners[0], either(owners));
                let message = format!("`{key}` does not apply: it is for {owners}, and the data is {format}");
                let hint = format!("remove it, or set `format = \"{owner}\"`");
                self.wrong(message, &[key, "data.train", "data.format"], &hint);
            }
        }
        if format == Chat && !is_file && !self.values.is_wrong("data.tokenizer") {
            let found = if self.values.get("data.tokenizer").is_some() { "found no file" } else { "missing" };
            self.wrong(
                format!("conversations need the tokenizer of a model: {found} at `data.tokenizer`"),
                &["data.tokenizer", "data.format"],
                "write for example `tokenizer = \"Qwen3-0.6B/tokenizer.json\"`, which has its chat template beside it",
            );
        }
        if format == Parquet {
            self.columns();
        }
        if format == Idx {
            self.labels("data.train", "data.labels", "labels = \"train-labels-idx1-ubyte\"");
            self.labels("data.valid", "data.valid_labels", "valid_labels = \"t10k-labels-idx1-ubyte\"");
        }
    }

    /// Checks the column keys of Parquet files, from which a model reads either text or table rows.
    fn columns(&mut self) {
        let (keys, owner, found): (&[&str], _, _) = if self.values.reads_tokens() {
            (&["data.target", "data.ignore"], "tables", "tokens, from a column of text")
        } else {
            (&["data.tokenizer", "data.field", "data.separator"], "text", "rows of numbers")
        };
        for key in keys {
            if self.values.said(key).is_some() {
                let message =
                    format!("`{key}` does not apply: it is for {owner}, and the model reads {found}");
                self.wrong(message, &[key, "data.train", "data.format"], "remove it");
            }
        }
    }

    /// Reports that models of this kind do not read `format`; `wanted` are the formats that they read.
    fn unfit(&mut self, kind: Kind, format: DataKind, wanted: &[DataKind]) {
        let name = kind.name();
        let wanted = either(wanted);
        let which = match (kind, self.values.reads_tokens()) {
            (Kind::Custom, true) => " with `model.context`",
            (Kind::Custom, false) => " without `model.context`",
            (Kind::Decoder | Kind::Mlp | Kind::Cnn | Kind::Command, _) => "",
        };
        let message = format!("a model of kind \"{name}\"{which} reads {wanted}, but the data is {format}");
        let hint = match self.values.said("data.format") {
            Some(_) => "",
            None => "the format was inferred from the first training file's name; `data.format` sets it",
        };
        self.wrong(message, &["data.format", "data.train", "model.kind"], hint);
    }

    /// Reports files in a compression that the format does not support; returns `true` if there are any.
    fn compressed(&mut self, format: DataKind) -> bool {
        let ends: &[&str] = match format {
            Tokens | Images | Parquet => &[".gz", ".zst", ".xz", ".bz2", ".zip"],
            Text | Jsonl | Chat | Csv | Idx => &[".xz", ".bz2", ".zip"],
        };
        let instead = match format {
            Images => "unpack it first, and name the images, such as \"photos/*/*.png\"",
            Parquet => "unpack it first: the columns of Parquet files are compressed in them",
            Tokens => "unpack it first, and name the unpacked file: token shards are read in place",
            Text | Jsonl | Chat | Csv | Idx => {
                "unpack it first, or compress it with gzip (.gz) or zstd (.zst)"
            }
        };
        let packed = |file: &String| ends.iter().any(|end| file_extension(file).ends_with(end));
        for key in ["data.train", "data.valid", "data.labels", "data.valid_labels"] {
            if let Some(file) = self.values.patterns(key).into_iter().find(packed) {
                self.wrong(format!("`{key}`: {file:?} is compressed"), &[key], instead);
                return true;
            }
        }
        false
    }

    /// Reports images named by URL, which have no class folder; returns `true` if there are any.
    fn images_of_urls(&mut self, format: DataKind) -> bool {
        for key in ["data.train", "data.valid"] {
            if format == Images && self.values.patterns(key).iter().any(|file| Url::is_url(file)) {
                let message = format!("`{key}`: images lie in the folders of their classes, found a URL");
                let hint = "download and unpack them first, and name them, such as \"photos/*/*.png\"";
                self.wrong(message, &[key], hint);
                return true;
            }
        }
        false
    }

    /// Checks that there is one label file per image file.
    fn labels(&mut self, images: &str, labels: &str, example: &str) {
        let (image_files, label_files) = (self.values.patterns(images), self.values.patterns(labels));
        // The number of files behind a glob is known only when they are read.
        let is_glob = |file: &String| file.contains(['*', '?', '[']) && !Url::is_url(file);
        let has_glob = image_files.iter().chain(&label_files).any(is_glob);
        if image_files.is_empty() {
            if !label_files.is_empty() && self.values.get(images).is_some() {
                self.wrong(
                    format!("`{labels}` is set, but `{images}` is not"),
                    &[labels, images],
                    "remove it",
                );
            }
        } else if label_files.is_empty() && self.values.get(labels).is_none() {
            let hint = format!("write for example `{example}` below `[data]`");
            self.wrong(format!("missing `{labels}`: images need their labels"), &[images], &hint);
        } else if label_files.len() != image_files.len() && !label_files.is_empty() && !has_glob {
            let message =
                format!("`{labels}` names {} and `{images}` {} files", label_files.len(), image_files.len());
            self.wrong(
                message,
                &[labels, images],
                "name one label file for each file of images, in the same order",
            );
        }
    }
}

/// Joins the names of data formats in words: `a, b or c`.
fn either(kinds: &[DataKind]) -> String {
    let words: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
    match words.as_slice() {
        [most @ .., last] if !most.is_empty() => format!("{} or {last}", most.join(", ")),
        one => one.concat(),
    }
}
