//! Typed cells of a row: from its typed columns, or from the words of its other cells where those are blank.

use super::columns;
use super::state_cells::{StateCells, state_cells};
use super::table::TableRow;
use super::words::{self, AttentionContext, ModelFamily, ShardGroup};
use crate::analytic::search::to_count;
use crate::analytic::{LatentDims, MatmulPrecision, WindowDims};
use crate::engine::{AttentionKernel, SoftwareStyle};
use dtrain_recipes::{PipelineSchedule, Recompute, ZeroStage};

/// Settings of a row that are neither counts of its layout nor dimensions that every model has; `None` if the
/// row leaves a setting open.
#[derive(Clone, Copy, Debug)]
pub(super) struct TypedCells {
    /// Software style of the engine.
    pub(super) style: Option<SoftwareStyle>,
    /// Bytes of a gradient while gradients are summed.
    pub(super) gradient_bytes: Option<f64>,
    /// True if tensor-parallel communication is asynchronous.
    pub(super) is_tensor_async: bool,
    /// True if the loss is fused with the head.
    pub(super) is_loss_fused: bool,
    /// Number format of matrix products.
    pub(super) products: Option<MatmulPrecision>,
    /// Attention kernel.
    pub(super) kernel: Option<AttentionKernel>,
    /// Pipeline schedule.
    pub(super) schedule: Option<PipelineSchedule>,
    /// Recompute mode.
    pub(super) recompute: Option<Recompute>,
    /// ZeRO stage.
    pub(super) zero: Option<ZeroStage>,
    /// Group of replicas that shards state, under hybrid sharding.
    pub(super) shard: Option<ShardGroup>,
    /// Training state.
    pub(super) state: StateCells,
    /// Unusual dimensions of the model.
    pub(super) model: ModelCells,
}

/// Dimensions of a model that most rows leave to its family; 0 and `None` stand for the usual.
#[derive(Clone, Copy, Debug)]
pub(super) struct ModelCells {
    pub(super) head: Option<f64>,
    pub(super) head_value: Option<f64>,
    pub(super) latent: Option<LatentDims>,
    pub(super) window: Option<WindowDims>,
    pub(super) dense_layers: f64,
    pub(super) shared: f64,
    pub(super) mtp_layers: f64,
    pub(super) drops_tokens: bool,
    /// Number of entries in the vocabulary; `None` if neither the row nor the name of the model tells it.
    pub(super) vocabulary: Option<f64>,
    /// True if the head shares the embedding; `None` if the row does not tell.
    pub(super) is_tied: Option<bool>,
    /// True if the feed-forward block has a gate; `None` if neither the row nor the name of the model tells.
    pub(super) is_gated: Option<bool>,
}

/// Returns the typed cells of a row. A typed column decides where it is filled; otherwise the words of
/// `precision`, `attention`, `schedule`, `framework`, `model` and `notes` do.
pub(super) fn typed_cells(row: &TableRow) -> Result<TypedCells, String> {
    let style = match columns::style(row)? {
        None => words::style(row.text("framework"), row.text("notes")),
        style => style,
    };
    let gradients = columns::choice(row, "gradients", &columns::GRADIENTS)?;
    let products = match columns::choice(row, "products", &columns::PRODUCTS)? {
        None => words::products(row.text("precision"))?,
        products => products,
    };
    Ok(TypedCells {
        style,
        gradient_bytes: gradients
            .filter(|bytes| *bytes > 0.0)
            .or_else(|| words::has_short_gradients(row).then_some(2.0)),
        is_tensor_async: columns::switch(row, "async_tp")?.unwrap_or_else(|| words::is_tensor_async(row)),
        is_loss_fused: columns::switch(row, "fused_loss")?.unwrap_or_else(|| words::is_composer(row)),
        products,
        kernel: kernel(row, style)?,
        schedule: schedule(row)?,
        recompute: words::recompute(row)?,
        zero: words::stage(row)?,
        shard: shard_ranks(row).map(ShardGroup::Ranks).or_else(|| words::shard_group(row)),
        state: state_cells(row)?,
        model: model(row)?,
    })
}

/// Returns the number of replicas that share state, if a typed column states it.
pub(super) fn shard_ranks(row: &TableRow) -> Option<u32> {
    row.positive("shard_ranks").map(to_count)
}

/// Returns the vocabulary size of a row; that of GPT-2, padded, if nothing tells it.
pub(super) fn vocabulary(row: &TableRow) -> f64 {
    told_vocabulary(row, &words::family(row.text("model"))).unwrap_or(GPT_2_VOCABULARY)
}

