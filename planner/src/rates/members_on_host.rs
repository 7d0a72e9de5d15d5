//! Spread of a group of ranks over hosts.

use crate::step::traffic::CommunicationOp;
use dtrain_protocol::{Arrangement, Axis, Channel};

/// Returns the number of members of a group that share a host, of a transfer in `arrangement` with
/// `ranks_per_host` ranks on each host. Hosts are filled one after the other; a group whose members are
/// unevenly apart is taken as if they were all as far apart as the nearest two.
pub(crate) fn members_on_host(
    transfer: &CommunicationOp,
    arrangement: &Arrangement,
    ranks_per_host: u32,
) -> u32 {
    ranks_per_host.div_ceil(distance(transfer.channel, arrangement)).clamp(1, transfer.ranks.max(1))
}

/// Returns the distance between two neighboring members of a group, in ranks. Ranks are numbered along the
/// tensor axis first, then along context, expert, data and pipeline.
fn distance(channel: Channel, arrangement: &Arrangement) -> u32 {
    let degree = |axis| arrangement.layout.degree(axis);
    let (tensor, context, expert) = (degree(Axis::Tensor), degree(Axis::Context), degree(Axis::Expert));
    match channel {
        Channel::World | Channel::Tensor => 1,
        Channel::Context | Channel::Replicas | Channel::Shard | Channel::Weights => tensor,
        Channel::Expert => tensor * context,
        Channel::ExpertReplicas | Channel::ExpertShard | Channel::ExpertWeights if context > 1 => tensor,
        Channel::ExpertReplicas | Channel::ExpertShard | Channel::ExpertWeights => tensor * expert,
        Channel::AcrossShards | Channel::AcrossExpertShards => tensor * arrangement.shard,
        Channel::Pipeline => tensor * context * expert * degree(Axis::Data),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::traffic::{CollectiveKind, TrafficPurpose, TransferPhase};
    use dtrain_protocol::{Layout, Rank};
    use std::num::NonZeroU32;

    #[test]
    fn members_are_counted_as_the_layout_numbers_its_ranks() {
        let degree = |degree| NonZeroU32::new(degree).expect("positive");
        for [tensor, data, pipeline, per_host] in
            [[1, 4, 1, 1], [2, 4, 1, 4], [2, 2, 4, 8], [4, 2, 2, 2], [1, 16, 1, 8]]
        {
            let layout = Layout {
                tensor: degree(tensor),
                pipeline: degree(pipeline),
                ..Layout::replicas(degree(data))
            };
            let arrangement = Arrangement { layout, ..Arrangement::SINGLE };
            for channel in [Channel::World, Channel::Tensor, Channel::Replicas, Channel::Pipeline] {
                let group = layout.group(Rank(0), channel.axes());
                let ranks = u32::try_from(group.len()).expect("few");
                let transfer = CommunicationOp {
                    purpose: TrafficPurpose::Gradients,
                    when: TransferPhase::Step,
                    kind: CollectiveKind::AllReduce,
                    channel,
                    ranks,
                    values: 1,
                    times: 1,
                };
                let counted = group.iter().filter(|rank| rank.0 < per_host).count();
                let found = members_on_host(&transfer, &arrangement, per_host);
                assert_eq!(found as usize, counted, "{layout}, {per_host} on a host, {channel:?}");
            }
        }
    }
}
