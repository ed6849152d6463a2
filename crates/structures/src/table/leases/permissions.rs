//! The permissions that a handle holds, by the part of the table.

use crate::held::Held;
use crate::table::words::BlockId;
use portcullis::{BarePermission, Moment};
use std::collections::HashMap;
use std::rc::Rc;

/// A part of a table for which there are permissions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::table) enum Part {
    Head,
    /// The part of a subtable that clients share.
    Subtable(u32),
    /// An extent, for reading.
    Extent(u32),
    /// The claims of an extent.
    Claims(u32),
    /// One block, for reading.
    Block(BlockId),
}

impl Part {
    /// Returns the extent that has the part.
    pub fn extent(self) -> Option<u32> {
        match self {
            Self::Head | Self::Subtable(_) => None,
            Self::Extent(extent) | Self::Claims(extent) => Some(extent),
            Self::Block(block_id) => Some(block_id.extent),
        }
    }
}

/// All permissions of a handle.
#[derive(Debug, Default)]
pub(super) struct Permissions {
    head: Held,
    subtables: Vec<Held>,
    extents: Vec<Held>,
    claims: Vec<Held>,
    blocks: HashMap<BlockId, Held>,
}

/// Largest number of permissions over single blocks that a handle keeps.
const BLOCKS_HELD_MAX: usize = 4096;

fn entry(list: &mut Vec<Held>, number: u32) -> &mut Held {
    let number = number as usize;
    if number >= list.len() {
        list.resize_with(number + 1, Held::default);
    }
    &mut list[number]
}

impl Permissions {
    #[inline]
    pub fn held(&mut self, part: Part) -> &mut Held {
        match part {
            Part::Head => &mut self.head,
            Part::Subtable(number) => entry(&mut self.subtables, number),
            Part::Extent(number) => entry(&mut self.extents, number),
            Part::Claims(number) => entry(&mut self.claims, number),
            Part::Block(block_id) => self.blocks.entry(block_id).or_default(),
        }
    }

    /// Returns a permission that can still be used, and need not be replaced yet.
    #[inline]
    pub fn fresh(&mut self, part: Part, now: Moment) -> Option<Rc<BarePermission>> {
        self.held(part).fresh(now)
    }

    /// Keeps a permission for further operations.
    pub fn keep(&mut self, part: Part, permission: &Rc<BarePermission>) {
        self.held(part).keep(permission);
    }

    /// Takes the older half of the permissions over single blocks that no operation uses, if there are too many.
    pub fn take_surplus_blocks(&mut self, now: Moment) -> Vec<Rc<BarePermission>> {
        if self.blocks.len() < BLOCKS_HELD_MAX {
            return Vec::new();
        }
        self.blocks.retain(|_, held| held.acquiring || now < held.useless_at);
        let idle = self.blocks.iter().filter(|(_, held)| held.is_idle());
        let mut ends: Vec<_> = idle.map(|(block_id, held)| (held.useless_at, *block_id)).collect();
        let half = ends.len() / 2;
        if self.blocks.len() < BLOCKS_HELD_MAX / 2 || half == 0 {
            return Vec::new();
        }
        // The order is the same in each run of a test.
        ends.sort_unstable();
        ends.truncate(half);
        ends.iter().filter_map(|(_, block_id)| self.blocks.remove(block_id)?.permission).collect()
    }

    /// Takes the permissions over an extent's single blocks that no operation uses, or over all such blocks if the extent
    /// has none.
    pub fn take_idle_blocks(&mut self, extent: u32) -> Vec<(BlockId, Rc<BarePermission>)> {
        let of_extent = |block_id: &BlockId| block_id.extent == extent;
        let any = self.blocks.iter().any(|(block_id, held)| of_extent(block_id) && held.is_idle());
        let idle = self.blocks.extract_if(|block_id, held| (of_extent(block_id) || !any) && held.is_idle());
        idle.filter_map(|(block_id, held)| Some((block_id, held.permission?))).collect()
    }

    /// Takes the permissions over an extent that is gone, and over its parts. Permissions that operations still use end
    /// with those operations.
    pub fn take_extent(&mut self, extent: u32) -> Vec<Rc<BarePermission>> {
        let number = extent as usize;
        let listed = [self.extents.get_mut(number), self.claims.get_mut(number)];
        let mut held: Vec<_> =
            listed.into_iter().flatten().filter_map(|held| held.permission.take()).collect();
        if self.blocks.is_empty() {
            return held;
        }
        let blocks = self.blocks.iter_mut().filter(|(block_id, _)| block_id.extent == extent);
        let mut blocks: Vec<_> =
            blocks.filter_map(|(block_id, held)| Some((*block_id, held.permission.take()?))).collect();
        // The order is the same in each run of a test.
        blocks.sort_unstable_by_key(|(block_id, _)| *block_id);
        held.extend(blocks.into_iter().map(|(_, permission)| permission));
        held
    }

    /// Takes the permission over a block, if no operation uses it.
    pub fn take_idle_block(&mut self, block_id: BlockId) -> Option<Rc<BarePermission>> {
        self.blocks.get(&block_id).filter(|held| held.is_idle())?;
        self.blocks.remove(&block_id)?.permission
    }

    /// Forgets all permissions: the node has ended one of them before its time.
    pub fn forget(&mut self) {
        let lists = [&mut self.subtables, &mut self.extents, &mut self.claims];
        let listed = lists.into_iter().flatten();
        for held in listed.chain(self.blocks.values_mut()).chain([&mut self.head]) {
            held.permission = None;
        }
    }
}
