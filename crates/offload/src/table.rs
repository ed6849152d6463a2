//! A pool's table, as the node's CPU writes and reads it: when a pool is made, and while no chain uses a record.

use crate::message::Geometry;
use crate::record::{
    ClientNumber, KEY_WORD_AT, LINE_BYTES, Layout, NEXT_AT, NIL, OWNER_AT, STATUS_AT, STATUS_CHUNK,
    STATUS_NONE, TABLE_BYTES,
};
use portcullis_nic::{
    Access, ChainNic, ChainVerb, LocalSpan, Memory, Operation, Region, RemoteAddress, RemoteSpan, Rkey,
    VerbsError, Window, WindowBinding, WorkRequest, entry,
};

/// The regions that a record's images name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Regions {
    /// The chunks, as the target of binds.
    pub chunks: Region,
    /// The chunks, as the destination of zeros.
    pub scrubbed: Region,
    /// Zeros, as many bytes as a chunk has.
    pub zeros: Region,
    /// The pool's words. The first is the top of the free list.
    pub words: Region,
    /// The table.
    pub table: Region,
    /// The workers' scratch memory.
    pub scratch: Region,
}

/// The table of a pool.
#[derive(Clone, Debug)]
pub(crate) struct Table<M, const GROUP: usize> {
    memory: M,
    geometry: Geometry,
    regions: Regions,
}

impl<M: Memory, const GROUP: usize> Table<M, GROUP> {
    /// Creates the table in `memory`, which must be zero.
    pub fn new(memory: M, geometry: Geometry, regions: Regions) -> Self {
        assert!(memory.length() >= TABLE_BYTES, "a handle names any line");
        Self { memory, geometry, regions }
    }

    /// Returns the table's bytes.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Writes the record NIL. Its images are NOPs, and they are signalled where a chain waits for a count.
    pub fn write_none(&self, chains: &impl ChainNic) -> Result<(), VerbsError> {
        let nop = Operation::Chain(ChainVerb::Nop);
        self.memory.store(NIL + NEXT_AT, NIL);
        self.memory.store(NIL + STATUS_AT, STATUS_NONE);
        for at in Layout::<GROUP>::BIND_AT.into_iter().chain(Layout::<GROUP>::INVALIDATE_AT) {
            self.image(chains, NIL + at, 8, true, nop)?;
        }
        self.image(chains, NIL + Layout::<GROUP>::ZERO_AT, 8, false, nop)?;
        self.image(chains, NIL + Layout::<GROUP>::PUSH_AT, 8, false, nop)?;
        self.image(chains, NIL + Layout::<GROUP>::PUSH_AT + 8, 8, true, nop)?;
        self.memory.store(NIL + Layout::<GROUP>::ALLOC_CREDIT_AT, 1);
        self.memory.store(NIL + Layout::<GROUP>::FREE_CREDIT_AT, 0);
        Ok(())
    }

    /// Writes a chunk's record, except for its place in the free list and its owner. The chunk's windows must never
    /// have been bound. `number_of_use` is the number of the chunk's next use.
    pub fn write_chunk(
        &self,
        chains: &impl ChainNic,
        chunk: u64,
        number_of_use: u64,
        windows: &[Window],
    ) -> Result<(), VerbsError> {
        let record = Layout::<GROUP>::record_of(chunk);
        assert!(record.is_multiple_of(LINE_BYTES), "a handle can name each record");
        self.memory.store(record + STATUS_AT, STATUS_CHUNK);
        self.memory.store(record + KEY_WORD_AT, number_of_use);
        for (number, window) in windows.iter().enumerate() {
            let binding = self.binding(chunk, *window);
            // The image does not name the queue pair: the bind queue has it.
            let bind = Operation::BindWindow(binding);
            self.image(chains, record + Layout::<GROUP>::BIND_AT[number], entry::BIND_BYTES, true, bind)?;
            let free = Operation::LocalInvalidate { rkey: binding.rkey };
            let at = record + Layout::<GROUP>::INVALIDATE_AT[number];
            self.image(chains, at, entry::INVALIDATE_BYTES, true, free)?;
        }
        let Regions { scrubbed, zeros, words, table, scratch, .. } = self.regions;
        let geometry = self.geometry;
        let zero = write((zeros, 0), geometry.chunk_bytes, (scrubbed, chunk * geometry.chunk_bytes));
        self.image(chains, record + Layout::<GROUP>::ZERO_AT, entry::TRANSFER_BYTES, false, zero)?;
        // Only the first words of these two are copied: the operation, and the key of the region.
        let local = LocalSpan { address: 0, length: 8, lkey: table.lkey };
        let remote = RemoteSpan { address: RemoteAddress(0), rkey: words.rkey };
        let push_next = Operation::Read { local, remote };
        let push_top = write((scratch, 0), 8, (words, 0));
        self.image(chains, record + Layout::<GROUP>::PUSH_AT, 8, false, push_next)?;
        self.image(chains, record + Layout::<GROUP>::PUSH_AT + 8, 8, true, push_top)?;
        self.memory.store(record + Layout::<GROUP>::ALLOC_CREDIT_AT, 0);
        self.memory.store(record + Layout::<GROUP>::FREE_CREDIT_AT, 1);
        Ok(())
    }

