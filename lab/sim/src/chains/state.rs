//! The name of a state, which covers everything that can still matter. Counters that run for ever count by their
//! differences. Memory that is overwritten before it is read again does not count.

use super::arena::ArenaMemory;
use super::members::Life;
use super::world::{CHUNK_BYTES, Worker, World};
use crate::memory::index;
use portcullis_nic::{ChainNic, Memory, QpState, entry};
use portcullis_offload::chain::{
    Count, Label, Line, Listing, Operand, Queue, RowOperation, Scratch, TICKET_AT, TOP_AT,
};
use portcullis_offload::record::{KEY_WORD_AT, Layout, NEXT_AT, NIL, OWNER_AT};
use std::hash::{Hash, Hasher};
use twox_hash::XxHash64;

/// A state's name. Two different states have the same name with a probability of 2^-128.
pub(super) type Name = u128;

struct Digest([XxHash64; 2]);

impl Digest {
    fn new() -> Self {
        Self([XxHash64::with_seed(1), XxHash64::with_seed(2)])
    }

    fn put(&mut self, value: u64) {
        self.0.iter_mut().for_each(|half| half.write_u64(value));
    }

    fn put_hash(&mut self, value: &impl Hash) {
        self.0.iter_mut().for_each(|half| value.hash(half));
    }

    fn name(&self) -> Name {
        let [low, high] = self.0.each_ref().map(Hasher::finish);
        u128::from(low) | u128::from(high) << 64
    }
}

/// Bytes of a request in a chain that another row writes.
#[derive(Clone, Copy)]
struct Field {
    line: usize,
    part: u64,
    bytes: u64,
    /// The row that writes the bytes. `needed` is the last row that needs them: the request itself, or a row that
    /// copies it.
    written: usize,
    needed: usize,
}

/// Returns the fields that rows write into requests behind them.
fn fields(listing: &Listing) -> Vec<Field> {
    let mut fields = Vec::new();
    for (written, row) in listing.rows().iter().enumerate().filter(|(_, row)| row.label.0 != Line::Bump) {
        for (place, bytes) in writes(row.operation) {
            let Operand::Line(label, part) = place else { continue };
            let Some(line) = listing.position(label) else { continue };
            let needed = last_need(listing, label, line);
            fields.push(Field { line, part, bytes, written, needed });
        }
    }
    fields
}

fn writes(operation: RowOperation) -> Vec<(Operand, u64)> {
    match operation {
        RowOperation::Read { to, bytes, .. } | RowOperation::Write { to, bytes, .. } => vec![(to, bytes)],
        RowOperation::Add { to, old, .. } => vec![(to, 8), (old, 8)],
        RowOperation::Swap { at, old, .. } => vec![(at, 8), (old, 8)],
        _ => Vec::new(),
    }
}

/// Returns the last row that needs a part of a request: the request itself, or a row that copies it.
fn last_need(listing: &Listing, label: Label, line: usize) -> usize {
    let copies = |operation: RowOperation| match operation {
        RowOperation::Read { from, .. } | RowOperation::Write { from, .. } => {
            matches!(from, Operand::Line(source, _) if source == label)
        }
        _ => false,
    };
    let last = listing.rows().iter().rposition(|row| copies(row.operation));
    last.map_or(line, |last| last.max(line))
}

impl<const G: usize> World<G> {
    /// Returns the name of the present state.
    pub fn name(&mut self) -> Name {
        let mut digest = Digest::new();
        digest.put_hash(&self.breakage);
        self.digest_pool(&mut digest);
        for member in 0..self.members.len() {
            self.digest_member(&mut digest, member);
        }
        digest.name()
    }

