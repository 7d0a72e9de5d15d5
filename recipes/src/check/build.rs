//! The typed recipe from values that hold. `None` anywhere would be a fault of the table of keys.

mod model;

use super::hosts::Named;
use super::parsed::{Param, Parsed};
use super::values::Values;
use crate::cluster::{Cluster, Devices, Launcher, Slurm, Transport};
use crate::data::{Columns, Data, DataFormat, Documents, Separator, Tokenizer, Valid};
use crate::keys::Kind;
use crate::objective::{Goal, Metric, Objective, Stop};
use crate::params::{ParamRange, ParamValue, settle};
use crate::recipe::{Checkpointing, LayoutPins, PipelineSchedule, Recipe, Recompute, SaveEvery, ZeroStage};
use crate::search::Choice;
use crate::sync::{Compression, Local, Synchronisation};
use crate::train::{Fp8Recipe, Optimizer, OptimizerKind, Precision, Schedule, Train, Warmup};
use crate::tune::{PrunerKind, SamplerKind, Tune};
use crate::units::{Samples, Seconds, Tokens};
use std::collections::BTreeMap;
use std::path::PathBuf;

pub(super) fn recipe(values: &Values, hosts: &[Named]) -> Option<Recipe> {
    let (params, ranges) = params(values);
    Some(Recipe {
        name: values.text("name")?,
        params,
        ranges,
        model: model::model(values)?,
        data: if values.kind? == Kind::Command { None } else { Some(data(values)?) },
        objective: objective(values)?,
        train: train(values)?,
        layout: layout(values)?,
        sync: if values.kind? == Kind::Command { Synchronisation::EXACT } else { sync(values)? },
        checkpoint: Checkpointing { every: every(values)?, keep: values.count("checkpoint.keep")? },
        tune: tune(values)?,
        cluster: cluster(values, hosts)?,
    })
}

/// The values of params in this run, and the ranges of those that have one.
fn params(values: &Values) -> (BTreeMap<String, ParamValue>, BTreeMap<String, ParamRange>) {
    let (mut pinned, mut ranges) = (BTreeMap::new(), BTreeMap::new());
    if let Some(Parsed::Params(params)) = values.get("params") {
        for (name, (param, _)) in params {
            match param {
                Param::Value(value) => drop(pinned.insert(name.clone(), value.clone())),
                Param::Range(range) => drop(ranges.insert(name.clone(), range.clone())),
            }
        }
    }
    (settle(pinned, &ranges), ranges)
}

fn data(values: &Values) -> Option<Data> {
    let format = match values.word("data.format")? {
        "tokens" => DataFormat::Tokens { tokenizer: values.patterns("data.tokenizer").pop() },
        "csv" => DataFormat::Csv(columns(values)?),
        "idx" => DataFormat::Idx {
            labels: values.patterns("data.labels"),
            valid_labels: values.patterns("data.valid_labels"),
        },
        "images" => DataFormat::Images { resize: values.flag("data.resize")? },
        "parquet" if !values.reads_tokens() => DataFormat::Parquet(columns(values)?),
        format => DataFormat::Text {
            tokenizer: match values.get("data.tokenizer")? {
                Parsed::Bpe(vocab) => Tokenizer::Bpe(*vocab),
                Parsed::Files(_) => Tokenizer::File(values.patterns("data.tokenizer").pop()?),
                _ => Tokenizer::Bytes,
            },
            documents: match format {
                "jsonl" => Documents::JsonLines(values.text("data.field")?),
                "parquet" => Documents::Parquet(values.text("data.field")?),
                _ => Documents::Files,
            },
            separator: match values.get("data.separator")? {
                Parsed::Text(text) => Separator::Text(text.clone()),
                Parsed::None => Separator::None,
                _ => Separator::Auto,
            },
        },
    };
    let valid = match values.get("data.valid")? {
        Parsed::Files(_) => Valid::Files(values.patterns("data.valid")),
        share => Valid::Fraction(share.real()?),
    };
    let is_mixed = matches!(format, DataFormat::Csv(_) | DataFormat::Parquet(_) | DataFormat::Idx { .. });
    Some(Data {
        mix: if is_mixed { Some(values.whole("train.seed")?) } else { None },
        format,
        train: values.patterns("data.train"),
        valid,
        fraction: values.real("data.fraction")?,
    })
}

