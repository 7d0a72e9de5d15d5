//! Replicas that are kept alike approximately send what the planner says.

use super::Case;
use super::world::{assignments, events, write_data};
use dtrain_planner::step::traffic::Traffic;
use dtrain_protocol::Event;
use dtrain_recipes::{Compression, DiLoCo, Synchronisation};
use dtrain_worker::Slowdown;

/// Steps between two meetings of replicas that move apart.
const EVERY: u64 = 2;

#[test]
fn approximate_replicas_send_what_the_planner_says() {
    let compressions = [
        Compression::None,
        Compression::F16,
        Compression::Bf16,
        Compression::PowerSgd { rank: 3 },
        Compression::TopK { keep: 0.02 },
    ];
    let apart = DiLoCo { every: EVERY, outer_learning_rate: 0.7, outer_momentum: 0.9 };
    for case in ["2", "4", "8"].map(|data| Case::new("gpt", &[("data", data)])) {
        for compress in compressions {
            for local in [None, Some(apart)] {
                let wrong = differs(&case, Synchronisation { compress, local, staleness: 0 });
                assert!(wrong.is_empty(), "{case}: {wrong:#?}");
            }
        }
        let stale = Synchronisation { staleness: 1, ..Synchronisation::EXACT };
        let wrong = differs(&case, stale);
        assert!(wrong.is_empty(), "{case}: {wrong:#?}");
    }
}

/// The ranks that send something else in two steps than the planner says, in words.
fn differs(case: &Case, sync: Synchronisation) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder for the case");
    write_data(folder.path());
    let mut assignments = assignments(case, folder.path(), None, EVERY);
    assignments.iter_mut().for_each(|assignment| assignment.arrangement.sync = sync);
    let ranks = assignments.iter().zip(events(case, assignments.clone(), Slowdown::default()));
    let wrong = ranks.filter_map(|(assignment, events)| {
        let split = (assignment.training.micro_batch, assignment.training.micro_batches);
        let sent = |event: &Event| if let Event::Step(step) = event { Some(step.sent_bytes) } else { None };
        let sent: u64 = events.iter().filter_map(sent).sum();
        let (model, rank) = (&assignment.model, assignment.rank);
        let planned = EVERY * Traffic::of_rank(model, &assignment.arrangement, split, rank).total().0;
        (sent != planned).then(|| format!("{sync}: rank {rank} sent {sent} bytes, not {planned}"))
    });
    wrong.collect()
}
