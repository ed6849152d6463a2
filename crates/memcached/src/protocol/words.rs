//! The words of a line, and the numbers among them.

use super::command::{Expiry, KEY_BYTES_MAX};

/// The words of a line.
pub fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    line.split(|byte| *byte == b' ').filter(|word| !word.is_empty())
}

/// Returns the offset behind the first `count` words of a line.
pub fn end_of_words(line: &[u8], count: usize) -> usize {
    let mut at = 0;
    for _ in 0..count {
        let is_inside = |byte: &u8| *byte != b' ';
        at += line[at..].iter().position(is_inside).unwrap_or(line.len() - at);
        at += line[at..].iter().position(|byte| !is_inside(byte)).unwrap_or(line.len() - at);
    }
    at
}

/// A number without sign, of 64 bits. Memcached reads it with `strtoull`, so a sign and a minus are allowed as there: `-0` is 0.
pub fn unsigned(word: &[u8]) -> Option<u64> {
    let Number { negative, magnitude } = Number::parse(word)?;
    let number = if negative { magnitude.wrapping_neg() } else { magnitude };
    let is_large = i64::try_from(number).is_err();
    if is_large && word.contains(&b'-') { None } else { Some(number) }
}

/// A number without sign, of 32 bits. Memcached keeps the lower 32 bits of a larger number.
pub fn unsigned_short(word: &[u8]) -> Option<u32> {
    let [a, b, c, d, ..] = unsigned(word)?.to_le_bytes();
    Some(u32::from_le_bytes([a, b, c, d]))
}

/// A number of 64 bits that may have a sign, as `strtol` reads it.
fn signed(word: &[u8]) -> Option<i64> {
    let Number { negative, magnitude } = Number::parse(word)?;
    match (negative, i64::try_from(magnitude)) {
        (false, number) => number.ok(),
        (true, Ok(number)) => Some(-number),
        (true, Err(_)) => (magnitude == i64::MIN.unsigned_abs()).then_some(i64::MIN),
    }
}

/// A time to live. Memcached keeps the lower 32 bits of the number, as a number with a sign: clients that write -1 as 4294967295
/// rely on that.
pub fn expiry(word: &[u8]) -> Option<Expiry> {
    let [a, b, c, d, ..] = signed(word)?.to_le_bytes();
    Some(Expiry(i32::from_le_bytes([a, b, c, d]).into()))
}

/// A number in the format of the `strtol` functions: white space, a sign, digits. White space ends it.
struct Number {
    negative: bool,
    magnitude: u64,
}

impl Number {
    /// Parses a word. Returns `None` if it is not a number, or the number has more than 64 bits.
    fn parse(word: &[u8]) -> Option<Self> {
        let begin = word.iter().position(|byte| !is_space(*byte))?;
        let (negative, rest) = match word[begin] {
            b'-' => (true, &word[begin + 1..]),
            b'+' => (false, &word[begin + 1..]),
            _ => (false, &word[begin..]),
        };
        let end = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
        let (digits, behind) = rest.split_at(end);
        if behind.first().is_some_and(|byte| !is_space(*byte)) {
            return None;
        }
        let magnitude = std::str::from_utf8(digits).ok()?.parse().ok()?;
        Some(Self { negative, magnitude })
    }
}

/// Whether `isspace` regards a byte as white space. This includes the vertical tab, which Rust does not count.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// Parses the length of a value in bytes.
pub fn length(word: &[u8]) -> Option<usize> {
    // Memcached counts the end of the line too, in 32 bits.
    let most = i64::from(i32::MAX) - 2;
    signed(word).filter(|bytes| *bytes <= most).and_then(|bytes| usize::try_from(bytes).ok())
}

/// Whether a word can be a key.
pub fn is_key(word: &[u8]) -> bool {
    (1..=KEY_BYTES_MAX).contains(&word.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_strtol_reads_them_into_32_bits() {
        for (word, time) in [
            ("0", Some(0)),
            ("-1", Some(-1)),
            ("+5", Some(5)),
            ("-0", Some(0)),
            ("007", Some(7)),
            ("\t7", Some(7)),
            ("7\tx", Some(7)),
            ("2147483647", Some(i64::from(i32::MAX))),
            ("2147483648", Some(i64::from(i32::MIN))),
            ("4294967295", Some(-1)),
            ("4294967296", Some(0)),
            ("-2147483649", Some(i64::from(i32::MAX))),
            ("9223372036854775807", Some(-1)),
            ("-9223372036854775808", Some(0)),
            ("9223372036854775808", None),
            ("-9223372036854775809", None),
            ("18446744073709551616", None),
            ("", None),
            ("-", None),
            ("+-1", None),
            ("1x", None),
            ("x", None),
            ("0x10", None),
            ("1e5", None),
        ] {
            assert_eq!(expiry(word.as_bytes()), time.map(Expiry), "{word:?}");
        }
    }

    #[test]
    fn numbers_without_sign_are_read_as_strtoull_reads_them() {
        for (word, number) in [
            ("0", Some(0)),
            ("-0", Some(0)),
            ("+9", Some(9)),
            ("-1", None),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("-18446744073709551615", Some(1)),
            ("five", None),
        ] {
            assert_eq!(unsigned(word.as_bytes()), number, "{word:?}");
        }
        assert_eq!(unsigned_short(b"4294967297"), Some(1));
    }
}
