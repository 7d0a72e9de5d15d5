//! GGUF files, version 3: metadata, the list of tensors, and their values.

use super::GgufError;
use half::f16;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Multiple of bytes at which the values of every tensor begin.
const ALIGNMENT: u64 = 32;

/// Count of values that share a scale in [`Encoding::Q8`].
pub(super) const BLOCK: usize = 32;

/// Bytes of a block: its scale as f16, then a signed byte for each value.
const BLOCK_BYTES: usize = 2 + BLOCK;

/// The value of a key in a file's metadata.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum MetadataValue {
    U32(u32),
    F32(f32),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    Bools(Vec<bool>),
}

/// The way in which the values of a tensor are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    /// Four bytes a value.
    F32,
    /// Two bytes a value.
    F16,
    /// Blocks of 32 values with a common scale: 8.5 bits a value. Rows have whole blocks.
    Q8,
}

/// A function that returns the next values of a tensor.
pub(super) type Part<'a> = Box<dyn Fn() -> Result<Vec<f32>, GgufError> + 'a>;

/// A tensor of a file.
pub(super) struct OutTensor<'a> {
    pub(super) name: String,
    /// Outermost dimension first, as in safetensors; the file has them in reverse order.
    pub(super) shape: Vec<usize>,
    pub(super) encoding: Encoding,
    /// Parts of the tensor, each of whole rows; one of them at a time is in memory.
    pub(super) parts: Vec<Part<'a>>,
}

impl MetadataValue {
    /// Returns the number that a file has for the type of the value.
    fn type_id(&self) -> u32 {
        match self {
            Self::U32(_) => 4,
            Self::F32(_) => 6,
            Self::Bool(_) => 7,
            Self::Text(_) => 8,
            Self::Texts(_) | Self::I32s(_) | Self::F32s(_) | Self::Bools(_) => 9,
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::U32(value) => out.extend(value.to_le_bytes()),
            Self::F32(value) => out.extend(value.to_le_bytes()),
            Self::Bool(value) => out.push(u8::from(*value)),
            Self::Text(value) => put_text(out, value),
            Self::Texts(values) => {
                put_array(out, 8, values.len());
                values.iter().for_each(|value| put_text(out, value));
            }
            Self::I32s(values) => {
                put_array(out, 5, values.len());
                out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            }
            Self::F32s(values) => {
                put_array(out, 6, values.len());
                out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            }
            Self::Bools(values) => {
                put_array(out, 7, values.len());
                out.extend(values.iter().map(|value| u8::from(*value)));
            }
        }
    }
}

impl Encoding {
    /// Returns the number that a file has for the encoding.
    fn type_id(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q8 => 8,
        }
    }

    fn bytes(self, values: u64) -> u64 {
        match self {
            Self::F32 => 4 * values,
            Self::F16 => 2 * values,
            Self::Q8 => values / BLOCK as u64 * BLOCK_BYTES as u64,
        }
    }
}

impl OutTensor<'_> {
    fn elements(&self) -> u64 {
        self.shape.iter().map(|side| *side as u64).product()
    }
}

/// Writes the file `path` with `metadata` and `tensors`. The file is incomplete until the function
/// returns; writing it under another name and renaming it is up to the caller.
///
/// `Err` if the file cannot be written, a part of a tensor cannot be read or has another size, or a value
/// is beyond the range of the tensor's encoding.
pub(super) fn write(
    path: &Path,
    metadata: &[(String, MetadataValue)],
    tensors: &[OutTensor<'_>],
) -> Result<(), GgufError> {
    let failed = |source: io::Error| GgufError::Io { path: path.to_owned(), source };
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path).map_err(failed)?);
    file.write_all(&header(metadata, tensors)).map_err(failed)?;
    let mut encoded = Vec::new();
    for tensor in tensors {
        let mut left = tensor.elements();
        for part in &tensor.parts {
            let values = part()?;
            left = left.checked_sub(values.len() as u64).ok_or_else(|| wrong_size(tensor))?;
            encoded.clear();
            encode(tensor, &values, &mut encoded)?;
            file.write_all(&encoded).map_err(failed)?;
        }
        if left > 0 {
            return Err(wrong_size(tensor));
        }
        let bytes = tensor.encoding.bytes(tensor.elements());
        file.write_all(&zeros_after(bytes)).map_err(failed)?;
    }
    let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
    file.sync_all().map_err(failed)
}

fn wrong_size(tensor: &OutTensor<'_>) -> GgufError {
    GgufError::Tensor {
        name: tensor.name.clone(),
        detail: format!("its parts do not have the values of its shape {:?}", tensor.shape),
    }
}

/// Returns all bytes before the values of the first tensor.
fn header(metadata: &[(String, MetadataValue)], tensors: &[OutTensor<'_>]) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(3_u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        put_text(&mut out, key);
        out.extend(value.type_id().to_le_bytes());
        value.put(&mut out);
    }
    let mut offset = 0;
    for tensor in tensors {
        put_text(&mut out, &tensor.name);
        // It has at most four.
        #[expect(clippy::cast_possible_truncation, reason = "a tensor has few dimensions")]
        out.extend((tensor.shape.len() as u32).to_le_bytes());
        for side in tensor.shape.iter().rev() {
            out.extend((*side as u64).to_le_bytes());
        }
        out.extend(tensor.encoding.type_id().to_le_bytes());
        out.extend(u64::to_le_bytes(offset));
        offset += tensor.encoding.bytes(tensor.elements()).next_multiple_of(ALIGNMENT);
    }
    let padding = zeros_after(out.len() as u64);
    out.extend(padding);
    out
}

fn zeros_after(bytes: u64) -> Vec<u8> {
    (bytes..bytes.next_multiple_of(ALIGNMENT)).map(|_| 0).collect()
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_array(out: &mut Vec<u8>, type_id: u32, length: usize) {
    out.extend(type_id.to_le_bytes());
    out.extend((length as u64).to_le_bytes());
}

/// Appends `values` to `out` in the encoding of `tensor`.
fn encode(tensor: &OutTensor<'_>, values: &[f32], out: &mut Vec<u8>) -> Result<(), GgufError> {
    match tensor.encoding {
        Encoding::F32 => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        Encoding::F16 => {
            for value in values {
                out.extend(to_f16(tensor, *value)?.to_le_bytes());
            }
        }
        Encoding::Q8 => {
            let (blocks, []) = values.as_chunks::<BLOCK>() else { return Err(wrong_size(tensor)) };
            for block in blocks {
                let largest = block.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
                if block.iter().any(|value| !value.is_finite()) {
                    return Err(too_large(tensor, f32::NAN));
                }
                let scale = largest / 127.0;
                let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
                out.extend(to_f16(tensor, scale)?.to_le_bytes());
                // `round` takes halves away from zero, as `roundf` of the reference does.
                #[expect(clippy::cast_possible_truncation, reason = "at most 127, and `as` saturates")]
                out.extend(block.iter().flat_map(|value| ((value * inverse).round() as i8).to_le_bytes()));
            }
        }
    }
    Ok(())
}

fn to_f16(tensor: &OutTensor<'_>, value: f32) -> Result<f16, GgufError> {
    let short = f16::from_f32(value);
    if short.is_finite() { Ok(short) } else { Err(too_large(tensor, value)) }
}

fn too_large(tensor: &OutTensor<'_>, value: f32) -> GgufError {
    let found = if value.is_finite() { format!("{value:e}") } else { "not finite".into() };
    GgufError::Tensor {
        name: tensor.name.clone(),
        detail: format!("f16 holds at most 65504, and a value is {found}; write it as f32"),
    }
}