    /// Returns the binding of a chunk's window for the chunk's next use.
    pub fn binding(&self, chunk: u64, window: Window) -> WindowBinding {
        let [low_byte, ..] = self.number_of_use(chunk).to_le_bytes();
        WindowBinding {
            window: window.id,
            rkey: Rkey::new(window.rkey.index(), low_byte),
            region: self.regions.chunks.id,
            address: self.geometry.address(chunk),
            length: self.geometry.chunk_bytes,
            access: Access::REMOTE,
        }
    }

    /// Writes the first bytes of a request, in the form that a queue contains.
    fn image(
        &self,
        chains: &impl ChainNic,
        at: u64,
        bytes: u64,
        signalled: bool,
        operation: Operation,
    ) -> Result<(), VerbsError> {
        let words = chains.queue_entry(&WorkRequest { id: 0, signalled, operation })?;
        let count = usize::try_from(bytes / 8).unwrap_or(words.len());
        for (word, at) in words.into_iter().take(count).zip((at..).step_by(8)) {
            self.memory.store(at, word);
        }
        Ok(())
    }

    /// Returns the client that holds a chunk.
    pub fn owner(&self, chunk: u64) -> Option<ClientNumber> {
        ClientNumber::of_holder(self.memory.load(Layout::<GROUP>::record_of(chunk) + OWNER_AT))
    }

    /// Returns the client that has freed a chunk which no client holds.
    pub fn freed_by(&self, chunk: u64) -> Option<ClientNumber> {
        ClientNumber::freed_by(self.memory.load(Layout::<GROUP>::record_of(chunk) + OWNER_AT))
    }

    /// Clears a chunk's owner: no client holds the chunk any more.
    pub fn clear_owner(&self, chunk: u64) {
        self.memory.store(Layout::<GROUP>::record_of(chunk) + OWNER_AT, 0);
    }

    /// Returns the number of a chunk's present use, or of its next one if it is free.
    pub fn number_of_use(&self, chunk: u64) -> u64 {
        self.memory.load(Layout::<GROUP>::record_of(chunk) + KEY_WORD_AT)
    }

    /// Returns the offset of the record after the one at an offset.
    pub fn next(&self, at: u64) -> u64 {
        self.memory.load(at + NEXT_AT)
    }

    pub fn set_next(&self, chunk: u64, next: u64) {
        self.memory.store(Layout::<GROUP>::record_of(chunk) + NEXT_AT, next);
    }
}

/// The number of a chunk's first use. The low byte 0 of a key means that a window was never bound.
pub(crate) const FIRST_USE: u64 = 1;

fn write((from, at): (Region, u64), bytes: u64, (to, address): (Region, u64)) -> Operation {
    let length = u32::try_from(bytes).expect("a chunk is shorter than 4 GiB");
    Operation::Write {
        local: LocalSpan { address: at, length, lkey: from.lkey },
        remote: RemoteSpan { address: RemoteAddress(address), rkey: to.rkey },
    }
}
