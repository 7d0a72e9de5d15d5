//! Weight update: every rank updates the weights that it owns, and a rank with whole weights all-gathers
//! the others.

use super::step_totals;
use crate::mesh::Mesh;
use crate::optimizer::{StageOptimizer, WeightUpdate};
use crate::stage::Stage;
use crate::zero::ZeroShards;
use dtrain_protocol::sharding::is_sharded;
use dtrain_protocol::{Arrangement, Axis, Failure};

/// Most buckets of updated weights in flight while the next are updated.
const AHEAD: usize = 2;

/// Updates the weights of `stage` by its gradients, which are reduced over the replicas.
///
/// Counted in `planner/src/step/traffic/data_parallel.rs`, `pack`.
pub(crate) fn update(
    stage: &mut Stage,
    optimizer: &mut StageOptimizer,
    mesh: &Mesh,
    step: WeightUpdate,
) -> Result<(), Failure> {
    let directions = if optimizer.needs_lengths() && mesh.cuts_tensors() {
        let all = 0..stage.parameters().len();
        stage.gradients().to_host(all);
        let mut directions = optimizer.directions(stage, step);
        sum_over_parts(&mut directions.squares, stage, mesh)?;
        Some(directions)
    } else {
        None
    };
    let gathers = mesh.gathers_values();
    let packs = stage.shards().packs().len();
    let mut travelling = std::collections::VecDeque::new();
    let inside =
        |pack: usize, shards: &ZeroShards| mesh.sharding(shards.packs()[pack].replication()).inside();
    for pack in 0..packs {
        for index in stage.shards().packs()[pack].parameters().collect::<Vec<_>>() {
            match &directions {
                Some(directions) => optimizer.apply_direction(index, stage, directions, step.rate),
                None => optimizer.apply(index, stage, step),
            }
        }
        if gathers {
            inside(pack, stage.shards()).start_all_gather(stage.pack_values(pack));
            travelling.push_back(pack);
        }
        while travelling.len() > if pack + 1 == packs { 0 } else { AHEAD } {
            let pack = travelling.pop_front().expect("there is one that travels");
            let values = inside(pack, stage.shards()).wait()?;
            stage.unpack_values(pack, &values);
        }
    }
    Ok(())
}

/// Sums `squares`, two for each parameter, over the ranks that hold its parts.
///
/// Not counted in `planner/src/step/traffic`: two numbers of each parameter, with LAMB only.
fn sum_over_parts(squares: &mut [[f64; 2]], stage: &Stage, mesh: &Mesh) -> Result<(), Failure> {
    for (sharding, is_its) in mesh.shardings() {
        let inside = sharding.inside();
        inside.start_all_gather(rows(squares, inside.rank(), inside.ranks()));
        let its = |index: usize| is_its(Arrangement::replication(&stage.parameters()[index].name));
        add(squares, &inside.wait()?, its);
    }
    let partners = mesh.partners();
    for (axis, peers) in [(Axis::Tensor, &partners.tensor), (Axis::Expert, &partners.expert)] {
        if peers.size() > 1 {
            let mut rows = rows(squares, peers.rank(), peers.size());
            peers.all_gather(&mut rows);
            add(squares, &rows, |index| is_sharded(&stage.parameters()[index].name, axis));
        }
    }
    mesh.check()
}

/// Returns a table with one row for each rank, of which this rank fills its own: every square as two `f32`.
fn rows(squares: &[[f64; 2]], rank: u32, ranks: u32) -> Vec<f32> {
    let own: Vec<f32> = squares.iter().flatten().flat_map(|square| step_totals::halves(*square)).collect();
    let mut rows = vec![0.0; own.len() * ranks as usize];
    rows[rank as usize * own.len()..][..own.len()].copy_from_slice(&own);
    rows
}

/// Replaces the squares of the parameters that are `cut` by the sums over all rows, in the order of ranks.
fn add(squares: &mut [[f64; 2]], rows: &[f32], cut: impl Fn(usize) -> bool) {
    let width = 4 * squares.len();
    for (index, square) in squares.iter_mut().enumerate().filter(|(index, _)| cut(*index)) {
        *square = [0.0; 2];
        for row in rows.chunks_exact(width.max(1)) {
            for (sum, halves) in square.iter_mut().zip(row[4 * index..][..4].chunks_exact(2)) {
                *sum += f64::from(halves[0]) + f64::from(halves[1]);
            }
        }
    }
}
