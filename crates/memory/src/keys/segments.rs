//! Pages of the process's heap that are older than the key of withheld memory. They get the key when it is made.
//!
//! The heap does not make the key itself: it is used before `main`, when the program has not set up its signal handlers
//! yet.

use super::{Key, READ_WRITE};
use rustix::io::Errno;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of pieces that are remembered. Segments of a heap mostly lie side by side.
const PIECES_MAX: usize = 512;

static SEGMENTS: Mutex<Segments> = Mutex::new(Segments { key: None, pieces: [(0, 0); PIECES_MAX], count: 0 });

struct Segments {
    key: Option<Key>,
    /// Start and end of each piece.
    pieces: [(usize, usize); PIECES_MAX],
    count: usize,
}

fn lock() -> MutexGuard<'static, Segments> {
    SEGMENTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records pages as the heap's.
///
/// # Safety
/// They are whole pages that are mapped, readable and writable until they are passed to [`remove`].
pub(crate) unsafe fn add(start: usize, bytes: usize) -> Result<(), Errno> {
    let mut segments = lock();
    if let Some(key) = segments.key {
        // SAFETY: the caller's promise.
        return unsafe { key.give_to(start, bytes, READ_WRITE) };
    }
    segments.remember(start, start + bytes).then_some(()).ok_or(Errno::NOMEM)
}

/// Records that pages are no longer the heap's. The caller unmaps them afterwards, not before.
pub(crate) fn remove(start: usize, bytes: usize) {
    let mut segments = lock();
    if segments.key.is_none() {
        segments.forget(start, start + bytes);
    }
}

/// Assigns the key to all recorded pages, and to those that are added later.
pub(super) fn begin(key: Key) -> Result<(), Errno> {
    let mut segments = lock();
    segments.key = Some(key);
    let pieces = &segments.pieces[..segments.count];
    pieces.iter().try_for_each(|&(start, end)| {
        // SAFETY: the caller of `add` guaranteed it, and has not removed the pages: the lock is held.
        unsafe { key.give_to(start, end - start, READ_WRITE) }
    })
}

impl Segments {
    /// Remembers a piece. Returns whether there was room for it.
    fn remember(&mut self, mut start: usize, mut end: usize) -> bool {
        let mut at = 0;
        while at < self.count {
            let (from, to) = self.pieces[at];
            if to == start || end == from {
                (start, end) = (start.min(from), end.max(to));
                self.count -= 1;
                self.pieces[at] = self.pieces[self.count];
            } else {
                at += 1;
            }
        }
        if self.count == PIECES_MAX {
            return false;
        }
        self.pieces[self.count] = (start, end);
        self.count += 1;
        true
    }

    fn forget(&mut self, start: usize, end: usize) {
        let mut at = 0;
        while at < self.count {
            let (from, to) = self.pieces[at];
            if to <= start || end <= from {
                at += 1;
                continue;
            }
            self.count -= 1;
            self.pieces[at] = self.pieces[self.count];
            for (from, to) in [(from, start), (end, to)] {
                if from < to {
                    let is_remembered = self.remember(from, to);
                    assert!(is_remembered, "the heap's memory lies in too many pieces");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments() -> Segments {
        Segments { key: None, pieces: [(0, 0); PIECES_MAX], count: 0 }
    }

    fn sorted(segments: &Segments) -> Vec<(usize, usize)> {
        let mut pieces = segments.pieces[..segments.count].to_vec();
        pieces.sort_unstable();
        pieces
    }

    #[test]
    fn neighbours_are_one_piece_and_holes_make_two() {
        let mut segments = segments();
        for (start, end) in [(10, 20), (40, 50), (20, 30)] {
            assert!(segments.remember(start, end));
        }
        assert_eq!(sorted(&segments), [(10, 30), (40, 50)]);
        assert!(segments.remember(30, 40));
        assert_eq!(sorted(&segments), [(10, 50)]);
        segments.forget(15, 20);
        segments.forget(45, 50);
        assert_eq!(sorted(&segments), [(10, 15), (20, 45)]);
        segments.forget(12, 30);
        assert_eq!(sorted(&segments), [(10, 12), (30, 45)]);
        segments.forget(0, 100);
        assert_eq!(sorted(&segments), []);
    }

    #[test]
    fn what_there_is_no_room_for_is_not_remembered() {
        let mut segments = segments();
        for number in 0..PIECES_MAX {
            assert!(segments.remember(10 * number, 10 * number + 5));
        }
        assert!(!segments.remember(1 << 40, 2 << 40));
        assert!(segments.remember(5, 10), "it closes a gap");
        assert_eq!(segments.count, PIECES_MAX - 1);
    }
}
