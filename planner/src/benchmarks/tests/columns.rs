//! Tests of typed columns, and of the words that they replace.

use super::{assumed, doubt, one, row, seconds};
use crate::analytic::Constants;
use crate::benchmarks::read::resolve_training;
use crate::benchmarks::{ResolvedTraining, TableRow, read_table};
use proptest::prelude::*;
use std::collections::BTreeMap;

const MEASURED: &str = include_str!("../../../benches/data/measured_layouts.csv");

/// Columns whose cells are words.
const WORDS: [&str; 6] = ["precision", "attention", "schedule", "framework", "model", "notes"];

/// Columns that replace words.
const TYPED: [&str; 20] = [
    "style",
    "products",
    "gradients",
    "kernel",
    "pipeline_schedule",
    "async_tp",
    "fused_loss",
    "head_width",
    "value_width",
    "latent_query",
    "latent_key_value",
    "latent_rotary",
    "window",
    "window_share",
    "shared_ffn",
    "dense_layers",
    "mtp_layers",
    "token_drop",
    "shard_ranks",
    "link_domain",
];

/// Cells by column.
type Cells<'a> = &'a [(&'a str, &'a str)];

/// Returns a row of the table of measured layouts without the cells in `columns`.
fn without(cells: &BTreeMap<String, String>, columns: &[&str]) -> TableRow {
    let left = cells.iter().filter(|(name, _)| !columns.contains(&name.as_str()));
    TableRow::of(left.map(|(name, cell)| (name.clone(), cell.clone())).collect(), 1)
}

/// Returns all that decides the price of a row, as text.
fn resolved(row: &TableRow) -> String {
    let ResolvedTraining {
        model,
        config,
        engine,
        gpu,
        power,
        kernel,
        products,
        links,
        memory,
        constants: _,
        unknown,
        is_model_assumed,
        may_recompute,
        assumptions,
    } = resolve_training(row, Constants::shipped()).expect("every row can be priced");
    format!(
        "{model:?} {config:?} {engine:?} {gpu:?} {power} {kernel:?} {products:?} {links:?} {memory} \
         {unknown:?} {is_model_assumed} {may_recompute} {assumptions:?}"
    )
}

#[test]
fn measured_rows_read_alike_by_columns_and_by_words() {
    let mut reader = csv::Reader::from_reader(MEASURED.as_bytes());
    let rows: Vec<BTreeMap<String, String>> =
        reader.deserialize().map(|row| row.expect("the table is whole")).collect();
    assert_eq!(rows.len(), read_table(MEASURED.as_bytes()).expect("the table is whole").len());
    for cells in &rows {
        let (by_columns, by_words) = (without(cells, &WORDS), without(cells, &TYPED));
        assert_eq!(resolved(&by_columns), resolved(&by_words), "{}", cells["id"]);
    }
}

#[test]
fn a_typed_column_decides_whatever_the_words_say() {
    let experts = [("moe_experts", "8"), ("moe_ffn", "14336"), ("moe_topk", "2")];
    let pipeline = [("pp", "4"), ("vp", ""), ("global_batch", "64")];
    let cases: &[(Cells<'_>, (&str, &str), Cells<'_>)] = &[
        (&[], ("products", "fp8"), &[("precision", "fp8")]),
        (&[("precision", "MXFP8")], ("products", "bf16"), &[]),
        (&[("precision", "an unknown word")], ("products", "fp4-block"), &[("precision", "nvfp4")]),
        (&[], ("kernel", "unfused"), &[("attention", "unfused")]),
        (&[("attention", "unfused")], ("kernel", "fused"), &[]),
        (&[], ("style", "fsdp"), &[("framework", "PyTorch FSDP")]),
        (&[("framework", "PyTorch FSDP")], ("style", "modern"), &[]),
        (&pipeline, ("pipeline_schedule", "gpipe"), &[("schedule", "GPipe")]),
        (&[], ("async_tp", "1"), &[("notes", "async TP")]),
        (&[("framework", "NeMo")], ("gradients", "fp32"), &[]),
        (&[], ("gradients", "bf16"), &[("framework", "NeMo")]),
        (
            &[("model", "DeepSeekV3"), ("head_width", "128"), ("value_width", "128")],
            ("latent_query", "0"),
            &[],
        ),
        (&[("model", "gpt-oss")], ("window", "0"), &[("model", "qwen3"), ("head_width", "64")]),
        (&experts, ("token_drop", "1"), &[("model", "llama-3 (tokendrop)")]),
        (&[("model", "llama-3 (MTP)")], ("mtp_layers", "0"), &[]),
        (&[("num_gpus", "64"), ("zero", "3")], ("shard_ranks", "8"), &[("zero", "3 (hsdp)")]),
        (&[("hardware", "GB200"), ("gpu_mem_gib", ""), ("tp", "8")], ("link_domain", "4"), &[]),
    ];
    for (given, typed, words) in cases {
        let by_column = one(&[given, &[*typed][..]].concat());
        let by_words = one(&[*given, *words].concat());
        assert!(by_column.supported, "{typed:?}: {by_column:?}");
        if words.is_empty() {
            assert_ne!(by_column.step_seconds, by_words.step_seconds, "{typed:?} changes what words say");
        } else {
            assert_eq!(by_column.step_seconds, by_words.step_seconds, "{typed:?} {words:?}");
        }
    }
}

