//! Safetensors files made from the parameters of a checkpoint, for export.

use super::tensor_names::ValueOrder;
use super::{PretrainedError, io_error};
use crate::checkpoint::TensorReader;
use crate::network::ParameterSpec;
use dtrain_protocol::sharding::Region;
use dtrain_protocol::{Slice, TensorKind};
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// A tensor of an exported file, made from one or more parameters.
pub(super) struct ExportedTensor {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    /// Parameters that the tensor is made from, each with the order of its values in the tensor.
    pub(super) from: Vec<(ParameterSpec, ValueOrder)>,
}

/// Reads all values of the parameter called `name`, which has the shape `shape`, from a checkpoint.
pub(super) fn read_whole(
    reader: &TensorReader,
    name: &str,
    shape: &[usize],
) -> Result<Vec<f32>, PretrainedError> {
    let sides: Vec<u64> = shape.iter().map(|side| *side as u64).collect();
    let region = Region::whole(&sides);
    let wanted = Slice::of(region.clone(), 0..region.elements());
    let mut values = vec![0.0; shape.iter().product()];
    reader.read(name, TensorKind::Parameter, &wanted, &mut values)?;
    Ok(values)
}

/// Writes a safetensors file of `tensors`; `values_of` returns the values of each parameter in them.
pub(super) fn write(
    tensors: &[ExportedTensor],
    path: &Path,
    values_of: impl Fn(&ParameterSpec) -> Result<Vec<f32>, PretrainedError>,
) -> Result<(), PretrainedError> {
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({ "format": "pt" }));
    let mut offset = 0;
    for tensor in tensors {
        let end = offset + 4 * tensor.shape.iter().product::<usize>();
        header.insert(
            tensor.name.clone(),
            json!({ "dtype": "F32", "shape": tensor.shape, "data_offsets": [offset, end] }),
        );
        offset = end;
    }
    let mut json = Value::Object(header).to_string().into_bytes();
    json.resize(json.len().next_multiple_of(8), b' ');
    let io = io_error("writing", path);
    let mut file = BufWriter::new(File::create(path).map_err(&io)?);
    file.write_all(&(json.len() as u64).to_le_bytes()).and_then(|()| file.write_all(&json)).map_err(&io)?;
    // The experts of a block are tensors of one parameter, which is read once.
    let mut read: Option<(&str, Vec<f32>)> = None;
    for tensor in tensors {
        let mut values = vec![0.0; tensor.shape.iter().product()];
        for (spec, form) in &tensor.from {
            let ours = match &read {
                Some((name, ours)) if *name == spec.name => ours,
                _ => &read.insert((&spec.name, values_of(spec)?)).1,
            };
            form.put(&spec.shape, ours, &mut values);
        }
        file.write_all(bytemuck::cast_slice(&values)).map_err(&io)?;
    }
    file.into_inner().map_err(|error| io(error.into_error()))?.sync_all().map_err(&io)
}
