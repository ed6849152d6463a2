//! The contents of a pool's table: which chunks are free, and which client holds each of the others.
//!
//! The NIC changes the table while the CPU reads it. A census is exact only while no worker is in the middle of a lap.

use crate::chain::TOP_AT;
use crate::pool::ChunkPool;
use crate::record::{ClientNumber, Layout, NIL};
use portcullis_errors::{Coded, ErrorCode};
use portcullis_nic::Memory;
use std::collections::BTreeMap;

/// The free and the held chunks of a pool.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Census {
    /// The free chunks, in the order in which they will be allocated.
    pub free: Vec<u64>,
    /// The chunks that clients hold.
    pub held: BTreeMap<u64, ClientNumber>,
}

/// A contradiction in a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Damage {
    /// The free list leads to an offset where no record begins.
    #[error("the free list leads to offset {at:#x}, where no record begins")]
    NoRecord {
        /// The offset.
        at: u64,
    },
    /// The free list contains a chunk twice.
    #[error("the free list contains chunk {chunk} twice")]
    Twice {
        /// The chunk.
        chunk: u64,
    },
    /// A chunk is on the free list and has an owner.
    #[error("chunk {chunk} is free, and client {owner:?} holds it")]
    FreeAndHeld {
        /// The chunk.
        chunk: u64,
        /// The client that holds it.
        owner: ClientNumber,
    },
    /// A chunk is neither on the free list nor has an owner.
    #[error("chunk {chunk} is lost: it is not free, and no client holds it")]
    Lost {
        /// The chunk.
        chunk: u64,
    },
}

impl Coded for Damage {
    fn code(&self) -> ErrorCode {
        ErrorCode::ChunkTableDamaged
    }
}

impl<M: Memory, const GROUP: usize> ChunkPool<M, GROUP> {
    /// Returns the free and the held chunks of the pool.
    ///
    /// # Errors
    /// The table contradicts itself.
    pub fn census(&self) -> Result<Census, Damage> {
        let chunks = self.geometry.chunks;
        let free = self.listed()?;
        let held = (0..chunks).filter_map(|chunk| Some((chunk, self.table.owner(chunk)?)));
        let census = Census { held: held.collect(), free };
        let known = census.free.len() + census.held.len();
        if u64::try_from(known) == Ok(chunks) {
            return Ok(census);
        }
        let is_known = |chunk: &u64| census.held.contains_key(chunk) || census.free.contains(chunk);
        let lost = (0..chunks).find(|chunk| !is_known(chunk));
        Err(Damage::Lost { chunk: lost.expect("no chunk is listed twice, or listed and held") })
    }

    /// Returns the chunks of the free list, the first one first. Chains change the list by writing one word, its top.
    /// So the list is sound wherever the chains were stopped.
    ///
    /// # Errors
    /// The list is not sound.
    pub(crate) fn listed(&self) -> Result<Vec<u64>, Damage> {
        let chunks = self.geometry.chunks;
        let (mut is_listed, mut listed) = (vec![false; usize::try_from(chunks).unwrap_or(0)], Vec::new());
        let mut at = self.words.load(TOP_AT);
        while at != NIL {
            let chunk = Layout::<GROUP>::chunk_of(at).filter(|chunk| *chunk < chunks);
            let chunk = chunk.ok_or(Damage::NoRecord { at })?;
            let place = usize::try_from(chunk).unwrap_or(usize::MAX);
            if std::mem::replace(&mut is_listed[place], true) {
                return Err(Damage::Twice { chunk });
            }
            if let Some(owner) = self.table.owner(chunk) {
                return Err(Damage::FreeAndHeld { chunk, owner });
            }
            listed.push(chunk);
            at = self.table.next(at);
        }
        Ok(listed)
    }
}