#[test]
fn a_value_that_a_typed_column_does_not_have_is_refused_with_those_that_it_has() {
    for (column, known) in [
        ("style", "research, megatron, modern, fsdp, hugging_face, fully_shard, compiled, xla, dtrain"),
        ("products", "fp32, tf32, bf16, fp16, fp8, fp8-block, fp4-block"),
        ("gradients", "fp32, bf16, fp16, none"),
        ("kernel", "unfused, plain, flash1, flash2, fused"),
        ("pipeline_schedule", "gpipe, 1f1b, interleaved, zero-bubble"),
        ("async_tp", "0, 1"),
        ("fused_loss", "0, 1"),
        ("token_drop", "0, 1"),
    ] {
        let priced = one(&[(column, "frobnicate")]);
        let wanted = format!("`{column}` is `frobnicate`: wanted one of {known}, or leave it blank");
        assert_eq!((priced.supported, priced.reason), (false, Some(wanted)));
    }
    let counts = ["head_width", "value_width", "latent_query", "latent_key_value", "latent_rotary", "window"];
    for column in
        counts.into_iter().chain(["shared_ffn", "dense_layers", "mtp_layers", "shard_ranks", "link_domain"])
    {
        for (cell, wanted) in
            [("abc", "a number"), ("1.5", "a whole number"), ("1e12", "at most"), ("-1", "below 0")]
        {
            let reason = one(&[(column, cell)]).reason.unwrap_or_default();
            assert!(
                reason.contains(&format!("`{column}` is")) && reason.contains(wanted),
                "{column}: {reason}"
            );
        }
    }
    assert!(one(&[("window_share", "1.5")]).reason.is_some_and(|reason| reason.contains("at most 1")));
}

#[test]
fn an_unknown_word_is_refused_with_the_known_ones() {
    for (column, known) in [
        ("precision", "fp32, tf32, bf16"),
        ("attention", "unfused, plain"),
        ("schedule", "1f1b, interleaved"),
        ("recompute", "none, selective"),
        ("zero", "0, 1, 2, 3"),
    ] {
        let reason = one(&[(column, "frobnicate")]).reason.unwrap_or_default();
        let wanted = format!("`{column}` is `frobnicate`: wanted one of {known}");
        assert!(reason.starts_with(&wanted) && reason.ends_with("or leave it blank"), "{reason}");
        assert_eq!(seconds(&[(column, "not stated")]), seconds(&[(column, "")]), "{column}");
    }
}

#[test]
fn words_that_papers_use_are_known() {
    for (column, cells) in [
        ("attention", &["flash", "FlashAttention-2", "flash_attn", "sdpa-flash", "FA2", "xformers"][..]),
        ("attention", &["fused(cudnn/TE)", "FlashAttention 3", "cuDNN", "te"]),
        ("attention", &["eager", "plain"]),
        ("zero", &["3", "ZeRO-3", "zero3", "FSDP", "fsdp2", "stage 3", "3.0"]),
        ("zero", &["0", "none", "DDP"]),
        ("recompute", &["full", "Full (uniform, 1 layer)"]),
        ("recompute", &["selective", "selective-op"]),
    ] {
        let one = |cell| resolved(&row(&[("framework", "PyTorch FSDP"), (column, cell)]));
        for cell in cells {
            assert_eq!(one(cell), one(cells[0]), "{column}: {cell}");
        }
    }
}

