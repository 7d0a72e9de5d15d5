//! An outlook as people read it.

use super::advice::ONE_HOST_FEWER;
use super::{Advice, Loser, Measurement, Outlook, Priced};
use crate::analytic::Config;
use crate::analytic::search::{Axis, GPIPE};
use crate::choice::explain::{Depth, causes, expected, loss, memory, row, whole};
use crate::choice::tie::Simplicity;
use crate::choice::weighed::amount;
use crate::engine::named;
use dtrain_protocol::{ContextExchange, Ends, RankOrder};
use dtrain_recipes::count::{count, thousands};
use dtrain_recipes::{Bytes, PipelineSchedule, Recompute, Seconds, ZeroStage};

/// Losers told for one axis.
const PER_AXIS: usize = 3;

/// Bytes of a GiB.
const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

/// What was chosen, what it costs, why the others lose; with `top` of the layouts that tie with it, and of the next.
pub fn explain(outlook: &Outlook, depth: Depth, top: usize) -> String {
    let mut text = String::new();
    headline(&mut text, outlook);
    costs(&mut text, outlook);
    failures(&mut text, outlook);
    training(&mut text, outlook);
    ties(&mut text, outlook, top);
    match depth {
        Depth::Short => losers(&mut text, outlook),
        Depth::Full => losers_fully(&mut text, outlook),
    }
    advice(&mut text, outlook);
    row(&mut text, "searched", &format!("{} layouts", thousands(outlook.layouts)));
    outlook.weighed.tell(&mut text, "GPU", layout);
    summary(&mut text, outlook);
    text
}

/// The choice and what it costs in a line, for the end of a long text.
fn summary(text: &mut String, outlook: &Outlook) {
    let choice = &outlook.choice;
    let told = format!(
        "{}: {}/step, {} tokens/s per GPU, {:.1} GiB per GPU",
        layout(&choice.config),
        Seconds(choice.step_seconds),
        count(choice.tokens_per_second_per_device),
        choice.peak_bytes / GIB
    );
    let total =
        outlook.total_seconds.map_or_else(String::new, |total| format!(", {} in total", Seconds(total)));
    text.push('\n');
    row(text, "in short", &(told + &total));
}

fn headline(text: &mut String, outlook: &Outlook) {
    row(text, "outlook", &format!("{}: {}", outlook.recipe, subject(outlook)));
    row(text, "choice", &layout(&outlook.choice.config));
    if outlook.idle > 0 {
        let working = (outlook.devices - outlook.idle) / outlook.per_host;
        let hosts = outlook.devices / outlook.per_host;
        row(
            text,
            "hosts",
            &format!("{working} of {hosts} work and the others stay idle: more are no faster"),
        );
    }
    row(text, "constants", &source(outlook));
    unmeasured(text, outlook.engine);
}

/// What would narrow the interval of an engine of which no run is known.
pub(super) fn unmeasured(text: &mut String, engine: &str) {
    if named(engine).is_some_and(|engine| !engine.style().is_measured()) {
        let words = "no run of this engine on a GPU is known, so the interval is wide; on one such host `dtrain probe RECIPE` \
                     measures what `dtrain plan RECIPE` then uses there";
        row(text, "doubt", words);
    }
}

/// What is trained, and on what.
pub fn subject(outlook: &Outlook) -> String {
    let Outlook { parameters, devices, per_host, gpu, .. } = outlook;
    let devices = thousands((*devices).into());
    format!("{} parameters on {devices} {} ({per_host} a host)", count(whole(*parameters)), gpu.0)
}

/// Where the figures come from.
pub fn source(outlook: &Outlook) -> String {
    format!("{}; engine {}; not measured", outlook.gpu.1, outlook.engine)
}

