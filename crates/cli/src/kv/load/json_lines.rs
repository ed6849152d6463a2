//! JSON lines: one object in each line.

use super::dialect::{Dialect, time_to_live};
use super::{Content, Record, Row, fit};
use crate::files::text;
use crate::kv::bytes::{BASE64_SUFFIX, from_base64};
use crate::kv::command_error::KvCommandError;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::io::{self, BufRead, Read};

/// The default field of the key.
const KEY: &str = "key";

/// The lines of a file.
pub struct Lines {
    input: Box<dyn BufRead>,
    name: String,
    dialect: Dialect,
    /// Number of lines read so far.
    number: u64,
}

impl Lines {
    /// Opens a file. If no field is named for the value, the value is the whole line.
    pub fn open(input: Box<dyn Read>, name: String, dialect: &Dialect) -> Result<Self, KvCommandError> {
        let input = text(input).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => {
                KvCommandError::Input { place: name.clone(), why: error.to_string() }
            }
            _ => KvCommandError::File { what: format!("{name} cannot be read"), error },
        })?;
        Ok(Self { input: Box::new(input), name, dialect: dialect.clone(), number: 0 })
    }

    /// The next line with its line break, which the last line may lack. `None` at the end.
    fn line(&mut self) -> Result<Option<Vec<u8>>, KvCommandError> {
        let mut line = Vec::new();
        self.number += 1;
        let row_max = self.dialect.row_max;
        let read = self.input.by_ref().take(row_max + 1).read_until(b'\n', &mut line);
        read.map_err(|error| KvCommandError::File { what: self.place(), error })?;
        if line.len() as u64 > row_max && !line.ends_with(b"\n") {
            return Err(KvCommandError::Input { place: self.place(), why: self.dialect.too_long() });
        }
        Ok((!line.is_empty()).then_some(line))
    }

    fn place(&self) -> String {
        format!("{}, line {}", self.name, self.number)
    }

    fn row(&self, line: Vec<u8>) -> Row {
        match content(&line, &self.dialect) {
            Ok((key, value, ttl)) => Row::Record(Record { key, value, ttl }),
            Err(why) => Row::Wrong { place: self.place(), why, row: line },
        }
    }
}

impl Iterator for Lines {
    type Item = Result<Row, KvCommandError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            return match self.line().transpose()? {
                Ok(line) if line.iter().all(u8::is_ascii_whitespace) => continue,
                Ok(line) => Some(Ok(self.row(line))),
                Err(error) => Some(Err(error)),
            };
        }
    }
}

/// Key, value and time to live of a line.
fn content(line: &[u8], dialect: &Dialect) -> Result<Content, String> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let fields: Fields<'_> = serde_json::from_slice(line).map_err(|error| no_object(line, &error))?;
    let key = dialect.key.as_deref().unwrap_or(KEY);
    let found = fields.bytes(key, "--key")?;
    if fields.get(key).is_some_and(|raw| raw.get().starts_with(['{', '[', 'n'])) {
        return Err(format!("the field {key:?} is neither a text nor a number: choose another with --key"));
    }
    let value = match &dialect.value {
        Some(name) => fields.bytes(name, "--value")?,
        None => line.to_vec(),
    };
    let live = match &dialect.ttl {
        Some(name) if fields.get(name).is_none_or(|raw| raw.get() == "null") => {
            fields.once(name)?;
            None
        }
        Some(name) => time_to_live(&fields.bytes(name, "--ttl-column")?)?,
        None => None,
    };
    fit(&found, &value)?;
    Ok((found, value, live))
}

/// Explains why a line is no object, and which command makes lines of objects.
fn no_object(line: &[u8], error: &serde_json::Error) -> String {
    let advice = match line.trim_ascii_start() {
        [b'[', ..] => ", but an array: `jq -c '.[]'` writes each of its objects in a line",
        [b'{', ..] if error.is_eof() => ": it does not end in this line. `jq -c .` writes each in one line",
        _ => "",
    };
    if advice.is_empty() {
        format!("this is not a JSON object: {error}")
    } else {
        format!("this is not a JSON object{advice}")
    }
}

