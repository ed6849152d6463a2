//! A model of a node's pool: the bytes that it must hold, and which tenant wrote which byte.

use crate::memory::{SimMemory, Touch};
use std::ops::Range;

/// The owner of zeros, and of the node's own bytes.
const NOBODY: u16 = 0;

/// The model of one node's pool, in bytes from its start.
#[derive(Debug)]
pub(super) struct MemoryModel {
    words: Vec<u64>,
    /// The owner of each byte: a tenant's number plus one.
    owners: Vec<u16>,
}

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

impl MemoryModel {
    /// Creates a pool of zeros.
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

    /// Applies a tenant's write.
    pub fn write(&mut self, tenant: usize, offset: u64, bytes: &[u8]) {
        self.put(offset, bytes, u16::try_from(tenant + 1).unwrap_or(u16::MAX));
    }

    /// Applies an access of the node's processor.
    pub fn node_touched(&mut self, touch: &Touch) {
        match touch {
            Touch::Read { .. } => {}
            Touch::Write { offset, bytes } => self.put(*offset, bytes, NOBODY),
            Touch::Zero { offset, length } => self.put(*offset, &vec![0; index(*length)], NOBODY),
            Touch::Change { offset, after, .. } => self.put(*offset, &after.to_le_bytes(), NOBODY),
        }
    }

    /// Returns the bytes of a span.
    pub fn read(&self, span: Range<u64>) -> Vec<u8> {
        let words = &self.words[index(span.start / 8)..index(span.end.div_ceil(8))];
        let mut bytes = Vec::with_capacity(words.len() * 8);
        words.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
        bytes.truncate(bytes.len() - index(span.end.next_multiple_of(8) - span.end));
        bytes.drain(..index(span.start % 8));
        bytes
    }

    /// Returns the aligned word at `offset`.
    pub fn word(&self, offset: u64) -> u64 {
        self.words[index(offset / 8)]
    }

    /// Returns the first byte in a span that belongs to a tenant that is none of `tenants`, and that tenant.
    pub fn foreign_byte(&self, tenants: &[usize], span: Range<u64>) -> Option<(u64, usize)> {
        let owners = &self.owners[index(span.start)..index(span.end)];
        let known = |owner: u16| tenants.iter().any(|&tenant| tenant + 1 == usize::from(owner));
        let at = owners.iter().position(|&owner| owner != NOBODY && !known(owner))?;
        Some((span.start + at as u64, usize::from(owners[at]) - 1))
    }

    /// Returns the first place at which the node's memory differs from the model.
    pub fn first_difference(&self, memory: &SimMemory) -> Option<u64> {
        memory.first_difference(&self.words)
    }
}
