//! Tests of benchmark estimates on rows with known answers.

mod by_hand;
mod columns;

use super::*;
use crate::analytic::Constants;
use std::collections::BTreeMap;
use std::fmt::Write as _;

const PUBLISHED: &str = include_str!("../../../examples/published/rows.csv");

fn published() -> Vec<TableRow> {
    read_table(PUBLISHED.as_bytes()).expect("the table is whole")
}

/// Returns a row with these cells; the other cells are those of an 8B Llama on one host of H100s.
fn row(cells: &[(&str, &str)]) -> TableRow {
    let usual = [
        ("id", "one"),
        ("hardware", "H100-SXM-80GB"),
        ("gpu_mem_gib", "80"),
        ("gpus_per_node", "8"),
        ("num_gpus", "8"),
        ("model", "llama-3-8b"),
        ("layers", "32"),
        ("hidden", "4096"),
        ("heads", "32"),
        ("kv_heads", "8"),
        ("ffn", "14336"),
        ("vocab", "128256"),
        ("seq", "8192"),
        ("attention", "cudnn"),
        ("global_batch", "128"),
        ("micro_batch", "1"),
        ("recompute", "none"),
        ("precision", "bf16"),
        ("zero", "1"),
        ("framework", "Megatron-Core"),
    ];
    let cells = usual.iter().chain(cells).map(|(name, cell)| ((*name).to_owned(), (*cell).to_owned()));
    TableRow::of(cells.collect(), 1)
}

fn one(cells: &[(&str, &str)]) -> RowEstimate {
    estimate_rows(&[row(cells)], &[], Constants::shipped()).remove(0)
}

fn seconds(cells: &[(&str, &str)]) -> f64 {
    one(cells).step_seconds.expect("it can be priced")
}

/// Returns half the width of the prediction interval, in logarithms.
fn doubt(cells: &[(&str, &str)]) -> f64 {
    let priced = one(cells);
    (priced.step_seconds_high.expect("priced") / priced.step_seconds.expect("priced")).ln()
}

#[test]
fn published_rows_are_priced_as_ever() {
    let mut page = String::new();
    for row in estimate_rows(&published(), &[], Constants::shipped()) {
        let percent =
            |error: Option<f64>| error.map_or("–".to_owned(), |error| format!("{:+.1}%", 100.0 * error));
        let (step, bytes) = (row.step_seconds.expect("priced"), row.peak_bytes.expect("priced"));
        let gib = bytes / 1024f64.powi(3);
        let errors = (percent(row.error), percent(row.peak_bytes_error));
        writeln!(page, "{:24} {step:9.4} s {:>7}  {gib:6.1} GiB {:>7}", row.id, errors.0, errors.1)
            .expect("text");
    }
    insta::assert_snapshot!("published", page);
}

#[test]
fn what_was_measured_is_never_read_when_pricing() {
    let other =
        PUBLISHED.replace("tokens_per_s_per_gpu", "tokens_per_s").replace("step_time", "iteration_time");
    let other = read_table(other.as_bytes()).expect("the table is whole");
    let (known, unknown) = (
        estimate_rows(&published(), &[], Constants::shipped()),
        estimate_rows(&other, &[], Constants::shipped()),
    );
    assert!(known.iter().zip(&unknown).any(|(a, b)| a.measured_step_seconds != b.measured_step_seconds));
    for (a, b) in known.iter().zip(&unknown) {
        assert_eq!(a.step_seconds.map(f64::to_bits), b.step_seconds.map(f64::to_bits), "{}", a.id);
        assert_eq!(a.step_seconds_high.map(f64::to_bits), b.step_seconds_high.map(f64::to_bits), "{}", a.id);
        assert_eq!(a.peak_bytes.map(f64::to_bits), b.peak_bytes.map(f64::to_bits), "{}", a.id);
    }
}

#[test]
fn a_row_that_cannot_be_priced_says_why_and_stays_in_its_place() {
    let rows = [row(&[("heads", "")]), row(&[])];
    let priced = estimate_rows(&rows, &[], Constants::shipped());
    assert!(!priced[0].supported && priced[0].step_seconds.is_none() && priced[1].supported);
    assert!(priced[0].reason.as_ref().is_some_and(|reason| reason.contains("heads")), "{:?}", priced[0]);
    assert_eq!(scores(&priced)[0].refused, 1);
}

#[test]
fn what_a_row_leaves_open_is_said_and_widens_its_interval() {
    for (column, word) in [
        ("micro_batch", "micro-batch"),
        ("recompute", "recompute"),
        ("attention", "attention"),
        ("precision", "16 bits"),
        ("zero", "zero1"),
        ("framework", "style fsdp"),
        ("hardware", "unknown GPU type"),
    ] {
        let priced = one(&[(column, "")]);
        assert!(priced.assumptions.iter().any(|words| words.contains(word)), "{column}: {priced:?}");
        assert!(doubt(&[(column, "")]) > doubt(&[]) || column == "zero", "{column}");
    }
    assert!(one(&[]).assumptions.is_empty(), "{:?}", one(&[]).assumptions);
}