    fn digest_pool(&mut self, digest: &mut Digest) {
        let releases = self.nic.completions_counted(self.pool.parts().lock).unwrap_or(0);
        let parts = self.pool.parts();
        digest.put(parts.words.load(TOP_AT));
        digest.put(u64::from(low(parts.words.load(TICKET_AT)).wrapping_sub(releases)));
        for at in (portcullis_offload::chain::OTHER_WORDS_AT..parts.words.length()).step_by(8) {
            digest.put(parts.words.load(at));
        }
        for record in std::iter::once(0).chain((0..self.case.chunks).map(Layout::<G>::record_of)) {
            digest.put(parts.table.load(record + NEXT_AT));
            let owner = portcullis_offload::ClientNumber::of_holder(parts.table.load(record + OWNER_AT));
            digest.put(owner.map_or(0, portcullis_offload::ClientNumber::get));
            self.digest_record(digest, parts.table, record, record);
        }
        for chunk in 0..self.case.chunks {
            digest.put(self.pool.chunks_memory().load(chunk * CHUNK_BYTES));
        }
        for chunk in 0..self.case.chunks {
            let uses = self.uses(Layout::<G>::record_of(chunk));
            for number in 0..G {
                let window = self.pool.parts().windows[index(chunk) * G + number].id;
                let holder = self.nic.core().window_holder(window);
                digest.put_hash(
                    &holder.map(|(qp, key)| (qp, key.low_byte().wrapping_sub(uses.to_le_bytes()[0]))),
                );
            }
        }
    }

    /// Returns the number of uses of a record's chunk.
    fn uses(&self, record: u64) -> u64 {
        self.pool.parts().table.load(record + KEY_WORD_AT)
    }

    /// Adds a record or its copy to the digest, from its status on. Keys count by their distance from the present
    /// one.
    fn digest_record(&self, digest: &mut Digest, memory: &ArenaMemory, at: u64, record: u64) {
        let uses = self.uses(record);
        // A refused free counts NIL's uses, which no chain reads.
        let known = if record == NIL { uses } else { memory.load(at + KEY_WORD_AT) };
        digest.put(known.wrapping_sub(uses));
        let keys = |image: u64| image + entry::RKEY / 8 * 8;
        let keyed: Vec<_> =
            Layout::<G>::BIND_AT.into_iter().chain(Layout::<G>::INVALIDATE_AT).map(keys).collect();
        for part in (KEY_WORD_AT + 8..Layout::<G>::BYTES).step_by(8) {
            let word = memory.load(at + part);
            let names_window = Layout::<G>::BIND_AT.contains(&(part - entry::LOCAL_ADDRESS));
            digest.put(match keyed.contains(&part) {
                true if record == NIL => 0,
                true => self.relative_key(word, uses),
                false if names_window && record != NIL => self.relative_window(word),
                false => word,
            });
        }
    }

    fn digest_member(&mut self, digest: &mut Digest, place: usize) {
        let member = &self.members[place];
        digest.put(match member.life {
            Life::Alive(_) => 0,
            Life::Gone(_) => 1,
            Life::Forgotten => 2,
            Life::Node(_) => 3,
        });
        digest.put_hash(&(&member.known, &member.unsure));
        if let Life::Node(reserve) = &member.life {
            digest.put_hash(&(reserve.under_way(), reserve.held()));
        }
        for asks in &member.asks {
            digest.put(u64::from(asks.waiting));
            digest.put_hash(&(&asks.due, &asks.named));
        }
        if let Life::Gone(reclaims) = &member.life {
            for reclaim in reclaims {
                digest.put(reclaim.parts().len() as u64);
                digest.put_hash(&reclaim.chunks_left());
            }
        }
        for worker in self.workers(place) {
            self.digest_worker(digest, worker);
        }
    }

    fn digest_worker(&mut self, digest: &mut Digest, worker: Worker) {
        let parts = worker.parts;
        let position = self.position(worker);
        digest.put(position as u64);
        for qp in [parts.chain, parts.binds, parts.messages] {
            let core = self.nic.core();
            digest.put(u64::from(core.state(qp) == Some(QpState::Error)));
            digest.put(core.send_progress(qp).map_or(0, |it| it.left()));
        }
        let admitted = self.nic.core().receive_progress(parts.messages).map_or(0, |it| it.left());
        digest.put(admitted);
        let requests = self.count(parts.received).wrapping_sub(self.laps(worker));
        digest.put(u64::from(requests));
        digest.put(u64::from(self.count(parts.replied).wrapping_sub(self.laps(worker))));
        self.digest_chain(digest, worker, position);
        self.digest_scratch(digest, worker, position, requests);
        self.digest_binds(digest, worker, position);
    }

