//! Rows of CSV, with or without a header.
//!
//! The reader of the crate `csv` accepts rows of other lengths, quoted fields that never end, and rows of any size. All
//! three are mistakes here, and the limit of a row is checked before memory is taken for it.

use super::dialect::{Dialect, time_to_live};
use super::{Content, Record, Row, fit};
use crate::files::text;
use crate::kv::command_error::KvCommandError;
use csv::{ByteRecord, ReaderBuilder, WriterBuilder};
use std::cell::{Cell, RefCell};
use std::io::{self, BufRead, Chain, Read};
use std::rc::Rc;

/// The default names of the columns.
const KEY: &str = "key";
const VALUE: &str = "value";
/// Marker that follows the input. The reader returns it as a separate row, unless an unclosed quoted field contains it.
/// It contains no delimiter.
const END: &[u8] = b"\n\0\0\0\0\n";
/// Bytes that the reader of `csv` reads ahead.
const BUFFER_BYTES: usize = 8 << 10;

/// The rows of a file.
pub struct Rows {
    reader: csv::Reader<Limited>,
    /// Bytes that may be read before the next row begins.
    left: Rc<Cell<u64>>,
    /// Bytes of the input so far: all of them once `END` is read.
    input_bytes: Rc<Cell<u64>>,
    recent: Rc<RefCell<Recent>>,
    /// The line of the next row, if no empty lines precede it.
    next_line: u64,
    name: String,
    /// Lines before the first one that the reader counts.
    lines_before: u64,
    dialect: Dialect,
    delimiter: u8,
    columns: Columns,
    /// The number of columns that each row must have. `None`: as many as the first row.
    width: Option<usize>,
    /// The bytes before the rows, which are also written before rejected rows.
    preamble: Vec<u8>,
}

/// The numbers of the selected columns, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Columns {
    key: usize,
    value: usize,
    ttl: Option<usize>,
}

impl Rows {
    /// Reads the bytes before the rows. `by_name` is the delimiter that the file's name suggests.
    pub fn open(
        input: Box<dyn Read>,
        name: String,
        by_name: u8,
        dialect: &Dialect,
    ) -> Result<Self, KvCommandError> {
        let mut input = text(input).map_err(|error| unreadable(&name, error))?;
        let stated = stated_delimiter(&mut input).map_err(|error| unreadable(&name, error))?;
        let delimiter = match (stated, dialect.delimiter) {
            (Some(stated), Some(given)) if stated != given => {
                let (stated, given) = (char::from(stated), char::from(given));
                let why =
                    format!("{name} begins with sep={stated}, and --delimiter is {given:?}: leave it out");
                return Err(KvCommandError::Call(why));
            }
            (stated, given) => stated.or(given).unwrap_or(by_name),
        };
        let (left, input_bytes) = <(Rc<Cell<u64>>, Rc<Cell<u64>>)>::default();
        let counted = Counted { input: Box::new(input), bytes: Rc::clone(&input_bytes) };
        let recent = Rc::<RefCell<Recent>>::default();
        let limited =
            Limited { input: counted.chain(END), left: Rc::clone(&left), recent: Rc::clone(&recent) };
        let mut builder = ReaderBuilder::new();
        builder.has_headers(false).flexible(true).delimiter(delimiter).buffer_capacity(BUFFER_BYTES);
        let mut rows = Self {
            reader: builder.from_reader(limited),
            left,
            input_bytes,
            recent,
            next_line: 1,
            name,
            lines_before: u64::from(stated.is_some()),
            dialect: dialect.clone(),
            delimiter,
            columns: Columns::default(),
            width: None,
            preamble: stated.map_or_else(Vec::new, |stated| [b"sep=", &[stated][..], b"\n"].concat()),
        };
        rows.columns = if dialect.no_header { rows.numbered()? } else { rows.named()? };
        Ok(rows)
    }

    /// The bytes before the rows: with them, rejected rows make a file that can be loaded again.
    pub fn preamble(&self) -> &[u8] {
        &self.preamble
    }

