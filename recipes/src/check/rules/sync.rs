//! Finds contradictions in `[sync]`, the synchronization of replicas.

use super::Rules;
use crate::check::parsed::ParsedValue;
use crate::sync::CompressionKind;

impl Rules<'_> {
    pub(super) fn sync(&mut self) {
        let compress = self.values.one_of("sync.compress").unwrap_or(CompressionKind::None);
        let every = self.values.whole("sync.every").unwrap_or(1);
        for (key, needed) in [("sync.rank", CompressionKind::PowerSgd), ("sync.keep", CompressionKind::TopK)]
        {
            if self.values.said(key).is_some() && compress != needed {
                let message = format!("`{key}` is for the compression \"{needed}\"");
                let hint = format!("remove it, or write `compress = \"{needed}\"`");
                self.wrong(message, &[key, "sync.compress"], &hint);
            }
        }
        for key in ["sync.outer_learning_rate", "sync.outer_momentum"] {
            if self.values.said(key).is_some() && every == 1 {
                let message = format!("`{key}` is for replicas that take several local steps");
                self.wrong(message, &[key, "sync.every"], "remove it, or set `sync.every` to 2 or more");
            }
        }
        let is_stale = self.values.whole("sync.staleness").is_some_and(|staleness| staleness > 0);
        if is_stale && every > 1 {
            self.wrong(
                format!(
                    "replicas that synchronise every {every} steps exchange no gradients that could be \
                        stale"
                ),
                &["sync.staleness", "sync.every"],
                "remove one of them",
            );
        }
        if is_stale && compress == CompressionKind::PowerSgd {
            self.wrong(
                "\"powersgd\" needs two rounds of all-reduce, which cannot be delayed to a later step".into(),
                &["sync.staleness", "sync.compress"],
                "remove one of them, or use another compression",
            );
        }
        let asked = [
            ("sync.compress", compress != CompressionKind::None),
            ("sync.every", every > 1),
            ("sync.staleness", is_stale),
        ];
        let has_feedback = match compress {
            CompressionKind::PowerSgd | CompressionKind::TopK => true,
            CompressionKind::None | CompressionKind::F16 | CompressionKind::Bf16 => false,
        };
        if let Some((key, _)) = asked.into_iter().find(|(_, is_asked)| *is_asked) {
            self.replicas_alone(key, every > 1 || is_stale || has_feedback);
        }
        if every > 1
            && let Some(ParsedValue::Wholes(shares)) = self.values.get("layout.shares")
            && shares.iter().any(|share| *share != shares[0])
        {
            self.wrong(
                format!(
                    "replicas that synchronise every {every} steps have equal weight, but \
                        `layout.shares` are unequal"
                ),
                &["sync.every", "layout.shares"],
                "remove one of them",
            );
        }
    }

    /// Checks that a recipe that sets `key` has several replicas without ZeRO sharding, and, if `keeps`, that
    /// each replica is a single rank. several replicas, each with the whole model. If `keeps`, replicas keep
    /// state of their own, and no sharding is allowed either.
    fn replicas_alone(&mut self, key: &str, keeps: bool) {
        if self.values.whole("layout.data") == Some(1) {
            self.wrong(
                format!("`{key}` is for several replicas, and there is one"),
                &[key, "layout.data"],
                "remove it, or set `layout.data` to 2 or more",
            );
        }
        if let Some(zero) = self.values.whole("layout.zero").filter(|zero| *zero > 0) {
            self.wrong(
                format!("`{key}` needs unsharded replicas, but `layout.zero` is {zero}"),
                &[key, "layout.zero"],
                "remove one of them",
            );
        }
        let axes = ["layout.tensor", "layout.pipeline", "layout.context", "layout.expert"];
        for axis in axes.into_iter().filter(|_| keeps) {
            if let Some(degree) = self.values.whole(axis).filter(|degree| *degree > 1) {
                self.wrong(
                    format!("`{key}` works with data parallelism alone, but `{axis}` is {degree}"),
                    &[key, axis],
                    "remove one of them",
                );
            }
        }
    }
}
