//! Contradictions within an arrangement: sequence length, pipeline, recomputation, shards and shares.

use super::Rules;
use crate::check::parsed::ParsedValue;
use crate::recipe::{PipelineSchedule, Recompute};

impl Rules<'_> {
    /// Checks that the context and tensor degrees divide the sequence length.
    pub(super) fn sequence(&mut self) {
        let tensor = self.values.whole("layout.tensor");
        let is_parallel = self.values.get("layout.sequence").and_then(ParsedValue::flag) == Some(true);
        let pinned = self.values.whole("layout.context");
        let length = self.values.whole("model.context");
        if let (Some(ways), Some(length)) = (pinned.filter(|ways| *ways > 1), length)
            && !length.is_multiple_of(2 * ways)
        {
            let near = (1..=ways).rev().find(|n| length.is_multiple_of(2 * n)).unwrap_or(1);
            self.wrong(
                format!(
                    "`layout.context` = {ways} cuts a sequence into {} pieces, which does not divide \
                     `model.context` = {length}",
                    2 * ways
                ),
                &["layout.context", "model.context"],
                &format!("the nearest below that does is {near}"),
            );
            return;
        }
        if !is_parallel {
            return;
        }
        if tensor == Some(1) {
            self.wrong(
                "`layout.sequence` spreads the sequence over tensor-parallel ranks, and there is one"
                    .to_owned(),
                &["layout.sequence", "layout.tensor"],
                "remove it, or set `layout.tensor` to 2 or more",
            );
        }
        let ways = tensor.unwrap_or(1) * pinned.unwrap_or(1);
        if let Some(length) = length.filter(|length| !length.is_multiple_of(ways)) {
            self.wrong(
                format!(
                    "`layout.sequence` cuts `model.context` = {length} into {ways} parts, which are not equal"
                ),
                &["layout.sequence", "model.context", "layout.tensor", "layout.context"],
                "choose a context that they divide, or remove it",
            );
        }
    }

    /// Checks that a pipeline has enough blocks for all stages and chunks, and that a schedule is set only
    /// with stages.
    pub(super) fn pipeline(&mut self) {
        let (schedule, chunks) = (self.values.one_of("layout.schedule"), self.values.whole("layout.chunks"));
        let pipeline = self.values.whole("layout.pipeline");
        let (blocks, key) = match self.values.get("model.stages") {
            Some(ParsedValue::Wholes(stages)) => {
                let blocks = self.values.whole("model.blocks");
                (blocks.map(|blocks| blocks * stages.len() as u64), "model.stages")
            }
            _ => match self.values.get("model.hidden") {
                Some(ParsedValue::Wholes(hidden)) => (Some(hidden.len() as u64), "model.hidden"),
                _ => (self.values.whole("model.layers"), "model.layers"),
            },
        };
        if pipeline == Some(1) {
            for key in ["layout.schedule", "layout.chunks"] {
                let is_plain = key == "layout.chunks" && chunks == Some(1);
                if !is_plain && self.values.said(key).is_some() && !self.is_auto(key) {
                    let message = format!("`{key}` is for the stages of a pipeline, and there is one");
                    self.wrong(
                        message,
                        &[key, "layout.pipeline"],
                        "remove it, or set `layout.pipeline` to 2 or more",
                    );
                }
            }
            return;
        }
        if let (Some(schedule), Some(chunks)) = (schedule, chunks) {
            let is_interleaved = schedule == PipelineSchedule::Interleaved;
            if is_interleaved != (chunks > 1) {
                let wanted = if is_interleaved { "several chunks" } else { "one chunk" };
                let message = format!("the schedule \"{schedule}\" has {wanted} a stage, found {chunks}");
                let hint = if is_interleaved {
                    "it needs at least 2; remove `layout.chunks` and the planner chooses"
                } else {
                    "only \"interleaved\" has several"
                };
                self.wrong(message, &["layout.chunks", "layout.schedule"], hint);
                return;
            }
        }
        let least = if schedule == Some(PipelineSchedule::Interleaved) { 2 } else { 1 };
        let chunks = chunks.unwrap_or(least);
        let (Some(stages), Some(blocks)) = (pipeline, blocks) else { return };
        if stages > blocks {
            let message =
                format!("`layout.pipeline` = {stages} is more than the {blocks} blocks of the model");
            self.wrong(message, &["layout.pipeline", key], "a stage needs at least one block");
        } else if stages * chunks > blocks {
            let message =
                format!("{stages} stages of {chunks} chunks are more than the {blocks} blocks of the model");
            let hint = "a chunk needs at least one block";
            self.wrong(message, &["layout.chunks", "layout.schedule", "layout.pipeline", key], hint);
        }
    }

    /// Checks that `recompute_every` is set only together with a recompute mode.
    pub(super) fn recompute(&mut self) {
        let mode = self.values.one_of("layout.recompute");
        let every = self.values.whole("layout.recompute_every").unwrap_or(1);
        if mode == Some(Recompute::None) && every > 1 {
            self.wrong(
                format!("`layout.recompute_every` = {every}, but there is no recomputation"),
                &["layout.recompute_every", "layout.recompute"],
                "remove it, or set `layout.recompute` to \"full\"",
            );
        }
    }

    /// Checks that the size of shard groups divides the number of data-parallel replicas.
    pub(super) fn shards(&mut self) {
        let Some(shard) = self.values.whole("layout.shard").filter(|shard| *shard > 1) else { return };
        if self.values.whole("layout.zero") == Some(0) {
            self.wrong(
                format!("`layout.shard` = {shard}, but `layout.zero` = 0 shards nothing"),
                &["layout.shard", "layout.zero"],
                "remove one of them",
            );
        }
        let has_sequences = self.values.reads_tokens();
        let context = self.values.whole("layout.context").or((!has_sequences).then_some(1));
        let expert = self.values.whole("layout.expert").or((!has_sequences).then_some(1));
        let (Some(data), Some(context), Some(expert)) = (self.replicas(), context, expert) else { return };
        let replicas = data.saturating_mul(context).saturating_mul(expert);
        if !replicas.is_multiple_of(shard) {
            let near = (1..=shard).rev().find(|n| replicas.is_multiple_of(*n)).unwrap_or(1);
            self.wrong(
                format!("`layout.shard` = {shard} does not divide the {replicas} replicas"),
                &["layout.shard", "layout.data", "layout.shares", "layout.context", "layout.expert"],
                &format!("the nearest below that does is {near}"),
            );
        }
    }

    /// Returns the number of data-parallel replicas, if the recipe fixes it.
    fn replicas(&self) -> Option<u64> {
        let shares = || match self.values.get("layout.shares") {
            Some(ParsedValue::Wholes(shares)) => Some(shares.len() as u64),
            _ => None,
        };
        self.values.whole("layout.data").or_else(shares)
    }

    /// Checks that each replica has a share of the batch, and that each share is a whole number of
    /// micro-batches.
    pub(super) fn shares(&mut self) {
        let Some(ParsedValue::Wholes(shares)) = self.values.get("layout.shares") else { return };
        let (count, sum) = (shares.len() as u64, shares.iter().sum::<u64>());
        let (first, is_uneven) = (shares[0], shares.iter().any(|share| *share != shares[0]));
        let least = shares.iter().copied().fold(first, greatest_divisor);
        if let Some(data) = self.values.whole("layout.data").filter(|data| *data != count) {
            self.wrong(
                format!("`layout.shares` has {count} shares for {data} replicas"),
                &["layout.shares", "layout.data"],
                "write one share for each, or remove `layout.data`",
            );
            return;
        }
        if is_uneven && self.values.whole("layout.zero").is_some_and(|zero| zero > 1) {
            self.wrong(
                "unequal `layout.shares` reduce gradients once a step, but `layout.zero` above 1 does so \
                after every micro-batch"
                    .to_owned(),
                &["layout.shares", "layout.zero"],
                "choose a zero of 0 or 1",
            );
        }
        let Some(batch) = self.values.whole("train.batch") else { return };
        // The smallest batch that gives every replica a whole number of micro-batches.
        let unit = sum / least * self.values.whole("layout.micro_batch").unwrap_or(1);
        if !batch.is_multiple_of(unit) {
            let near = batch.next_multiple_of(unit);
            self.wrong(
                format!("`train.batch` = {batch} cannot be divided by `layout.shares`: it is not a multiple of {unit}"),
                &["train.batch", "layout.shares", "layout.micro_batch"],
                &format!("the next that is: {near}"),
            );
        }
    }

    fn is_auto(&self, key: &str) -> bool {
        matches!(self.values.get(key), Some(ParsedValue::Auto))
    }
}

/// Returns the greatest common divisor of `a` and `b`.
fn greatest_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_divisor(b, a % b) }
}