fn costs(text: &mut String, outlook: &Outlook) {
    let choice = &outlook.choice;
    let (low, high) = (Seconds(choice.step_seconds_low), Seconds(choice.step_seconds_high));
    row(text, "step", &format!("{}, 80 % interval {low} to {high}", Seconds(choice.step_seconds)));
    let share = |(name, seconds): &(&str, f64)| {
        let percent = 100.0 * seconds / choice.step_seconds;
        (percent >= 0.5).then(|| format!("{name} {percent:.0} %"))
    };
    row(text, "", &choice.causes.iter().filter_map(share).collect::<Vec<_>>().join(" · "));
    let each = choice.tokens_per_second_per_device;
    row(
        text,
        "speed",
        &format!(
            "{} tokens/s per GPU, {:.0} % model FLOPs utilization",
            count(each),
            100.0 * choice.model_flops_utilization
        ),
    );
    if let (Some(steps), Some(total), Some(hours)) =
        (outlook.steps, outlook.total_seconds, outlook.device_hours)
    {
        row(
            text,
            "total",
            &format!("{} steps, {}, {} GPU hours", thousands(steps), Seconds(total), amount(hours)),
        );
        if let Some(price) = outlook.price {
            row(text, "money", &format!("{}: {} GPU hours at {price}", amount(hours * price), amount(hours)));
        }
    }
    let (bytes, most) = (choice.peak_bytes / GIB, choice.peak_bytes_high / GIB);
    row(text, "memory", &format!("{bytes:.1} GiB on the heaviest GPU (90 % below {most:.1} GiB)"));
    let held = choice.bytes.iter().filter(|(_, bytes)| *bytes > 0.005 * choice.peak_bytes);
    let held: Vec<String> = held.map(|(name, bytes)| format!("{name} {:.1} GiB", bytes / GIB)).collect();
    row(text, "", &held.join(" · "));
}

fn failures(text: &mut String, outlook: &Outlook) {
    let found = &outlook.failures;
    let host = Seconds(found.host_mtbf_seconds);
    let known = if found.is_said { "set by the recipe" } else { "assumed; set `cluster.mtbf`" };
    let often = match found.hosts {
        1 => String::new(),
        hosts => format!(", one of {} every {}", thousands(hosts.into()), Seconds(found.mtbf_seconds)),
    };
    let in_all = found.expected.map_or_else(String::new, |n| format!(", {} in total", expected(n)));
    row(
        text,
        "failures",
        &format!("a host fails every {host} ({known}){often}: {} per day{in_all}", expected(found.per_day)),
    );
    row(
        text,
        "checkpoint",
        &format!(
            "every {} steps (about {}), of {:.1} GiB; each takes {}",
            thousands(found.checkpoint_every),
            Seconds(found.checkpoint_every_seconds),
            found.checkpoint_bytes / GIB,
            Seconds(found.checkpoint_seconds)
        ),
    );
    let total = match (found.total_seconds, found.device_hours) {
        (Some(total), Some(hours)) => {
            let money =
                outlook.price.map_or_else(String::new, |price| format!(", {}", amount(hours * price)));
            format!(
                "; with failures and checkpoints {} in total, {} GPU hours{money}",
                Seconds(total),
                amount(hours)
            )
        }
        _ if outlook.steps.is_some() => "; it would never finish".into(),
        _ => String::new(),
    };
    row(
        text,
        "goodput",
        &format!(
            "{:.1} % of the time is useful if a restart takes {}, {:.1} % if hosts failed half as often{total}",
            100.0 * found.goodput,
            Seconds(found.restart_seconds),
            100.0 * found.goodput_if_rarer
        ),
    );
}

fn training(text: &mut String, outlook: &Outlook) {
    let (batch, rate) = (&outlook.batch, &outlook.learning_rate);
    row(text, "batch", &format!("{} samples: {}", thousands(batch.value), batch.reason));
    row(text, "learning rate", &format!("{}: {}", rate.value, rate.reason));
}

fn ties(text: &mut String, outlook: &Outlook, top: usize) {
    if top > 0 && !outlook.ties.is_empty() {
        row(
            text,
            "why",
            &format!("others are as fast within the error of the estimate; {}", Simplicity::RULE),
        );
    }
    for (place, tie) in outlook.ties.iter().take(top).enumerate() {
        let title = if place == 0 { "as fast" } else { "" };
        row(text, title, &line(tie));
    }
    for (place, next) in outlook.next.iter().take(top).enumerate() {
        let title = if place == 0 { "next" } else { "" };
        row(text, title, &line(next));
    }
}

