//! Contradictions in how replicas are kept alike.

use super::Rules;
use crate::check::parsed::Parsed;

impl Rules<'_> {
    pub(super) fn sync(&mut self) {
        let compress = self.values.word("sync.compress").unwrap_or("none");
        let every = self.values.whole("sync.every").unwrap_or(1);
        for (key, needed) in [("sync.rank", "powersgd"), ("sync.keep", "topk")] {
            if self.values.said(key).is_some() && compress != needed {
                let message = format!("`{key}` is for the compression \"{needed}\"");
                let hint = format!("remove it, or write `compress = \"{needed}\"`");
                self.wrong(message, &[key, "sync.compress"], &hint);
            }
        }
        for key in ["sync.outer_learning_rate", "sync.outer_momentum"] {
            if self.values.said(key).is_some() && every == 1 {
                let message =
                    format!("`{key}` is for replicas that move their own weights for several steps");
                self.wrong(message, &[key, "sync.every"], "remove it, or set `sync.every` to 2 or more");
            }
        }
        let is_compressed = compress != "none";
        if is_compressed || every > 1 {
            let key = if is_compressed { "sync.compress" } else { "sync.every" };
            self.replicas_alone(key, every > 1 || matches!(compress, "powersgd" | "topk"));
        }
        if every > 1
            && let Some(Parsed::Wholes(shares)) = self.values.get("layout.shares")
            && shares.iter().any(|share| *share != shares[0])
        {
            self.wrong(
                format!("replicas that meet every {every} steps count alike, but `layout.shares` are unlike"),
                &["sync.every", "layout.shares"],
                "remove one of them",
            );
        }
    }

    /// What `key` asks for needs replicas that hold whole state; where it `keeps` state of its own, nothing else may be
    /// cut.
    fn replicas_alone(&mut self, key: &str, keeps: bool) {
        if self.values.whole("layout.data") == Some(1) {
            self.wrong(
                format!("`{key}` is about what replicas send each other, and there is one"),
                &[key, "layout.data"],
                "remove it, or set `layout.data` to 2 or more",
            );
        }
        if let Some(zero) = self.values.whole("layout.zero").filter(|zero| *zero > 0) {
            self.wrong(
                format!("`{key}` needs replicas that hold all of their state, but `layout.zero` is {zero}"),
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
