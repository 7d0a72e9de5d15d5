//! Values that stay as they are while their owner goes on.

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;
use std::ops::Range;
use std::sync::Arc;

/// Some values as they were when this was made. It costs nothing to make unless it is a copy: whoever changes the values
/// while it lives copies them first.
#[derive(Clone, Debug)]
pub(crate) enum Snapshot {
    /// A copy.
    Copy(Vec<f32>),
    /// A copy in memory that was lent.
    Lent(Vec<f32>),
    /// Part of a vector.
    Vector(Arc<Vec<f32>>, Range<usize>),
    /// Part of a tensor on the host.
    Tensor(FlexTensor, Range<usize>),
}

impl Snapshot {
    /// Elements `range` of a tensor of one dimension, which are copied unless they lie in host memory.
    pub(crate) fn tensor(values: &Tensor<1>, range: Range<usize>, is_on_host: bool) -> Self {
        if is_on_host {
            let values = values.clone().try_into_primitive::<Flex>();
            return Self::Tensor(values.expect("the values are on the host"), range);
        }
        Self::Copy(values.clone().slice([range]).into_data().try_to_vec().expect("values are f32"))
    }

    /// A copy, in memory that `room` lends unless this is one already.
    pub(crate) fn copy(self, room: impl FnOnce() -> Vec<f32>) -> Self {
        if matches!(self, Self::Copy(_) | Self::Lent(_)) {
            return self;
        }
        let (values, mut room) = (self.as_slice(), room());
        room.clear();
        room.reserve_exact(values.len());
        room.extend_from_slice(values);
        Self::Lent(room)
    }

    /// The memory that was lent, if any was.
    pub(crate) fn give_back(self) -> Option<Vec<f32>> {
        if let Self::Lent(room) = self { Some(room) } else { None }
    }

    /// The values.
    pub(crate) fn as_slice(&self) -> &[f32] {
        match self {
            Self::Copy(values) | Self::Lent(values) => values,
            Self::Vector(values, range) => &values[range.clone()],
            Self::Tensor(values, range) => &values.storage()[range.clone()],
        }
    }
}
