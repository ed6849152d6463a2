//! The words of a line, and the numbers among them.

use super::command::KEY_BYTES_MAX;

/// The words of a line.
pub fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    line.split(|byte| *byte == b' ').filter(|word| !word.is_empty())
}

/// A number without sign.
pub fn unsigned(word: &[u8]) -> Option<u64> {
    // What Rust reads as a number, and memcached does not, begins with a sign.
    if !word.first()?.is_ascii_digit() {
        return None;
    }
    std::str::from_utf8(word).ok()?.parse().ok()
}

/// A number without sign, of 32 bits.
pub fn unsigned_short(word: &[u8]) -> Option<u32> {
    u32::try_from(unsigned(word)?).ok()
}

/// A number that may have a sign.
pub fn signed(word: &[u8]) -> Option<i64> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

/// A number of 32 bits that may have a sign.
pub fn signed_short(word: &[u8]) -> Option<i64> {
    signed(word).filter(|number| i32::try_from(*number).is_ok())
}

/// Bytes of a value.
pub fn length(word: &[u8]) -> Option<usize> {
    // Memcached counts the end of the line too, in 32 bits.
    let most = i64::from(i32::MAX) - 2;
    signed(word).filter(|bytes| *bytes <= most).and_then(|bytes| usize::try_from(bytes).ok())
}

/// Whether a word can be a key.
pub fn is_key(word: &[u8]) -> bool {
    (1..=KEY_BYTES_MAX).contains(&word.len())
}