    fn count(&self, cq: portcullis_nic::CqId) -> u32 {
        self.nic.completions_counted(cq).unwrap_or(0)
    }

    /// Adds the requests of a chain to the digest, as far as rows change them.
    fn digest_chain(&mut self, digest: &mut Digest, worker: Worker, position: usize) {
        let Some((memory, span)) = self.nic.queue_memory(worker.parts.chain) else { return };
        let listing = *self.listing(worker);
        for field in fields(&listing) {
            if !(field.written < position && position <= field.needed) {
                digest.put(0);
                continue;
            }
            let at = span.start + field.line as u64 * entry::BYTES;
            let row = listing.rows()[field.line];
            if row.label.0 == Line::AwaitTurn || row.label.0 == Line::EnableRequest {
                digest.put(self.distance(worker, row.operation, memory.load(at + entry::VALUE)));
                continue;
            }
            for word in field.part / 8..(field.part + field.bytes).div_ceil(8) {
                digest.put(memory.load(at + word * 8));
            }
        }
        for (line, row) in listing.rows().iter().enumerate() {
            let is_bumped = row.label.0 != Line::AwaitTurn && row.label.0 != Line::EnableRequest;
            if is_bumped
                && matches!(
                    row.operation,
                    RowOperation::Wait { .. }
                        | RowOperation::Enable { .. }
                        | RowOperation::EnableReceive { .. }
                )
            {
                let value = memory.load(span.start + line as u64 * entry::BYTES + entry::VALUE);
                digest.put(self.distance(worker, row.operation, value));
            }
        }
    }

    /// Returns the distance of a threshold or limit from the number that it is compared with.
    fn distance(&mut self, worker: Worker, operation: RowOperation, value: u64) -> u64 {
        let parts = worker.parts;
        let taken = |core: &mut portcullis_softnic::core::Core<ArenaMemory>, qp| {
            core.send_progress(qp).map_or(0, |it| it.taken)
        };
        match operation {
            RowOperation::Wait { count, .. } => {
                let cq = match count {
                    Count::Requests => parts.received,
                    Count::Replies => parts.replied,
                    Count::Binds => parts.bound,
                    Count::Releases => self.pool.parts().lock,
                };
                u64::from(low(value).wrapping_sub(self.count(cq)))
            }
            RowOperation::Enable { queue, .. } => {
                let qp = match queue {
                    Queue::Binds => parts.binds,
                    Queue::Reply => parts.messages,
                    Queue::Own => parts.chain,
                };
                // The chain's own limit counts from its lap's first request.
                let lap = if queue == Queue::Own { self.position(worker) as u64 } else { 0 };
                value.wrapping_sub(taken(self.nic.core(), qp)).wrapping_add(lap)
            }
            RowOperation::EnableReceive { .. } => {
                let progress = self.nic.core().receive_progress(parts.messages);
                value.wrapping_sub(progress.map_or(0, |it| it.taken))
            }
            // Only this worker has the number of the client's requests for chunks.
            _ => value.wrapping_sub(self.credits(worker)),
        }
    }

    fn credits(&self, worker: Worker) -> u64 {
        self.pool.parts().scratch.load(worker.parts.credits_at)
    }