fn columns(values: &Values) -> Option<Columns> {
    let ignore = match values.get("data.ignore") {
        Some(Parsed::Texts(names)) => names.clone(),
        _ => Vec::new(),
    };
    Some(Columns { target: values.text("data.target")?, ignore })
}

fn objective(values: &Values) -> Option<Objective> {
    let whole = |key: &str| values.whole(&format!("objective.stop.{key}"));
    Some(Objective {
        metric: Metric::from(values.text("objective.metric")?),
        goal: values.word("objective.goal").map(|goal| if goal == "max" { Goal::Max } else { Goal::Min }),
        stop: Stop {
            steps: whole("steps"),
            samples: whole("samples").map(Samples),
            tokens: whole("tokens").map(Tokens),
            epochs: values.real("objective.stop.epochs"),
            time: values.real("objective.stop.time").map(Seconds),
            target: values.real("objective.stop.target"),
        },
    })
}

fn train(values: &Values) -> Option<Train> {
    let real = |key: &str| values.real(&format!("train.optimizer.{key}"));
    Some(Train {
        optimizer: Optimizer {
            kind: match values.word("train.optimizer.kind")? {
                "sgd" => OptimizerKind::Sgd,
                "lion" => OptimizerKind::Lion,
                "lamb" => OptimizerKind::Lamb,
                _ => OptimizerKind::Adamw,
            },
            beta1: real("beta1")?,
            beta2: real("beta2").unwrap_or(0.0),
            epsilon: real("epsilon").unwrap_or(0.0),
            weight_decay: real("weight_decay")?,
        },
        batch: choice(values.get("train.batch")?, |value| value.whole().map(Samples))?,
        learning_rate: choice(values.get("train.learning_rate")?, Parsed::real)?,
        warmup: choice(values.get("train.warmup")?, |value| match value {
            Parsed::Tokens(tokens) => Some(Warmup::Tokens(Tokens(*tokens))),
            value => value.whole().map(Warmup::Steps),
        })?,
        schedule: match values.word("train.schedule")? {
            "linear" => Schedule::Linear,
            "constant" => Schedule::Constant,
            _ => Schedule::Cosine,
        },
        final_fraction: values.real("train.final_fraction")?,
        clip: match values.get("train.clip")? {
            Parsed::None => None,
            value => Some(value.real()?),
        },
        precision: choice(values.get("train.precision")?, |value| {
            Some(match value.word()? {
                "bf16" => Precision::Bf16,
                "f16" => Precision::F16,
                "fp8" => Precision::Fp8,
                _ => Precision::F32,
            })
        })?,
        fp8_recipe: values.word("train.fp8_recipe").map(|word| match word {
            "delayed" => Fp8Recipe::Delayed,
            "blockwise" => Fp8Recipe::Blockwise,
            "mxfp8" => Fp8Recipe::Mxfp8,
            _ => Fp8Recipe::Tensorwise,
        }),
        from: values.patterns("train.from").pop().map(PathBuf::from),
        seed: values.whole("train.seed")?,
    })
}

fn choice<T>(value: &Parsed, of: impl Fn(&Parsed) -> Option<T>) -> Option<Choice<T>> {
    Some(match value {
        Parsed::Auto => Choice::Auto,
        Parsed::Among(values) => Choice::Among(values.iter().map(of).collect::<Option<_>>()?),
        Parsed::Log(low, high) => Choice::Log { low: of(low)?, high: of(high)? },
        value => Choice::Pinned(of(value)?),
    })
}

fn layout(values: &Values) -> Option<LayoutPins> {
    let count = |key: &str| values.count(&format!("layout.{key}"));
    let shares = counts(values, "layout.shares");
    Some(LayoutPins {
        // One share for each replica.
        data: count("data").or_else(|| u32::try_from(shares.as_ref()?.len()).ok()),
        tensor: count("tensor"),
        pipeline: count("pipeline"),
        context: count("context"),
        expert: count("expert"),
        zero: match values.get("layout.zero")? {
            Parsed::Whole(0) => Some(ZeroStage::Zero0),
            Parsed::Whole(1) => Some(ZeroStage::Zero1),
            Parsed::Whole(2) => Some(ZeroStage::Zero2),
            Parsed::Whole(_) => Some(ZeroStage::Zero3),
            _ => None,
        },
        micro_batch: count("micro_batch"),
        recompute: match values.get("layout.recompute")?.word() {
            Some("none") => Some(Recompute::None),
            Some("selective") => Some(Recompute::Selective),
            Some(_) => Some(Recompute::Full),
            None => None,
        },
        recompute_every: count("recompute_every"),
        schedule: match values.get("layout.schedule")?.word() {
            Some("gpipe") => Some(PipelineSchedule::Gpipe),
            Some("interleaved") => Some(PipelineSchedule::Interleaved),
            Some("zero_bubble") => Some(PipelineSchedule::ZeroBubble),
            Some(_) => Some(PipelineSchedule::OneForwardOneBackward),
            None => None,
        },
        chunks: count("chunks"),
        sequence: values.get("layout.sequence")?.flag(),
        shard: count("shard"),
        shares,
    })
}

