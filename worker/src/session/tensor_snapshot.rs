//! Tensor snapshots: the pieces of tensors that one rank saves in a checkpoint.

use crate::checkpoint::NamedPiece;
use crate::snapshot::Snapshot;
use dtrain_protocol::{Slice, TensorKind};

/// Some elements of one tensor, with their values after a step.
#[derive(Clone, Debug)]
pub(super) struct TensorSnapshot {
    pub(super) name: String,
    pub(super) kind: TensorKind,
    pub(super) slice: Slice,
    pub(super) values: Snapshot,
}

impl TensorSnapshot {
    pub(super) fn piece(&self) -> NamedPiece<'_> {
        let Self { name, kind, slice, values } = self;
        NamedPiece { name, kind: *kind, slice, values: values.as_slice() }
    }
}
