//! Values that are right alone and wrong together.

use super::hosts::Named;
use super::parsed::Parsed;
use super::values::Values;
use super::walk::place;
use crate::document::Document;
use crate::keys::Kind;
use crate::problem::Problem;

/// Every contradiction. A rule that needs a value which is absent or wrong says nothing.
pub(super) fn contradictions(document: &Document, values: &Values, hosts: &[Named]) -> Vec<Problem> {
    let mut rules = Rules { document, values, hosts, problems: Vec::new() };
    match values.kind {
        Some(Kind::Decoder) => rules.decoder(),
        Some(Kind::Cnn) => rules.cnn(),
        Some(Kind::Mlp | Kind::Command) | None => {}
    }
    rules.data();
    rules.objective();
    rules.train();
    rules.layout();
    rules.cluster();
    rules.problems
}

struct Rules<'r> {
    document: &'r Document,
    values: &'r Values,
    hosts: &'r [Named],
    problems: Vec<Problem>,
}

impl Rules<'_> {
    /// Reports a problem at the first of these keys that was said; the others that were said are noted.
    fn wrong(&mut self, message: String, keys: &[&str], hint: &str) {
        let mut problem = Problem::new(message);
        for key in keys {
            let (Some(origin), Some(value)) = (self.values.said(key), self.values.get(key)) else { continue };
            problem = match problem.origin {
                None => problem.at(origin),
                Some(_) => problem.note_at(format!("`{key}` is {value}"), origin),
            };
        }
        self.problems.push(if hint.is_empty() { problem } else { problem.hint(hint) });
    }

    fn no_limit(&mut self) {
        let target = self.values.said("objective.stop.target");
        let problem = Problem::new(match target {
            Some(_) => "`objective.stop.target` alone may never be reached: a limit is missing",
            None => "missing `objective.stop`: training would never end",
        });
        let problem = match target.cloned().or_else(|| place(self.document, "objective.stop")) {
            Some(origin) => problem.at(&origin),
            None => problem,
        };
        let example =
            "write for example `stop = { tokens = \"20M\", time = \"30 min\" }` below `[objective]`";
        self.problems.push(problem.hint(example));
    }

    /// Reports that one number does not divide another.
    fn divides(&mut self, small: &str, large: &str) {
        let (Some(a), Some(b)) = (self.values.whole(small), self.values.whole(large)) else { return };
        if b.is_multiple_of(a) {
            return;
        }
        let near = (1..=a).rev().find(|n| b.is_multiple_of(*n)).unwrap_or(1);
        let message = format!("`{small}` = {a} does not divide `{large}` = {b}");
        self.wrong(message, &[small, large], &format!("the nearest below that does is {near}"));
    }

    fn decoder(&mut self) {
        self.divides("model.heads", "model.hidden");
        self.divides("model.kv_heads", "model.heads");
        let width = match (self.values.whole("model.hidden"), self.values.whole("model.heads")) {
            (Some(hidden), Some(heads)) if hidden.is_multiple_of(heads) => Some(hidden / heads),
            _ => None,
        };
        if let Some(width) = width.filter(|width| width % 2 == 1)
            && self.values.word("model.positions") == Some("rotary")
        {
            let message =
                format!("rotary positions need heads of even width, found {width} (hidden / heads)");
            self.wrong(message, &["model.heads", "model.hidden", "model.positions"], "");
        }
        self.vocabulary();
    }

    fn vocabulary(&mut self) {
        let vocab = self.values.whole("model.vocab");
        match (self.values.get("data.tokenizer"), vocab) {
            (Some(Parsed::Word(_)), Some(vocab))
                if vocab != 256 && self.values.word("data.format") == Some("text") =>
            {
                self.wrong(
                    format!("`model.vocab` = {vocab}, but text read as bytes has a vocabulary of 256"),
                    &["model.vocab", "data.tokenizer"],
                    &format!(
                        "remove `model.vocab`, or train a tokenizer: `data.tokenizer = {{ bpe = {} }}`",
                        vocab.max(257)
                    ),
                )
            }
            (Some(Parsed::Bpe(bpe)), Some(vocab)) if vocab < u64::from(*bpe) => self.wrong(
                format!("`model.vocab` = {vocab} is smaller than the tokenizer's vocabulary of {bpe}"),
                &["model.vocab", "data.tokenizer"],
                "remove `model.vocab`; it then follows the tokenizer",
            ),
            (_, None)
                if self.values.word("data.format") == Some("tokens")
                    && self.values.said("model.vocab").is_none() =>
            {
                self.wrong(
                    "missing `model.vocab`: token shards do not say how large their vocabulary is".to_owned(),
                    &["data.train"],
                    "write for example `vocab = 50257` below `[model]` (GPT-2)",
                );
            }
            _ => {}
        }
    }

    fn cnn(&mut self) {
        let Some(Parsed::Wholes(stages)) = self.values.get("model.stages") else { return };
        let halvings = u32::try_from(stages.len() - 1).unwrap_or(u32::MAX);
        for side in ["model.height", "model.width"] {
            let Some(pixels) = self.values.whole(side) else { continue };
            if pixels.checked_shr(halvings).unwrap_or(0) == 0 {
                let message = format!("`{side}` = {pixels} cannot be halved {halvings} times");
                self.wrong(
                    message,
                    &["model.stages", side],
                    "remove stages: each after the first halves the image",
                );
            }
        }
    }

    fn data(&mut self) {
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

    fn objective(&mut self) {
        let limits = ["steps", "samples", "tokens", "epochs", "time"];
        let has_limit =
            limits.iter().any(|limit| self.values.get(&format!("objective.stop.{limit}")).is_some());
        let needs_limit = self.values.kind.is_some_and(|kind| kind != Kind::Command);
        if needs_limit && !has_limit && !self.values.is_wrong("objective") {
            self.no_limit();
        }
        let (metric, target) =
            (self.values.word("objective.metric"), self.values.real("objective.stop.target"));
        if metric == Some("valid.accuracy") {
            if self.values.kind == Some(Kind::Decoder) {
                self.wrong(
                    "accuracy is measured for mlp and cnn; a decoder has \"valid.loss\"".to_owned(),
                    &["objective.metric", "model.kind"],
                    "write `metric = \"valid.loss\"`",
                );
            }
            if let Some(target) = target.filter(|target| !(*target > 0.0 && *target <= 1.0)) {
                let message =
                    format!("a target of {target} cannot be reached: accuracy is a share from 0 to 1");
                self.wrong(
                    message,
                    &["objective.stop.target", "objective.metric"],
                    "write for example `target = \"97%\"`",
                );
            }
        } else if let Some(target) = target.filter(|target| *target < 0.0) {
            let message = format!("a target of {target} cannot be reached: cross-entropy is never below 0");
            self.wrong(message, &["objective.stop.target", "objective.metric"], "");
        }
    }

    fn train(&mut self) {
        let unused: &[&str] = match self.values.word("train.optimizer.kind") {
            Some("sgd") => &["train.optimizer.beta2", "train.optimizer.epsilon"],
            Some("lion") => &["train.optimizer.epsilon"],
            _ => &[],
        };
        let kind = self.values.word("train.optimizer.kind").unwrap_or("");
        for key in unused.iter().filter(|key| self.values.said(key).is_some()) {
            let message = format!("`{key}` does not apply to the optimizer \"{kind}\"");
            self.wrong(message, &[key, "train.optimizer.kind"], "remove it");
        }
        if let (Some(Parsed::Steps(warmup)), Some(steps)) =
            (self.values.get("train.warmup"), self.values.whole("objective.stop.steps"))
            && *warmup >= steps
        {
            let message =
                format!("the warm-up of {warmup} steps does not end within the {steps} steps of training");
            self.wrong(message, &["train.warmup", "objective.stop.steps"], "about 5% of the steps is usual");
        }
    }

    fn layout(&mut self) {
        for (axis, key) in [
            ("layout.tensor", "model.heads"),
            ("layout.tensor", "model.kv_heads"),
            ("layout.context", "model.context"),
        ] {
            if key != "model.kv_heads" || self.values.said(key).is_some() {
                self.divides(axis, key);
            }
        }
        let blocks = match self.values.get("model.stages") {
            Some(Parsed::Wholes(stages)) => {
                self.values.whole("model.blocks").map(|blocks| blocks * stages.len() as u64)
            }
            _ => self.values.whole("model.layers"),
        };
        if let (Some(pipeline), Some(blocks)) = (self.values.whole("layout.pipeline"), blocks)
            && pipeline > blocks
        {
            let message =
                format!("`layout.pipeline` = {pipeline} is more than the {blocks} blocks of the model");
            self.wrong(message, &["layout.pipeline", "model.layers"], "a stage needs at least one block");
        }
        if self.values.whole("layout.expert").is_some_and(|expert| expert > 1) {
            self.wrong(
                "`layout.expert` is above 1, but no model of this version has experts".to_owned(),
                &["layout.expert"],
                "remove it",
            );
        }
        let is_flat = matches!(self.values.kind, Some(Kind::Mlp | Kind::Cnn));
        if is_flat && self.values.whole("layout.context").is_some_and(|context| context > 1) {
            self.wrong(
                "`layout.context` splits a sequence, which this model has not".to_owned(),
                &["layout.context", "model.kind"],
                "remove it",
            );
        }
        self.product();
        self.batch();
    }

    /// The product of the axes is the number of ranks.
    fn product(&mut self) {
        let axes = ["layout.data", "layout.tensor", "layout.pipeline", "layout.context", "layout.expert"];
        let Some(ranks) = self.values.whole("cluster.ranks") else { return };
        let pinned: Vec<&str> = axes.into_iter().filter(|axis| self.values.whole(axis).is_some()).collect();
        let product = pinned.iter().filter_map(|axis| self.values.whole(axis)).fold(1, u64::saturating_mul);
        // Four axes pinned leave one free for the planner; all five leave none.
        let is_right =
            if pinned.len() == axes.len() { product == ranks } else { ranks.is_multiple_of(product) };
        if !is_right {
            let factors: Vec<String> = pinned
                .iter()
                .filter_map(|axis| {
                    Some(format!("{} {}", axis.trim_start_matches("layout."), self.values.whole(axis)?))
                })
                .collect();
            let message = format!(
                "the layout has {} = {product}, which does not fit {ranks} ranks",
                factors.join(" × ")
            );
            let mut keys = pinned;
            keys.push("cluster.ranks");
            self.wrong(message, &keys, "leave an axis out and the planner chooses it");
        }
    }

    fn batch(&mut self) {
        let Some(batch) = self.values.whole("train.batch") else { return };
        let data = self.values.whole("layout.data").unwrap_or(1);
        let micro = self.values.whole("layout.micro_batch").unwrap_or(1);
        let Some(unit) = data.checked_mul(micro).filter(|unit| !batch.is_multiple_of(*unit)) else { return };
        let message = format!(
            "`train.batch` = {batch} is not a multiple of data {data} × micro_batch {micro} = {unit}"
        );
        let near = batch.next_multiple_of(unit);
        self.wrong(
            message,
            &["train.batch", "layout.data", "layout.micro_batch"],
            &format!("the next that is: {near}"),
        );
    }

    fn cluster(&mut self) {
        let launcher = self.values.word("cluster.launcher");
        if let (Some("local"), Some(first)) = (launcher, self.hosts.first()) {
            let problem = Problem::new("the launcher \"local\" uses this machine only, but hosts are named")
                .at(&first.origin);
            let problem = match self.values.said("cluster.launcher") {
                Some(origin) => problem.note_at("`cluster.launcher` is \"local\"", origin),
                None => problem.note("`cluster.launcher` is \"local\" where nothing else is said"),
            };
            self.problems
                .push(problem.hint("write `launcher = \"ssh\"` below `[cluster]`, or remove the hosts"));
        }
        if launcher == Some("ssh") && self.hosts.is_empty() && !self.values.is_wrong("cluster.hosts") {
            self.wrong(
                "the launcher \"ssh\" needs hosts".to_owned(),
                &["cluster.launcher"],
                "write `[[cluster.hosts]]` and `address = \"…\"` below it",
            );
        }
    }
}