/// Values that were not chosen; those that are slower for the same reason are together.
fn losers(text: &mut String, outlook: &Outlook) {
    let mut told: Vec<(String, Vec<&str>)> = Vec::new();
    for of_axis in outlook.losers.chunk_by(|a, b| a.axis == b.axis) {
        for loser in of_axis.iter().filter(|loser| loser.slower >= 0.005).take(PER_AXIS) {
            let reason = reason(loser);
            match told.iter_mut().find(|(known, _)| *known == reason) {
                Some((_, values)) => values.push(&loser.value),
                None => told.push((reason, vec![&loser.value])),
            }
        }
    }
    for (place, (reason, values)) in told.into_iter().enumerate() {
        let title = if place == 0 { "slower" } else { "" };
        row(text, title, &format!("{}: {reason}", values.join(", ")));
    }
}

/// How much slower the best layout with a value is, and what takes longer.
fn reason(loser: &Loser) -> String {
    let (name, seconds) = loser.cause;
    let slower = slower(loser.slower);
    if seconds > 0.0 {
        format!("{slower}, {name} takes {} longer", Seconds(seconds))
    } else {
        format!("{slower}, no single cause")
    }
}

/// How much slower, in words: `12 % slower`, or `2.5 times as long` from twice the time on.
pub(super) fn slower(share: f64) -> String {
    if share >= 0.995 {
        format!("{:.1} times as long", 1.0 + share)
    } else {
        format!("{:.0} % slower", 100.0 * share)
    }
}