/// Vocabulary size of a model that is not known: that of GPT-2, padded.
pub(super) const GPT_2_VOCABULARY: f64 = 50_304.0;

fn told_vocabulary(row: &TableRow, family: &ModelFamily) -> Option<f64> {
    row.positive("vocab").or(family.vocabulary)
}

fn kernel(row: &TableRow, style: Option<SoftwareStyle>) -> Result<Option<AttentionKernel>, String> {
    let context = AttentionContext {
        style,
        is_composer: words::is_composer(row),
        has_transformer_engine: words::names_transformer_engine(row),
    };
    match columns::choice(row, "kernel", &columns::KERNELS)? {
        None => words::kernel(row.text("attention"), context),
        kernel => Ok(kernel),
    }
}

fn schedule(row: &TableRow) -> Result<Option<PipelineSchedule>, String> {
    let Some(schedule) = columns::choice(row, "pipeline_schedule", &columns::SCHEDULES)? else {
        return words::schedule(row);
    };
    match row.positive("vp") {
        Some(chunks) if chunks > 1.0 && schedule != PipelineSchedule::Interleaved => Err(format!(
            "`vp` is {chunks}: of the schedules, only `interleaved` is priced with several chunks a \
             stage, and `pipeline_schedule` is `{}`",
            row.text("pipeline_schedule")
        )),
        _ => Ok(Some(schedule)),
    }
}

fn model(row: &TableRow) -> Result<ModelCells, String> {
    let family = words::family(row.text("model"));
    let (traits, number) = (family.traits, |column: &str| row.number(column));
    only_with_experts(row)?;
    let drops_tokens = columns::switch(row, "token_drop")?;
    Ok(ModelCells {
        head: row.positive("head_width").or(traits.head),
        head_value: row.positive("value_width").or(traits.head_value),
        latent: latent(row, traits.latent)?,
        window: window(row, traits.window)?,
        dense_layers: number("dense_layers").unwrap_or(traits.dense_layers),
        shared: number("shared_ffn").unwrap_or(traits.shared),
        mtp_layers: number("mtp_layers").unwrap_or(family.mtp_layers),
        drops_tokens: drops_tokens.unwrap_or(family.drops_tokens),
        vocabulary: told_vocabulary(row, &family),
        is_tied: columns::switch(row, "tied")?,
        is_gated: number("gated_mlp").map(|gated| gated > 0.0).or(family.is_gated),
    })
}

/// Returns an error if a column that describes a mixture of experts is above 0 in a row without experts.
fn only_with_experts(row: &TableRow) -> Result<(), String> {
    let has_experts = row.positive("moe_experts").is_some();
    let wrong = ["shared_ffn", "dense_layers", "token_drop"]
        .into_iter()
        .find(|column| !has_experts && row.positive(column).is_some());
    wrong.map_or(Ok(()), |column| {
        Err(format!(
            "`{column}` is {}, without `moe_experts`: it describes a mixture of experts",
            row.text(column)
        ))
    })
}

/// Returns the dimensions of latent attention that the row states, or those of the `usual` family.
fn latent(row: &TableRow, usual: Option<LatentDims>) -> Result<Option<LatentDims>, String> {
    let columns = ["latent_query", "latent_key_value", "latent_rotary"];
    let cells = columns.map(|column| row.positive(column));
    if columns.iter().all(|column| row.text(column).is_empty()) {
        return Ok(usual);
    }
    match cells {
        [Some(query), Some(key_value), Some(rotary)] => Ok(Some(LatentDims { query, key_value, rotary })),
        [None, None, None] => Ok(None),
        _ => Err("of `latent_query`, `latent_key_value`, `latent_rotary`, one is missing or 0: latent \
                  attention has them all"
            .to_owned()),
    }
}

/// Returns the windows of attention that the row states, or those of the `usual` family.
fn window(row: &TableRow, usual: Option<WindowDims>) -> Result<Option<WindowDims>, String> {
    let tokens = row.number("window").or(usual.map(|window| window.tokens)).filter(|tokens| *tokens > 0.0);
    let share = row.number("window_share");
    match (tokens, share) {
        (None, Some(share)) if share > 0.0 => {
            Err(format!("`window_share` is {share}, without `window`: it is the share of layers with one"))
        }
        (None, _) | (_, Some(0.0)) => Ok(None),
        (Some(tokens), share) => {
            let share = share.or(usual.map(|window| window.share)).unwrap_or(1.0);
            Ok(Some(WindowDims { tokens, share }))
        }
    }
}
