//! Limits on the operations of a load that may be in flight at once.
//!
//! Two stores of one key must not be in flight at once: the earlier one could be executed last. So operations on one
//! key stand in a line, in the order of the file. And all operations in flight must find room in the session's arena.

use portcullis::Error;
use portcullis_structures::Pipeline;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// The lines of all keys with operations in flight, and the room that is left.
pub struct InFlightLimits {
    lines: RefCell<HashMap<Vec<u8>, Line>>,
    room: Cell<usize>,
    /// All the room.
    whole: usize,
}

/// The operations that wait for one key. Numbers are given in the order of the file.
#[derive(Default)]
struct Line {
    next: u64,
    serving: u64,
}

/// An operation's place in the line of its key.
pub struct Turn<'l> {
    limits: &'l InFlightLimits,
    key: Vec<u8>,
    number: u64,
    bytes: usize,
    /// Whether the operation has taken its bytes of the room.
    has_room: bool,
    /// The pipeline on which other operations wait for this one. Set once this one waits itself.
    pipeline: Option<&'l Pipeline>,
}

impl InFlightLimits {
    pub fn new(room: usize) -> Self {
        Self { lines: RefCell::default(), room: Cell::new(room), whole: room }
    }

    /// Takes a place in the line of a key, for an operation that moves so many bytes.
    pub fn queue(&self, key: &[u8], bytes: usize) -> Turn<'_> {
        let mut lines = self.lines.borrow_mut();
        let line = lines.entry(key.to_vec()).or_default();
        let number = line.next;
        line.next += 1;
        Turn {
            limits: self,
            key: key.to_vec(),
            number,
            bytes: bytes.min(self.whole),
            has_room: false,
            pipeline: None,
        }
    }
}

impl<'l> Turn<'l> {
    /// Waits until the operation may begin. The turn ends when it is dropped.
    ///
    /// # Errors
    /// The session is over.
    pub async fn come(mut self, pipeline: &'l Pipeline) -> Result<Self, Error> {
        self.pipeline = Some(pipeline);
        // The line comes first: an operation that has room then waits for no other, so all of them finish.
        while !self.is_first() || !self.take_room() {
            pipeline.anything().await?;
        }
        Ok(self)
    }

    fn is_first(&self) -> bool {
        self.limits.lines.borrow().get(&self.key).is_none_or(|line| line.serving == self.number)
    }

    fn take_room(&mut self) -> bool {
        let left = self.limits.room.get().checked_sub(self.bytes);
        if let Some(left) = left {
            self.limits.room.set(left);
            self.has_room = true;
        }
        left.is_some()
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.has_room {
            self.limits.room.set(self.limits.room.get() + self.bytes);
        }
        let mut lines = self.limits.lines.borrow_mut();
        if let Some(line) = lines.get_mut(&self.key) {
            line.serving += 1;
            if line.serving == line.next {
                lines.remove(&self.key);
            }
        }
        if let Some(pipeline) = self.pipeline {
            pipeline.wake_waiting();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_on_one_key_come_one_after_another_and_in_their_order() {
        let limits = InFlightLimits::new(100);
        let (first, mut second, mut other) =
            (limits.queue(b"a", 1), limits.queue(b"a", 1), limits.queue(b"b", 1));
        assert!(first.is_first() && !second.is_first() && other.is_first());
        drop(first);
        assert!(second.is_first() && second.take_room() && other.take_room());
        let third = limits.queue(b"a", 1);
        assert!(!third.is_first());
        drop(second);
        assert!(third.is_first());
        drop((third, other));
        assert!(limits.lines.borrow().is_empty());
        assert_eq!(limits.room.get(), 100);
    }

    #[test]
    fn what_is_under_way_has_room_and_the_largest_value_alone_always_has() {
        let limits = InFlightLimits::new(100);
        let (mut first, mut second, mut huge) =
            (limits.queue(b"a", 60), limits.queue(b"b", 60), limits.queue(b"c", 1_000));
        assert!(first.take_room() && !second.take_room() && !huge.take_room());
        drop(first);
        assert!(huge.take_room() && !second.take_room());
        drop(huge);
        assert!(second.take_room());
    }
}
