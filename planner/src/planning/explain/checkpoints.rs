//! Describes the checkpoints of a training, and the expected cost of host failures.

use super::after;
use crate::planning::plan::{Plan, RankedCandidate};
use crate::text::{row, whole};
use crate::training::checkpoint_interval::{CheckpointInterval, CheckpointReason, HOLD_SHARE};
use crate::training::goodput::RESTART_SECONDS;
use dtrain_recipes::Seconds;
use dtrain_recipes::number_format::thousands;

/// Appends the rows about checkpoints to `text`, and those about failures where the recipe sets the rate of
/// host failures.
pub(super) fn write_checkpoints(text: &mut String, plan: &Plan, best: &RankedCandidate) {
    let pace = &best.run_length;
    let apart = Seconds(whole(pace.save_every.min(pace.schedule_steps)) * best.price().step.0);
    let why = pace.checkpointing.map_or_else(String::new, |saving| format!(": {}", reason(&saving, plan)));
    row(text, "checkpoint", &format!("{} (about {apart}){why}", after(pace.save_every, pace)));
    let (Some(share), Some(mtbf)) =
        (pace.checkpointing.and_then(|saving| saving.goodput), plan.recipe.cluster.mtbf)
    else {
        return;
    };
    let failures = best.price().total.0 / share * f64::from(plan.recipe.cluster.host_count()) / mtbf.0;
    row(
        text,
        "goodput",
        &format!(
            "{:.1} % of the time is useful if a host fails every {mtbf} and a restart takes {}: {} \
            failures expected",
            100.0 * share,
            Seconds(RESTART_SECONDS),
            failure_count(failures)
        ),
    );
}

fn reason(saving: &CheckpointInterval, plan: &Plan) -> String {
    let held = format!("each takes {}", Seconds(saving.stall_seconds));
    match saving.reason {
        CheckpointReason::Recipe => format!("set by the recipe; {held}"),
        CheckpointReason::ShortRun => "the run is short".into(),
        CheckpointReason::LostWork => format!("{held}, and a killed run loses no more"),
        CheckpointReason::Overhead => {
            format!("{held}, and more frequent ones would take over {:.0} % of the time", 100.0 * HOLD_SHARE)
        }
        CheckpointReason::Failures => {
            let host = plan.recipe.cluster.mtbf.unwrap_or(Seconds(crate::training::mtbf::HOST_MTBF_SECONDS));
            format!("{held}, and a host fails every {host}")
        }
    }
}

/// Formats a number of failures: `1,014`, `13.3` or `0.25`; in words for the extremes.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is between 100 and 1e12")]
pub(crate) fn failure_count(failures: f64) -> String {
    match failures {
        countless if countless >= 1e12 => "countless".into(),
        many if many >= 100.0 => thousands(many.round() as u64),
        some if some >= 1.0 => format!("{some:.1}"),
        few if few >= 0.01 => format!("{few:.2}"),
        _ => "hardly any".into(),
    }
}
