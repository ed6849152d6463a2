//! A span: pages in one piece, cut into objects of one size.

use super::{NONE, ObjectId};

/// One object's place in a span.
#[derive(Clone, Copy)]
enum Slot {
    /// Free. `next` is the next free slot in the order of freeing, or [`NONE`].
    Free {
        next: u32,
    },
    Live(ObjectId),
}

/// Pages cut into objects. A record outlives its span and is used again, so that steady work allocates nothing.
pub(super) struct Span {
    /// Offset of the first header hole from the pool's start, in bytes.
    pub(super) start: u64,
    pub(super) first_page: u32,
    pub(super) pages: u32,
    /// Distance in bytes between objects: header hole and buffer.
    pub(super) stride: u64,
    /// The size class, or `None` for one large object.
    pub(super) class: Option<usize>,
    pub(super) live: u32,
    /// Neighbours in the class's list of spans with room, or [`NONE`].
    pub(super) previous: u32,
    pub(super) next: u32,
    slots: Vec<Slot>,
    oldest_free: u32,
    newest_free: u32,
}

impl Span {
    /// A record that holds no span yet.
    pub(super) fn vacant() -> Self {
        Self {
            start: 0,
            first_page: 0,
            pages: 0,
            stride: 1,
            class: None,
            live: 0,
            previous: NONE,
            next: NONE,
            slots: Vec::new(),
            oldest_free: NONE,
            newest_free: NONE,
        }
    }

    /// Cuts the span into `count` free slots, the first as the oldest.
    pub(super) fn cut(&mut self, count: u32) {
        self.live = 0;
        self.slots.clear();
        self.slots
            .extend((1..=count).map(|next| Slot::Free { next: if next < count { next } else { NONE } }));
        self.oldest_free = if count > 0 { 0 } else { NONE };
        self.newest_free = count.checked_sub(1).unwrap_or(NONE);
    }

    pub(super) fn is_full(&self) -> bool {
        self.oldest_free == NONE
    }

    /// Puts an object into the slot that has been free for longest. `None`: all slots are taken.
    pub(super) fn take(&mut self, object: ObjectId) -> Option<u32> {
        let slot = self.oldest_free;
        let place = self.slots.get_mut(slot as usize)?;
        if let Slot::Free { next } = *place {
            self.oldest_free = next;
        }
        if self.oldest_free == NONE {
            self.newest_free = NONE;
        }
        *place = Slot::Live(object);
        self.live += 1;
        Some(slot)
    }

    /// Frees a slot. It is used again after all slots that are free now.
    pub(super) fn give(&mut self, slot: u32) {
        self.slots[slot as usize] = Slot::Free { next: NONE };
        match self.slots.get_mut(self.newest_free as usize) {
            Some(newest) => *newest = Slot::Free { next: slot },
            None => self.oldest_free = slot,
        }
        self.newest_free = slot;
        self.live -= 1;
    }

    /// Returns the live object whose header hole starts `offset` bytes into the pool.
    pub(super) fn object_at(&self, offset: u64) -> Option<ObjectId> {
        let relative = offset.checked_sub(self.start)?;
        let slot = usize::try_from(relative / self.stride).ok()?;
        match self.slots.get(slot)? {
            Slot::Live(object) if relative.is_multiple_of(self.stride) => Some(*object),
            _ => None,
        }
    }

    /// Returns the offset of a slot's header hole from the pool's start, in bytes.
    pub(super) fn offset_of(&self, slot: u32) -> u64 {
        self.start + u64::from(slot) * self.stride
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slot_freed_first_is_used_first() {
        let mut span = Span::vacant();
        span.cut(4);
        let taken: Vec<_> = (0..5).map(|object| span.take(ObjectId(object))).collect();
        assert_eq!(taken, [Some(0), Some(1), Some(2), Some(3), None]);
        for slot in [2, 0, 3] {
            span.give(slot);
        }
        assert_eq!([span.take(ObjectId(5)), span.take(ObjectId(6))], [Some(2), Some(0)]);
        span.give(2);
        assert_eq!([span.take(ObjectId(7)), span.take(ObjectId(8))], [Some(3), Some(2)]);
        assert!(span.is_full());
        assert_eq!(span.live, 4);
    }
}
