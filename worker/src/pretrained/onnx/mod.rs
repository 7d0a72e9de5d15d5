//! ONNX export of an mlp or a cnn, with the input `input` and the output `logits` for batches of any
//! size.

mod protobuf;

use super::PretrainedError;
use crate::checkpoint::TensorReader;
use crate::model::cnn::{self, BlockShape, EPSILON};
use dtrain_protocol::input_manifest::PREPROCESSING;
use dtrain_protocol::sharding::Region;
use dtrain_protocol::{Preprocessing, Slice, TensorKind};
use dtrain_recipes::{Cnn, Mlp, MlpActivation, Model};
use protobuf::{AttributeProto, EncodedMessage, GraphProto};
use serde_json::{Value, json};

/// Limit on the size of a protocol buffer, in bytes.
const MOST_BYTES: usize = 1 << 31;

/// Returns the model of a checkpoint as the bytes of an ONNX file. Its metadata has `classes`, a JSON
/// list of names, if the classes have names, and `preprocessing`, the required preprocessing of samples
/// as JSON.
///
/// `Err` if the model is not an mlp or a cnn, or the checkpoint is damaged.
pub(super) fn file(reader: &TensorReader, model: &Model) -> Result<Vec<u8>, PretrainedError> {
    let mut builder = GraphBuilder { reader, nodes: Vec::new(), initializers: Vec::new() };
    let (input, classes) = match model {
        Model::Mlp(mlp) => {
            builder.mlp(mlp)?;
            (vec![mlp.inputs], mlp.classes)
        }
        Model::Cnn(cnn) => {
            builder.cnn(cnn)?;
            (vec![cnn.channels, cnn.height, cnn.width], cnn.classes)
        }
        Model::Decoder(_) | Model::Custom(_) | Model::Command(_) => return Err(PretrainedError::NoOnnx),
    };
    let graph = GraphProto {
        nodes: builder.nodes,
        initializers: builder.initializers,
        input: protobuf::value("input", &input),
        output: protobuf::value("logits", &[classes]),
    };
    let file = protobuf::model(&graph, &metadata(reader)?).encoded().to_vec();
    if file.len() >= MOST_BYTES {
        return Err(PretrainedError::LongOnnx(file.len()));
    }
    Ok(file)
}

fn metadata(reader: &TensorReader) -> Result<Vec<(&'static str, String)>, PretrainedError> {
    let json = reader.file(PREPROCESSING)?;
    let preprocessing = json.map(|json| serde_json::from_slice::<Preprocessing>(&json)).transpose();
    let preprocessing = preprocessing.map_err(|error| PretrainedError::Content {
        path: reader.folder().join(PREPROCESSING),
        detail: error.to_string(),
    })?;
    let Preprocessing { columns, classes } = preprocessing.unwrap_or_default();
    // Pixels, unless the data is a table.
    let steps: Value =
        if columns.is_empty() { json!({ "divide_by": 255 }) } else { json!({ "columns": columns }) };
    let mut metadata = vec![("preprocessing", steps.to_string())];
    if let Some(classes) = classes {
        metadata.push(("classes", json!(classes).to_string()));
    }
    Ok(metadata)
}

/// A builder of an ONNX graph. Parameters keep their names; the output of a node has the node's name.
struct GraphBuilder<'a> {
    reader: &'a TensorReader,
    nodes: Vec<EncodedMessage>,
    initializers: Vec<EncodedMessage>,
}

