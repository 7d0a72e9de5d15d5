//! Replica check: compares the weights of the replicas, as a bit flip in the memory of one would go
//! unnoticed.

use crate::stage::Stage;
use crate::train_step::Replica;
use dtrain_protocol::{Assignment, Channel, Failure, Rank, StepId};
use dtrain_recipes::ZeroStage;

/// Number of steps between two comparisons; the next one is made when a checkpoint is saved.
pub(super) const EVERY: u64 = 100;

/// Number of `f32` values in a digest: each holds 16 bits, exactly.
const SLOTS: usize = 4;

/// Compares the weights of all replicas before they are saved. `Err` names the ranks that differ from the
/// majority.
///
/// Called by all ranks at the same step, with nothing in flight. Weights that are sharded, or that replicas
/// update locally, are not compared: no two ranks hold the same.
///
/// Not counted in `planner/src/step/traffic`: four numbers of each replica, with a checkpoint.
pub(super) fn check(replica: &Replica<'_>, assignment: &Assignment, step: StepId) -> Result<(), Failure> {
    let Assignment { arrangement, rank, .. } = assignment;
    let queue = replica.mesh.replicas();
    let hold_all = arrangement.zero != ZeroStage::Zero3 && arrangement.layout.expert.get() == 1;
    if queue.ranks() == 1 || !hold_all || replica.outer.is_some() {
        return Ok(());
    }
    let mut rows = vec![0.0; SLOTS * queue.ranks() as usize];
    rows[SLOTS * queue.rank() as usize..][..SLOTS].copy_from_slice(&digest(&replica.stage));
    queue.start_all_gather(rows);
    let rows = queue.wait()?;
    let rows: Vec<&[f32]> = rows.chunks_exact(SLOTS).collect();
    let members = arrangement.layout.group(*rank, Channel::Replicas.axes());
    match differing(&rows) {
        None => Ok(()),
        Some(odd) => Err(Failure::Other(describe_mismatch(&odd, &members, step))),
    }
}

/// Returns a 64-bit digest of all weights of a stage.
fn digest(stage: &Stage) -> [f32; SLOTS] {
    let mut hash = blake3::Hasher::new();
    for (index, parameter) in stage.parameters().iter().enumerate() {
        let values = stage.snapshot(index, 0..parameter.range.len());
        hash.update(bytemuck::cast_slice(values.as_slice()));
    }
    let bytes = *hash.finalize().as_bytes();
    [0, 2, 4, 6].map(|at| f32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]])))
}

/// Returns the indices of the digests in `rows` that differ from the majority; all if there is no
/// majority. `None` if all digests are equal.
fn differing(rows: &[&[f32]]) -> Option<Vec<usize>> {
    let alike = |row: &[f32]| rows.iter().filter(|other| **other == row).count();
    let most = *rows.iter().max_by_key(|row| alike(row))?;
    let is_majority = 2 * alike(most) > rows.len();
    let odd: Vec<usize> = (0..rows.len()).filter(|index| !is_majority || rows[*index] != most).collect();
    (!odd.is_empty()).then_some(odd)
}

fn describe_mismatch(odd: &[usize], members: &[Rank], step: StepId) -> String {
    let names: Vec<String> = odd.iter().map(|index| members[*index].to_string()).collect();
    let (names, rest) = (names.join(", "), members.len() - odd.len());
    let who = match (odd.len(), rest) {
        (_, 0) => format!("ranks {names} differ, and there is no majority to tell which is right"),
        (1, _) => {
            format!("rank {names} differs from the other {rest}; its memory or its processor may be faulty")
        }
        _ => format!("ranks {names} differ from the other {rest}; their memory or processors may be faulty"),
    };
    format!("replicas no longer hold the same weights after step {step}: {who}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_odd_ones_are_told_from_the_many() {
        let [a, b, c] = [[1.0, 2.0], [1.0, 3.0], [4.0, 2.0]];
        let check = |rows: &[[f32; 2]], expected: Option<&[usize]>| {
            let rows: Vec<&[f32]> = rows.iter().map(<[f32; 2]>::as_slice).collect();
            assert_eq!(differing(&rows).as_deref(), expected, "{rows:?}");
        };
        check(&[a, a, a], None);
        check(&[a, b, a], Some(&[1]));
        check(&[a, b, a, c, a], Some(&[1, 3]));
        check(&[a, b], Some(&[0, 1]));
        check(&[a, a, b, b], Some(&[0, 1, 2, 3]));
    }
}
