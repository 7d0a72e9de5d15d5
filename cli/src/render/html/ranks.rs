//! Charts of each rank's measured step time and memory, below the predicted values.

use super::{StackPart, StageMemoryBar, bars, bytes};
use crate::render::number::seconds;
use crate::render::phases::{PHASES, PhaseColumn, predicted as planned};
use dtrain_planner::{MemoryBreakdown, TimeBreakdown};
use dtrain_protocol::Rank;
use dtrain_runner::ledger::{TrialDetails, TypicalStep};

/// Maximum number of ranks that are drawn.
const RANKS_MOST: usize = 32;

/// Returns the maximum of the series `key` for each rank.
fn by_rank(trial: &TrialDetails, key: &str) -> Vec<(Rank, f64)> {
    let of = trial.figures.iter().filter(|summary| summary.key == key);
    of.filter_map(|summary| Some((summary.rank, summary.max?))).collect()
}

fn part(name: &str, value: f64, words: String, tone: &'static str) -> StackPart {
    StackPart { name: name.to_owned(), value, words, tone }
}

/// Draws bars of the plan and of the ranks; of too many ranks, those with the largest values.
fn bars_of(
    plan: Option<Vec<StackPart>>,
    mut ranks: Vec<StageMemoryBar>,
    what: &str,
    words: fn(f64) -> String,
) -> String {
    let all = ranks.len();
    if ranks.iter().all(|rank| rank.total() <= 0.0) {
        return String::new();
    }
    if all > RANKS_MOST {
        ranks.sort_by(|a, b| b.total().total_cmp(&a.total()));
        ranks.truncate(RANKS_MOST);
    }
    let plan = plan.map(|parts| StageMemoryBar { name: "plan".to_owned(), parts });
    let told = if all > RANKS_MOST {
        format!("<p class=\"none\">the {RANKS_MOST} largest of {all} ranks</p>\n")
    } else {
        String::new()
    };
    bars::ranks(plan, ranks, what, words) + &told
}

/// Draws the seconds that each rank spends in each phase of a step.
pub(super) fn phases(trial: &TrialDetails, typical: &[TypicalStep]) -> String {
    let plan: Option<TimeBreakdown> = planned(trial, "breakdown");
    let tones = ["forward", "backward", "sent", "idle", "optimizer", "overhead"];
    let all: Vec<_> = PHASES.iter().zip(tones).collect();
    let plan = plan.map(|plan| {
        let parts = all.iter().map(|((name, _, of), tone)| part(name, of(&plan), seconds(of(&plan)), tone));
        parts.collect()
    });
    let ranks = typical.iter().map(|TypicalStep { rank, times }| {
        let phase = |((name, of, _), tone): &(&PhaseColumn, &'static str)| {
            part(name, of(times), seconds(of(times)), tone)
        };
        let mut parts: Vec<StackPart> = all.iter().map(phase).collect();
        let rest = times.step - times.parts();
        if rest > 0.01 * times.step {
            parts.push(part("rest", rest, seconds(rest), "messages"));
        }
        StageMemoryBar { name: format!("rank {}", rank.0), parts }
    });
    bars_of(plan, ranks.collect(), "time of a step of each rank by phase", seconds)
}

/// Draws the memory of each rank by category, in bytes.
pub(super) fn memory(trial: &TrialDetails) -> String {
    let plan: Option<MemoryBreakdown> = planned(trial, "memory");
    let words = ["weights", "gradients", "optimizer", "activations, rest"];
    let tones = ["weights", "gradients", "optimizer", "forward"];
    let parts = |values: [f64; 4]| -> Vec<StackPart> {
        let named = words.into_iter().zip(values).zip(tones);
        named.map(|((name, value), tone)| part(name, value, bytes(value), tone)).collect()
    };
    let plan = plan.map(|plan| {
        let [weights, gradients, optimizer] =
            [plan.weights, plan.gradients, plan.optimizer].map(super::whole);
        let rest = super::whole(plan.total()) - weights - gradients - optimizer;
        parts([weights, gradients, optimizer, rest])
    });
    let held = ["weights_bytes", "gradients_bytes", "optimizer_bytes"].map(|key| by_rank(trial, key));
    let ranks = by_rank(trial, "memory_bytes").into_iter().map(|(rank, peak)| {
        let of =
            |all: &Vec<(Rank, f64)>| all.iter().find(|(of, _)| *of == rank).map_or(0.0, |(_, most)| *most);
        let [weights, gradients, optimizer] = [of(&held[0]), of(&held[1]), of(&held[2])];
        let rest = (peak - weights - gradients - optimizer).max(0.0);
        StageMemoryBar {
            name: format!("rank {}", rank.0),
            parts: parts([weights, gradients, optimizer, rest]),
        }
    });
    bars_of(plan, ranks.collect(), "peak memory of each rank by category", bytes)
}
