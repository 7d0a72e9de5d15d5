//! Protocol buffers: encodes the messages of ONNX. Field numbers are those of `onnx.proto`.

/// An encoded protocol buffer message.
#[derive(Clone, Debug, Default)]
pub(super) struct EncodedMessage(Vec<u8>);

/// The wire type of a field: the way in which its value is encoded.
#[derive(Clone, Copy)]
enum WireType {
    Varint = 0,
    Length = 2,
    Four = 5,
}

impl EncodedMessage {
    /// Adds an integer field to the message.
    pub(super) fn int(mut self, field: u64, value: i64) -> Self {
        self.key(field, WireType::Varint);
        self.varint(value.cast_unsigned());
        self
    }

    /// Adds a float field to the message.
    pub(super) fn float(mut self, field: u64, value: f32) -> Self {
        self.key(field, WireType::Four);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Adds a field of bytes or text to the message.
    pub(super) fn bytes(mut self, field: u64, value: impl AsRef<[u8]>) -> Self {
        self.key(field, WireType::Length);
        self.varint(value.as_ref().len() as u64);
        self.0.extend(value.as_ref());
        self
    }

    /// Adds a repeated field to the message, each of whose values is a message.
    pub(super) fn messages<'a>(self, field: u64, values: impl IntoIterator<Item = &'a Self>) -> Self {
        values.into_iter().fold(self, |message, value| message.bytes(field, &value.0))
    }

    /// Returns the encoded bytes of the message.
    pub(super) fn encoded(&self) -> &[u8] {
        &self.0
    }

    fn key(&mut self, field: u64, wire: WireType) {
        self.varint(field << 3 | wire as u64);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.0.push(value.to_le_bytes()[0]);
    }
}

/// Values of `TensorProto.DataType`: those for f32 and i64.
const FLOAT: i64 = 1;
const INT64: i64 = 7;

/// Encodes a `TensorProto` with values in f32.
pub(super) fn floats(name: &str, shape: &[usize], values: &[f32]) -> EncodedMessage {
    tensor(name, shape, FLOAT)
        .bytes(9, values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())
}

/// Encodes a `TensorProto` with one dimension of i64 values.
pub(super) fn ints(name: &str, values: &[i64]) -> EncodedMessage {
    tensor(name, &[values.len()], INT64)
        .bytes(9, values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())
}

fn tensor(name: &str, shape: &[usize], data_type: i64) -> EncodedMessage {
    let side = |message: EncodedMessage, side: &usize| {
        message.int(1, i64::try_from(*side).expect("it lies in memory"))
    };
    shape.iter().fold(EncodedMessage::default(), side).int(2, data_type).bytes(8, name)
}

/// Encodes a `ValueInfoProto` for an f32 tensor whose first dimension is called `batch`.
pub(super) fn value(name: &str, sides: &[u32]) -> EncodedMessage {
    let dimension = |side: &u32| EncodedMessage::default().int(1, i64::from(*side));
    let batch = EncodedMessage::default().bytes(2, "batch");
    let dimensions: Vec<_> = std::iter::once(batch).chain(sides.iter().map(dimension)).collect();
    let shape = EncodedMessage::default().messages(1, &dimensions);
    let tensor = EncodedMessage::default().int(1, FLOAT).messages(2, [&shape]);
    EncodedMessage::default().bytes(1, name).messages(2, [&EncodedMessage::default().messages(1, [&tensor])])
}

/// A named attribute of a node, encoded as an `AttributeProto`.
pub(super) enum AttributeProto {
    Int(&'static str, i64),
    Float(&'static str, f32),
    Ints(&'static str, Vec<i64>),
}

impl AttributeProto {
    fn message(&self) -> EncodedMessage {
        let named = |name: &str| EncodedMessage::default().bytes(1, name);
        match self {
            Self::Float(name, value) => named(name).float(2, *value).int(20, 1),
            Self::Int(name, value) => named(name).int(3, *value).int(20, 2),
            Self::Ints(name, values) => {
                values.iter().fold(named(name), |message, value| message.int(8, *value)).int(20, 7)
            }
        }
    }
}

/// Encodes a `NodeProto` with the output `output`.
pub(super) fn node(
    operator: &str,
    inputs: &[&str],
    output: &str,
    attributes: &[AttributeProto],
) -> EncodedMessage {
    let attributes: Vec<_> = attributes.iter().map(AttributeProto::message).collect();
    let inputs = inputs.iter().fold(EncodedMessage::default(), |message, input| message.bytes(1, input));
    inputs.bytes(2, output).bytes(3, output).bytes(4, operator).messages(5, &attributes)
}

/// The content of a graph, encoded as a `GraphProto`.
pub(super) struct GraphProto {
    pub(super) nodes: Vec<EncodedMessage>,
    pub(super) initializers: Vec<EncodedMessage>,
    pub(super) input: EncodedMessage,
    pub(super) output: EncodedMessage,
}

/// Encodes a `ModelProto` of IR version 8 and operator set 17.
pub(super) fn model(graph: &GraphProto, metadata: &[(&str, String)]) -> EncodedMessage {
    let GraphProto { nodes, initializers, input, output } = graph;
    let graph = EncodedMessage::default()
        .messages(1, nodes)
        .bytes(2, "dtrain")
        .messages(5, initializers)
        .messages(11, [input])
        .messages(12, [output]);
    let entry = |(key, value): &(&str, String)| EncodedMessage::default().bytes(1, key).bytes(2, value);
    let metadata: Vec<_> = metadata.iter().map(entry).collect();
    EncodedMessage::default()
        .int(1, 8)
        .bytes(2, "dtrain")
        .bytes(3, env!("CARGO_PKG_VERSION"))
        .messages(7, [&graph])
        .messages(8, [&EncodedMessage::default().bytes(1, "").int(2, 17)])
        .messages(14, &metadata)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_encoded_as_protocol_buffers_say() {
        let message = EncodedMessage::default().int(1, 150).bytes(2, "testing").float(3, 1.0).int(16, -1);
        let mut expected = vec![0x08, 0x96, 0x01, 0x12, 0x07];
        expected.extend(b"testing");
        expected.extend([0x1d, 0, 0, 0x80, 0x3f, 0x80, 0x01]);
        expected.extend([0xff; 9]);
        expected.push(0x01);
        assert_eq!(message.encoded(), expected);
        let tensor = floats("w", &[1, 2], &[1.0, 0.0]);
        let expected = [8, 1, 8, 2, 0x10, 1, 0x42, 1, b'w', 0x4a, 8, 0, 0, 0x80, 0x3f, 0, 0, 0, 0];
        assert_eq!(tensor.encoded(), expected);
    }
}
