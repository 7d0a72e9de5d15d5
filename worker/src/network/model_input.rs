//! Model input: the samples of one forward pass.

use crate::data::{Batch, PackedDocuments};

/// The samples that one forward pass computes.
#[derive(Clone, Copy, Debug)]
pub enum ModelInput<'a> {
    /// Token sequences, and the token that follows each of their tokens; `samples · length` each.
    Tokens {
        /// Input tokens of all sequences.
        inputs: &'a [u32],
        /// The token that follows each input token.
        targets: &'a [u32],
        /// Number of sequences.
        samples: usize,
        /// Number of tokens in each sequence.
        length: usize,
        /// Documents of packed sequences; `None` if each sequence is one document.
        packed: Option<&'a PackedDocuments>,
    },
    /// Rows of a table, or images as rows `[channels, height, width]`, with their classes.
    Rows {
        /// Values of all rows, `samples · width`.
        values: &'a [f32],
        /// Class of each row.
        classes: &'a [u32],
        /// Number of rows.
        samples: usize,
        /// Number of values in each row.
        width: usize,
    },
}

impl ModelInput<'static> {
    /// The input of a chunk without the first part of the model, which reads no samples.
    pub const NOTHING: Self = Self::Tokens { inputs: &[], targets: &[], samples: 0, length: 0, packed: None };
}

impl<'a> ModelInput<'a> {
    /// Creates a view of the samples in `batch`.
    pub(crate) fn of(batch: &'a Batch) -> Self {
        match batch {
            Batch::Tokens { inputs, targets, samples, length, packed } => {
                Self::Tokens { inputs, targets, samples: *samples, length: *length, packed: packed.as_ref() }
            }
            Batch::Rows { values, classes, samples, width } => {
                Self::Rows { values, classes, samples: *samples, width: *width }
            }
        }
    }

    /// Returns a copy of the samples' inputs, without targets.
    pub(crate) fn inputs(&self) -> Batch {
        match *self {
            Self::Tokens { inputs, samples, length, packed, .. } => Batch::Tokens {
                inputs: inputs.to_vec(),
                targets: Vec::new(),
                samples,
                length,
                packed: packed.cloned(),
            },
            Self::Rows { values, samples, width, .. } => {
                Batch::Rows { values: values.to_vec(), classes: Vec::new(), samples, width }
            }
        }
    }

    /// Returns the documents of packed sequences; `None` if each sequence is one document.
    pub(crate) fn packed(&self) -> Option<&'a PackedDocuments> {
        match *self {
            Self::Tokens { packed, .. } => packed,
            Self::Rows { .. } => None,
        }
    }

    /// Returns the targets of the samples: next tokens or classes.
    pub(crate) fn targets(&self) -> &'a [u32] {
        match self {
            Self::Tokens { targets, .. } => targets,
            Self::Rows { classes, .. } => classes,
        }
    }
}