/// Returns the assumptions of the row in one line.
fn assumed(cells: &[(&str, &str)]) -> String {
    one(cells).assumptions.join("; ")
}

#[test]
fn a_row_is_decided_by_what_it_says_and_not_by_the_name_of_its_engine() {
    let unknown = ("framework", "Frobnicator");
    assert!(assumed(&[unknown]).contains("style fsdp"));
    assert!(assumed(&[unknown, ("pp", "2"), ("zero", "")]).contains("style modern"));
    assert!(assumed(&[unknown, ("pp", "2"), ("hardware", "A100")]).contains("style megatron"));
    let open = ("recompute", "");
    assert!(assumed(&[open, ("micro_batch", "1")]).contains("nothing is recomputed"));
    let fsdp = [("framework", "PyTorch FSDP"), ("zero", "3"), open];
    assert!(assumed(&fsdp).contains("nothing is recomputed"));
    assert!(assumed(&[fsdp[0], fsdp[1], fsdp[2], ("micro_batch", "8")]).contains("all is recomputed"));
    // Small enough that kernel launches limit the speed of one sample.
    let small = [
        ("layers", "12"),
        ("hidden", "768"),
        ("heads", "12"),
        ("kv_heads", "12"),
        ("ffn", "3072"),
        ("seq", "512"),
    ];
    let tuned = [&small[..], &[("micro_batch", ""), ("global_batch", "24")]].concat();
    assert!(assumed(&tuned).contains("micro-batch 3"), "{}", assumed(&tuned));
}

#[test]
fn state_that_is_sharded_within_a_host_is_not_gathered_over_the_network() {
    let cells = |zero| {
        [
            ("num_gpus", "64"),
            ("framework", "PyTorch FSDP"),
            ("internode_gbps_per_gpu", "25"),
            ("recompute", "full"),
            ("zero", zero),
        ]
    };
    let (whole, hybrid) = (one(&cells("3")), one(&cells("3 (hsdp)")));
    assert!(hybrid.step_seconds < whole.step_seconds, "{hybrid:?}");
    assert!(hybrid.peak_bytes > whole.peak_bytes);
    assert_eq!(one(&cells("3 hybrid 8x8")).peak_bytes, hybrid.peak_bytes);
    assert_eq!(one(&cells("3, replicate 8, shard 8")).peak_bytes, hybrid.peak_bytes);
    assert!(one(&cells("3, replicate 4")).peak_bytes < hybrid.peak_bytes, "sixteen share it");
}

#[test]
fn more_work_takes_longer_and_faster_parts_less() {
    let usual = seconds(&[]);
    assert!(seconds(&[("global_batch", "256")]) > 1.9 * usual);
    assert!(seconds(&[("recompute", "full")]) > 1.2 * usual);
    assert!(seconds(&[("hardware", "A100-SXM-80GB")]) > 2.0 * usual);
    assert!(seconds(&[("hardware", "B200")]) < 0.6 * usual);
    assert!(seconds(&[("precision", "fp8")]) < 0.85 * usual);
    assert!(seconds(&[("precision", "fp32")]) > 1.6 * usual);
    assert!(
        seconds(&[("tp", "2")]) > usual,
        "matrices that fit are not worth cutting: {} {usual}",
        seconds(&[("tp", "2")])
    );
    let crossing = [("tp", "16"), ("num_gpus", "16")];
    let inside = [("tp", "16"), ("num_gpus", "16"), ("gpus_per_node", "16")];
    let ratio = seconds(&crossing) / seconds(&inside);
    assert!(ratio > 1.02, "the group leaves its host: {ratio}");
}

#[test]
fn the_first_format_in_the_cell_is_that_of_the_products() {
    for cell in [
        "bf16 (fp32 grad accum)",
        "bf16 (fp32 grad RS)",
        "BF16, fp32 master weights",
        "bf16; tf32 elsewhere",
        "fp16 + fp32 reduction",
        "amp_bf16",
        "bf16-PURE",
        "TE bf16",
        "(fp32 grads) bf16",
    ] {
        assert_eq!(seconds(&[("precision", cell)]), seconds(&[("precision", "bf16")]), "{cell}");
        assert_eq!(doubt(&[("precision", cell)]), doubt(&[("precision", "bf16")]), "{cell}");
    }
    for cell in ["FP8-CS", "FP8", "amp_fp8", "FP8 (25.09 table: primary=per-tensor CS, parenthesis=block/MX)"]
    {
        assert_eq!(seconds(&[("precision", cell)]), seconds(&[("precision", "fp8")]), "{cell}");
    }
    for cell in ["FP8-MX", "fp8 (block scales, bf16 grads)"] {
        assert_eq!(seconds(&[("precision", cell)]), seconds(&[("precision", "MXFP8")]), "{cell}");
    }
    let open = one(&[("precision", "not stated")]);
    assert!(open.assumptions.iter().any(|words| words.contains("16 bits")), "{open:?}");
    let reason = one(&[("precision", "int7")]).reason.unwrap_or_default();
    assert!(reason.starts_with("`precision` is `int7`: wanted one of fp32, tf32, bf16"), "{reason}");
}

