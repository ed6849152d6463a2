//! Rows of CSV with a header.

use super::{Item, Record};
use crate::kv::trouble::Trouble;
use csv::{ByteRecord, ReaderBuilder};
use std::io::Read;

/// The column of the value, if nothing else is said.
const VALUE: &str = "value";

/// The records of CSV, by the names of two columns.
pub fn items<R: Read>(
    input: R,
    name: String,
    key: &str,
    value: Option<&str>,
) -> Result<impl Iterator<Item = Result<Item, Trouble>> + use<R>, Trouble> {
    let mut reader = ReaderBuilder::new().from_reader(input);
    let header = reader.byte_headers().map_err(|error| wrong(&name, &error))?.clone();
    let key = column(&header, &name, key, "--key")?;
    let value = column(&header, &name, value.unwrap_or(VALUE), "--value")?;
    Ok(reader.into_byte_records().map(move |row| {
        let row = row.map_err(|error| wrong(&name, &error))?;
        let line = row.position().map_or(0, csv::Position::line);
        let field = |column: usize| row.get(column).unwrap_or_default().to_vec();
        Ok(Item::Record(Record {
            key: field(key),
            value: field(value),
            place: format!("{name}, line {line}"),
        }))
    }))
}

/// The number of the column with this name.
fn column(header: &ByteRecord, file: &str, wanted: &str, option: &str) -> Result<usize, Trouble> {
    header.iter().position(|name| name == wanted.as_bytes()).ok_or_else(|| {
        let names: Vec<_> = header.iter().map(String::from_utf8_lossy).collect();
        let there = names.join(", ");
        Trouble::Call(format!("{file} has no column {wanted:?}, but {there}: choose one with {option}"))
    })
}

fn wrong(file: &str, error: &csv::Error) -> Trouble {
    let line = error.position().map_or_else(String::new, |at| format!(", line {}", at.line()));
    let why = match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("this row has {len} fields, and the header has {expected_len}")
        }
        _ => error.to_string(),
    };
    Trouble::Input { place: format!("{file}{line}"), why }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Pair = (Vec<u8>, Vec<u8>);

    fn read(text: &[u8], key: &str, value: Option<&str>) -> Result<Vec<Pair>, String> {
        let text = text.to_vec();
        let items = items(std::io::Cursor::new(text), "a.csv".to_owned(), key, value);
        let records = items.map_err(|error| error.to_string())?.map(|item| match item {
            Ok(Item::Record(record)) => Ok((record.key, record.value)),
            Ok(Item::LeftOut(what)) => Err(what),
            Err(error) => Err(error.to_string()),
        });
        records.collect()
    }

    #[test]
    fn columns_are_found_by_their_names() {
        let text = b"name,area,value\nBern,51,capital\n\"a,\"\"b\",1,\"two\nlines\"\n";
        let all = read(text, "name", None).expect("rows");
        assert_eq!(all[0], (b"Bern".to_vec(), b"capital".to_vec()));
        assert_eq!(all[1], (b"a,\"b".to_vec(), b"two\nlines".to_vec()));
        assert_eq!(read(text, "name", Some("area")).expect("rows")[0].1, b"51");
    }

    #[test]
    fn a_mistake_is_told_with_its_line_and_what_would_be_right() {
        let error = read(b"name,size\nBern,1\n", "key", None).expect_err("no such column");
        assert!(error.contains("name, size") && error.contains("--key"), "{error}");
        let error = read(b"key,value\na,1\nb\n", "key", None).expect_err("a short row");
        assert!(error.contains("a.csv, line 3") && error.contains("1 fields"), "{error}");
    }
}
