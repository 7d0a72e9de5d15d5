//! Overlap of communication with computing: what an engine hides in a training, for the price of a layout and
//! for the emitted configuration.
//!
//! Both ask the same rule, so that a plan counts on no overlap that the emitted files do not ask for.

use dtrain_protocol::Arrangement;

/// Communication that an engine overlaps with computing; what its software style never hides is unaffected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlaps {
    /// Reductions of gradients and gathers of weights among replicas.
    pub data: bool,
    /// Collectives of tensor ranks, where Megatron-LM cuts them into pieces.
    pub tensor: bool,
    /// Exchanges of tokens with experts.
    pub experts: bool,
}

impl Overlaps {
    /// All that the software style hides.
    pub const ALL: Self = Self { data: true, tensor: true, experts: true };
}

/// Returns `true` if collectives of tensor ranks can overlap with the products before and after them: with
/// sequence parallelism, where they are gathers and scatters in pieces, between ranks of one host.
pub(crate) fn is_tensor_in_pieces(arrangement: &Arrangement, ranks_per_host: u32) -> bool {
    arrangement.sequence && ranks_per_host.is_multiple_of(arrangement.layout.tensor.get())
}
