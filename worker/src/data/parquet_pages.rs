//! Decompressed sizes of the pages of a Parquet file.
//!
//! The library decompresses a page as a whole, and tells its size only with its contents. So the headers
//! are read here: structures of Thrift's compact protocol, of which two numbers matter.

use std::io::{BufReader, Error, ErrorKind, Read, Result, copy, sink};

/// Limit on the decompressed size of a page, in bytes.
pub(super) const MOST_BYTES: u64 = 256 << 20;

/// Limit on the depth of nested structures in a page header.
const MOST_DEPTH: u32 = 16;

/// Returns the decompressed size in bytes of the largest page in `from`, whose pages and headers take
/// `bytes` bytes together.
pub(super) fn largest(from: impl Read, bytes: u64) -> Result<u64> {
    let mut headers = PageHeaders { from: BufReader::with_capacity(4 << 10, from), at: 0 };
    let mut largest = 0;
    while headers.at < bytes {
        let page = headers.page()?;
        largest = largest.max(page.uncompressed);
        headers.pass(page.compressed)?;
    }
    Ok(largest)
}

/// Decompressed and stored size of a page, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PageSizes {
    uncompressed: u64,
    compressed: u64,
}

struct PageHeaders<R> {
    from: R,
    /// Number of bytes read so far.
    at: u64,
}

/// Type codes of fields in Thrift's compact protocol.
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const I16: u8 = 4;
const I32: u8 = 5;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const STRUCT: u8 = 12;

impl<R: Read> PageHeaders<R> {
    /// Reads the next page header, and returns the sizes of its page.
    fn page(&mut self) -> Result<PageSizes> {
        let (mut page, mut field) = (PageSizes::default(), 0);
        while let Some(kind) = self.field(&mut field)? {
            match (field, kind) {
                (2, I32) => page.uncompressed = self.size()?,
                (3, I32) => page.compressed = self.size()?,
                (_, kind) => self.skip(kind, 0)?,
            }
        }
        Ok(page)
    }

    /// Reads the number of the next field into `field`, which has the number of the previous one, and
    /// returns the type of the field; `None` at the end of the structure.
    fn field(&mut self, field: &mut i64) -> Result<Option<u8>> {
        let [head] = self.bytes()?;
        if head == 0 {
            return Ok(None);
        }
        *field = match head >> 4 {
            0 => self.number()?,
            delta => *field + i64::from(delta),
        };
        Ok(Some(head & 0xf))
    }

    fn skip(&mut self, kind: u8, depth: u32) -> Result<()> {
        match kind {
            TRUE | FALSE => Ok(()),
            BYTE => self.pass(1),
            I16 | I32 | I64 => self.number().map(drop),
            DOUBLE => self.pass(8),
            BINARY => {
                let length = self.unsigned()?;
                self.pass(length)
            }
            LIST | SET if depth < MOST_DEPTH => self.skip_list(depth),
            STRUCT if depth < MOST_DEPTH => {
                let mut field = 0;
                while let Some(kind) = self.field(&mut field)? {
                    self.skip(kind, depth + 1)?;
                }
                Ok(())
            }
            // A page header has no maps.
            _ => Err(corrupt_page()),
        }
    }

    fn skip_list(&mut self, depth: u32) -> Result<()> {
        let [head] = self.bytes()?;
        let length = match head >> 4 {
            15 => self.unsigned()?,
            length => length.into(),
        };
        for _ in 0..length {
            match head & 0xf {
                // In a list, each boolean takes a byte.
                TRUE | FALSE => self.pass(1)?,
                kind => self.skip(kind, depth + 1)?,
            }
        }
        Ok(())
    }

    fn size(&mut self) -> Result<u64> {
        self.number()?.try_into().map_err(|_| corrupt_page())
    }

    /// Reads a signed integer in zigzag encoding.
    fn number(&mut self) -> Result<i64> {
        let bits = self.unsigned()?;
        Ok((bits >> 1).cast_signed() ^ -(bits & 1).cast_signed())
    }

    /// Reads an unsigned integer of variable length: seven bits in each byte, the lowest first.
    fn unsigned(&mut self) -> Result<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = self.bytes()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(corrupt_page())
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.from.read_exact(&mut bytes)?;
        self.at += N as u64;
        Ok(bytes)
    }

    fn pass(&mut self, bytes: u64) -> Result<()> {
        if copy(&mut self.from.by_ref().take(bytes), &mut sink())? < bytes {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.at += bytes;
        Ok(())
    }
}

fn corrupt_page() -> Error {
    Error::new(ErrorKind::InvalidData, "the header of a page is damaged")
}
