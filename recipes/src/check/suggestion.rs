//! Suggests the key or word that was meant in place of an unknown one ("did you mean").

use crate::document::Entry;
use crate::keys::{KEYS, Kind};
use crate::problem::Problem;

/// Names that other programs use, each with the key of dtrain that has the same meaning.
const ALIASES: &[(&str, &str)] = &[
    ("accumulation", "layout.micro_batch"),
    ("act", "model.activation"),
    ("batch_size", "train.batch"),
    ("block_size", "model.context"),
    ("bs", "train.batch"),
    ("command", "model.argv"),
    ("d_ff", "model.ffn"),
    ("d_model", "model.hidden"),
    ("device", "cluster.devices"),
    ("dim", "model.hidden"),
    ("dp", "layout.data"),
    ("dtype", "train.precision"),
    ("epochs", "objective.stop.epochs"),
    ("eval_interval", "validation.every"),
    ("eval_steps", "validation.every"),
    ("grad_clip", "train.clip"),
    ("hidden_size", "model.hidden"),
    ("host", "cluster.hosts"),
    ("hostname", "cluster.hosts.address"),
    ("intermediate_size", "model.ffn"),
    ("limit_val_batches", "validation.samples"),
    ("lr", "train.learning_rate"),
    ("max_steps", "objective.stop.steps"),
    ("max_time", "objective.stop.time"),
    ("max_tokens", "objective.stop.tokens"),
    ("momentum", "train.optimizer.beta1"),
    ("moe_top_k", "model.experts_per_token"),
    ("n_embd", "model.hidden"),
    ("n_experts", "model.experts"),
    ("n_head", "model.heads"),
    ("n_heads", "model.heads"),
    ("n_layer", "model.layers"),
    ("n_layers", "model.layers"),
    ("nodes", "cluster.slurm.nodes"),
    ("num_experts", "model.experts"),
    ("num_experts_per_tok", "model.experts_per_token"),
    ("num_heads", "model.heads"),
    ("num_layers", "model.layers"),
    ("num_local_experts", "model.experts"),
    ("num_processes", "cluster.ranks"),
    ("path", "data.train"),
    ("pp", "layout.pipeline"),
    ("scheduler", "train.schedule"),
    ("seq_len", "model.context"),
    ("sequence_length", "model.context"),
    ("subset", "data.fraction"),
    ("tp", "layout.tensor"),
    ("val_check_interval", "validation.every"),
    ("validation", "data.valid"),
    ("vocab_size", "model.vocab"),
    ("warmup_steps", "train.warmup"),
    ("wd", "train.optimizer.weight_decay"),
    ("world_size", "cluster.ranks"),
    ("z_loss_multiplier", "train.z_loss"),
];

/// Returns the problem of an unknown key or section, with the key that was probably meant.
pub(super) fn unknown_key(path: &str, entry: &Entry, kind: Option<Kind>) -> Problem {
    let noun = if entry.node.table().is_some() { "section" } else { "key" };
    let path: String = path.chars().take(200).collect();
    match did_you_mean(&path, kind) {
        Some(near) => {
            let message = format!("unknown {noun} `{path}`; did you mean `{near}`?");
            Problem { meant: Some(near), ..Problem::new(message).at(&entry.key) }
        }
        None => Problem::new(format!("unknown {noun} `{path}`"))
            .at(&entry.key)
            .hint("`dtrain recipe keys` lists every key"),
    }
}

/// Returns the one of `words` that is most similar to `word`; `None` if none is similar enough.
pub(super) fn closest_suggestion<'w>(word: &str, words: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    let lower: String = word.chars().take(64).collect::<String>().to_lowercase();
    let near = words.map(|candidate| (strsim::jaro_winkler(&lower, candidate), candidate));
    let best = near.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 >= 0.8).then_some(best.1)
}

/// Returns the key that an unknown `path` probably means: a sibling, a known alias, or the same name in
/// another section.
pub(super) fn did_you_mean(path: &str, kind: Option<Kind>) -> Option<String> {
    let (parent, last) = path.rsplit_once('.').unwrap_or(("", path));
    let known =
        || KEYS.iter().filter(|key| kind.is_none_or(|kind| key.kinds.contains(&kind))).map(|key| key.path);
    let mut siblings: Vec<&str> = known().filter_map(|path| child(parent, path)).collect();
    siblings.dedup();
    if let Some(near) = closest_suggestion(last, siblings.into_iter()) {
        return Some(if parent.is_empty() { near.to_owned() } else { format!("{parent}.{near}") });
    }
    let alias = |(name, meant): &&(&str, &str)| *name == last && known().any(|path| path.starts_with(meant));
    if let Some((_, meant)) = ALIASES.iter().find(alias) {
        return Some((*meant).to_owned());
    }
    let same = known().find(|path| path.rsplit('.').next() == Some(last));
    let similar = || {
        known().filter(|path| closest_suggestion(last, path.rsplit('.').take(1)).is_some()).max_by(|a, b| {
            let score = |path: &str| strsim::jaro_winkler(last, path.rsplit('.').next().unwrap_or(path));
            score(a).total_cmp(&score(b))
        })
    };
    same.or_else(similar).map(ToOwned::to_owned)
}

/// Returns the segment of `path` directly below `parent`.
fn child<'p>(parent: &str, path: &'p str) -> Option<&'p str> {
    let rest = if parent.is_empty() { path } else { path.strip_prefix(parent)?.strip_prefix('.')? };
    rest.split('.').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_alias_leads_to_a_key() {
        for (alias, meant) in ALIASES {
            let is_known = KEYS.iter().any(|key| key.path == *meant) || crate::keys::is_section(meant);
            assert!(is_known, "{alias} leads to {meant}");
        }
    }

    #[test]
    fn suggestions_prefer_siblings() {
        let check = |path: &str, expected: Option<&str>| {
            assert_eq!(did_you_mean(path, Some(Kind::Decoder)).as_deref(), expected, "{path}");
        };
        check("train.bacth", Some("train.batch"));
        check("modle", Some("model"));
        check("train.lr", Some("train.learning_rate"));
        check("model.n_embd", Some("model.hidden"));
        check("batch", Some("train.batch"));
        check("train.steps", Some("objective.stop.steps"));
        check("model.zzzzqqq", None);
    }
}
