//! Whole lines for a file that may not accept all of them.
//!
//! Bytes that the file did not accept are kept and written again later. If the file accepted only the beginning of a
//! line, that beginning is cut off again, so that readers meanwhile find a whole last line. If the file cannot be cut
//! (a pipe), the rest of the line is written first.

use std::io::{self, ErrorKind, Write};

/// The destination of the lines.
pub(super) trait Store: Write {
    /// Removes the last `bytes`. Returns whether that was possible.
    fn cut(&mut self, bytes: usize) -> bool;
}

/// Lines, some of which a store has accepted.
#[derive(Debug, Default)]
pub(super) struct Lines {
    text: Vec<u8>,
    /// How many bytes of the lines are in the store.
    taken: usize,
}

impl Lines {
    /// The text to which further lines are appended, each with its newline.
    pub fn text(&mut self) -> &mut Vec<u8> {
        &mut self.text
    }

    /// Whether the store has all lines.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Number of lines that are not, or not entirely, in the store.
    pub fn count(&self) -> u64 {
        self.text[self.taken..].iter().filter(|&&byte| byte == b'\n').count() as u64
    }

    /// Writes the lines to the store.
    ///
    /// # Errors
    /// The store's error. The store then ends with a whole line, and the rest waits here for the next call.
    pub fn write_out(&mut self, store: &mut impl Store) -> io::Result<()> {
        while self.taken < self.text.len() {
            match store.write(&self.text[self.taken..]) {
                Ok(0) => return Err(self.give_up(store, ErrorKind::WriteZero.into())),
                Ok(bytes) => self.taken += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.give_up(store, error)),
            }
        }
        self.text.clear();
        self.taken = 0;
        Ok(())
    }

    fn give_up(&mut self, store: &mut impl Store, error: io::Error) -> io::Error {
        let whole = self.text[..self.taken].iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        if whole < self.taken && store.cut(self.taken - whole) {
            self.taken = whole;
        }
        self.text.drain(..whole);
        self.taken -= whole;
        error
    }

    /// Directs the lines to another store from here on. A line that the old store has only in part goes to the new one
    /// whole.
    pub fn start_over(&mut self) {
        self.taken = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Accepts a limited number of bytes in all and only a few at once, with an error of another kind now and then.
    struct Disk {
        bytes: Vec<u8>,
        room: usize,
        at_once: usize,
        can_cut: bool,
    }

    impl Disk {
        fn of(room: usize) -> Self {
            Self { bytes: Vec::new(), room, at_once: usize::MAX, can_cut: true }
        }
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.room - self.bytes.len()).min(self.at_once);
            if taken == 0 {
                return Err(ErrorKind::StorageFull.into());
            }
            self.bytes.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Store for Disk {
        fn cut(&mut self, bytes: usize) -> bool {
            if self.can_cut {
                self.bytes.truncate(self.bytes.len() - bytes);
            }
            self.can_cut
        }
    }

    fn lines(text: &str) -> Lines {
        Lines { text: text.as_bytes().to_owned(), taken: 0 }
    }

    #[test]
    fn a_full_store_ends_with_a_whole_line_and_gets_the_rest_later() {
        let (mut disk, mut lines) = (Disk::of(8), lines("one\ntwo\nthree\n"));
        for _ in 0..3 {
            let error = lines.write_out(&mut disk).expect_err("it is full");
            assert_eq!(error.kind(), ErrorKind::StorageFull);
            assert_eq!((&disk.bytes[..], lines.count()), (&b"one\ntwo\n"[..], 1));
        }
        disk.room = 11;
        lines.write_out(&mut disk).expect_err("it is full");
        assert_eq!(disk.bytes, b"one\ntwo\n", "not the beginning of a line");
        disk.room = 100;
        lines.write_out(&mut disk).expect("there is room");
        assert_eq!((&disk.bytes[..], lines.is_empty()), (&b"one\ntwo\nthree\n"[..], true));
    }

    #[test]
    fn what_cannot_be_cut_off_is_gone_on_with() {
        let (mut disk, mut lines) = (Disk { can_cut: false, ..Disk::of(6) }, lines("one\ntwo\n"));
        lines.write_out(&mut disk).expect_err("it is full");
        assert_eq!((&disk.bytes[..], lines.count()), (&b"one\ntw"[..], 1));
        lines.text().extend_from_slice(b"three\n");
        disk.room = 100;
        lines.write_out(&mut disk).expect("there is room");
        assert_eq!(disk.bytes, b"one\ntwo\nthree\n");
    }

    #[test]
    fn a_line_that_one_store_has_the_beginning_of_goes_whole_to_the_next() {
        let (mut full, mut lines) = (Disk { can_cut: false, ..Disk::of(6) }, lines("one\ntwo\n"));
        lines.write_out(&mut full).expect_err("it is full");
        lines.start_over();
        let mut next = Disk::of(100);
        lines.write_out(&mut next).expect("there is room");
        assert_eq!(next.bytes, b"two\n");
    }

    proptest! {
        /// However a disk fills and empties, the file ends with a whole line after each attempt, and has all lines in the
        /// end.
        #[test]
        fn no_line_is_lost_doubled_or_left_half(
            lengths in prop::collection::vec(0usize..40, 1..40),
            rooms in prop::collection::vec(0usize..400, 0..40),
            at_once in 1usize..50,
        ) {
            let whole: String = lengths.iter().map(|&length| format!("{}\n", "x".repeat(length))).collect();
            let mut disk = Disk { at_once, ..Disk::of(0) };
            let mut pending = Lines::default();
            let mut rest = whole.split_inclusive('\n');
            for room in rooms {
                pending.text().extend(rest.next().unwrap_or_default().bytes());
                disk.room = room.max(disk.bytes.len());
                let done = pending.write_out(&mut disk);
                prop_assert_eq!(done.is_ok(), pending.is_empty());
                prop_assert!(disk.bytes.is_empty() || disk.bytes.ends_with(b"\n"));
            }
            pending.text().extend(rest.flat_map(str::bytes));
            disk.room = usize::MAX;
            prop_assert!(pending.write_out(&mut disk).is_ok());
            prop_assert_eq!(String::from_utf8(disk.bytes), Ok(whole));
        }
    }
}
