//! Writer for structures in Thrift's compact protocol.

// Field types of Thrift's compact protocol.
const I32: u8 = 5;
const I64: u8 = 6;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

/// Thrift structure that is being encoded; fields must come in the order of their numbers.
#[derive(Clone, Default)]
pub(super) struct StructBuilder {
    bytes: Vec<u8>,
    last: u16,
}

impl StructBuilder {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn int32(self, field: u16, value: i64) -> Self {
        let mut all = self.field(field, I32);
        zigzag(&mut all.bytes, value);
        all
    }

    /// Adds a size as an i32 field.
    pub(super) fn size(self, field: u16, value: usize) -> Self {
        self.int32(field, i64::try_from(value).unwrap_or(i64::MAX))
    }

    pub(super) fn int64(self, field: u16, value: usize) -> Self {
        let mut all = self.field(field, I64);
        zigzag(&mut all.bytes, i64::try_from(value).unwrap_or(i64::MAX));
        all
    }

    pub(super) fn text(self, field: u16, value: &str) -> Self {
        let mut all = self.field(field, BINARY);
        binary(&mut all.bytes, value);
        all
    }

    pub(super) fn inner(self, field: u16, value: &Self) -> Self {
        let mut all = self.field(field, STRUCT);
        all.bytes.extend(value.finish());
        all
    }

    pub(super) fn structs(self, field: u16, values: &[Self]) -> Self {
        let mut all = self.list(field, STRUCT, values.len());
        for value in values {
            all.bytes.extend(value.finish());
        }
        all
    }

    pub(super) fn ints(self, field: u16, values: &[i64]) -> Self {
        let mut all = self.list(field, I32, values.len());
        for value in values {
            zigzag(&mut all.bytes, *value);
        }
        all
    }

    pub(super) fn texts(self, field: u16, values: &[&str]) -> Self {
        let mut all = self.list(field, BINARY, values.len());
        for value in values {
            binary(&mut all.bytes, value);
        }
        all
    }

    /// Adds a list with one structure, `one`, whose last field is a text of `length` bytes. Returns the bytes
    /// before the text, and the builder that continues after it.
    pub(super) fn around_text(self, field: u16, one: Self, (text, length): (u16, u64)) -> (Vec<u8>, Self) {
        let mut all = self.list(field, STRUCT, 1);
        all.bytes.extend(one.field(text, BINARY).bytes);
        varint(&mut all.bytes, length);
        // The first byte ends `one`.
        (all.bytes, Self { bytes: vec![0], last: all.last })
    }

    /// Returns the encoded structure with its stop marker.
    pub(super) fn finish(&self) -> Vec<u8> {
        [&self.bytes[..], &[0]].concat()
    }

    fn field(mut self, field: u16, kind: u8) -> Self {
        // No Parquet structure written here skips more than fifteen field numbers.
        let ahead = (field - self.last).to_le_bytes()[0];
        self.bytes.push(ahead << 4 | kind);
        self.last = field;
        self
    }

    fn list(self, field: u16, kind: u8, length: usize) -> Self {
        let mut all = self.field(field, LIST);
        match u8::try_from(length) {
            Ok(length) if length < 15 => all.bytes.push(length << 4 | kind),
            _ => {
                all.bytes.push(0xf0 | kind);
                varint(&mut all.bytes, length as u64);
            }
        }
        all
    }
}

fn binary(bytes: &mut Vec<u8>, text: &str) {
    varint(bytes, text.len() as u64);
    bytes.extend(text.as_bytes());
}

fn zigzag(bytes: &mut Vec<u8>, value: i64) {
    varint(bytes, ((value << 1) ^ (value >> 63)).cast_unsigned());
}

pub(super) fn varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    bytes.push(value.to_le_bytes()[0]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_structure_has_the_bytes_of_the_compact_protocol() {
        let inner = StructBuilder::new().int32(1, -1).text(4, "ab");
        assert_eq!(inner.finish(), b"\x15\x01\x38\x02ab\0");
        let outer = StructBuilder::new().int64(2, 300).structs(3, &[inner]).ints(5, &[0, 8]).texts(6, &["x"]);
        assert_eq!(outer.finish(), b"\x26\xd8\x04\x19\x1c\x15\x01\x38\x02ab\0\x29\x25\0\x10\x19\x18\x01x\0");
        let one = |text| StructBuilder::new().text(1, "k").text(2, text);
        let (before, after) =
            StructBuilder::new().int32(1, 1).around_text(5, StructBuilder::new().text(1, "k"), (2, 3));
        let whole = StructBuilder::new().int32(1, 1).structs(5, &[one("abc")]).text(6, "x").finish();
        assert_eq!([before, b"abc".to_vec(), after.text(6, "x").finish()].concat(), whole);
        let many = StructBuilder::new().ints(1, &[1; 16]).finish();
        assert_eq!(&many[..3], [0x19, 0xf5, 16]);
    }
}
