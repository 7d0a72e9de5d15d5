//! Partitions the layers of a model among unequal stages, so that the slowest stage is as fast as possible.

/// Time per layer of one stage, and the number of layers it can hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageCapacity {
    /// Seconds that the stage takes for each layer.
    pub layer: f64,
    /// Seconds of the embedding and the head, as far as they are on the stage.
    pub extra: f64,
    /// Highest number of layers that fit into the memory of the stage.
    pub most: u32,
}

impl StageCapacity {
    /// Returns the seconds that the stage takes with the given number of layers.
    pub(super) fn seconds(&self, layers: u32) -> f64 {
        f64::from(layers) * self.layer + self.extra
    }

    /// Returns the number of layers that the stage computes in at most `longest` seconds: at least one, and
    /// no more than fit into its memory.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "what is out of range is clamped"
    )]
    fn within(&self, longest: f64) -> u32 {
        let about = ((longest - self.extra) / self.layer + 1e-9).floor() as u32;
        let layers = about.clamp(1, self.most);
        if layers > 1 && self.seconds(layers) > longest { layers - 1 } else { layers }
    }
}

/// Partitions `layers` among stages, at least one each, so that the slowest stage is as fast as possible,
/// then so that the sum of all stages is lowest. `None` if memory does not suffice.
pub fn partition(layers: u32, rooms: &[StageCapacity]) -> Option<Vec<u32>> {
    let room: u64 = rooms.iter().map(|room| u64::from(room.most.min(layers))).sum();
    let is_full = rooms.iter().any(|room| room.most == 0);
    if is_full || room < layers.into() || rooms.len() as u64 > layers.into() {
        return None;
    }
    let longest = longest(layers, rooms);
    let mut laid: Vec<u32> = rooms.iter().map(|room| room.within(longest)).collect();
    // Takes surplus layers from where that saves most; among equals from the fullest stage, then from the
    // first.
    for _ in layers..laid.iter().sum() {
        let stages = (0..laid.len()).rev().filter(|stage| laid[*stage] > 1);
        let from =
            stages.max_by(|a, b| rooms[*a].layer.total_cmp(&rooms[*b].layer).then(laid[*a].cmp(&laid[*b])));
        laid[from.expect("there are at least as many layers as stages")] -= 1;
    }
    Some(laid)
}

/// Returns the seconds of the slowest stage if each layer in turn goes to the stage where it ends soonest.
///
/// This greedy choice is optimal, as a stage's time grows with every layer: any other partition includes a
/// layer that ends no sooner. So all layers that end before a given time can be placed at once.
fn longest(layers: u32, rooms: &[StageCapacity]) -> f64 {
    let even = even(layers.into(), rooms);
    let mut laid: Vec<u32> = rooms.iter().map(|room| room.within(even)).collect();
    if laid.iter().sum::<u32>() > layers {
        laid.fill(1);
    }
    for _ in laid.iter().sum()..layers {
        let stages = (0..laid.len()).filter(|stage| laid[*stage] < rooms[*stage].most);
        let seconds = |stage: usize| rooms[stage].seconds(laid[stage] + 1);
        let next = stages.min_by(|a, b| seconds(*a).total_cmp(&seconds(*b)));
        laid[next.expect("there is room for all layers")] += 1;
    }
    laid.iter().zip(rooms).map(|(layers, room)| room.seconds(*layers)).fold(0.0, f64::max)
}

/// Returns a lower bound on the seconds of the slowest stage, with fractional layers and no memory limit.
pub(super) fn even(layers: f64, rooms: &[StageCapacity]) -> f64 {
    let (extra, speed) = rooms
        .iter()
        .fold((0.0, 0.0), |(extra, speed), room| (extra + room.extra / room.layer, speed + 1.0 / room.layer));
    (layers + extra) / speed
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the seconds of the slowest stage, and of all stages together, for the layers `laid` on each.
    fn seconds(laid: &[u32], rooms: &[StageCapacity]) -> (f64, f64) {
        let each = laid.iter().zip(rooms).map(|(layers, room)| room.seconds(*layers));
        each.fold((0.0, 0.0), |(slowest, sum), one| (one.max(slowest), sum + one))
    }

    /// Returns every partition of `layers` among the stages `rooms`.
    fn every(layers: u32, rooms: &[StageCapacity]) -> Vec<Vec<u32>> {
        let Some((first, others)) = rooms.split_first() else {
            return if layers == 0 { vec![Vec::new()] } else { Vec::new() };
        };
        let here = 1..=first.most.min(layers);
        let all = here.flat_map(|here| {
            every(layers - here, others).into_iter().map(move |rest| [vec![here], rest].concat())
        });
        all.collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn no_other_way_to_lay_layers_is_faster(
            layers in 1u32..11,
            stages in prop::collection::vec((1u32..6, 0u32..12, 0u32..8), 1..5),
        ) {
            let room = |&(layer, extra, most): &(u32, u32, u32)| StageCapacity { layer: layer.into(), extra: extra.into(), most };
            let rooms: Vec<StageCapacity> = stages.iter().map(room).collect();
            let ways = every(layers, &rooms);
            let best = ways.iter().map(|laid| seconds(laid, &rooms)).min_by(|a, b| a.partial_cmp(b).expect("finite"));
            let found = partition(layers, &rooms);
            prop_assert_eq!(found.as_ref().map(|laid| laid.iter().sum()), best.map(|_| layers));
            prop_assert_eq!(found.map(|laid| seconds(&laid, &rooms)), best);
        }
    }

    #[test]
    fn a_stage_of_half_the_speed_has_half_the_layers() {
        let room = |layer| StageCapacity { layer, extra: 0.0, most: 100 };
        assert_eq!(partition(12, &[room(1.0), room(2.0)]), Some(vec![8, 4]));
        assert_eq!(partition(126, &[room(0.1); 8]), Some(vec![15, 15, 16, 16, 16, 16, 16, 16]));
    }
}
