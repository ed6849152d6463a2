//! The other memory: what a node's pool must hold, and which tenant's bytes lie where.

use crate::memory::{SimMemory, Touch};
use std::ops::Range;

/// Nobody's bytes: zeros, or the node's own.
const NOBODY: u16 = 0;

/// The model of one node's pool, in bytes from its start.
#[derive(Debug)]
pub(super) struct MemoryModel {
    words: Vec<u64>,
    /// Whose each byte is: a tenant's number and one.
    owners: Vec<u16>,
}

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

impl MemoryModel {
    /// A pool of zeros.
    pub fn new(bytes: u64) -> Self {
        Self { words: vec![0; index(bytes.div_ceil(8))], owners: vec![NOBODY; index(bytes)] }
    }

    pub fn bytes(&self) -> u64 {
        self.owners.len() as u64
    }

    fn put(&mut self, offset: u64, bytes: &[u8], owner: u16) {
        for (at, &byte) in (offset..).zip(bytes) {
            let shift = (at % 8) * 8;
            let word = &mut self.words[index(at / 8)];
            *word = *word & !(0xff << shift) | u64::from(byte) << shift;
        }
        self.owners[index(offset)..index(offset) + bytes.len()].fill(owner);
    }

    /// A tenant's write.
    pub fn write(&mut self, tenant: usize, offset: u64, bytes: &[u8]) {
        self.put(offset, bytes, u16::try_from(tenant + 1).unwrap_or(u16::MAX));
    }

    /// What the node's processor did.
    pub fn node_touched(&mut self, touch: &Touch) {
        match touch {
            Touch::Read { .. } => {}
            Touch::Write { offset, bytes } => self.put(*offset, bytes, NOBODY),
            Touch::Zero { offset, length } => self.put(*offset, &vec![0; index(*length)], NOBODY),
            Touch::Change { offset, after, .. } => self.put(*offset, &after.to_le_bytes(), NOBODY),
        }
    }

    /// The bytes of a span.
    pub fn read(&self, span: Range<u64>) -> Vec<u8> {
        span.map(|at| self.words[index(at / 8)].to_le_bytes()[index(at % 8)]).collect()
    }

    /// The aligned word at `offset`.
    pub fn word(&self, offset: u64) -> u64 {
        self.words[index(offset / 8)]
    }

    /// Another tenant's byte in a span, and whose it is.
    pub fn foreign_byte(&self, tenant: usize, span: Range<u64>) -> Option<(u64, usize)> {
        let its = u16::try_from(tenant + 1).unwrap_or(u16::MAX);
        let owners = &self.owners[index(span.start)..index(span.end)];
        let at = owners.iter().position(|&owner| owner != NOBODY && owner != its)?;
        Some((span.start + at as u64, usize::from(owners[at]) - 1))
    }

    /// Where the node's memory is not what it must be.
    pub fn first_difference(&self, memory: &SimMemory) -> Option<u64> {
        memory.first_difference(&self.words)
    }
}
