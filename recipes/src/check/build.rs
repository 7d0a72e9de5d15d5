//! Builds the typed recipe from checked values. A `None` in this module means a mistake in the table of keys.

mod model;

use super::hosts::DeclaredHost;
use super::parsed::{DeclaredParam, ParsedValue};
use super::values::ParsedValues;
use crate::cluster::{Cluster, LauncherKind, Slurm};
use crate::data::{Columns, Data, DataFormat, DataKind, Documents, Separator, Tokenizer, ValidationSource};
use crate::gpu_facts::GpuFacts;
use crate::keys::Kind;
use crate::notice::{NoticePoll, NoticeQuery, NoticeUrl};
use crate::objective::{Metric, Objective, StopConditions};
use crate::params::{ParamRange, ParamValue, resolve_params};
use crate::recipe::{CheckpointSchedule, Interval, LayoutPins, Recipe, ValidationSchedule, ZeroStage};
use crate::state::StatePins;
use crate::sync::{Compression, CompressionKind, DiLoCo, Synchronisation};
use crate::train::{Optimizer, Train, Warmup};
use crate::tunable::Tunable;
use crate::tune::Tune;
use crate::units::{Bytes, Samples, Seconds, Tokens};
use crate::workdir::Workdir;
use std::collections::BTreeMap;
use std::path::PathBuf;

pub(super) fn recipe(values: &ParsedValues, hosts: &[DeclaredHost]) -> Option<Recipe> {
    let (params, ranges) = params(values);
    Some(Recipe {
        name: values.text("name")?,
        engine: values.one_of("engine").unwrap_or_default(),
        params,
        ranges,
        model: model::model(values)?,
        data: if values.kind? == Kind::Command { None } else { Some(data(values)?) },
        objective: objective(values)?,
        train: train(values)?,
        layout: layout(values)?,
        sync: if values.kind? == Kind::Command { Synchronisation::EXACT } else { sync(values)? },
        checkpoint: CheckpointSchedule {
            every: every(values, "checkpoint.every")?,
            keep: values.count("checkpoint.keep")?,
        },
        validation: validation(values)?,
        tune: tune(values)?,
        cluster: cluster(values, hosts)?,
    })
}

/// Returns the value of each declared param, and the range of each param that has one.
fn params(values: &ParsedValues) -> (BTreeMap<String, ParamValue>, BTreeMap<String, ParamRange>) {
    let (mut pinned, mut ranges) = (BTreeMap::new(), BTreeMap::new());
    if let Some(ParsedValue::Params(params)) = values.get("params") {
        for (name, (param, _)) in params {
            match param {
                DeclaredParam::Value(value) => drop(pinned.insert(name.clone(), value.clone())),
                DeclaredParam::Range(range) => drop(ranges.insert(name.clone(), range.clone())),
            }
        }
    }
    (resolve_params(pinned, &ranges), ranges)
}

