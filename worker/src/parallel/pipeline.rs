//! Point-to-point pipeline messages between neighboring stages: activations to the next stage, their
//! gradients to the previous one.

use crate::comm::{Incoming, Outgoing};
use crate::mesh::Peers;
use burn::tensor::{Device, Tensor};
use dtrain_protocol::{Neighbor, Pass};
use std::collections::BTreeMap;

/// The pipeline messages of one rank, from their computation until they are used.
#[derive(Debug)]
pub(crate) struct PipelineMessages {
    peers: Peers,
    device: Device,
    /// Results that this rank computed and has not sent yet, by receiver and pass.
    outbox: BTreeMap<(Neighbor, Pass), Tensor<3>>,
    /// Messages that this rank received and has not used yet, by sender and pass.
    inbox: BTreeMap<(Neighbor, Pass), Tensor<3>>,
}

impl PipelineMessages {
    /// Creates an empty set of messages. `peers` is the group of the pipeline's stages, in order.
    pub(crate) fn new(peers: Peers, device: &Device) -> Self {
        Self { peers, device: device.clone(), outbox: BTreeMap::new(), inbox: BTreeMap::new() }
    }

    /// Stores the result of `pass` until it is sent to `to`.
    pub(crate) fn give(&mut self, to: Neighbor, pass: Pass, result: Tensor<3>) {
        self.outbox.insert((to, pass), result);
    }

    /// Takes the message received from `from` for `pass`, if there is one.
    pub(crate) fn take(&mut self, from: Neighbor, pass: Pass) -> Option<Tensor<3>> {
        self.inbox.remove(&(from, pass))
    }

    /// Sends the result of one pass and receives, in the same call, the input of another pass. `recv` has the
    /// shape of the received tensor. Panics if there is no result to send.
    ///
    /// Counted in `planner/src/step/traffic/model_parallel.rs`, `messages`.
    pub(crate) fn exchange(&mut self, with: Neighbor, send: Option<Pass>, recv: Option<(Pass, [usize; 3])>) {
        let (rank, size) = (self.peers.rank(), self.peers.size());
        let other = match with {
            Neighbor::Next => (rank + 1) % size,
            Neighbor::Previous => (rank + size - 1) % size,
        };
        let sent = send.map(|pass| {
            let result = self.outbox.remove(&(with, pass));
            let result = result.unwrap_or_else(|| panic!("{pass:?} has no result to send"));
            (other, result.flatten(0, 2))
        });
        let length = recv.map(|(_, shape)| (other, shape.iter().product()));
        let received = self.peers.exchange_tensors(sent, length, &self.device);
        if let Some(((pass, shape), received)) = recv.zip(received) {
            self.inbox.insert((with, pass), received.reshape(shape));
        }
    }

    /// Drops every message, because a step that ended early may have left some.
    pub(crate) fn clear(&mut self) {
        self.outbox.clear();
        self.inbox.clear();
    }

    /// Adds to `values` those of the stage at the other end of the pipeline, which calls this at the same
    /// time. Both stages get the same bits.
    ///
    /// Counted in `planner/src/step/traffic/data_parallel.rs`, `tied`.
    pub(crate) fn sum_with_other_end(&self, values: &mut [f32]) {
        let last = self.peers.size() - 1;
        let other = if self.peers.rank() == 0 { last } else { 0 };
        let mut theirs = vec![0.0; values.len()];
        let outgoing = Outgoing { to: other, values };
        self.peers.exchange(Some(outgoing), Some(Incoming { from: other, values: &mut theirs }));
        // Addition of two numbers does not depend on their order.
        values.iter_mut().zip(&theirs).for_each(|(own, their)| *own += their);
    }
}