impl GraphBuilder<'_> {
    fn mlp(&mut self, mlp: &Mlp) -> Result<(), PretrainedError> {
        let widths = mlp.widths();
        let last = widths.len() - 2;
        let mut x = "input".to_owned();
        for (layer, pair) in widths.windows(2).enumerate() {
            let prefix = format!("layers.{layer}.");
            let name = if layer == last { "logits".to_owned() } else { format!("{prefix}linear") };
            x = self.linear(&prefix, [pair[0] as usize, pair[1] as usize], &x, &name)?;
            if layer < last {
                x = self.activate(&prefix, mlp.activation, &x);
            }
        }
        Ok(())
    }

    fn cnn(&mut self, cnn: &Cnn) -> Result<(), PretrainedError> {
        let [channels, stem] = [cnn.channels as usize, cnn.stages[0] as usize];
        let size = [cnn.height as usize, cnn.width as usize];
        let x = self.convolve("stem.conv", [stem, channels, 3], 1, "input")?;
        let x = self.group_norm("stem.norm", stem, size, &x)?;
        let mut x = self.node("Relu", &[&x], "stem.relu", &[]);
        let blocks = u32::try_from(cnn.stages.len()).expect("a list in a recipe is short") * cnn.blocks;
        for index in 0..blocks {
            x = self.block(&cnn::block_shape(cnn, index), &x)?;
        }
        let last = *cnn.stages.last().expect("a checked cnn has a stage") as usize;
        let pooled = self.node("GlobalAveragePool", &[&x], "head.pool", &[]);
        let flat = self.node("Flatten", &[&pooled], "head.flat", &[AttributeProto::Int("axis", 1)]);
        self.linear("head.", [last, cnn.classes as usize], &flat, "logits").map(drop)
    }

    /// Adds a residual block of a cnn to the graph; returns the name of its output.
    fn block(&mut self, place: &BlockShape, x: &str) -> Result<String, PretrainedError> {
        let prefix = format!("stages.{}.{}.", place.stage, place.block);
        let [input, output] = place.channels;
        let size = [place.height, place.width].map(|side| side.div_ceil(place.stride));
        let y = self.convolve(&format!("{prefix}conv1"), [output, input, 3], place.stride, x)?;
        let y = self.group_norm(&format!("{prefix}norm1"), output, size, &y)?;
        let y = self.node("Relu", &[&y], &format!("{prefix}relu1"), &[]);
        let y = self.convolve(&format!("{prefix}conv2"), [output, output, 3], 1, &y)?;
        let y = self.group_norm(&format!("{prefix}norm2"), output, size, &y)?;
        let short = if cnn::projects(place) {
            self.convolve(&format!("{prefix}project"), [output, input, 1], place.stride, x)?
        } else {
            x.to_owned()
        };
        let sum = self.node("Add", &[&y, &short], &format!("{prefix}sum"), &[]);
        Ok(self.node("Relu", &[&sum], &format!("{prefix}relu2"), &[]))
    }

    /// Adds `x · weight + bias` to the graph, with a weight of `shape` `[in, out]`.
    fn linear(
        &mut self,
        prefix: &str,
        shape: [usize; 2],
        x: &str,
        name: &str,
    ) -> Result<String, PretrainedError> {
        let weight = self.parameter(&format!("{prefix}weight"), &shape, &shape)?;
        let bias = self.parameter(&format!("{prefix}bias"), &shape[1..], &shape[1..])?;
        Ok(self.node("Gemm", &[x, &weight, &bias], name, &[]))
    }

    fn activate(&mut self, prefix: &str, activation: MlpActivation, x: &str) -> String {
        let at = |name: &str| format!("{prefix}{name}");
        match activation {
            MlpActivation::Relu => self.node("Relu", &[x], &at("relu"), &[]),
            MlpActivation::Gelu => {
                let scale = self.scalar(&at("gelu.scale"), std::f32::consts::FRAC_1_SQRT_2);
                let [one, half] = [("one", 1.0), ("half", 0.5)]
                    .map(|(name, value)| self.scalar(&at(&format!("gelu.{name}")), value));
                let scaled = self.node("Mul", &[x, &scale], &at("gelu.scaled"), &[]);
                let erf = self.node("Erf", &[&scaled], &at("gelu.erf"), &[]);
                let sum = self.node("Add", &[&erf, &one], &at("gelu.sum"), &[]);
                let product = self.node("Mul", &[x, &sum], &at("gelu.product"), &[]);
                self.node("Mul", &[&product, &half], &at("gelu"), &[])
            }
        }
    }

    /// Adds a convolution called `name` with a square kernel, padded so that only the stride makes the
    /// image smaller.
    fn convolve(
        &mut self,
        name: &str,
        [output, input, kernel]: [usize; 3],
        stride: usize,
        x: &str,
    ) -> Result<String, PretrainedError> {
        let shape = [output, input, kernel, kernel];
        let weight = self.parameter(&format!("{name}.weight"), &shape, &shape)?;
        let [kernel, padding, stride] =
            [kernel, kernel / 2, stride].map(|number| i64::try_from(number).expect("it is small"));
        let attributes = [
            AttributeProto::Ints("kernel_shape", vec![kernel; 2]),
            AttributeProto::Ints("pads", vec![padding; 4]),
            AttributeProto::Ints("strides", vec![stride; 2]),
        ];
        Ok(self.node("Conv", &[x, &weight], name, &attributes))
    }

    /// Adds a group norm to the graph, as an instance norm with the groups as channels, because operator
    /// set 17 has no group norm.
    fn group_norm(
        &mut self,
        name: &str,
        channels: usize,
        [height, width]: [usize; 2],
        x: &str,
    ) -> Result<String, PretrainedError> {
        let groups = cnn::groups(channels);
        let side = |side: usize| i64::try_from(side).expect("it lies in memory");
        let at = |part: &str| format!("{name}.{part}");
        let to_groups = self.shape(&at("to_groups"), &[0, side(groups), -1]);
        let to_image = self.shape(&at("to_image"), &[0, side(channels), side(height), side(width)]);
        let ones = self.constant(&at("ones"), groups, 1.0);
        let zeros = self.constant(&at("zeros"), groups, 0.0);
        let per_channel = [1, channels, 1, 1];
        let weight = self.parameter(&at("weight"), &[channels], &per_channel)?;
        let bias = self.parameter(&at("bias"), &[channels], &per_channel)?;
        let grouped = self.node("Reshape", &[x, &to_groups], &at("grouped"), &[]);
        #[expect(clippy::cast_possible_truncation, reason = "ONNX has it as f32")]
        let epsilon = [AttributeProto::Float("epsilon", EPSILON as f32)];
        let normed = self.node("InstanceNormalization", &[&grouped, &ones, &zeros], &at("normed"), &epsilon);
        let image = self.node("Reshape", &[&normed, &to_image], &at("image"), &[]);
        let scaled = self.node("Mul", &[&image, &weight], &at("scaled"), &[]);
        Ok(self.node("Add", &[&scaled, &bias], &at("sum"), &[]))
    }

    /// Adds a node called `name` to the graph; its output has the same name, which is returned.
    fn node(&mut self, operator: &str, inputs: &[&str], name: &str, attributes: &[AttributeProto]) -> String {
        self.nodes.push(protobuf::node(operator, inputs, name, attributes));
        name.to_owned()
    }

    /// Adds the parameter `name` to the graph; it has the shape `shape` in the checkpoint and `written`
    /// in the file.
    fn parameter(
        &mut self,
        name: &str,
        shape: &[usize],
        written: &[usize],
    ) -> Result<String, PretrainedError> {
        let region = Region::whole(&shape.iter().map(|side| *side as u64).collect::<Vec<_>>());
        let wanted = Slice::of(region.clone(), 0..region.elements());
        let mut values = vec![0.0; shape.iter().product()];
        self.reader.read(name, TensorKind::Parameter, &wanted, &mut values)?;
        self.initializers.push(protobuf::floats(name, written, &values));
        Ok(name.to_owned())
    }

    fn scalar(&mut self, name: &str, value: f32) -> String {
        self.initializers.push(protobuf::floats(name, &[], &[value]));
        name.to_owned()
    }

    fn constant(&mut self, name: &str, length: usize, value: f32) -> String {
        self.initializers.push(protobuf::floats(name, &[length], &vec![value; length]));
        name.to_owned()
    }

    fn shape(&mut self, name: &str, sides: &[i64]) -> String {
        self.initializers.push(protobuf::ints(name, sides));
        name.to_owned()
    }
}
