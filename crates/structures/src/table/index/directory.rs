//! The shared directory: the subtables of all suffixes of hashes, as hints.

use super::Index;
use crate::pipeline::{join, word_of};
use crate::table::TableError;
use crate::table::leases::Leased;
use crate::table::shape::GLOBAL_DEPTH_AT;
use crate::table::words::Entry;
use portcullis::{Clock, VerbsEndpoint};

/// Number of entries of the directory that are read or written at once.
const ENTRIES_AT_ONCE: u32 = 512;

impl<E: VerbsEndpoint, C: Clock> Index<E, C> {
    /// Reads the shared directory.
    pub async fn load_routes(&self) -> Result<(), TableError> {
        let depth = self.global_depth().await?;
        let entries = 1u32 << depth;
        let mut at = 0;
        while at < entries {
            let count = (entries - at).min(ENTRIES_AT_ONCE);
            let bytes = self.head.read(self.options.entry_at(at), count as usize * 8).await?;
            let mut routes = self.routes.borrow_mut();
            for (suffix, word) in (at..).zip(bytes.chunks(8)) {
                if let Some((subtable, depth)) = Entry(word_of(word, 0)).get() {
                    routes.learn(suffix, depth.min(self.options.depth_max), subtable);
                }
            }
            at += count;
        }
        Ok(())
    }

    async fn global_depth(&self) -> Result<u32, TableError> {
        let depth = self.head.word(GLOBAL_DEPTH_AT).await?;
        let depth = u32::try_from(depth).unwrap_or(u32::MAX);
        Ok(depth.min(self.options.depth_max))
    }

    /// Enters a split in the shared directory, which grows if it has to. Any client may repeat any step, and no step is
    /// needed for finding keys: entries are hints.
    pub async fn enter_split(
        &self,
        (suffix, depth): (u32, u32),
        parent: u32,
        child: u32,
    ) -> Result<(), TableError> {
        let mut global = self.global_depth().await?;
        while global < depth + 1 {
            self.double_directory(global).await?;
            global = self.global_depth().await?;
        }
        let mut changes = Vec::new();
        for index in (suffix..1 << global).step_by(1 << depth) {
            let new = if index >> depth & 1 == 1 { child } else { parent };
            changes.push((self.options.entry_at(index), Entry::new(new, depth + 1)));
        }
        for (at, new) in changes {
            self.deepen(at, new).await?;
        }
        Ok(())
    }

    /// Replaces an entry of the directory by a deeper one.
    async fn deepen(&self, at: u64, new: Entry) -> Result<(), TableError> {
        let mut found = Entry(self.head.word(at).await?);
        let deeper = |old: Entry| old.get().is_none_or(|(_, depth)| Some(depth) < new.get().map(|it| it.1));
        while deeper(found) {
            let before = self.head.swap(at, found.0, new.0).await?;
            if before == found.0 {
                break;
            }
            found = Entry(before);
        }
        Ok(())
    }

    /// Doubles the shared directory: the new half is a copy of the old one.
    async fn double_directory(&self, depth: u32) -> Result<(), TableError> {
        let half = 1u32 << depth;
        let mut at = 0;
        while at < half {
            let count = (half - at).min(ENTRIES_AT_ONCE);
            let old = self.head.read(self.options.entry_at(at), count as usize * 8).await?;
            let copies = (at + half..)
                .zip(old.chunks(8))
                .map(|(index, word)| self.head.swap(self.options.entry_at(index), 0, word_of(word, 0)));
            for copied in join(copies).await {
                copied?;
            }
            at += count;
        }
        let (old, new) = (u64::from(depth), u64::from(depth) + 1);
        self.head.swap(GLOBAL_DEPTH_AT, old, new).await?;
        Ok(())
    }
}
