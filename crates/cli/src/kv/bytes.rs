//! Keys and values, which are arbitrary bytes, as text and as JSON.

use crate::output::escape::acts;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// Suffix of a field's name if the field's text is base64.
pub const BASE64_SUFFIX: &str = "_base64";

/// A key on the command line. A shell can pass any bytes but zeros.
pub fn argument(word: &OsString) -> Vec<u8> {
    word.clone().into_vec()
}

/// Bytes as one line of text: unchanged, or in quotes with escapes if the text would not show them as they are.
pub fn readable(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains(acts) && !text.starts_with('"') => text.into(),
        _ => format!("\"{}\"", bytes.escape_ascii()).into(),
    }
}

/// Bytes as one line of text, or the beginning of them if they are long.
pub fn beginning(bytes: &[u8]) -> Cow<'_, str> {
    const MOST: usize = 160;
    if bytes.len() <= MOST {
        return readable(bytes);
    }
    let start = (MOST - 3..=MOST).rev().find(|&end| std::str::from_utf8(&bytes[..end]).is_ok());
    format!("{}... ({} bytes)", readable(&bytes[..start.unwrap_or(MOST)]), bytes.len()).into()
}

/// Adds a field to a JSON object.
pub fn enter(object: &mut Map<String, Value>, field: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => object.insert(field.to_owned(), text.into()),
        Err(_) => object.insert(format!("{field}{BASE64_SUFFIX}"), BASE64_STANDARD.encode(bytes).into()),
    };
}

/// A JSON object with a key, and its value if there is one.
pub fn pair(key: &[u8], value: Option<&[u8]>) -> Map<String, Value> {
    let mut object = Map::new();
    enter(&mut object, "key", key);
    if let Some(value) = value {
        enter(&mut object, "value", value);
    }
    object
}

/// Decodes the bytes of a field that [`enter`] has written as base64.
pub fn from_base64(text: &str) -> Result<Vec<u8>, String> {
    BASE64_STANDARD.decode(text).map_err(|error| format!("no base64: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_what_the_bytes_are_and_cannot_do_anything_to_a_terminal() {
        for (bytes, shown) in [
            (&b"Bern"[..], "Bern"),
            ("Zürich".as_bytes(), "Zürich"),
            (b"", ""),
            (b"a\nb", "\"a\\nb\""),
            (b"\x1b[31m", "\"\\x1b[31m\""),
            (b"\xff", "\"\\xff\""),
            (b"\"Bern\"", "\"\\\"Bern\\\"\""),
        ] {
            assert_eq!(readable(bytes), shown);
        }
        assert_eq!(beginning(&[b'a'; 200]), format!("{}... (200 bytes)", "a".repeat(160)));
        assert!(beginning("ü".repeat(200).as_bytes()).starts_with('ü'));
    }

    #[test]
    fn json_has_text_where_it_is_text_and_says_where_it_is_not() {
        let object = Value::Object(pair(b"a", Some(b"\xff\x00")));
        assert_eq!(object.to_string(), r#"{"key":"a","value_base64":"/wA="}"#);
        assert_eq!(from_base64("/wA="), Ok(vec![0xff, 0]));
        assert!(from_base64("no").is_err());
    }
}
