//! The permission that was last granted with each key. It distinguishes an access outside of a client's permissions
//! from a guess, without a search of all that the client holds.

use crate::books::permissions::PermissionSlot;
use portcullis_protocol::Rkey;

/// Number of keys for which memory is allocated at once.
const CHUNK: usize = 4096;

/// Slots of permissions by the index of their keys. The permission may have ended since, so the caller compares.
#[derive(Debug, Default)]
pub(crate) struct KeyHolders {
    // NICs number their keys closely: few of the 2^24 indices are ever used.
    chunks: Vec<Option<Box<[PermissionSlot; CHUNK]>>>,
}

impl KeyHolders {
    /// Notes that a permission was granted with this key.
    pub fn note(&mut self, key: Rkey, slot: PermissionSlot) {
        let index = key.index() as usize;
        if self.chunks.len() <= index / CHUNK {
            self.chunks.resize_with(index / CHUNK + 1, || None);
        }
        self.chunks[index / CHUNK].get_or_insert_with(|| Box::new([PermissionSlot::NONE; CHUNK]))
            [index % CHUNK] = slot;
    }

    /// Returns the slot of the last permission that was granted with a key of this index.
    pub fn last(&self, key: Rkey) -> Option<PermissionSlot> {
        let index = key.index() as usize;
        self.chunks.get(index / CHUNK)?.as_ref()?[index % CHUNK].some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_holder_of_an_index_is_known_whatever_the_low_byte() {
        let mut holders = KeyHolders::default();
        assert_eq!(holders.last(Rkey::new(9000, 1)), None);
        holders.note(Rkey::new(9000, 1), PermissionSlot(4));
        holders.note(Rkey::new(0xff_ffff, 0), PermissionSlot(5));
        holders.note(Rkey::new(9000, 2), PermissionSlot(6));
        assert_eq!(
            [9000, 9001, 0xff_ffff].map(|index| holders.last(Rkey::new(index, 7))),
            [Some(PermissionSlot(6)), None, Some(PermissionSlot(5))]
        );
    }
}