    fn digest_scratch(&mut self, digest: &mut Digest, worker: Worker, position: usize, requests: u32) {
        let listing = *self.listing(worker);
        let at = |line: Line| listing.position(line.first()).unwrap_or(usize::MAX);
        let scratch_at = worker.parts.scratch_at;
        let core = self.nic.core();
        // A reply to a client that is gone is never sent.
        let reply_waits = core.state(worker.parts.messages) != Some(QpState::Error)
            && core.send_progress(worker.parts.messages).is_some_and(|it| it.left() > 0);
        let record = self.chunk_in_scratch(worker).map_or(0, Layout::<G>::record_of);
        let limit = self.nic.core().receive_progress(worker.parts.messages).map_or(0, |it| it.taken);
        let parts = self.pool.parts();
        let copy = scratch_at + Scratch::<G>::RECORD;
        let status = parts.scratch.load(copy + portcullis_offload::record::STATUS_AT);
        if position > at(Line::ReadRecord) {
            digest.put(status);
            self.digest_record(digest, parts.scratch, copy, record);
        } else if reply_waits {
            // In a reply a client looks at the chunk. The keys may be out of date by any amount by now.
            digest.put(status);
            digest.put(record);
        }
        let word = |part| parts.scratch.load(scratch_at + part);
        if self.case.design.uses_found(worker.frees) || (worker.frees && position > at(Line::FindNone)) {
            digest.put(word(Scratch::<G>::FOUND));
        }
        if worker.frees && requests > 0 && (position <= at(Line::Find) || requests > 1) {
            digest.put(word(Scratch::<G>::REQUEST) & 0xffff);
        }
        if !worker.frees {
            digest.put(word(Scratch::<G>::CREDITS).wrapping_sub(limit));
        }
        if self.case.design.uses_found(worker.frees) {
            digest.put(word(Scratch::<G>::OWNED));
        }
    }

    /// Adds the requests of a bind queue to the digest, while they wait.
    fn digest_binds(&mut self, digest: &mut Digest, worker: Worker, position: usize) {
        let listing = *self.listing(worker);
        let first = listing.position(Line::CopyImage.first()).unwrap_or(0);
        let last = listing.position(Line::AwaitBinds.first()).unwrap_or(usize::MAX);
        let left = self.nic.core().send_progress(worker.parts.binds).map_or(0, |it| it.left());
        if left == 0 && !(first < position && position <= last) {
            return;
        }
        let Some((memory, span)) = self.nic.queue_memory(worker.parts.binds) else { return };
        for number in 0..G as u64 {
            let at = span.start + number * entry::BYTES;
            let first = memory.load(at + entry::OPERATION);
            digest.put(first);
            if first & 0xff == 0 {
                // This is NIL's image: its remains from an earlier lap are not read.
                continue;
            }
            let keys = memory.load(at + entry::RKEY / 8 * 8);
            let uses = self.uses_of_window(u32::try_from(keys >> 40).unwrap_or(0));
            digest.put(self.relative_window(memory.load(at + entry::LOCAL_ADDRESS)));
            let words = [3, 4].map(|word| memory.load(at + 8 * word));
            words.into_iter().for_each(|word| digest.put(word));
            digest.put(self.relative_key(keys, uses));
        }
    }

    fn uses_of_window(&self, index: u32) -> u64 {
        let place = self.place_of_window(index);
        place.map_or(0, |place| self.uses(Layout::<G>::record_of((place / G) as u64)))
    }

    fn place_of_window(&self, index: u32) -> Option<usize> {
        self.pool.parts().windows.iter().position(|window| window.rkey.index() == index)
    }

    /// Returns a word with a key in its upper half, relative to the state. The window counts by its place, since a
    /// chunk with new windows is equivalent to the same chunk before. The key's low byte counts from the present use.
    fn relative_key(&self, word: u64, uses: u64) -> u64 {
        let low_byte = (word >> 32).to_le_bytes()[0].wrapping_sub(uses.to_le_bytes()[0]);
        let place = self.place_of_window(u32::try_from(word >> 40).unwrap_or(0));
        place.map_or(word, |place| (place as u64 + 1) << 8 | u64::from(low_byte))
    }

    /// Returns a word that names a window, relative to the state: the window counts by its place.
    fn relative_window(&self, word: u64) -> u64 {
        let mut windows = self.pool.parts().windows.iter();
        windows.position(|window| u64::from(window.id.0) == word).map_or(word | 1 << 63, |place| place as u64)
    }
}

fn low(word: u64) -> u32 {
    u32::try_from(word & u64::from(u32::MAX)).unwrap_or(0)
}
