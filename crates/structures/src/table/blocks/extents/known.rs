//! The extents of a table, as far as a client knows them.

use super::super::sizes::ExtentShape;
use portcullis::ObjectRef;
use std::collections::BTreeSet;

/// The extents that a client knows. All of this may be out of date.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The objects of the extents, by number, and their divisions into blocks.
    extents: Vec<Option<(ObjectRef, ExtentShape)>>,
    /// Number of the extent up to which all extents are known.
    pub up_to: u32,
    /// Number of extents that had been given back, or made in the place of such ones, when they were last read.
    changes: u64,
    /// Numbers whose extents were given back.
    pub vacant: BTreeSet<u32>,
}

impl Known {
    #[inline]
    pub fn get(&self, number: u32) -> Option<&(ObjectRef, ExtentShape)> {
        self.extents.get(number as usize)?.as_ref()
    }

    pub fn insert(&mut self, number: u32, object: ObjectRef, shape: ExtentShape) {
        if self.extents.len() <= number as usize {
            self.extents.resize(number as usize + 1, None);
        }
        self.extents[number as usize] = Some((object, shape));
    }

    /// Removes an extent. Returns whether it was known.
    pub fn remove(&mut self, number: u32) -> bool {
        self.extents.get_mut(number as usize).is_some_and(|known| known.take().is_some())
    }

    /// Returns the first number whose record is to be read, if as many extents have been given back or made in the place
    /// of such ones by now.
    pub fn first_to_read(&mut self, changes: u64) -> u32 {
        let before = std::mem::replace(&mut self.changes, changes);
        if before == changes { self.up_to } else { 0 }
    }
}
