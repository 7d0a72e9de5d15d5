//! `dtrain probe`: measures the rates of hosts (speed of computation and communication).

use crate::args::ProbeArgs;
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::load_recipe::load;
use crate::output::shell_quoted;
use crate::render::number::{count, counted, seconds};
use crate::{hosts, rates, slurm_job, trials};
use dtrain_protocol::{RankRates, Rates};
use dtrain_recipes::{Bytes, Model};
use serde::Serialize;

#[derive(Serialize)]
struct MeasuredRates {
    rates: Rates,
}

/// Measures the rates of a recipe's hosts, or shows the stored ones.
pub(crate) fn run(context: &Context, args: &ProbeArgs) -> CommandResult {
    let loaded = load(context.out, &args.recipe.recipe, &args.recipe.layers, &[])?;
    let recipe = &loaded.checked.recipe;
    let model = &recipe.model;
    if let Model::Command(_) = model {
        return Err(CommandError::new(
            ExitReason::Usage,
            "cannot probe a foreign command: only dtrain's own models can be measured",
        ));
    }
    if let Some(exit) = slurm_job::submit_if_needed(context, recipe, false)? {
        return Ok(exit);
    }
    let samples = rates::count_samples(context, &loaded)?.map(|(train, _)| train);
    let mut history = trials::open_history(context)?;
    let mut others = hosts::connect_to_plan(context, recipe)?;
    let host = hosts::facts(&mut others)?;
    let settled = rates::cached_or_measured_rates(
        context,
        &mut history,
        (&host, &mut others),
        recipe,
        samples,
        args.fresh,
    )?;
    let rates =
        settled.ok_or_else(|| CommandError::new(ExitReason::Infrastructure, "nothing was measured"))?;
    if context.out.json {
        context.out.json("probe", &MeasuredRates { rates })?;
    } else {
        context.out.data(&table(&rates, model))?;
    }
    context.out.next(&format!("dtrain plan {}", shell_quoted(&args.recipe.recipe)));
    Ok(ExitReason::Done)
}

fn table(rates: &Rates, model: &Model) -> String {
    let host = &rates.host;
    let mut lines = vec![format!(
        "{}: {}, {}, {} memory",
        match host.hosts.get() {
            1 => host.name.clone(),
            hosts => format!("{hosts} × {}", host.name),
        },
        host.processor,
        counted(host.cores.into(), "core"),
        Bytes(host.memory_bytes)
    )];
    lines.extend(host.gpus.iter().map(|gpu| format!("  {}, {}", gpu.name, Bytes(gpu.memory_bytes))));
    for side_by_side in &rates.by_ranks {
        lines.extend(rank(side_by_side, model));
    }
    lines.join("\n")
}

/// Formats the measured speed of one rank, by micro-batch, and that of its all-reduce.
fn rank(rates: &RankRates, model: &Model) -> Vec<String> {
    let device = match rates.device {
        dtrain_protocol::DeviceKind::Cpu => format!("{} each", counted(rates.threads.into(), "thread")),
        dtrain_protocol::DeviceKind::Cuda | dtrain_protocol::DeviceKind::Wgpu => {
            format!("a GPU each, {}", rates.precision.name())
        }
    };
    let mut lines = vec![format!(
        "{}, {device} (spread {:.1}%)",
        counted(rates.ranks.into(), "rank"),
        rates.spread * 100.0
    )];
    let unit = if model.sample_tokens() > 1 { "tokens" } else { "samples" };
    for point in &rates.profile {
        let blocks = f64::from(model.blocks());
        let time = blocks * (point.block_forward + point.block_backward)
            + point.outer_forward
            + point.outer_backward
            + point.overhead;
        #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
        let speed =
            f64::from(rates.ranks) * f64::from(point.micro_batch) * model.sample_tokens() as f64 / time;
        let shown = seconds(time);
        lines.push(format!(
            "  micro-batch {:>4}  {shown:>9} forward and backward  {:>7} {unit}/s",
            point.micro_batch,
            count(speed)
        ));
    }
    if let Some(more) = rates.first_step_seconds {
        lines.push(format!("  first step: {} more, in which kernels are compiled and tuned", seconds(more)));
    }
    for (bytes, time) in rates.all_reduce.iter().rev().take(1) {
        #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
        let speed = count(*bytes as f64 / time);
        lines.push(format!("  all-reduce of {}: {}, {speed}B/s", Bytes(*bytes), seconds(*time)));
    }
    lines
}
