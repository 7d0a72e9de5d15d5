//! File types: recognizes a file by its first bytes if its name does not tell.

/// Number of bytes at the beginning of a file that are examined.
pub(super) const HEAD_BYTES: u64 = 16 << 10;

/// The byte order mark of UTF-8.
pub(super) const MARK: &[u8] = b"\xef\xbb\xbf";

/// Shortest file, in bytes, for which text can be told from numbers.
const SHORTEST_TEXT: usize = 64;

/// The compression of a data file, if it is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileCompression {
    Plain,
    Gzip,
    Zstd,
}

impl FileCompression {
    /// Returns the compression that the file name implies; `None` if it implies none.
    pub(super) fn by_name(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        let endings = [(".gz", Self::Gzip), (".zst", Self::Zstd)];
        endings.into_iter().find(|(ending, _)| name.ends_with(ending)).map(|(_, compression)| compression)
    }

    /// Returns the compression that `head`, the first bytes of a file, shows.
    pub(super) fn by_content(head: &[u8]) -> Self {
        match head {
            // Deflate is the only method there is, and three of the flags are reserved.
            [0x1f, 0x8b, 8, flags, ..] if flags & 0xe0 == 0 => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            _ => Self::Plain,
        }
    }

    /// Returns the name of the compression, for messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Plain => "nothing",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }
}

/// A type of binary file that cannot be used as text or numbers.
struct BinaryFileKind {
    /// Magic bytes that identify the file type, each with its offset.
    magic: &'static [(usize, &'static [u8])],
    /// Name of the file type with its article, for messages.
    name: &'static str,
    /// Remedy for the user of such a file.
    hint: &'static str,
}

const fn kind(
    magic: &'static [(usize, &'static [u8])],
    name: &'static str,
    hint: &'static str,
) -> BinaryFileKind {
    BinaryFileKind { magic, name, hint }
}