/// Every value that was not chosen, with the best layout that has it, its memory, and everything that costs or saves time.
fn losers_fully(text: &mut String, outlook: &Outlook) {
    let ours = in_bytes(outlook.choice.peak_bytes);
    let mut last = None;
    for loser in &outlook.losers {
        let title = if last == Some(loser.axis) { "" } else { loser.axis.words() };
        last = Some(loser.axis);
        let (loss, memory) = (loss(loser.slower, loser.tie), memory(ours, in_bytes(loser.peak_bytes)));
        row(text, title, &format!("{}: {loss}, {memory}: {}", loser.value, loser.layout));
        let causes = causes(&loser.growth, outlook.choice.step_seconds);
        if !causes.is_empty() {
            row(text, "", &format!("because {causes}"));
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is a number of bytes")]
fn in_bytes(bytes: f64) -> Bytes {
    Bytes(bytes as u64)
}

fn advice(text: &mut String, outlook: &Outlook) {
    let helps = |advice: &&Advice| advice.speed >= 0.01 || advice.change == ONE_HOST_FEWER;
    for (place, advice) in outlook.advice.iter().filter(helps).enumerate() {
        let title = if place == 0 { "advice" } else { "" };
        let more = if advice.speed < 0.0 { "fewer" } else { "more" };
        let percent = 100.0 * advice.speed.abs();
        row(text, title, &format!("{}: {percent:.0} % {more} tokens/s", advice.change));
    }
    if let Some(Measurement { layout, deviation, seconds, device_hours }) = &outlook.measurement {
        let spread = 100.0 * deviation;
        let what = format!(
            "measure the choice beside {layout}: which is faster is open by {spread:.0} %; 20 steps of each take {} and \
             {} GPU hours",
            Seconds(*seconds),
            amount(*device_hours)
        );
        row(text, "measure", &what);
    }
}

fn line(priced: &Priced) -> String {
    format!(
        "{} a step, {:.1} GiB: {}",
        Seconds(priced.step_seconds),
        priced.peak_bytes / GIB,
        layout(&priced.config)
    )
}

/// A layout in words; degrees of 1 are not told.
pub fn layout(config: &Config) -> String {
    let (degrees, arrangement) = (config.degrees(), &config.arrangement);
    let degrees = [
        ("data", degrees.data),
        ("tensor", degrees.tensor),
        ("pipeline", degrees.pipeline),
        ("context", degrees.context),
        ("expert", degrees.expert),
    ];
    let degrees: Vec<String> = degrees
        .iter()
        .filter(|(_, degree)| *degree > 1)
        .map(|(axis, degree)| format!("{axis} {degree}"))
        .collect();
    let mut words = if degrees.is_empty() { "one GPU".to_owned() } else { degrees.join(" × ") };
    words += &format!(", micro-batch {}", config.micro_batch);
    if config.pipeline() > 1.0 {
        words += &format!(", {}", schedule(arrangement.schedule, arrangement.chunks));
        words += ends(arrangement.ends);
    }
    if arrangement.zero != ZeroStage::Zero0 {
        words += &format!(", zero {}", arrangement.zero as u8);
        if arrangement.shard < arrangement.replicas() {
            words += &format!(" over {}", arrangement.shard);
        }
    }
    if arrangement.sequence {
        words += ", sequence parallel";
    }
    match arrangement.recompute {
        Recompute::None => {}
        Recompute::Selective => words += ", selective recompute",
        Recompute::Full => {
            words += ", full recompute";
            if arrangement.recompute_every > 1 {
                words += &format!(" of every {} layers", arrangement.recompute_every);
            }
        }
    }
    match arrangement.context_exchange {
        ContextExchange::Ring => {}
        ContextExchange::AllGather => words += ", keys and values gathered",
        ContextExchange::AllToAll => words += ", heads exchanged",
    }
    if arrangement.expert_fold > 1 {
        words += ", experts folded over tensor and context ranks";
    }
    if arrangement.order == RankOrder::DataOutermost {
        words += ", stages within hosts";
    }
    words
}

/// What the ends of the model count as in a pipeline.
fn ends(ends: Ends) -> &'static str {
    match ends {
        Ends { embedding: 0, head: 0 } => "",
        Ends { embedding: 0, .. } => " with fewer layers in the last stage",
        Ends { head: 0, .. } => " with fewer layers in the first stage",
        Ends { .. } => " with fewer layers in the first and last stage",
    }
}

fn schedule(schedule: PipelineSchedule, chunks: u32) -> String {
    match schedule {
        PipelineSchedule::Gpipe => "gpipe".into(),
        PipelineSchedule::OneForwardOneBackward => "1f1b".into(),
        PipelineSchedule::Interleaved => format!("interleaved over {chunks} chunks"),
        PipelineSchedule::ZeroBubble => "zero bubble".into(),
    }
}

/// The value of an axis in words.
pub(super) fn value_of(axis: Axis, value: u32) -> String {
    match axis {
        Axis::Tensor => format!("tensor {value}"),
        Axis::Context => format!("context {value}"),
        Axis::Expert => format!("expert {value}"),
        Axis::Pipeline => format!("pipeline {value}"),
        Axis::Data => format!("data {value}"),
        Axis::MicroBatch => format!("micro-batch {value}"),
        Axis::Sequence if value == 0 => "no sequence parallelism".into(),
        Axis::Sequence => "sequence parallel".into(),
        Axis::Recompute => match value {
            0 => "no recompute".into(),
            1 => "selective recompute".into(),
            2 => "full recompute".into(),
            more => format!("full recompute of every {} layers", more - 1),
        },
        Axis::Exchange => ["keys and values in a ring", "keys and values gathered", "heads exchanged"]
            .get(value as usize)
            .map_or_else(String::new, |words| (*words).into()),
        Axis::Order if value == 0 => "replicas within hosts".into(),
        Axis::Order => "stages within hosts".into(),
        Axis::Shard => format!("shards over {value}"),
        Axis::Zero => format!("zero {value}"),
        Axis::Schedule => match value {
            0 => "zero bubble".into(),
            1 => "1f1b".into(),
            GPIPE => "gpipe".into(),
            chunks => format!("interleaved over {chunks} chunks"),
        },
    }
}
