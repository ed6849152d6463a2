//! Text from other programs: UTF-8, with or without a byte order mark.
//!
//! Other formats that spreadsheets and Windows editors write are recognised by their first bytes and refused with an
//! explanation. Otherwise they would be read as text of a strange content.

use std::io::{self, BufRead, BufReader, Cursor, Read};

/// Bytes that are enough to recognise a format, and to hold a spreadsheet's first line `sep=;`.
const HEAD_BYTES: usize = 16;
/// Byte order mark that Windows editors write before UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Format of a file that is not UTF-8 text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoText {
    #[error("it is UTF-16: save it as UTF-8, or convert it with `iconv -f UTF-16 -t UTF-8`")]
    Utf16,
    #[error("it is UTF-32: save it as UTF-8, or convert it with `iconv -f UTF-32 -t UTF-8`")]
    Utf32,
    #[error("it is a ZIP archive, as .xlsx and .ods are: save it as CSV in UTF-8")]
    Zip,
    #[error("it is an old Office document, as .xls is: save it as CSV in UTF-8")]
    Office,
    #[error(
        "it is compressed: put `zcat FILE |`, `zstdcat`, `bzcat` or `xzcat` before the call, and `-` for the file"
    )]
    Compressed,
}

impl NoText {
    /// Returns the format that begins with these bytes, if it is not text.
    fn of(head: &[u8]) -> Option<Self> {
        let starts = |any: &[&[u8]]| any.iter().any(|magic| head.starts_with(magic));
        let ascii = |byte: u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
        match head {
            _ if starts(&[b"\xff\xfe\0\0", b"\0\0\xfe\xff"]) => Some(Self::Utf32),
            [a, 0, 0, 0, b, 0, 0, 0, ..] | [0, 0, 0, a, 0, 0, 0, b, ..] if ascii(*a) && ascii(*b) => {
                Some(Self::Utf32)
            }
            _ if starts(&[b"\xff\xfe", b"\xfe\xff"]) => Some(Self::Utf16),
            [a, 0, b, 0, ..] | [0, a, 0, b, ..] if ascii(*a) && ascii(*b) => Some(Self::Utf16),
            _ if starts(&[b"PK\x03\x04"]) => Some(Self::Zip),
            _ if starts(&[b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"]) => Some(Self::Office),
            _ if starts(&[b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ\0"]) => {
                Some(Self::Compressed)
            }
            _ => None,
        }
    }
}

/// The text of an input, without a byte order mark at its beginning.
///
/// # Errors
/// Reading fails, or the input has another format: a `NoText`, within an error of the kind
/// [`InvalidData`](io::ErrorKind::InvalidData).
pub fn text<R: Read>(mut input: R) -> io::Result<impl BufRead + use<R>> {
    let mut head = Vec::with_capacity(HEAD_BYTES);
    // A slow pipe may deliver no more than one short line for a long time.
    let mut first = BufReader::with_capacity(HEAD_BYTES, input.by_ref().take(HEAD_BYTES as u64));
    first.read_until(b'\n', &mut head)?;
    // Bytes that were read together with the first line follow it.
    head.extend_from_slice(first.buffer());
    if let Some(what) = NoText::of(&head) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    if head.starts_with(BYTE_ORDER_MARK) {
        head.drain(..BYTE_ORDER_MARK.len());
    }
    Ok(BufReader::new(Cursor::new(head).chain(input)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that returns one byte at a time, as a slow pipe may.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let bytes = into.len().min(1);
            (&mut self.0).take(bytes as u64).read(into)
        }
    }

    fn read(content: &[u8]) -> Result<Vec<u8>, String> {
        let mut all = Vec::new();
        let read = text(Slow(content)).and_then(|mut text| text.read_to_end(&mut all));
        read.map(|_| all).map_err(|error| error.to_string())
    }

    #[test]
    fn a_byte_order_mark_is_left_out_and_nothing_else() {
        for content in
            [&b""[..], b"a", b"key,value\n", b"\xc3\xbc", b"\xff", b"\0", b"a\0", b"\xef\xbb", b"PK,1"]
        {
            assert_eq!(read(content).as_deref(), Ok(content), "{content:?}");
        }
        assert_eq!(read(b"\xef\xbb\xbfkey,value\n"), Ok(b"key,value\n".to_vec()));
        assert_eq!(read(b"\xef\xbb\xbf"), Ok(Vec::new()));
        assert_eq!(read(b"\xef\xbb\xbf\xef\xbb\xbfa"), Ok(b"\xef\xbb\xbfa".to_vec()));
    }

    #[test]
    fn what_other_programs_write_is_refused_with_what_it_is() {
        let utf16 = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<_>>();
        let big = |text: &str| text.encode_utf16().flat_map(u16::to_be_bytes).collect::<Vec<_>>();
        for (content, what) in [
            (utf16("\u{feff}key"), "UTF-16"),
            (big("\u{feff}key"), "UTF-16"),
            (utf16("key,value"), "UTF-16"),
            (big("{\"key\""), "UTF-16"),
            (utf16("\u{feff}"), "UTF-16"),
            (b"\xff\xfe\0\0k\0\0\0".to_vec(), "UTF-32"),
            (b"k\0\0\0e\0\0\0".to_vec(), "UTF-32"),
            (b"PK\x03\x04\x14\0".to_vec(), "xlsx"),
            (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1".to_vec(), "xls"),
            (b"\x1f\x8b\x08\0".to_vec(), "zcat"),
        ] {
            let refused = read(&content).expect_err("it is refused");
            assert!(refused.contains(what), "{content:?}: {refused}");
        }
    }
}