    /// Finds the columns by the header.
    fn named(&mut self) -> Result<Columns, KvCommandError> {
        let Some((header, line)) = self.next_record()? else {
            let why = "it has no row: the first row must have the names of the columns".to_owned();
            return Err(KvCommandError::Input { place: self.name.clone(), why });
        };
        let Dialect { key, value, ttl, .. } = &self.dialect;
        let column =
            |wanted: &str, option| column(&header, &self.place(line), wanted, option, self.delimiter);
        let columns = Columns {
            key: column(key.as_deref().unwrap_or(KEY), "--key")?,
            value: column(value.as_deref().unwrap_or(VALUE), "--value")?,
            ttl: ttl.as_deref().map(|ttl| column(ttl, "--ttl-column")).transpose()?,
        };
        self.width = Some(header.len());
        let header = self.written(&header);
        self.preamble.extend(header);
        Ok(columns)
    }

    /// Finds the columns by their numbers.
    fn numbered(&self) -> Result<Columns, KvCommandError> {
        let number = |given: &Option<String>, option| {
            let wrong = |given| {
                format!("--no-header: {option} must be the number of a column, from 1, not {given:?}")
            };
            let number = given.as_ref().map(|given| match given.parse::<usize>() {
                Ok(number @ 1..) => Ok(number - 1),
                _ => Err(KvCommandError::Call(wrong(given))),
            });
            number.transpose()
        };
        let Dialect { key, value, ttl, .. } = &self.dialect;
        Ok(Columns {
            key: number(key, "--key")?.unwrap_or(0),
            value: number(value, "--value")?.unwrap_or(1),
            ttl: number(ttl, "--ttl-column")?,
        })
    }

    /// The next row unchanged, and its line. `None` at the end.
    fn next_record(&mut self) -> Result<Option<(ByteRecord, u64)>, KvCommandError> {
        let mut record = ByteRecord::new();
        let row_max = self.dialect.row_max;
        self.left.set(row_max + 2 * BUFFER_BYTES as u64);
        match self.reader.read_byte_record(&mut record) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(error) => return Err(self.not_read(error)),
        }
        // A last row without a line break ends with the first byte of `END`.
        let beyond = self.reader.position().byte().saturating_sub(self.input_bytes.get());
        let line = self.line_of(&record, beyond > 1);
        if beyond > 1 && record.as_slice() == END.trim_ascii() && record.len() == 1 {
            return Ok(None);
        }
        let wrong = |why| Err(KvCommandError::Input { place: self.place(line), why });
        if record.as_slice().len() as u64 > row_max {
            return wrong(self.dialect.too_long());
        }
        if beyond > 1 {
            let why = "a quoted field begins in this row and does not end before the file does";
            return wrong(why.to_owned());
        }
        Ok(Some((record, line)))
    }

    /// Returns the line in which the row just read begins. The reader's own position of a row is before line breaks
    /// that it skips, including half of a Windows line break. `is_last`: the row ends where the input does, without a
    /// line break.
    fn line_of(&mut self, record: &ByteRecord, is_last: bool) -> u64 {
        let end = self.reader.position();
        let last = self.recent.borrow().byte_before(end.byte());
        let inside = record.as_slice().iter().filter(|&&byte| byte == b'\n').count() as u64;
        self.next_line = end.line() + u64::from(last == Some(b'\r'));
        end.line().saturating_sub(inside + u64::from(last == Some(b'\n') && !is_last))
    }

    fn not_read(&self, error: csv::Error) -> KvCommandError {
        let place = self.place(self.next_line);
        match error.into_kind() {
            csv::ErrorKind::Io(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                KvCommandError::Input { place, why: self.dialect.too_long() }
            }
            csv::ErrorKind::Io(error) => KvCommandError::File { what: place, error },
            other => KvCommandError::Input { place, why: format!("{other:?}") },
        }
    }

    fn place(&self, line: u64) -> String {
        format!("{}, line {}", self.name, line + self.lines_before)
    }

    fn row(&mut self, record: &ByteRecord, line: u64) -> Row {
        let place = self.place(line);
        match self.content(record) {
            Ok((key, value, ttl)) => Row::Record(Record { key, value, ttl }),
            Err(why) => Row::Wrong { place, why, row: self.written(record) },
        }
    }

    /// Key, value and time to live of a row.
    fn content(&mut self, record: &ByteRecord) -> Result<Content, String> {
        let Columns { key, value, ttl } = self.columns;
        let last = key.max(value).max(ttl.unwrap_or(0));
        let (there, are) = (record.len(), if record.len() == 1 { "field" } else { "fields" });
        match self.width {
            Some(width) if there != width => {
                let first = if self.dialect.no_header { "first row" } else { "header" };
                return Err(format!("this row has {there} {are}, and the {first} has {width}"));
            }
            None if there <= last => {
                return Err(format!("this row has {there} {are}, but column {} is requested", last + 1));
            }
            _ => self.width = Some(there),
        }
        let field = |column: usize| record.get(column).unwrap_or_default();
        let live = ttl.map_or(Ok(None), |column| time_to_live(field(column)))?;
        fit(field(key), field(value))?;
        Ok((field(key).to_vec(), field(value).to_vec(), live))
    }

    /// Returns a row as it is written in a file.
    fn written(&self, record: &ByteRecord) -> Vec<u8> {
        let mut writer = WriterBuilder::new().delimiter(self.delimiter).from_writer(Vec::new());
        // Writing to a vector cannot fail.
        let _ = writer.write_byte_record(record);
        writer.into_inner().unwrap_or_default()
    }
}

