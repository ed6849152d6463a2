//! JSON lines: an object in each.

use super::{Item, Record};
use crate::kv::bytes::{BASE64_SUFFIX, from_base64};
use crate::kv::trouble::Trouble;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};

/// The fields of an object, as they are written.
type Fields<'l> = BTreeMap<String, &'l RawValue>;

/// The records of JSON lines. Without the name of a field the value is the whole line.
pub fn items<R: Read>(
    input: R,
    name: String,
    key: &str,
    value: Option<&str>,
) -> impl Iterator<Item = Result<Item, Trouble>> + use<R> {
    let (key, value) = (key.to_owned(), value.map(str::to_owned));
    let lines = (1u64..).zip(BufReader::new(input).split(b'\n'));
    lines.filter_map(move |(number, line)| {
        let place = format!("{name}, line {number}");
        let line = match line {
            Ok(line) => line,
            Err(error) => return Some(Err(Trouble::File { what: place, error })),
        };
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
        if line.iter().all(u8::is_ascii_whitespace) {
            return None;
        }
        Some(match pair(line, &key, value.as_deref()) {
            Ok((key, value)) => Ok(Item::Record(Record { key, value, place })),
            Err(why) => Err(Trouble::Input { place, why }),
        })
    })
}

fn pair(line: &[u8], key: &str, value: Option<&str>) -> Result<(Vec<u8>, Vec<u8>), String> {
    let fields: Fields<'_> =
        serde_json::from_slice(line).map_err(|error| format!("this is no JSON object: {error}"))?;
    let found = field(&fields, key, "--key")?;
    if fields.get(key).is_some_and(|raw| raw.get().starts_with(['{', '[', 'n'])) {
        return Err(format!("the field {key:?} is no text and no number: choose another with --key"));
    }
    let value = match value {
        Some(name) => field(&fields, name, "--value")?,
        None => line.to_vec(),
    };
    Ok((found, value))
}

/// The bytes of a field: of a text its own, of anything else as it is written.
fn field(fields: &Fields<'_>, name: &str, option: &str) -> Result<Vec<u8>, String> {
    let text = |raw: &RawValue| serde_json::from_str::<String>(raw.get());
    if let Some(raw) = fields.get(name) {
        return match raw.get() {
            written if written.starts_with('"') => {
                text(raw).map(String::into_bytes).map_err(|error| format!("the field {name:?}: {error}"))
            }
            written => Ok(written.as_bytes().to_vec()),
        };
    }
    let encoded = format!("{name}{BASE64_SUFFIX}");
    match fields.get(&encoded) {
        Some(raw) => {
            let text = text(raw).map_err(|error| format!("the field {encoded:?}: {error}"))?;
            from_base64(&text).map_err(|why| format!("the field {encoded:?}: {why}"))
        }
        None => {
            let there: Vec<&str> = fields.keys().map(String::as_str).collect();
            let there = there.join(", ");
            Err(format!("there is no field {name:?}, but {there}: choose one with {option}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Pair = (Vec<u8>, Vec<u8>);

    fn read(text: &str, key: &str, value: Option<&str>) -> Result<Vec<Pair>, String> {
        let text = std::io::Cursor::new(text.as_bytes().to_vec());
        let records = items(text, "a.jsonl".to_owned(), key, value).map(|item| match item {
            Ok(Item::Record(record)) => Ok((record.key, record.value)),
            Ok(Item::LeftOut(what)) => Err(what),
            Err(error) => Err(error.to_string()),
        });
        records.collect()
    }

    #[test]
    fn a_value_is_the_line_or_a_field_as_it_is_written() {
        let text = "{\"id\": 7, \"name\": \"B\\u00fcrgi\", \"at\": [1,  2]}\r\n\n";
        let line = text.lines().next().expect("a line").as_bytes().to_vec();
        assert_eq!(read(text, "id", None), Ok(vec![(b"7".to_vec(), line)]));
        let of = |value| read(text, "id", Some(value)).expect("a field")[0].1.clone();
        assert_eq!(of("name"), "Bürgi".as_bytes());
        assert_eq!(of("at"), b"[1,  2]");
        let bytes = r#"{"key_base64":"/w==","value":""}"#;
        assert_eq!(read(bytes, "key", Some("value")), Ok(vec![(vec![0xff], vec![])]));
    }

    #[test]
    fn a_mistake_is_told_with_its_line_and_what_would_be_right() {
        for (text, meant) in [
            ("{\"a\":1}\n", "but a: choose one with --key"),
            ("\n{\"key\":1}\nnonsense\n", "a.jsonl, line 3: this is no JSON object"),
            ("{\"key\":null}\n", "no text and no number"),
            ("{\"key\":{\"a\":1}}\n", "no text and no number"),
            ("{\"key_base64\":\"?\"}\n", "no base64"),
        ] {
            let error = read(text, "key", None).expect_err("a mistake");
            assert!(error.contains(meant), "{error}");
        }
    }
}