#[test]
fn memory_says_whether_a_row_fits_unless_it_cannot_know() {
    assert_eq!(one(&[("recompute", "full")]).fits, Some(true));
    let large = [("micro_batch", "16"), ("recompute", "none")];
    assert_eq!(one(&large).fits, Some(false));
    let open = one(&[("micro_batch", "16"), ("recompute", "")]);
    assert_eq!((open.fits, open.peak_bytes), (None, Some(80.0 * 1024f64.powi(3))));
}

#[test]
fn measured_rows_correct_the_others_of_their_cluster_and_are_not_scored() {
    let slow = |id: &str, source: &str, batch: &str| {
        let plain = row(&[("global_batch", batch)]);
        let step = estimate_rows(&[plain], &[], Constants::shipped())[0].step_seconds.expect("priced") * 1.3;
        let step = step.to_string();
        let cells = [("id", id), ("source", source), ("global_batch", batch), ("step_time_s", step.as_str())];
        row(&cells)
    };
    let rows: Vec<TableRow> =
        [("a", "x", "128"), ("b", "x", "256"), ("c", "x", "64"), ("d", "x", "512"), ("e", "y", "128")]
            .map(|(id, source, batch)| slow(id, source, batch))
            .to_vec();
    let known = ["a", "b", "c"].map(str::to_owned);
    let priced = estimate_rows(&rows, &known, Constants::shipped());
    let error =
        |id: &str| priced.iter().find(|row| row.id == id).and_then(|row| row.error).expect("measured");
    assert!(error("d").abs() < 0.02, "{}", error("d"));
    assert!((error("e") - (1.0 / 1.3 - 1.0)).abs() < 1e-9, "another cluster: {}", error("e"));
    let scored: BTreeMap<String, usize> =
        scores(&priced).into_iter().map(|scores| (scores.name, scores.rows)).collect();
    assert_eq!(scored, BTreeMap::from([("x".to_owned(), 1), ("y".to_owned(), 1)]));
}

#[test]
fn scores_are_those_of_the_definition() {
    let made = |id: &str, estimate: f64, measured: f64, tensor: f64| RowEstimate {
        id: id.into(),
        source: "s".into(),
        supported: true,
        step_seconds: Some(estimate),
        step_seconds_low: Some(0.9 * estimate),
        step_seconds_high: Some(1.1 * estimate),
        measured_step_seconds: Some(measured),
        error: Some(estimate / measured - 1.0),
        tensor,
        ..RowEstimate::default()
    };
    // The second has the best estimate but ties with the first, which has fewer tensor ranks; the last two
    // are misordered.
    let rows = [
        made("a", 1.02, 1.1, 1.0),
        made("b", 1.0, 1.0, 8.0),
        made("c", 2.0, 1.6, 1.0),
        made("d", 1.9, 1.8, 1.0),
    ];
    let scores = scores(&rows).remove(0);
    assert_eq!((scores.rows, scores.measured, scores.pairs, scores.choices), (4, 4, 6, 1));
    let close = |found: Option<f64>, wanted: f64| (found.expect("it is said") - wanted).abs() < 1e-9;
    let sizes = [0.0, 1.9 / 1.8 - 1.0, 1.0 - 1.02 / 1.1, 0.25];
    assert!(close(scores.regret, 0.1), "{scores:?}");
    assert!(close(scores.ordered, 5.0 / 6.0), "{scores:?}");
    assert!(close(scores.covered, 0.75), "{scores:?}");
    assert!(close(scores.median, 0.5 * (sizes[1] + sizes[2])), "{scores:?}");
    assert!(close(scores.bias, 0.5 * sizes[1]), "{scores:?}");
    assert!(close(scores.mean, sizes.iter().sum::<f64>() / 4.0), "{scores:?}");
    assert!(close(scores.p95, sizes[2] + 0.85 * (0.25 - sizes[2])), "{scores:?}");
}

