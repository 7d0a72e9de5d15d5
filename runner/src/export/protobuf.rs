//! Writer for Protocol Buffers messages, field by field.

/// Protocol Buffers message that is being encoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MessageBuilder(Vec<u8>);

impl MessageBuilder {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Returns the encoded bytes of the message.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Adds a field of type int32, int64, uint64, bool or an enumeration; a negative number takes ten bytes.
    #[must_use]
    pub(super) fn int(mut self, field: u32, value: i64) -> Self {
        self.tag(field, 0);
        self.varint(value.cast_unsigned());
        self
    }

    /// Adds a field of type double.
    #[must_use]
    pub(super) fn double(mut self, field: u32, value: f64) -> Self {
        self.tag(field, 1);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Adds a field of type float.
    #[must_use]
    pub(super) fn float(mut self, field: u32, value: f32) -> Self {
        self.tag(field, 5);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Adds a field of type string or bytes.
    #[must_use]
    pub(super) fn text(mut self, field: u32, value: impl AsRef<[u8]>) -> Self {
        let value = value.as_ref();
        self.tag(field, 2);
        self.varint(value.len() as u64);
        self.0.extend(value);
        self
    }

    /// Adds an embedded message.
    #[must_use]
    pub(super) fn message(self, field: u32, value: &Self) -> Self {
        self.text(field, &value.0)
    }

    fn tag(&mut self, field: u32, wire: u64) {
        self.varint(u64::from(field) << 3 | wire);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.0.push(value.to_le_bytes()[0]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_the_bytes_of_the_specification() {
        // Examples of https://protobuf.dev/programming-guides/encoding: 150, "testing", and a message with
        // 150.
        let inner = MessageBuilder::new().int(1, 150);
        assert_eq!(inner.bytes(), [0x08, 0x96, 0x01]);
        assert_eq!(MessageBuilder::new().text(2, "testing").bytes(), b"\x12\x07testing");
        assert_eq!(MessageBuilder::new().message(3, &inner).bytes(), [0x1a, 0x03, 0x08, 0x96, 0x01]);
        assert_eq!(MessageBuilder::new().int(1, -2).bytes(), b"\x08\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01");
        assert_eq!(MessageBuilder::new().float(2, 0.5).bytes(), [0x15, 0, 0, 0, 0x3f]);
        assert_eq!(MessageBuilder::new().double(16, 1.0).bytes(), [0x81, 0x01, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f]);
    }
}