fn sync(values: &Values) -> Option<Synchronisation> {
    let local = |every| {
        Some(Local {
            every,
            outer_learning_rate: values.real("sync.outer_learning_rate")?,
            outer_momentum: values.real("sync.outer_momentum")?,
        })
    };
    Some(Synchronisation {
        compress: match values.word("sync.compress")? {
            "f16" => Compression::F16,
            "bf16" => Compression::Bf16,
            "powersgd" => Compression::PowerSgd { rank: values.count("sync.rank")? },
            "topk" => Compression::TopK { keep: values.real("sync.keep")? },
            _ => Compression::None,
        },
        local: match values.whole("sync.every")? {
            1 => None,
            every => Some(local(every)?),
        },
        staleness: values.count("sync.staleness")?,
    })
}

/// The numbers of a list; `None` where there is no list.
fn counts(values: &Values, key: &str) -> Option<Vec<u32>> {
    match values.get(key)? {
        Parsed::Wholes(numbers) => numbers.iter().map(|n| u32::try_from(*n).ok()).collect(),
        _ => None,
    }
}

fn every(values: &Values) -> Option<SaveEvery> {
    Some(match values.get("checkpoint.every")? {
        Parsed::Auto => SaveEvery::Auto,
        Parsed::Time(seconds) => SaveEvery::Time(Seconds(*seconds)),
        value => SaveEvery::Steps(value.whole()?),
    })
}

fn tune(values: &Values) -> Option<Tune> {
    Some(Tune {
        sampler: SamplerKind::named(values.word("tune.sampler")?)?,
        pruner: PrunerKind::named(values.word("tune.pruner")?)?,
        trials: values.whole("tune.trials")?,
        time: values.real("tune.time").map(Seconds),
        least: values.whole("tune.least")?,
        eta: values.count("tune.eta")?,
        threshold: values.real("tune.threshold"),
        confirm: values.count("tune.confirm")?,
    })
}

fn cluster(values: &Values, hosts: &[Named]) -> Option<Cluster> {
    let launcher = match values.word("cluster.launcher")? {
        "ssh" => Launcher::Ssh,
        "slurm" => Launcher::Slurm,
        _ => Launcher::Local,
    };
    Some(Cluster {
        launcher,
        transport: match values.word("cluster.transport") {
            Some("openssh") => Transport::OpenSsh,
            _ => Transport::Ssh2,
        },
        ranks: values.count("cluster.ranks"),
        slots: values.count("cluster.slots")?,
        devices: match values.word("cluster.devices")? {
            "cpu" => Devices::Cpu,
            "gpu" => Devices::Gpu,
            "cuda" => Devices::Cuda,
            _ => Devices::Auto,
        },
        hosts: hosts.iter().map(|named| named.host.clone()).collect(),
        slurm: if launcher == Launcher::Slurm { Some(slurm(values)?) } else { None },
        mtbf: values.real("cluster.mtbf").map(Seconds),
        probe: values.real("cluster.probe").map(Seconds),
        price: values.real("cluster.price"),
        network: values.text("cluster.network").and_then(|text| text.parse().ok()),
        lost_after: values.real("cluster.lost_after").map(Seconds),
    })
}

fn slurm(values: &Values) -> Option<Slurm> {
    let texts = |key| match values.get(key) {
        Some(Parsed::Texts(texts)) => texts.clone(),
        _ => Vec::new(),
    };
    Some(Slurm {
        nodes: values.count("cluster.slurm.nodes")?,
        partition: values.text("cluster.slurm.partition"),
        account: values.text("cluster.slurm.account"),
        time: values.real("cluster.slurm.time").map(Seconds),
        options: texts("cluster.slurm.options"),
        environment: texts("cluster.slurm.environment"),
    })
}
