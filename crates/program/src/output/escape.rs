//! Foreign text on a terminal: names of files and columns, keys, tenants, and texts from peers.
//!
//! Some characters act on a terminal instead of being displayed: they move the cursor, change colours or the title, or
//! reverse the order of letters. An attacker who chooses a name could thereby forge the text that a reader sees. The
//! writers of [`output`](super) pass all text through this module, once, and write such characters as escapes.

use std::fmt::{self, Display, Write as _};
use std::io;

/// The characters of Unicode's property Bidi_Control: they change the order in which text is shown.
const BIDI: [char; 12] = [
    '\u{61c}', '\u{200e}', '\u{200f}', '\u{202a}', '\u{202b}', '\u{202c}', '\u{202d}', '\u{202e}',
    '\u{2066}', '\u{2067}', '\u{2068}', '\u{2069}',
];
/// Line and paragraph separators that are not control characters.
const SEPARATORS: [char; 2] = ['\u{2028}', '\u{2029}'];

/// Whether a character acts on the terminal or on its neighbours instead of being displayed.
pub fn acts(c: char) -> bool {
    c.is_control() || BIDI.contains(&c) || SEPARATORS.contains(&c)
}

/// Acting characters that are kept, because the program's own text contains them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// No character: the text is part of one line.
    Nothing,
    /// Line breaks and tabs: the text has a layout.
    Layout,
}

impl Kept {
    fn shows(self, c: char) -> bool {
        !acts(c) || (self == Self::Layout && matches!(c, '\n' | '\t'))
    }
}

/// Text in which each character that acts is written as an escape, such as `\u{1b}`.
#[derive(Debug)]
pub struct Escaped<T>(pub T, pub Kept);

impl<T: Display> Display for Escaped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaper { to: f, kept: self.1 }, "{}", self.0)
    }
}

struct Escaper<'a, 'f> {
    to: &'a mut fmt::Formatter<'f>,
    kept: Kept,
}

impl fmt::Write for Escaper<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.split_inclusive(|c| !self.kept.shows(c)).try_for_each(|part| {
            match part.char_indices().next_back().filter(|&(_, last)| !self.kept.shows(last)) {
                Some((at, last)) => write!(self.to, "{}{}", &part[..at], last.escape_default()),
                None => self.to.write_str(part),
            }
        })
    }
}

/// Returns the JSON with each acting character written as JSON's own escape. The value stays the same.
pub fn in_json(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        // Line breaks and blanks between values are JSON's own; within strings they are escapes already.
        if Kept::Layout.shows(c) {
            escaped.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(escaped, "\\u{unit:04x}");
            }
        }
    }
    escaped
}

/// A writer of data to a terminal. It escapes bytes that are not text and characters that act on the terminal. Line
/// breaks and tabs stay.
#[derive(Debug)]
pub struct TerminalWriter<W> {
    to: W,
    /// The first bytes of a character whose remaining bytes have not been written yet: three bytes at most.
    begun: Vec<u8>,
}

impl<W: io::Write> TerminalWriter<W> {
    /// A writer to this terminal.
    pub fn new(to: W) -> Self {
        Self { to, begun: Vec::new() }
    }

    /// Writes the complete characters of `bytes`, and keeps the rest.
    fn write_whole(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            write!(self.to, "{}", Escaped(chunk.valid(), Kept::Layout))?;
            let invalid = chunk.invalid();
            let may_go_on = chunks.peek().is_none() && is_beginning(invalid);
            if may_go_on {
                self.begun = invalid.to_vec();
            } else {
                write!(self.to, "{}", invalid.escape_ascii())?;
            }
        }
        Ok(())
    }
}

/// Whether these bytes can be the beginning of a character.
fn is_beginning(bytes: &[u8]) -> bool {
    !bytes.is_empty() && std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

impl<W: io::Write> io::Write for TerminalWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut all = std::mem::take(&mut self.begun);
        all.extend_from_slice(bytes);
        self.write_whole(&all)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let begun = std::mem::take(&mut self.begun);
        write!(self.to, "{}", begun.escape_ascii())?;
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    fn line(text: &str) -> String {
        Escaped(text, Kept::Nothing).to_string()
    }

    #[test]
    fn what_acts_on_a_terminal_is_written_as_an_escape_and_text_stays() {
        for (text, shown) in [
            ("plain", "plain"),
            ("Zürich 東京 👩‍👩‍👧 שלום", "Zürich 東京 👩‍👩‍👧 שלום"),
            ("", ""),
            ("\u{1b}[31mred\u{7}", "\\u{1b}[31mred\\u{7}"),
            ("a\rb\nc\td\u{0}", "a\\rb\\nc\\td\\u{0}"),
            ("\u{7f}\u{85}\u{9b}2J", "\\u{7f}\\u{85}\\u{9b}2J"),
            ("user\u{202e}nimda\u{2066}", "user\\u{202e}nimda\\u{2066}"),
            ("a\u{2028}b", "a\\u{2028}b"),
        ] {
            assert_eq!(line(text), shown);
        }
        assert_eq!(Escaped("a\n\tb\r", Kept::Layout).to_string(), "a\n\tb\\r");
    }

    #[test]
    fn json_stays_the_same_value() {
        for text in ["\u{9b}31m \u{202e} \u{7f}", "a\u{1b}\n\"\\", "Zürich 👩‍👩‍👧"] {
            let written = in_json(&serde_json::to_string(&[text]).expect("JSON"));
            assert!(!written.contains(acts), "{written}");
            assert_eq!(serde_json::from_str::<Vec<String>>(&written).expect("JSON"), [text]);
        }
        let pretty = serde_json::to_string_pretty(&serde_json::json!({"a": 1})).expect("JSON");
        assert_eq!(in_json(&pretty), pretty);
    }

    fn on_terminal<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
        let mut seen = Vec::new();
        let mut writer = TerminalWriter::new(&mut seen);
        for part in parts {
            writer.write_all(part).expect("written");
        }
        writer.flush().expect("written");
        String::from_utf8(seen).expect("text")
    }

    #[test]
    fn bytes_that_are_no_text_show_as_what_they_are() {
        assert_eq!(on_terminal([&b"\xff\x9b\x1b[2J ok\n"[..]]), "\\xff\\x9b\\u{1b}[2J ok\n");
        assert_eq!(on_terminal(["ü".as_bytes()]), "ü");
        assert_eq!(on_terminal([&b"\xc3"[..], &b"\xbc"[..]]), "ü", "a character in two pieces");
        assert_eq!(on_terminal([&b"a\xc3"[..]]), "a\\xc3", "and one that is never whole");
    }

    proptest! {
        /// Wherever the data is split, the terminal gets the same text, without characters that act on it.
        #[test]
        fn cuts_change_nothing(bytes in prop::collection::vec(any::<u8>(), 0..60), at in 0usize..60) {
            let (left, right) = bytes.split_at(at.min(bytes.len()));
            let shown = on_terminal([left, right]);
            prop_assert_eq!(&shown, &on_terminal([&bytes[..]]));
            prop_assert!(!shown.contains(|c| acts(c) && c != '\n' && c != '\t'));
        }
    }
}