/// The fields of an object, as they are written.
struct Fields<'l> {
    all: BTreeMap<String, &'l RawValue>,
    /// Names that occur more than once: it is unknown which value is meant.
    twice: Vec<String>,
}

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collected;
        impl<'de> Visitor<'de> for Collected {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut fields = Fields { all: BTreeMap::new(), twice: Vec::new() };
                while let Some((name, value)) = map.next_entry::<String, &RawValue>()? {
                    match fields.all.entry(name) {
                        Entry::Occupied(there) => fields.twice.push(there.key().clone()),
                        Entry::Vacant(place) => drop(place.insert(value)),
                    }
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(Collected)
    }
}

impl<'l> Fields<'l> {
    fn get(&self, name: &str) -> Option<&'l RawValue> {
        self.all.get(name).copied()
    }

    /// Checks that the name occurs at most once in the object.
    fn once(&self, name: &str) -> Result<(), String> {
        match self.twice.iter().any(|twice| twice == name) {
            true => Err(format!("the field {name:?} occurs more than once")),
            false => Ok(()),
        }
    }

    /// The bytes of a field: the content of a text, or any other value as it is written.
    fn bytes(&self, name: &str, option: &str) -> Result<Vec<u8>, String> {
        let text = |raw: &RawValue| serde_json::from_str::<String>(raw.get());
        let encoded = format!("{name}{BASE64_SUFFIX}");
        self.once(name)?;
        self.once(&encoded)?;
        match (self.get(name), self.get(&encoded)) {
            (Some(_), Some(_)) => Err(format!("the fields {name:?} and {encoded:?} are both present")),
            (Some(raw), None) if raw.get().starts_with('"') => {
                text(raw).map(String::into_bytes).map_err(|error| format!("the field {name:?}: {error}"))
            }
            (Some(raw), None) => Ok(raw.get().as_bytes().to_vec()),
            (None, Some(raw)) => {
                let text = text(raw).map_err(|error| format!("the field {encoded:?}: {error}"))?;
                from_base64(&text).map_err(|why| format!("the field {encoded:?}: {why}"))
            }
            (None, None) => {
                let there: Vec<&str> = self.all.keys().map(String::as_str).collect();
                let there = there.join(", ");
                Err(format!("there is no field {name:?}, but {there}: choose one with {option}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::read_all;
    use super::*;
    use portcullis::Lifetime;

    fn dialect(key: &str, value: Option<&str>) -> Dialect {
        let (key, value) = (Some(key.to_owned()), value.map(str::to_owned));
        Dialect { delimiter: None, no_header: false, key, value, ttl: None, row_max: 1 << 20 }
    }

    fn open(text: &[u8], dialect: &Dialect) -> Result<Lines, String> {
        let input = Box::new(io::Cursor::new(text.to_vec()));
        Lines::open(input, "a.jsonl".to_owned(), dialect).map_err(|error| error.to_string())
    }

    fn read(text: &[u8], key: &str, value: Option<&str>) -> Result<Vec<(String, String)>, String> {
        let all = read_all(open(text, &dialect(key, value))?)?;
        Ok(all.into_iter().map(|(key, value, _)| (key, value)).collect())
    }

    #[test]
    fn a_value_is_the_line_or_a_field_as_it_is_written() {
        let text = "{\"id\": 7, \"name\": \"B\\u00fcrgi\", \"at\": [1,  2]}\r\n\n";
        let line = text.lines().next().expect("a line").to_owned();
        assert_eq!(read(text.as_bytes(), "id", None), Ok(vec![("7".to_owned(), line)]));
        let of = |value| read(text.as_bytes(), "id", Some(value)).expect("a field")[0].1.clone();
        assert_eq!(of("name"), "Bürgi");
        assert_eq!(of("at"), "[1,  2]");
        let bytes = br#"{"key_base64":"w7w=","value":""}"#;
        assert_eq!(read(bytes, "key", Some("value")), Ok(vec![("ü".to_owned(), String::new())]));
    }

    #[test]
    fn what_windows_and_other_languages_write_is_taken_as_it_is_meant() {
        let long = "12345678901234567890123456789012345678901234567890";
        for (text, value) in [
            (b"\xef\xbb\xbf{\"key\":\"a\",\"value\":\"x\"}\r\n".to_vec(), "x"),
            (format!("{{\"key\":\"a\",\"value\":{long}}}").into_bytes(), long),
            (b"{\"key\":\"a\",\"value\":1e400}".to_vec(), "1e400"),
            (b"{\"key\":\"a\",\"value\":\"\\ud83d\\ude00\"}".to_vec(), "\u{1f600}"),
            (b" {\"key\":\"a\",\"value\":\"x\",\"z\":1,\"z\":2} \n".to_vec(), "x"),
        ] {
            assert_eq!(read(&text, "key", Some("value")), Ok(vec![("a".to_owned(), value.to_owned())]));
        }
    }

    #[test]
    fn a_mistake_is_told_with_its_line_and_what_would_be_right() {
        for (text, meant) in [
            ("{\"a\":1}\n", "but a: choose one with --key"),
            ("\n{\"key\":1}\nnonsense\n", "a.jsonl, line 3: this is not a JSON object"),
            ("{\"key\":null}\n", "neither a text nor a number"),
            ("{\"key\":{\"a\":1}}\n", "neither a text nor a number"),
            ("{\"key_base64\":\"?\"}\n", "no base64"),
            ("{\"key\":\"\\ud83d\"}\n", "line 1: the field \"key\""),
            ("{\"key\":1,\"key\":2}\n", "line 1: the field \"key\" occurs more than once"),
            ("{\"key\":1,\"key_base64\":\"Mg==\"}\n", "both present"),
            ("[{\"key\":1}]\n", "jq -c '.[]'"),
            ("[\n{\"key\":1}\n]\n", "jq -c '.[]'"),
            ("{\n\"key\":1\n}\n", "line 1: this is not a JSON object: it does not end in this line"),
            ("{\"key\":1}\n\u{feff}{\"key\":2}\n", "line 2"),
            ("{\"key\":1}{\"key\":2}\n", "line 1"),
        ] {
            let error = read(text.as_bytes(), "key", None).expect_err("a mistake");
            assert!(error.contains(meant), "{error}");
        }
        assert!(read(b"\xff\xfe{\0}\0", "key", None).is_err_and(|why| why.contains("UTF-16")));
        assert!(read(b"{\"key\":\"\xff\"}", "key", None).is_err_and(|why| why.contains("line 1")));
    }

    #[test]
    fn a_line_without_an_end_takes_no_more_memory_than_a_row_may() {
        let dialect = Dialect { row_max: 100, ..dialect("key", None) };
        let endless = Box::new(io::Cursor::new(&b"{\"key\":1}\n"[..]).chain(io::repeat(b'x')));
        let lines = Lines::open(endless, "a.jsonl".to_owned(), &dialect).map_err(|error| error.to_string());
        let error = lines.and_then(read_all).expect_err("no end");
        assert!(
            error.contains("line 2") && error.contains("100 bytes") && error.contains("--row-max"),
            "{error}"
        );
        let fits = format!("{{\"key\":\"{}\"}}\n", "x".repeat(90));
        assert_eq!(fits.len(), 101, "a hundred bytes and a line break");
        assert!(open(fits.as_bytes(), &dialect).and_then(read_all).is_ok());
    }

    #[test]
    fn times_to_live_come_from_a_field() {
        let dialect = Dialect { ttl: Some("ttl".to_owned()), ..dialect("key", None) };
        let text =
            b"{\"key\":1,\"ttl\":90}\n{\"key\":2}\n{\"key\":3,\"ttl\":null}\n{\"key\":4,\"ttl\":\"1h\"}\n";
        let times: Vec<_> = open(text, &dialect)
            .and_then(read_all)
            .expect("rows")
            .into_iter()
            .map(|(_, _, ttl)| ttl)
            .collect();
        assert_eq!(times, [Some(Lifetime::seconds(90)), None, None, Some(Lifetime::seconds(3600))]);
        let wrong = open(b"{\"key\":1,\"ttl\":1.5}\n", &dialect).and_then(read_all);
        assert!(wrong.is_err_and(|why| why.contains("line 1") && why.contains("1.5")));
    }
}
