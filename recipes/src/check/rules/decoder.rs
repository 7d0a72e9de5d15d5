//! Finds contradictions among the keys of a decoder.

use super::Rules;
use crate::architecture::{Positions, RotaryScalingKind};
use crate::decoder::AdaptedLayers;

impl Rules<'_> {
    pub(super) fn decoder(&mut self) {
        if self.values.said("model.head_width").is_none() {
            self.divides("model.heads", "model.hidden");
        }
        self.divides("model.kv_heads", "model.heads");
        self.rotary();
        self.head_norms();
        self.latent();
        if self.values.get("model.window").is_none() && !self.values.is_wrong("model.window") {
            for key in ["model.window_every", "model.window_rotary_base"] {
                self.needless(key, "a sliding window", "window = 4096");
            }
        }
        self.experts();
        self.lora();
        self.vocabulary();
    }

    /// Checks that low-rank adapters have a rank, and adapt only layers that every token passes through.
    fn lora(&mut self) {
        let (rank, layers) = ("model.lora.rank", "model.lora.layers");
        if self.values.is_wrong("model.lora") {
            return;
        }
        if self.values.get(rank).is_none() {
            let said = ["model.lora.alpha", layers, "model.lora.base"]
                .into_iter()
                .find(|key| self.values.said(key).is_some());
            if let Some(key) = said {
                let hint = "write for example `lora = { rank = 8 }` below `[model]`";
                self.wrong(format!("missing `{rank}`"), &[key], hint);
            }
            return;
        }
        if self.values.get("model.latent.key_value").is_some() {
            let message = "adapters of latent attention are not supported".to_owned();
            self.wrong(message, &[rank, "model.latent.key_value"], "remove one of them");
        }
        if self.values.get("model.experts").is_some()
            && self.values.one_of(layers) != Some(AdaptedLayers::Attention)
        {
            let message = "adapters of experts are not supported".to_owned();
            self.wrong(message, &[layers, "model.experts"], "write `layers = \"attention\"`, or remove it");
        }
    }

    /// Checks that rotary positions have an even head width, and that only they have a base.
    fn rotary(&mut self) {
        if self.values.one_of("model.positions") != Some(Positions::Rotary) {
            for key in ["rotary_base", "rotary_scaling.kind", "rotary_scaling.factor", "window_rotary_base"] {
                self.needless(&format!("model.{key}"), "rotary positions", "positions = \"rotary\"");
            }
            return;
        }
        self.rotary_scaling();
        let (key, origin) = match self.values.whole("model.latent.rotary") {
            Some(_) => ("model.latent.rotary", ""),
            None if self.values.said("model.head_width").is_some() => ("model.head_width", ""),
            None => ("model.head_width", " (hidden / heads)"),
        };
        if let Some(width) = self.values.whole(key).filter(|width| width % 2 == 1) {
            let message = format!("rotary positions need heads of even width, found {width}{origin}");
            self.wrong(message, &[key, "model.heads", "model.hidden", "model.positions"], "");
        }
    }

    /// Checks that a scaling of rotary positions has its factor, and only the keys of its kind.
    fn rotary_scaling(&mut self) {
        let path = |key: &str| format!("model.rotary_scaling.{key}");
        let all = ["kind", "factor", "low", "high", "original_context"].map(path);
        let Some(first) = all.iter().find(|path| self.values.said(path).is_some()) else { return };
        if self.values.is_wrong("model.rotary_scaling") {
            return;
        }
        if self.values.get(&path("factor")).is_none() && !self.values.is_wrong(&path("factor")) {
            let hint = "write for example `rotary_scaling = { kind = \"llama3\", factor = 8.0 }`";
            self.wrong("missing `model.rotary_scaling.factor`".to_owned(), &[first], hint);
            return;
        }
        match self.values.one_of(&path("kind")) {
            Some(RotaryScalingKind::Llama3) => {
                let [low, high] = ["low", "high"].map(|key| self.values.real(&path(key)));
                if let Some((low, high)) = low.zip(high).filter(|(low, high)| low >= high) {
                    let message = format!("`low` = {low} must be below `high` = {high}");
                    self.wrong(message, &[&path("low"), &path("high"), &path("kind")], "");
                }
            }
            Some(RotaryScalingKind::Linear) => {
                if let Some(key) = all[2..].iter().find(|path| self.values.said(path).is_some()) {
                    let message = format!("`{key}` is for `kind = \"llama3\"`, and this scaling is linear");
                    self.wrong(message, &[key, &path("kind")], "remove it, or write `kind = \"llama3\"`");
                }
            }
            None => {}
        }
    }

    /// Checks that only heads with norms have a scale of their own, and that latent attention has no norms of
    /// heads.
    fn head_norms(&mut self) {
        if self.values.flag("model.qk_norm") == Some(false) {
            self.needless("model.attention_scale", "norms of queries and keys", "qk_norm = true");
        }
        if self.values.get("model.latent.key_value").is_some()
            && self.values.flag("model.qk_norm") == Some(true)
        {
            let message = "latent attention has norms of its own: `model.qk_norm` does not apply".to_owned();
            self.wrong(message, &["model.qk_norm", "model.latent.key_value"], "remove one of them");
        }
    }

    /// Checks that latent attention has all its sizes and no `kv_heads`.
    fn latent(&mut self) {
        let needed = ["query", "key_value", "rotary"];
        let path = |key: &str| format!("model.latent.{key}");
        let all = needed.iter().chain(&["value"]);
        let said: Vec<String> =
            all.map(|key| path(key)).filter(|path| self.values.said(path).is_some()).collect();
        let Some(first) = said.first() else { return };
        if self.values.is_wrong("model.latent") {
            return;
        }
        if let Some(missing) = needed.iter().find(|key| self.values.get(&path(key)).is_none()) {
            let hint =
                "write for example `latent = { query = 1536, key_value = 512, rotary = 64, value = 128 }`";
            self.wrong(format!("missing `model.latent.{missing}`"), &[first], hint);
            return;
        }
        if self.values.said("model.kv_heads").is_some() {
            self.wrong(
                "latent attention has keys and values for every head: `model.kv_heads` does not apply"
                    .to_owned(),
                &["model.kv_heads", first],
                "remove one of them",
            );
        }
        if self.values.one_of("model.positions") == Some(Positions::Learned) {
            self.wrong(
                "latent attention needs rotary positions".to_owned(),
                &[first, "model.positions", "model.family"],
                "write `positions = \"rotary\"` below `[model]`",
            );
        }
        if self.values.flag("model.bias") == Some(true) {
            self.wrong(
                "latent attention has no biases".to_owned(),
                &[first, "model.bias", "model.family"],
                "write `bias = false` below `[model]`",
            );
        } else if self.values.flag("model.qkv_bias") == Some(true) {
            self.wrong(
                "latent attention has no biases".to_owned(),
                &[first, "model.qkv_bias"],
                "remove `qkv_bias`",
            );
        }
    }

    /// Checks the keys of a mixture of experts, and that a token is routed to no more experts than there are.
    fn experts(&mut self) {
        let per_token = "model.experts_per_token";
        let Some(experts) = self.values.whole("model.experts") else {
            if self.values.is_wrong("model.experts") {
                return;
            }
            let keys = [
                "experts_per_token",
                "capacity",
                "balance",
                "shared_ffn",
                "shared_gate",
                "raw_gates",
                "dense_layers",
                "dense_ffn",
            ];
            for key in keys {
                self.needless(&format!("model.{key}"), "experts", "experts = 8");
            }
            return;
        };
        if self.values.get("model.shared_ffn").is_none() && !self.values.is_wrong("model.shared_ffn") {
            self.needless("model.shared_gate", "shared experts", "shared_ffn = 5632");
        }
        if let Some(passed) = self.values.whole(per_token).filter(|passed| *passed > experts) {
            let message = format!("a token cannot be routed to {passed} experts of {experts}");
            self.wrong(message, &[per_token, "model.experts"], &format!("the most is {experts}"));
        }
        let (dense, width) = ("model.dense_layers", "model.dense_ffn");
        let Some(leading) = self.values.whole(dense) else {
            if !self.values.is_wrong(dense) {
                self.needless(width, "leading dense layers", "dense_layers = 1");
            }
            return;
        };
        if self.values.get(width).is_none() && !self.values.is_wrong(width) {
            let hint = "write for example `dense_ffn = 18432` below `[model]`";
            self.wrong(
                format!("missing `{width}`: the feed-forward width of the dense layers"),
                &[dense],
                hint,
            );
        }
        if let Some(layers) = self.values.whole("model.layers").filter(|layers| leading >= *layers) {
            let message = format!("{leading} dense layers leave none of {layers} with experts");
            let hint = "remove `model.experts`, or choose fewer dense layers";
            self.wrong(message, &[dense, "model.layers"], hint);
        }
    }

    /// Reports that `key` has no effect because the model lacks `what`, with an `example` that adds it.
    fn needless(&mut self, key: &str, what: &str, example: &str) {
        if self.values.said(key).is_some() {
            let message = format!("`{key}` is for a model with {what}, and this one has none");
            self.wrong(
                message,
                &[key],
                &format!("write for example `{example}` below `[model]`, or remove it"),
            );
        }
    }
}
