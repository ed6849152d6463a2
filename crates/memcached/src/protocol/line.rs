//! The beginning of a line whose end has not arrived. Each byte is checked once, when it arrives: the end of a long
//! line costs no more than that of a short one.

use super::command::KEY_BYTES_MAX;
use std::borrow::Cow;

/// Length above which a line gets at once all the memory that a line may have.
const LONG_LINE_BYTES: usize = 64 << 10;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct PendingLine {
    bytes: Vec<u8>,
    /// End of the line for memcached, whose lines are C strings.
    nul_at: Option<usize>,
    /// The length of the last word so far.
    last_word: usize,
    /// The longest word before that one.
    longest_word: usize,
}

/// A complete line, without its line end.
pub(super) struct WholeLine<'a> {
    pub bytes: Cow<'a, [u8]>,
    /// A word of the line is too long to be a key.
    pub has_long_word: bool,
}

impl PendingLine {
    /// Adds bytes, which contain no line feed. `most`: maximum length of a line.
    pub fn push(&mut self, piece: &[u8], most: usize) {
        self.measure(piece);
        let length = self.bytes.len();
        if length + piece.len() > LONG_LINE_BYTES && !self.is_long() {
            self.bytes.reserve_exact(most.max(length + piece.len()) - length);
        }
        self.bytes.extend_from_slice(piece);
    }

    fn measure(&mut self, piece: &[u8]) {
        if self.nul_at.is_some() {
            return;
        }
        let end = piece.iter().position(|byte| *byte == 0);
        self.nul_at = end.map(|end| self.bytes.len() + end);
        let mut words = piece[..end.unwrap_or(piece.len())].split(|byte| *byte == b' ');
        self.last_word += words.next().map_or(0, <[u8]>::len);
        for word in words {
            self.longest_word = self.longest_word.max(self.last_word);
            self.last_word = word.len();
        }
    }

    /// Returns the bytes that have arrived.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes of memory that the line takes.
    pub fn memory(&self) -> usize {
        self.bytes.capacity()
    }

    /// Whether the line has got all the memory that a line may have.
    pub fn is_long(&self) -> bool {
        self.bytes.len() > LONG_LINE_BYTES
    }

    /// Ends the line with its last piece, and returns it. A line of one piece is not copied.
    pub fn end(mut self, piece: &[u8]) -> WholeLine<'_> {
        self.measure(piece);
        let Self { mut bytes, nul_at, mut last_word, longest_word } = self;
        let mut bytes = if bytes.is_empty() {
            Cow::Borrowed(piece)
        } else {
            bytes.extend_from_slice(piece);
            Cow::Owned(bytes)
        };
        match nul_at {
            Some(end) => truncate(&mut bytes, end),
            // A carriage return alone does not end a line, but is a bad command.
            None if bytes.len() > 1 && bytes.ends_with(b"\r") => {
                let end = bytes.len() - 1;
                truncate(&mut bytes, end);
                last_word -= 1;
            }
            None => {}
        }
        WholeLine { bytes, has_long_word: last_word.max(longest_word) > KEY_BYTES_MAX }
    }
}

fn truncate(bytes: &mut Cow<'_, [u8]>, end: usize) {
    match bytes {
        Cow::Borrowed(bytes) => *bytes = &bytes[..end],
        Cow::Owned(bytes) => bytes.truncate(end),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn words_are_measured_whatever_pieces_they_come_in(
            words in prop::collection::vec(prop_oneof![0usize..4, 248usize..253], 1..6),
            piece in 1usize..300,
            end in prop::sample::select(vec!["", "\r", "\0 x"]),
        ) {
            let longest = words.iter().copied().max().unwrap_or(0);
            let line: Vec<String> = words.into_iter().map(|length| "k".repeat(length)).collect();
            let line = line.join(" ");
            let mut pending = PendingLine::default();
            let whole = format!("{line}{end}");
            let mut pieces: Vec<&[u8]> = whole.as_bytes().chunks(piece).collect();
            let last = pieces.pop().unwrap_or_default();
            pieces.into_iter().for_each(|piece| pending.push(piece, 1 << 20));
            let ended = pending.end(last);
            let expected = if line.is_empty() && end == "\r" { end } else { &line };
            prop_assert_eq!(&*ended.bytes, expected.as_bytes());
            prop_assert_eq!(ended.has_long_word, longest > KEY_BYTES_MAX);
        }
    }
}