impl Iterator for Rows {
    type Item = Result<Row, KvCommandError>;

    fn next(&mut self) -> Option<Self::Item> {
        let record = self.next_record().transpose()?;
        Some(record.map(|(record, line)| self.row(&record, line)))
    }
}

/// Returns the delimiter that a first line `sep=;` states, as spreadsheets write it, and consumes that line.
fn stated_delimiter(input: &mut impl BufRead) -> io::Result<Option<u8>> {
    let (delimiter, bytes) = match input.fill_buf()? {
        [b's', b'e', b'p', b'=', delimiter, b'\n', ..] => (*delimiter, 6),
        [b's', b'e', b'p', b'=', delimiter, b'\r', b'\n', ..] => (*delimiter, 7),
        _ => return Ok(None),
    };
    input.consume(bytes);
    Ok(Some(delimiter))
}

/// The number of the column with this name.
fn column(
    header: &ByteRecord,
    place: &str,
    wanted: &str,
    option: &str,
    delimiter: u8,
) -> Result<usize, KvCommandError> {
    let mut found =
        (0..).zip(header).filter(|(_, name)| *name == wanted.as_bytes()).map(|(number, _)| number);
    match (found.next(), found.next()) {
        (Some(column), None) => Ok(column),
        (Some(one), Some(other)) => Err(KvCommandError::Call(format!(
            "{place}: columns {} and {} are both called {wanted:?}: give them different names, or leave the \
             first line out and take columns by number with --no-header",
            one + 1,
            other + 1
        ))),
        (None, _) => {
            let names: Vec<_> = header.iter().map(String::from_utf8_lossy).collect();
            let there = names.join(", ");
            let other = [b';', b'\t', b'|', b',']
                .into_iter()
                .find(|&byte| byte != delimiter && there.as_bytes().contains(&byte));
            let separated = match other.filter(|_| header.len() == 1) {
                Some(other) => format!(
                    ", or add --delimiter '{}' if that separates them",
                    char::from(other).escape_default()
                ),
                None => String::new(),
            };
            Err(KvCommandError::Call(format!(
                "{place}: there is no column {wanted:?}, but {there}: choose one with {option}{separated}"
            )))
        }
    }
}

fn unreadable(name: &str, error: io::Error) -> KvCommandError {
    match error.kind() {
        io::ErrorKind::InvalidData => {
            KvCommandError::Input { place: name.to_owned(), why: error.to_string() }
        }
        _ => KvCommandError::File { what: format!("{name} cannot be read"), error },
    }
}

/// A reader that counts the bytes read.
struct Counted {
    input: Box<dyn Read>,
    bytes: Rc<Cell<u64>>,
}

impl Read for Counted {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let bytes = self.input.read(into)?;
        self.bytes.set(self.bytes.get() + bytes as u64);
        Ok(bytes)
    }
}

/// The bytes that were read last.
#[derive(Default)]
struct Recent {
    /// Position of the first of them.
    start: u64,
    bytes: Vec<u8>,
    /// The byte before them.
    before: Option<u8>,
}

impl Recent {
    fn follow_with(&mut self, bytes: &[u8]) {
        self.start += self.bytes.len() as u64;
        self.before = self.bytes.last().copied().or(self.before);
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
    }

    /// The byte before this position, if it was read recently.
    fn byte_before(&self, position: u64) -> Option<u8> {
        match position.checked_sub(self.start)? {
            0 => self.before,
            at => self.bytes.get(usize::try_from(at).ok()? - 1).copied(),
        }
    }
}