#[test]
fn columns_that_contradict_each_other_are_refused() {
    let pipeline = [("pp", "4"), ("vp", "2"), ("num_gpus", "8")];
    for (cells, column) in [
        (
            &[pipeline[0], pipeline[1], pipeline[2], ("pipeline_schedule", "1f1b")][..],
            "`pipeline_schedule` is `1f1b`",
        ),
        (&[("window_share", "0.5")], "without `window`"),
        (&[("latent_query", "1536")], "`latent_query`, `latent_key_value`, `latent_rotary`"),
        (
            &[("latent_query", "1536"), ("latent_key_value", "512"), ("latent_rotary", "256")],
            "more than the 128 channels of a head",
        ),
        (&[("shared_ffn", "2048")], "without `moe_experts`"),
        (&[("token_drop", "1")], "without `moe_experts`"),
        (&[("dense_layers", "40"), ("moe_experts", "8")], "more than `layers`"),
        (&[("shard_ranks", "3"), ("zero", "3")], "the 8 replicas"),
        (
            &[("style", "modern"), ("hardware", "TPU v5p"), ("gpu_mem_gib", "")],
            "`style` is `modern`, which does not",
        ),
    ] {
        let reason = one(cells).reason.unwrap_or_default();
        assert!(reason.contains(column), "{cells:?}: {reason}");
    }
}

#[test]
fn a_model_that_is_not_known_is_said_and_widens_the_interval() {
    let unknown = [("model", "frobnicate-8b"), ("vocab", "")];
    assert!(assumed(&unknown).contains("vocabulary of 50304 tokens; feed-forward block without a gate"));
    assert!(doubt(&unknown) > 1.05 * doubt(&[("gated_mlp", "0"), ("vocab", "50304")]));
    let told = [unknown[0], ("gated_mlp", "1")];
    assert!(assumed(&told).is_empty() && seconds(&told) == seconds(&[]), "{}", assumed(&told));
}

#[test]
fn products_that_the_device_lacks_are_said() {
    let priced = one(&[("hardware", "A100-SXM-80GB"), ("products", "fp8")]);
    assert!(priced.assumptions.iter().any(|words| words.contains("the device has none of 8")), "{priced:?}");
}

/// Strategy for a cell: words of tables, values of columns, numbers, and arbitrary text.
fn cell() -> impl Strategy<Value = String> {
    let known = prop::sample::select(vec![
        "",
        "0",
        "1",
        "2",
        "3",
        "8",
        "64",
        "1e9",
        "0.5",
        "-1",
        "nan",
        "fp8",
        "fp8-block",
        "bf16 (fp32 grads)",
        "mxfp8",
        "unfused",
        "flash2",
        "cudnn",
        "1f1b",
        "interleaved",
        "zero-bubble",
        "modern",
        "xla",
        "research",
        "hsdp 4x2",
        "replicate 0, shard 0",
        "DeepSeekV3 (w/ MTP)",
        "gpt-oss",
        "NeMo",
        "TPU v5p",
        "GB200",
        "full",
        "selective",
    ]);
    let number = (0_u32..70).prop_map(|number| number.to_string());
    prop_oneof![4 => known.prop_map(str::to_owned), 2 => number, 1 => ".{0,12}"]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    /// Every row has a price that is a number, or a reason.
    #[test]
    fn any_row_is_priced_or_refused(
        cells in prop::collection::vec((prop::sample::select(drawn_columns()), cell()), 0..8),
    ) {
        let cells: Vec<(&str, &str)> = cells.iter().map(|(column, cell)| (*column, cell.as_str())).collect();
        let priced = one(&cells);
        prop_assert_eq!(priced.supported, priced.reason.is_none());
        if priced.supported {
            for value in [priced.step_seconds, priced.step_seconds_high, priced.peak_bytes] {
                prop_assert!(value.is_some_and(|value| value.is_finite() && value > 0.0), "{:?}", priced);
            }
        }
    }
}

/// Further columns whose cells the property test draws.
const OTHERS: [&str; 11] = [
    "zero",
    "recompute",
    "hardware",
    "gated_mlp",
    "vocab",
    "moe_experts",
    "num_gpus",
    "tp",
    "pp",
    "vp",
    "micro_batch",
];

/// Returns the columns whose cells the property test draws.
fn drawn_columns() -> Vec<&'static str> {
    [&TYPED[..], &WORDS, &OTHERS].concat()
}
