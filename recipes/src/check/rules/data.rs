//! Contradictions between a model and its data.

use super::Rules;
use crate::keys::Kind;

impl Rules<'_> {
    pub(super) fn data(&mut self) {
        let (Some(kind), Some(format)) = (self.values.kind, self.values.word("data.format")) else { return };
        let wanted: &[&str] = match kind {
            Kind::Decoder => &["text", "tokens"],
            Kind::Mlp => &["csv"],
            Kind::Cnn => &["idx"],
            Kind::Command => return,
        };
        if !wanted.contains(&format) {
            let message = format!(
                "a model of kind \"{}\" reads {}, but the data is {format}",
                kind.name(),
                wanted.join(" or ")
            );
            let said = self.values.said("data.format").is_some();
            let hint = if said {
                ""
            } else {
                "the format was taken from the first training file's name; `data.format` says it"
            };
            self.wrong(message, &["data.format", "data.train", "model.kind"], hint);
            return;
        }
        if format == "csv" && self.values.get("data.target").is_none() {
            self.wrong(
                "missing `data.target`: name of the column with the class".to_owned(),
                &["data.train"],
                "write for example `target = \"class\"` below `[data]`",
            );
        }
        if format == "tokens" && self.values.said("data.tokenizer").is_some() {
            self.wrong(
                "`data.tokenizer` does not apply: the data is tokens already".to_owned(),
                &["data.tokenizer", "data.train", "data.format"],
                "remove it, or say `format = \"text\"`",
            );
        }
        if format == "idx" {
            self.labels("data.train", "data.labels");
            self.labels("data.valid", "data.valid_labels");
        }
    }

    /// Every image file needs its label file.
    fn labels(&mut self, images: &str, labels: &str) {
        let (image_files, label_files) = (self.values.patterns(images), self.values.patterns(labels));
        if image_files.is_empty() {
            if !label_files.is_empty() && self.values.get(images).is_some() {
                self.wrong(
                    format!("`{labels}` is said, but `{images}` names no files"),
                    &[labels, images],
                    "remove it",
                );
            }
        } else if label_files.is_empty() && self.values.get(labels).is_none() {
            let example = match labels {
                "data.labels" => "labels = \"train-labels-idx1-ubyte\"",
                _ => "valid_labels = \"t10k-labels-idx1-ubyte\"",
            };
            let hint = format!("write for example `{example}` below `[data]`");
            self.wrong(format!("missing `{labels}`: images need their labels"), &[images], &hint);
        } else if label_files.len() != image_files.len() && !label_files.is_empty() {
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