/// A reader that refuses to read on when the bytes allowed for a row are used up.
struct Limited {
    input: Chain<Counted, &'static [u8]>,
    left: Rc<Cell<u64>>,
    recent: Rc<RefCell<Recent>>,
}

impl Read for Limited {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.left.get();
        if left == 0 {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let room = into.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let bytes = self.input.read(&mut into[..room])?;
        self.left.set(left - bytes as u64);
        self.recent.borrow_mut().follow_with(&into[..bytes]);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::read_all;
    use super::*;
    use portcullis::Lifetime;

    fn dialect() -> Dialect {
        Dialect { delimiter: None, no_header: false, key: None, value: None, ttl: None, row_max: 1 << 20 }
    }

    fn open(text: &[u8], dialect: &Dialect) -> Result<Rows, KvCommandError> {
        Rows::open(Box::new(io::Cursor::new(text.to_vec())), "a.csv".to_owned(), b',', dialect)
    }

    /// Keys and values, or the first mistake.
    fn read(text: &[u8], dialect: &Dialect) -> Result<Vec<(String, String)>, String> {
        let rows = open(text, dialect).map_err(|error| error.to_string())?;
        read_all(rows).map(|all| all.into_iter().map(|(key, value, _)| (key, value)).collect())
    }

    fn pairs(all: &[(&str, &str)]) -> Result<Vec<(String, String)>, String> {
        Ok(all.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    fn named(key: &str, value: Option<&str>) -> Dialect {
        Dialect { key: Some(key.to_owned()), value: value.map(str::to_owned), ..dialect() }
    }

    #[test]
    fn columns_are_found_by_their_names() {
        let text = b"name,area,value\nBern,51,capital\n\"a,\"\"b\",1,\"two\nlines\"\n";
        assert_eq!(read(text, &named("name", None)), pairs(&[("Bern", "capital"), ("a,\"b", "two\nlines")]));
        assert_eq!(read(text, &named("name", Some("area"))), pairs(&[("Bern", "51"), ("a,\"b", "1")]));
    }

    #[test]
    fn rows_of_windows_and_of_spreadsheets_are_rows() {
        let all = pairs(&[("a", "1"), ("b", "2")]);
        for text in [
            &b"\xef\xbb\xbfkey,value\r\na,1\r\nb,2\r\n"[..],
            b"\xef\xbb\xbf\"key\",\"value\"\na,1\nb,2",
            b"key,value\ra,1\rb,2\r",
            b"\n\nkey,value\n\na,1\n\nb,2\n\n",
            b"sep=;\r\nkey;value\r\na;1\r\nb;2\r\n",
            b"\xef\xbb\xbfsep=,\nkey,value\na,1\nb,2\n",
        ] {
            assert_eq!(read(text, &dialect()), all, "{:?}", text.escape_ascii().to_string());
        }
        for (text, delimiter) in [
            ("key;value\na;1\nb;2\n", b';'),
            ("key\tvalue\na\t1\nb\t2\n", b'\t'),
            ("key value\na 1\nb 2\n", b' '),
        ] {
            assert_eq!(
                read(text.as_bytes(), &Dialect { delimiter: Some(delimiter), ..dialect() }),
                all,
                "{text}"
            );
        }
        assert_eq!(read(b"key,value\n", &dialect()), pairs(&[]));
        let refused = read(b"sep=;\nkey;value\n", &Dialect { delimiter: Some(b','), ..dialect() });
        assert!(refused.is_err_and(|why| why.contains("sep=;")));
    }

    #[test]
    fn columns_without_a_header_have_numbers() {
        let numbered = |key: &str, value: &str| Dialect { no_header: true, ..named(key, Some(value)) };
        let text = b"a,1,x\nb,2,y\n";
        assert_eq!(read(text, &Dialect { no_header: true, ..dialect() }), pairs(&[("a", "1"), ("b", "2")]));
        assert_eq!(read(text, &numbered("3", "1")), pairs(&[("x", "a"), ("y", "b")]));
        assert_eq!(read(b"", &numbered("1", "2")), pairs(&[]));
        for (dialect, told) in [
            (numbered("0", "1"), "from 1"),
            (numbered("name", "1"), "--key"),
            (numbered("1", "4"), "column 4 is requested"),
        ] {
            assert!(read(text, &dialect).is_err_and(|why| why.contains(told)), "{dialect:?}");
        }
        let short = read(b"a,1\nb\n", &Dialect { no_header: true, ..dialect() });
        assert!(
            short
                .is_err_and(|why| why.contains("line 2") && why.contains("1 field, and the first row has 2"))
        );
    }

    #[test]
    fn a_mistake_is_told_with_its_line_and_what_would_be_right() {
        for (text, key, parts) in [
            (&b"name,size\nBern,1\n"[..], "key", &["name, size", "--key"][..]),
            (b"name;value\nBern;1\n", "name", &["name;value", "--delimiter ';'"]),
            (b"name\tvalue\nBern\t1\n", "name", &["--delimiter '\\t'"]),
            (b"key,value\na,1\nb\n", "key", &["a.csv, line 3", "1 field, and the header has 2"]),
            (b"key,value\na,1,2\n", "key", &["a.csv, line 2", "3 fields"]),
            (b"key,value,key\na,1,b\n", "key", &["columns 1 and 3", "\"key\""]),
            (b"key,value,value\na,1,b\n", "key", &["columns 2 and 3", "\"value\""]),
            (b"", "key", &["no row"]),
            (b"key,value\na,\"b\nc,d\ne,f\n", "key", &["a.csv, line 2", "does not end"]),
            (b"key,value\na,b\nc,\"", "key", &["a.csv, line 3", "does not end"]),
            (b"\xff\xfek\0e\0y\0", "key", &["a.csv: it is UTF-16"]),
            (b"sep=,\nkey,value\na\n", "key", &["a.csv, line 3:"]),
            (b"key,value\r\na,1\r\nb\r\n", "key", &["a.csv, line 3:"]),
            (b"\r\n\r\nkey,value\r\n\r\na,\"1\r\n2\"\r\n\r\nb\r\n", "key", &["a.csv, line 8:"]),
            (b"key,value\n\"a\nb\"\n", "key", &["a.csv, line 2:"]),
        ] {
            let error = read(text, &named(key, None)).expect_err("a mistake");
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
        let twice = read(b"key,value,note,note\na,1,x,y\n", &dialect());
        assert_eq!(twice, pairs(&[("a", "1")]), "columns that are not wanted may be called anything");
    }

    #[test]
    fn a_row_without_an_end_takes_no_more_memory_than_a_row_may() {
        let dialect = Dialect { row_max: 1000, ..dialect() };
        for (begin, line) in
            [("", 1), ("key,value\na,", 2), ("key,value\r\nb,1\r\n\"", 3), ("key,value\na,\"x\n", 2)]
        {
            let endless = Box::new(io::Cursor::new(begin.as_bytes()).chain(io::repeat(b'x')));
            let rows = Rows::open(endless, "a.csv".to_owned(), b',', &dialect);
            let error = rows.map_err(|error| error.to_string()).and_then(read_all).expect_err("no end");
            assert!(
                error.contains(&format!("line {line}:")) && error.contains("--row-max"),
                "{begin:?}: {error}"
            );
        }
        let fits = format!("key,value\na,{}\n", "x".repeat(990));
        assert!(read(fits.as_bytes(), &dialect).is_ok());
    }

    #[test]
    fn times_to_live_come_from_a_column() {
        let dialect = Dialect { ttl: Some("ttl".to_owned()), ..dialect() };
        let rows = open(b"key,ttl,value\na,90,1\nb,,2\nc,1h,3\n", &dialect).expect("a header");
        let times: Vec<_> = read_all(rows).expect("rows").into_iter().map(|(_, _, ttl)| ttl).collect();
        assert_eq!(times, [Some(Lifetime::seconds(90)), None, Some(Lifetime::seconds(3600))]);
        let wrong = read(b"key,ttl,value\na,soon,1\n", &dialect);
        assert!(wrong.is_err_and(|why| why.contains("line 2") && why.contains("soon")));
    }

    #[test]
    fn a_wrong_row_can_be_written_as_it_was_and_read_again() {
        let text = b"sep=;\nkey;value\n\"a;b\";\"x\ny\";z\nc;1\n";
        let mut rows = open(text, &dialect()).expect("a header");
        let Some(Ok(Row::Wrong { row, .. })) = rows.next() else { panic!("the first row is too long") };
        let again = [rows.preamble(), &row].concat();
        assert_eq!(again, b"sep=;\nkey;value\n\"a;b\";\"x\ny\";z\n");
        assert!(matches!(rows.next(), Some(Ok(Row::Record(_)))), "the next one is read");
        assert!(read(&again, &dialect()).is_err_and(|why| why.contains("line 3")));
    }
}
