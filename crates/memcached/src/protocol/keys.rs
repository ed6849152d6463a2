//! Spelling of keys in answers. All answers that contain keys write them here, so no key can end its answer early.

use super::command::Key;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::fmt;

/// Spelling of a key in commands and answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Spelling {
    /// The bytes themselves: one word.
    #[default]
    Plain,
    /// Base64: the key may have any bytes.
    Base64,
}

/// Appends a key to an answer, as one word whatever its bytes are.
pub(super) fn write_key(out: &mut Vec<u8>, key: &[u8], spelling: Spelling) {
    match spelling {
        Spelling::Plain if is_word(key) => out.extend_from_slice(key),
        Spelling::Plain | Spelling::Base64 => out.extend_from_slice(STANDARD.encode(key).as_bytes()),
    }
}

/// Whether a key has no byte that ends a word or a line of the protocol.
pub(super) fn is_word(key: &[u8]) -> bool {
    !key.iter().any(|byte| matches!(byte, b' ' | b'\n' | 0))
}

/// Decodes a key in base64. Returns `None` if the text is not base64.
pub(super) fn decode(text: &[u8]) -> Option<Key> {
    STANDARD.decode(text).ok().map(Vec::into_boxed_slice)
}

/// A key in which all bytes but letters, digits and `-._~` are percent-encoded, as in `lru_crawler metadump`.
pub(super) struct Percent<'a>(pub &'a [u8]);

impl fmt::Display for Percent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                write!(f, "{}", char::from(*byte))
            }
            byte => write!(f, "%{byte:02X}"),
        })
    }
}