const KINDS: [BinaryFileKind; 24] = [
    kind(&[(0, b"\x1f\x8b\x08")], "a file compressed with gzip", "unpack it with `gunzip`"),
    kind(&[(0, b"\x28\xb5\x2f\xfd")], "a file compressed with zstd", "unpack it with `unzstd`"),
    kind(&[(0, b"\xfd7zXZ\0")], "a file compressed with xz", "unpack it with `unxz`"),
    kind(&[(0, b"BZh"), (4, b"1AY&SY")], "a file compressed with bzip2", "unpack it with `bunzip2`"),
    kind(&[(0, b"\x04\x22\x4d\x18")], "a file compressed with lz4", "unpack it with `unlz4`"),
    kind(&[(0, b"7z\xbc\xaf\x27\x1c")], "a 7-Zip archive", "unpack it with `7z x`"),
    kind(&[(0, b"Rar!\x1a\x07")], "a RAR archive", "unpack it"),
    kind(&[(257, b"ustar")], "a tar archive", "unpack it with `tar -xf`, and name the files in it"),
    kind(
        &[(0, b"PK\x03\x04")],
        "a ZIP archive, as .docx, .xlsx, .npz and .pt files are too",
        "unpack it with `unzip`, or save the document as plain text",
    ),
    kind(
        &[(0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1")],
        "a document of Microsoft Office",
        "save it as plain text, or its table as CSV",
    ),
    kind(&[(0, b"{\\rtf")], "an RTF document", "save it as plain text"),
    kind(&[(0, b"%PDF-")], "a PDF document", "write its text to a file, such as with `pdftotext`"),
    kind(&[(0, b"%!PS-")], "a PostScript document", "write its text to a file, such as with `ps2ascii`"),
    kind(
        &[(0, b"\x93NUMPY")],
        "a NumPy array",
        "write tokens with `array.astype(\"<u2\").tofile(\"tokens.bin\")`, a table as CSV or Parquet",
    ),
    kind(&[(0, b"PAR1")], "a Parquet file", "set `data.format = \"parquet\"`"),
    kind(&[(0, b"ARROW1")], "an Arrow file", "write it as Parquet"),
    kind(&[(0, b"\x89HDF\r\n\x1a\n")], "an HDF5 file", "write its text, or its table as CSV or Parquet"),
    kind(&[(0, b"SQLite format 3\0")], "an SQLite database", "write its table as CSV or Parquet"),
    kind(&[(0, b"\x80\x04\x95")], "a pickle of Python", "write what is in it as text, CSV or Parquet"),
    kind(&[(0, b"\x80\x05\x95")], "a pickle of Python", "write what is in it as text, CSV or Parquet"),
    kind(
        &[(0, b"\x89PNG\r\n\x1a\n")],
        "a PNG image",
        "set `data.format = \"images\"` for a network of images",
    ),
    kind(&[(0, b"\xff\xd8\xff")], "a JPEG image", "set `data.format = \"images\"` for a network of images"),
    kind(&[(0, b"GIF8")], "a GIF image", "name text, or PNG and JPEG images"),
    kind(&[(0, b"RIFF"), (8, b"WEBP")], "a WebP image", "name text, or PNG and JPEG images"),
];

/// Describes a file of a known binary type, neither text nor raw numbers, with a remedy; `None` for other
/// files.
pub(super) fn named(head: &[u8]) -> Option<String> {
    let has = |(at, bytes): &(usize, &[u8])| head.get(*at..).is_some_and(|head| head.starts_with(bytes));
    let found = KINDS.iter().find(|kind| kind.magic.iter().all(has))?;
    Some(format!("this is {}; {}", found.name, found.hint))
}

/// Returns the name that `iconv` uses for the encoding of a text that is not UTF-8, judged by its byte
/// order mark, otherwise by its zero bytes.
fn other_encoding(head: &[u8]) -> Option<&'static str> {
    match head {
        [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..] => return Some("UTF-32"),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => return Some("UTF-16"),
        _ => {}
    }
    // In most languages with an alphabet most characters have a zero at the same place.
    let is_mostly = |width: usize, place: usize| {
        let characters = head.chunks_exact(width);
        let (all, mut latin) = (characters.len(), 0);
        for character in characters {
            let others = character.iter().enumerate().filter(|(at, _)| *at != place);
            latin +=
                usize::from(is_of_text(character[place]) && others.into_iter().all(|(_, byte)| *byte == 0));
        }
        all * width >= SHORTEST_TEXT && latin * 10 >= all * 8
    };
    [("UTF-32LE", 4, 0), ("UTF-32BE", 4, 3), ("UTF-16LE", 2, 0), ("UTF-16BE", 2, 1)]
        .into_iter()
        .find(|(_, width, place)| is_mostly(*width, *place))
        .map(|(name, ..)| name)
}

/// Returns `true` if an ASCII text may contain `byte`.
fn is_of_text(byte: u8) -> bool {
    matches!(byte, b'\t' | b'\n' | b'\r' | 0x0c | b' '..=b'~')
}

/// Returns the length of the byte order mark at the beginning of a text; `Err` describes a file that is
/// not text in UTF-8 or an encoding like it.
pub(super) fn text_begin(head: &[u8]) -> Result<usize, String> {
    if let Some(encoding) = other_encoding(head) {
        return Err(format!(
            "this is text in {encoding}, expected UTF-8; convert it, such as with `iconv -f {encoding} -t UTF-8`"
        ));
    }
    match named(head) {
        Some(named) => Err(named),
        None if head.starts_with(MARK) => Ok(MARK.len()),
        None => Ok(0),
    }
}

/// Returns the offset of the first byte in `head` that is not UTF-8; `None` if all are. A character that
/// the end of `head` cuts off does not count.
pub(super) fn not_utf8(head: &[u8]) -> Option<usize> {
    let error = std::str::from_utf8(head).err()?;
    error.error_len().map(|_| error.valid_up_to())
}

/// Returns `true` if a file that should contain numbers is text.
pub(super) fn is_text(head: &[u8]) -> bool {
    let is_plain = |byte: &u8| is_of_text(*byte) || *byte >= 0x80;
    head.len() >= SHORTEST_TEXT && not_utf8(head).is_none() && head.iter().all(is_plain)
}

/// Returns `true` if a text begins like JSON records: `{"`, or `[{`.
pub(super) fn is_json(head: &[u8]) -> bool {
    let mut marks = head.iter().filter(|byte| !byte.is_ascii_whitespace());
    matches!((marks.next(), marks.next()), (Some(b'{'), Some(b'"')) | (Some(b'['), Some(b'{')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn utf16(text: &str) -> Vec<u8> {
        text.encode_utf16().flat_map(u16::to_le_bytes).collect()
    }

    #[test]
    fn encodings_other_than_utf8_are_named() {
        let text = "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.\n".repeat(3);
        let big: Vec<u8> = text.encode_utf16().flat_map(u16::to_be_bytes).collect();
        let wide: Vec<u8> = text.chars().flat_map(|letter| u32::from(letter).to_le_bytes()).collect();
        for (head, encoding) in [
            ([b"\xff\xfe", &utf16("a")[..]].concat(), "UTF-16"),
            (b"\xfe\xff\0a".to_vec(), "UTF-16"),
            (b"\xff\xfe\0\0a\0\0\0".to_vec(), "UTF-32"),
            (utf16(&text), "UTF-16LE"),
            (big, "UTF-16BE"),
            (wide, "UTF-32LE"),
        ] {
            let said = text_begin(&head).expect_err(encoding);
            assert!(said.contains(&format!("iconv -f {encoding} -t UTF-8")), "{said}");
        }
        assert_eq!(text_begin(text.as_bytes()), Ok(0));
        assert_eq!(text_begin(b"\xef\xbb\xbfabc"), Ok(3));
        let numbers: Vec<u8> = (0..500u16).flat_map(u16::to_le_bytes).collect();
        assert_eq!(text_begin(&numbers), Ok(0), "bytes of any kind may be trained on");
    }

    #[test]
    fn files_of_other_programs_are_named() {
        let mut tar = vec![b'a'; 300];
        tar[257..262].copy_from_slice(b"ustar");
        for (head, name) in [
            (&b"\xfd7zXZ\0\0"[..], "xz"),
            (b"BZh91AY&SY", "bzip2"),
            (b"PK\x03\x04\x14\0", "ZIP"),
            (b"%PDF-1.7", "PDF"),
            (b"\x93NUMPY\x01\0", "NumPy"),
            (b"PAR1\x15", "Parquet"),
            (&tar, "tar"),
        ] {
            assert!(text_begin(head).expect_err(name).contains(name));
        }
        assert_eq!(named(b"BZh is what he said"), None);
        assert_eq!(named(b"PK"), None);
    }

    #[test]
    fn text_is_told_from_token_numbers() {
        assert!(is_text(
            "It was a dark and stormy night; the rain fell – in torrents. Except at times.".as_bytes()
        ));
        assert!(!is_text(b"short"));
        let tokens: Vec<u8> =
            (0..200u16).map(|token| token * 97 % 50_257).flat_map(u16::to_le_bytes).collect();
        assert!(!is_text(&tokens));
    }

    #[test]
    fn records_of_json_are_told_from_text() {
        assert!(
            is_json(b" {\n \"a\": 1}") && is_json(b"[ {\"a\"") && !is_json(b"[1, 2]") && !is_json(b"{x}")
        );
    }
}