#[test]
fn a_row_that_no_training_can_have_is_refused_by_its_column() {
    for (cells, column) in [
        (&[("pp", "1e9")][..], "`pp`"),
        (&[("pp", "99999999999999999999")], "`pp`"),
        (&[("pp", "33"), ("num_gpus", "1000")], "`pp` is 33, more than `layers`, which is 32"),
        (&[("pp", "16")], "`num_gpus`"),
        (&[("pp", "8"), ("vp", "5")], "`vp`"),
        (&[("vp", "1e20")], "`vp`"),
        (&[("tp", "1e20")], "`tp`"),
        (&[("tp", "16")], "`tp`"),
        (&[("cp", "1e9")], "`cp`"),
        (&[("ep", "1e9"), ("moe_experts", "8")], "`ep`"),
        (&[("ep", "16"), ("moe_experts", "8")], "`ep`"),
        (&[("dp", "1e20")], "`dp`"),
        (&[("micro_batch", "1e12")], "`micro_batch`"),
        (&[("global_batch", "1e20")], "`global_batch`"),
        (&[("num_gpus", "1e20")], "`num_gpus`"),
        (&[("layers", "1e9")], "`layers`"),
        (&[("seq", "1e12")], "`seq`"),
        (&[("dp", "nan")], "`dp`"),
        (&[("dp", "-4")], "`dp`"),
        (&[("kv_heads", "64")], "`kv_heads`"),
        (&[("dp", "100000"), ("num_gpus", "1024")], "`dp` is 100000, more than `num_gpus`, which is 1024"),
        (&[("ep", "64"), ("moe_experts", "64")], "`ep` is 64, more than `num_gpus`, which is 8"),
        (&[("zero", "1e9")], "`zero` is 1000000000"),
        (&[("zero", "1.5")], "`zero`"),
        (&[("seq_parallel", "maybe")], "`seq_parallel` is `maybe`"),
    ] {
        let priced = one(cells);
        let reason = priced.reason.unwrap_or_default();
        assert!(!priced.supported && reason.contains(column), "{cells:?}: {reason}");
    }
}

#[test]
fn a_cell_that_is_no_count_is_refused_by_its_column() {
    for column in [
        "layers",
        "heads",
        "kv_heads",
        "ffn",
        "vocab",
        "global_batch",
        "micro_batch",
        "num_gpus",
        "tp",
        "pp",
        "vp",
        "cp",
        "ep",
        "dp",
    ] {
        for (cell, wanted) in [("abc", "a number"), ("1.5", "a whole number"), ("8x", "a number")] {
            let reason = one(&[(column, cell)]).reason.unwrap_or_default();
            assert!(
                reason.contains(&format!("`{column}` is")) && reason.contains(wanted),
                "{column}: {reason}"
            );
        }
    }
    assert!(one(&[("gpu_mem_gib", "79.2"), ("tp", "2.0"), ("vocab", "1.28e5")]).supported);
}

#[test]
fn a_gpu_is_read_whole_or_refused() {
    for (name, word) in [
        ("foo A100", "`foo` is not understood"),
        ("H1000", "no GPU is known"),
        ("H100-SXM-40GB", "80 or 96 GB"),
        ("H100 9000W", "power limit"),
    ] {
        let reason = one(&[("hardware", name)]).reason.unwrap_or_default();
        assert!(reason.contains(&format!("`hardware` is `{name}`")) && reason.contains(word), "{reason}");
    }
    let limited = seconds(&[("hardware", "H100-SXM-80GB-350W")]);
    assert!(limited > 1.1 * seconds(&[]), "a power limit counts: {limited}");
}

#[test]
fn replicas_that_do_not_agree_with_the_number_of_gpus_are_named() {
    assert!(assumed(&[("dp", "4")]).contains("8 replicas: `dp` does not agree with `num_gpus`"));
    assert!(one(&[("dp", "8")]).assumptions.is_empty());
}

#[test]
fn a_framework_that_does_not_run_on_the_part_is_refused() {
    let refused = |part, framework| {
        let reason = one(&[("hardware", part), ("gpu_mem_gib", ""), ("framework", framework)]).reason;
        reason.is_some_and(|reason| reason.contains("does not run on"))
    };
    for (part, framework) in [
        ("TPU v5p", "Megatron-LM"),
        ("TPU v4", "NeMo"),
        ("TPU v4", "Megatron-DeepSpeed"),
        ("Gaudi3", "Megatron-Core"),
        ("Gaudi2", "MaxText"),
    ] {
        assert!(refused(part, framework), "{framework} on {part}");
    }
    for (part, framework) in
        [("TPU v5p", "MaxText"), ("TPU v5p", ""), ("Gaudi3", "Megatron-DeepSpeed"), ("H100", "MaxText")]
    {
        assert!(!refused(part, framework), "{framework} on {part}");
    }
}