fn data(values: &ParsedValues) -> Option<Data> {
    let format = match values.one_of("data.format")? {
        DataKind::Text => text(values, Documents::Files)?,
        DataKind::Jsonl => text(values, Documents::JsonLines(values.text("data.field")?))?,
        DataKind::Parquet if values.reads_tokens() => {
            text(values, Documents::Parquet(values.text("data.field")?))?
        }
        DataKind::Parquet => DataFormat::Parquet(columns(values)?),
        DataKind::Chat => DataFormat::Chat {
            tokenizer: values.patterns("data.tokenizer").pop()?,
            template: values.patterns("data.template").pop(),
            loss_on: values.one_of("data.loss_on")?,
            packing: values.flag("data.packing")?,
        },
        DataKind::Tokens => DataFormat::Tokens { tokenizer: values.patterns("data.tokenizer").pop() },
        DataKind::Csv => DataFormat::Csv(columns(values)?),
        DataKind::Idx => DataFormat::Idx {
            labels: values.patterns("data.labels"),
            valid_labels: values.patterns("data.valid_labels"),
        },
        DataKind::Images => DataFormat::Images { resize: values.flag("data.resize")? },
    };
    let valid = match values.get("data.valid")? {
        ParsedValue::Files(_) => ValidationSource::Files(values.patterns("data.valid")),
        share => ValidationSource::Fraction(share.real()?),
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

fn text(values: &ParsedValues, documents: Documents) -> Option<DataFormat> {
    let tokenizer = match values.get("data.tokenizer")? {
        ParsedValue::Bytes => Tokenizer::Bytes,
        ParsedValue::Bpe(vocab) => Tokenizer::Bpe(*vocab),
        file => Tokenizer::File(file.files()?.into_iter().next()?),
    };
    let separator = match values.get("data.separator")? {
        ParsedValue::Auto => Separator::Auto,
        ParsedValue::None => Separator::None,
        text => Separator::Text(text.text()?.to_owned()),
    };
    Some(DataFormat::Text { tokenizer, documents, separator })
}

fn columns(values: &ParsedValues) -> Option<Columns> {
    let ignore = match values.get("data.ignore") {
        Some(names) => names.texts()?,
        None => Vec::new(),
    };
    Some(Columns { target: values.text("data.target")?, ignore })
}

fn objective(values: &ParsedValues) -> Option<Objective> {
    let whole = |key: &str| values.whole(&format!("objective.stop.{key}"));
    Some(Objective {
        metric: Metric::from(values.text("objective.metric")?),
        goal: values.one_of("objective.goal"),
        stop: StopConditions {
            steps: whole("steps"),
            samples: whole("samples").map(Samples),
            tokens: whole("tokens").map(Tokens),
            epochs: values.real("objective.stop.epochs"),
            time: values.real("objective.stop.time").map(Seconds),
            target: values.real("objective.stop.target"),
        },
    })
}

fn train(values: &ParsedValues) -> Option<Train> {
    let real = |key: &str| values.real(&format!("train.optimizer.{key}"));
    Some(Train {
        optimizer: Optimizer {
            kind: values.one_of("train.optimizer.kind")?,
            beta1: real("beta1")?,
            beta2: real("beta2").unwrap_or(0.0),
            epsilon: real("epsilon").unwrap_or(0.0),
            weight_decay: real("weight_decay")?,
        },
        batch: choice(values.get("train.batch")?, |value| value.whole().map(Samples))?,
        learning_rate: choice(values.get("train.learning_rate")?, ParsedValue::real)?,
        warmup: choice(values.get("train.warmup")?, |value| match value {
            ParsedValue::Tokens(tokens) => Some(Warmup::Tokens(Tokens(*tokens))),
            value => value.whole().map(Warmup::Steps),
        })?,
        schedule: values.one_of("train.schedule")?,
        final_fraction: values.real("train.final_fraction")?,
        clip: match values.get("train.clip")? {
            ParsedValue::None => None,
            value => Some(value.real()?),
        },
        // Decoders alone have a default.
        z_loss: values.real("train.z_loss").unwrap_or(0.0),
        precision: choice(values.get("train.precision")?, ParsedValue::one_of)?,
        fp8_recipe: values.one_of("train.fp8_recipe"),
        from: values.patterns("train.from").pop().map(PathBuf::from),
        state: StatePins {
            weights: values.one_of("train.state.weights").unwrap_or_default(),
            gradients: values.one_of("train.state.gradients"),
            moments: values.one_of("train.state.moments").unwrap_or_default(),
            offload: values.one_of("train.state.offload"),
            loss: values.one_of("train.state.loss"),
            attention: values.one_of("train.state.attention"),
        },
        seed: values.whole("train.seed")?,
    })
}

fn choice<T>(value: &ParsedValue, of: impl Fn(&ParsedValue) -> Option<T>) -> Option<Tunable<T>> {
    Some(match value {
        ParsedValue::Auto => Tunable::Auto,
        ParsedValue::Among(values) => Tunable::Among(values.iter().map(of).collect::<Option<_>>()?),
        ParsedValue::Log(low, high) => Tunable::Log { low: of(low)?, high: of(high)? },
        value => Tunable::Pinned(of(value)?),
    })
}

fn layout(values: &ParsedValues) -> Option<LayoutPins> {
    let count = |key: &str| values.count(&format!("layout.{key}"));
    let shares = counts(values, "layout.shares");
    Some(LayoutPins {
        // `layout.shares` has one entry per replica, so its length gives the data-parallel degree.
        data: count("data").or_else(|| u32::try_from(shares.as_ref()?.len()).ok()),
        tensor: count("tensor"),
        pipeline: count("pipeline"),
        context: count("context"),
        expert: count("expert"),
        zero: match values.get("layout.zero")? {
            ParsedValue::Auto => None,
            stage => Some(ZeroStage::of(stage.whole()?)?),
        },
        micro_batch: count("micro_batch"),
        recompute: values.one_of("layout.recompute"),
        recompute_every: count("recompute_every"),
        schedule: values.one_of("layout.schedule"),
        chunks: count("chunks"),
        sequence: values.get("layout.sequence")?.flag(),
        shard: count("shard"),
        shares,
    })
}

fn sync(values: &ParsedValues) -> Option<Synchronisation> {
    let local = |every| {
        Some(DiLoCo {
            every,
            outer_learning_rate: values.real("sync.outer_learning_rate")?,
            outer_momentum: values.real("sync.outer_momentum")?,
        })
    };
    Some(Synchronisation {
        compress: match values.one_of("sync.compress")? {
            CompressionKind::None => Compression::None,
            CompressionKind::F16 => Compression::F16,
            CompressionKind::Bf16 => Compression::Bf16,
            CompressionKind::PowerSgd => Compression::PowerSgd { rank: values.count("sync.rank")? },
            CompressionKind::TopK => Compression::TopK { keep: values.real("sync.keep")? },
        },
        local: match values.whole("sync.every")? {
            1 => None,
            every => Some(local(every)?),
        },
        staleness: values.count("sync.staleness")?,
    })
}

/// Returns the numbers in the list at `key`; `None` if its value is not a list of numbers.
fn counts(values: &ParsedValues, key: &str) -> Option<Vec<u32>> {
    let ParsedValue::Wholes(numbers) = values.get(key)? else { return None };
    numbers.iter().map(|n| u32::try_from(*n).ok()).collect()
}

fn validation(values: &ParsedValues) -> Option<ValidationSchedule> {
    let samples = match values.get("validation.samples")? {
        ParsedValue::Auto => None,
        value => Some(Samples(value.whole()?)),
    };
    Some(ValidationSchedule { every: every(values, "validation.every")?, samples })
}

fn every(values: &ParsedValues, key: &str) -> Option<Interval> {
    Some(match values.get(key)? {
        ParsedValue::Auto => Interval::Auto,
        ParsedValue::Time(seconds) => Interval::Time(Seconds(*seconds)),
        value => Interval::Steps(value.whole()?),
    })
}

fn tune(values: &ParsedValues) -> Option<Tune> {
    Some(Tune {
        sampler: values.one_of("tune.sampler")?,
        pruner: values.one_of("tune.pruner")?,
        trials: values.whole("tune.trials")?,
        time: values.real("tune.time").map(Seconds),
        min_steps: values.whole("tune.min_steps")?,
        eta: values.count("tune.eta")?,
        threshold: values.real("tune.threshold"),
        confirm: values.count("tune.confirm")?,
    })
}

fn cluster(values: &ParsedValues, hosts: &[DeclaredHost]) -> Option<Cluster> {
    let launcher = values.one_of("cluster.launcher")?;
    Some(Cluster {
        launcher,
        // Only the SSH launcher has a transport.
        transport: values.one_of("cluster.transport").unwrap_or_default(),
        ranks: values.count("cluster.ranks"),
        slots: values.count("cluster.slots")?,
        devices: values.one_of("cluster.devices")?,
        hosts: hosts.iter().map(|named| named.host.clone()).collect(),
        slurm: if launcher == LauncherKind::Slurm { Some(slurm(values)?) } else { None },
        mtbf: values.real("cluster.mtbf").map(Seconds),
        python: values.text("cluster.python"),
        probe: values.real("cluster.probe").map(Seconds),
        price: values.real("cluster.price"),
        network: values.text("cluster.network").and_then(|text| text.parse().ok()),
        unreachable_timeout: values.real("cluster.unreachable_timeout").map(Seconds),
        least: values.count("cluster.least"),
        spares: values.count("cluster.spares")?,
        grow: values.one_of("cluster.grow")?,
        notice: notice(values),
        workdir: if values.flag("cluster.workdir.send")? { Some(workdir(values)?) } else { None },
        gpu: gpu_facts(values),
    })
}

fn gpu_facts(values: &ParsedValues) -> GpuFacts {
    let memory = match values.get("cluster.gpu.memory") {
        Some(ParsedValue::Size(bytes)) => Some(Bytes(*bytes)),
        Some(_) | None => None,
    };
    GpuFacts {
        memory,
        tflops: values.real("cluster.gpu.tflops"),
        memory_bandwidth: values.real("cluster.gpu.memory_bandwidth"),
        link: values.one_of("cluster.gpu.link"),
        link_bandwidth: values.real("cluster.gpu.link_bandwidth"),
        network: values.real("cluster.gpu.network"),
    }
}

/// Returns how hosts learn that they will be taken away; `None` if they are not asked.
fn notice(values: &ParsedValues) -> Option<NoticePoll> {
    let url = |address| {
        let headers = match values.get("cluster.notice.headers") {
            Some(ParsedValue::Environment(headers)) => headers.clone(),
            Some(_) | None => BTreeMap::new(),
        };
        NoticeQuery::Url(NoticeUrl { address, contains: values.text("cluster.notice.contains"), headers })
    };
    let query = match values.get("cluster.notice.command").and_then(ParsedValue::texts) {
        Some(argv) => NoticeQuery::Command(argv),
        None => url(values.text("cluster.notice.url")?),
    };
    Some(NoticePoll { query, every: Seconds(values.real("cluster.notice.every")?) })
}

fn workdir(values: &ParsedValues) -> Option<Workdir> {
    let exclude = match values.get("cluster.workdir.exclude") {
        None => Vec::new(),
        Some(found) => found.texts()?,
    };
    let ParsedValue::Size(limit) = values.get("cluster.workdir.limit")? else { return None };
    Some(Workdir { exclude, limit: Bytes(*limit), files: values.whole("cluster.workdir.files")? })
}

fn slurm(values: &ParsedValues) -> Option<Slurm> {
    let texts = |key| match values.get(key) {
        None => Some(Vec::new()),
        Some(found) => found.texts(),
    };
    Some(Slurm {
        nodes: values.count("cluster.slurm.nodes")?,
        partition: values.text("cluster.slurm.partition"),
        account: values.text("cluster.slurm.account"),
        time: values.real("cluster.slurm.time").map(Seconds),
        options: texts("cluster.slurm.options")?,
        environment: texts("cluster.slurm.environment")?,
    })
}
