//! A ring of lines from one process to another. Each line is one cache line: a reader gets it with one transfer.
//!
//! The first word of a line is written last. It contains the line's turn, which counts the lines that were written up
//! to this one. So a line that was not written again is never taken for a new one. There is no count of free lines: a
//! client has no more calls under way than there are lines, so a line has been read before the next one is written to
//! its place.

use portcullis_memory::{Bytes, Mapping, Memory};
use portcullis_planted::planted;
use std::sync::atomic::{Ordering, fence};

/// Bytes of a line.
pub const LINE_BYTES: u64 = 64;

/// One end of a ring.
#[derive(Debug)]
struct End {
    memory: Mapping,
    /// Offset of the first line.
    offset: u64,
    lines: u32,
    /// The turn of the next line. Turns start at one: zero stands in new memory.
    turn: u32,
}

impl End {
    fn new(memory: Mapping, offset: u64, lines: u32) -> Self {
        debug_assert!(lines.is_power_of_two());
        Self { memory, offset, lines, turn: 1 }
    }

    fn place(&self) -> u64 {
        self.offset + u64::from(self.turn & (self.lines - 1)) * LINE_BYTES
    }

    fn go_on(&mut self) {
        // A turn of zero would look as if nothing had been written: the last turn is followed by another one of the
        // first line.
        self.turn = self.turn.checked_add(1).unwrap_or(self.lines);
    }
}

/// The end that writes a ring.
#[derive(Debug)]
pub struct Writer(End);

impl Writer {
    /// Creates an end of a ring of `lines` lines, a power of two. The first line is at an offset in memory.
    #[must_use]
    pub fn new(memory: Mapping, offset: u64, lines: u32) -> Self {
        Self(End::new(memory, offset, lines))
    }

    /// Writes a line. The caller guarantees that there is room. Returns the line's offset.
    #[inline]
    pub fn write(&mut self, head: u32, words: [u64; 6]) -> u64 {
        let place = self.0.place();
        let [first, second, third, fourth, fifth, sixth] = words;
        self.0.memory.store_words(place + 8, [first, second, third, fourth, fifth, sixth, 0]);
        fence(Ordering::Release);
        self.0.memory.store(place, u64::from(self.0.turn) | u64::from(head) << 32);
        self.0.go_on();
        place
    }
}

/// The end that reads a ring.
#[derive(Debug)]
pub struct Reader(End);

impl Reader {
    /// Creates an end of a ring of `lines` lines, a power of two. The first line is at an offset in memory.
    #[must_use]
    pub fn new(memory: Mapping, offset: u64, lines: u32) -> Self {
        Self(End::new(memory, offset, lines))
    }

    /// Whether the next line has been written.
    #[must_use]
    #[inline]
    pub fn has_line(&self) -> bool {
        let [turn, ..] = halves(self.0.memory.load(self.0.place()));
        self.is_new(turn)
    }

    fn is_new(&self, turn: u32) -> bool {
        turn == self.0.turn || turn != 0 && planted!(TurnNotCompared)
    }

    /// Reads the next line, if it has been written: its head, its words, and the last word, which its writer may change
    /// later.
    #[inline]
    pub fn read(&mut self) -> Option<(u32, [u64; 6], u64)> {
        let place = self.0.place();
        let [turn, head] = halves(self.0.memory.load(place));
        if !self.is_new(turn) {
            return None;
        }
        let [first, second, third, fourth, fifth, sixth, last] = self.0.memory.load_words(place + 8);
        self.0.go_on();
        Some((head, [first, second, third, fourth, fifth, sixth], last))
    }
}

/// Offset of a line's last word, which its writer may still change after the line has been written.
#[must_use]
pub fn last_word(place: u64) -> u64 {
    place + LINE_BYTES - 8
}

fn halves(word: u64) -> [u32; 2] {
    [0, 32].map(|shift| u32::try_from(word >> shift & u64::from(u32::MAX)).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_as_they_were_written_and_each_once() {
        let memory = Mapping::private(4096).unwrap();
        let (mut writer, mut reader) = (Writer::new(memory.clone(), 64, 4), Reader::new(memory, 64, 4));
        assert_eq!(reader.read(), None);
        for round in 0..50_u32 {
            for line in 0..4 {
                let words = [u64::from(round), line, 2, 3, 4, u64::MAX];
                writer.write(round, words);
                if line == 0 {
                    assert!(reader.has_line());
                }
            }
            for line in 0..4 {
                let words = [u64::from(round), line, 2, 3, 4, u64::MAX];
                assert_eq!(reader.read(), Some((round, words, 0)));
            }
            assert!(!reader.has_line() && reader.read().is_none());
        }
    }

    #[test]
    fn a_turn_is_never_that_of_new_memory() {
        let memory = Mapping::private(4096).unwrap();
        let (mut writer, mut reader) = (Writer::new(memory.clone(), 64, 4), Reader::new(memory, 64, 4));
        (writer.0.turn, reader.0.turn) = (u32::MAX - 1, u32::MAX - 1);
        for line in 0..20 {
            assert_eq!(reader.read(), None);
            writer.write(line, [5; 6]);
            assert_eq!(reader.read(), Some((line, [5; 6], 0)));
        }
    }

    #[test]
    fn no_line_is_written_over_when_the_turns_begin_anew() {
        for before in 0..12 {
            let memory = Mapping::private(4096).unwrap();
            let (mut writer, mut reader) = (Writer::new(memory.clone(), 64, 4), Reader::new(memory, 64, 4));
            (writer.0.turn, reader.0.turn) = (u32::MAX - before, u32::MAX - before);
            for round in 0..6 {
                (0..4).for_each(|line| assert!(writer.write(round, [line; 6]) < 64 + 4 * LINE_BYTES));
                (0..4).for_each(|line| assert_eq!(reader.read(), Some((round, [line; 6], 0))));
                assert_eq!(reader.read(), None);
            }
        }
    }

    #[test]
    fn two_threads_have_every_line_whole() {
        let memory = Mapping::private(4096).unwrap();
        let there = (Writer::new(memory.clone(), 0, 16), Reader::new(memory.clone(), 1024, 16));
        let (mut writer, mut back) = there;
        std::thread::scope(|scope| {
            let (mut reader, mut answers) =
                (Reader::new(memory.clone(), 0, 16), Writer::new(memory, 1024, 16));
            scope.spawn(move || {
                let mut next = 0;
                while next < 20_000 {
                    let Some((head, words, _)) = reader.read() else {
                        std::thread::yield_now();
                        continue;
                    };
                    assert_eq!((u64::from(head), words), (next, [next; 6]));
                    answers.write(head, words);
                    next += 1;
                }
            });
            let (mut sent, mut heard) = (0_u32, 0);
            while heard < 20_000 {
                while sent < 20_000 && sent - heard < 16 {
                    writer.write(sent, [u64::from(sent); 6]);
                    sent += 1;
                }
                if back.read().is_some() {
                    heard += 1;
                } else {
                    std::thread::yield_now();
                }
            }
        });
    }
}
