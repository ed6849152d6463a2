//! The syntax of rows, and the columns or fields that are key, value and time to live.

use super::{Format, KvLoadOptions};
use crate::kv::command_error::KvCommandError;
use portcullis::Lifetime;
use std::path::Path;

/// The default separator of columns in a file with this name.
pub fn delimiter_of(path: Option<&Path>) -> u8 {
    let is_tsv = path.and_then(Path::extension).is_some_and(|end| end.eq_ignore_ascii_case("tsv"));
    if is_tsv { b'\t' } else { b',' }
}

/// Parses a delimiter: one character of ASCII, or `\t` or `tab`.
pub fn delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        b"\\t" | b"tab" | b"\t" => Ok(b'\t'),
        [byte @ (b' '..=b'~')] if *byte != b'"' => Ok(*byte),
        _ => Err("a delimiter is one character of ASCII other than a quote, or \\t".to_owned()),
    }
}

/// The options of the command line that concern rows.
#[derive(Clone, Debug)]
pub struct Dialect {
    pub delimiter: Option<u8>,
    pub no_header: bool,
    /// Names of columns or fields, or numbers of columns if there is no header.
    pub key: Option<String>,
    pub value: Option<String>,
    pub ttl: Option<String>,
    /// The most bytes of a row.
    pub row_max: u64,
}

impl Dialect {
    pub fn of(options: &KvLoadOptions) -> Self {
        Self {
            delimiter: options.delimiter,
            no_header: options.no_header,
            key: options.key.clone(),
            value: options.value.clone(),
            ttl: options.ttl_column.clone(),
            row_max: options.row_max,
        }
    }

    /// Reports an option that makes no sense with files of this format.
    pub fn check(&self, format: Format) -> Result<(), KvCommandError> {
        let given = [
            ("--delimiter", self.delimiter.is_some() && format != Format::Csv),
            ("--no-header", self.no_header && format != Format::Csv),
            ("--ttl-column", self.ttl.is_some() && format == Format::Folder),
        ];
        match given.iter().find(|(_, is_wrong)| *is_wrong) {
            Some((option, _)) => {
                Err(KvCommandError::Call(format!("{option} does not apply to {}", format.in_words())))
            }
            None => Ok(()),
        }
    }

    /// Explains why a row of more bytes than the limit is not read.
    pub fn too_long(&self) -> String {
        format!("this row has more than {} bytes: --row-max raises the limit", self.row_max)
    }
}

/// Parses a time to live in a row: a TIME, such as 90s or 1h, or a whole number of seconds. Empty: none.
pub fn time_to_live(text: &[u8]) -> Result<Option<Lifetime>, String> {
    let wrong = || {
        format!(
            "the time to live {:?} is invalid: write 90s, 1h or 7d, or seconds",
            text.escape_ascii().to_string()
        )
    };
    let text = std::str::from_utf8(text).map_err(|_| wrong())?.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let seconds = text.bytes().all(|byte| byte.is_ascii_digit());
    let time: Lifetime =
        if seconds { format!("{text}s").parse() } else { text.parse() }.map_err(|_| wrong())?;
    if time.0 == 0 {
        return Err("the time to live is 0: leave it empty for a key that stays".to_owned());
    }
    Ok(Some(time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delimiter_is_one_character_and_a_tab_can_be_written() {
        for (text, byte) in
            [(",", b','), (";", b';'), ("|", b'|'), ("\\t", b'\t'), ("tab", b'\t'), ("\t", b'\t')]
        {
            assert_eq!(delimiter(text), Ok(byte), "{text:?}");
        }
        for wrong in ["", "\"", "\n", "\\n", ";;", "§", "\0"] {
            assert!(delimiter(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_time_to_live_is_a_time_or_seconds_or_nothing() {
        let seconds = |n| Ok(Some(Lifetime::seconds(n)));
        for (text, time) in [
            ("90s", seconds(90)),
            ("90", seconds(90)),
            (" 1h ", seconds(3600)),
            ("", Ok(None)),
            (" ", Ok(None)),
        ] {
            assert_eq!(time_to_live(text.as_bytes()), time, "{text:?}");
        }
        for wrong in ["soon", "-1", "1.5", "0", "0s", "99999999999999999999999", "1h30"] {
            assert!(time_to_live(wrong.as_bytes()).is_err(), "{wrong:?}");
        }
        assert!(time_to_live(b"\xff").is_err());
    }
}
