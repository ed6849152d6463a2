//! A program that allocates chunks and small objects in them, uses them, and leaves some behind.

use super::{Board, SimSession};
use crate::clock::MICROSECOND;
use crate::dice::Dice;
use crate::fiber::FiberClock;
use crate::oracle::Promise;
use portcullis::{Chunk, ChunkAllocator, ChunkOptions, NotAllAllocated, NotAllFreed};
use portcullis_client::{
    Access, ControlRequest, Error, NotFreed, Permission as Bare, SmallObject, Unchecked,
};
use portcullis_protocol::{Credential, HandedOutBy, Refusal, RemoteAddress};

/// The most chunks that are allocated or freed at once. A worker takes sixteen requests.
const AT_ONCE: usize = 20;
/// The most objects that the program holds.
const OBJECTS_MAX: usize = 24;
/// The most bytes of an access.
const ACCESS_MAX: u64 = 96;

/// Bytes that the program may access, and what it knows of them.
struct Held<T> {
    it: T,
    /// The bytes that must be there. `None`: an access has failed, or earlier bytes of the same session may be there.
    bytes: Option<Vec<u8>>,
}

/// User of chunks, running on a program's fiber.
pub(super) struct ChunkUser {
    session: SimSession,
    clock: FiberClock,
    dice: Dice,
    board: Board,
    /// Number that distinguishes the program's bytes from those of all others.
    mark: u32,
    writes: u32,
    chunks: Vec<Held<Chunk>>,
    objects: Vec<Held<SmallObject>>,
    /// The last chunk that the program has freed.
    past: Option<(RemoteAddress, Credential, u64)>,
}

impl ChunkUser {
    pub fn new(session: SimSession, clock: FiberClock, mut dice: Dice, board: Board) -> Self {
        let mark = u32::try_from(dice.any() >> 32).unwrap_or(0) | 1;
        let (chunks, objects) = (Vec::new(), Vec::new());
        Self { session, clock, dice, board, mark, writes: 0, chunks, objects, past: None }
    }

    pub fn run(mut self) {
        let free_max = self.dice.index(4);
        let Some(mut allocator) = self.join(free_max) else { return };
        // Some programs allocate and free all the time, and others keep what they have.
        let weights = [
            self.weight(),
            self.weight(),
            self.weight(),
            self.weight(),
            2 + self.weight(),
            2 + self.weight(),
            self.weight(),
            self.weight(),
            1,
            1,
        ];
        while self.goes_on() {
            match self.dice.weighted(&weights) {
                0 => self.allocate(&mut allocator),
                1 => self.allocate_many(&mut allocator),
                2 => self.free(&mut allocator),
                3 => self.free_many(&mut allocator),
                4 => self.use_a_chunk(),
                5 => self.use_an_object(),
                6 => self.allocate_objects(&mut allocator),
                7 => self.free_object(&mut allocator),
                8 if self.dice.per_mille(200) => self.come_late(),
                _ if self.dice.per_mille(20) => return self.vanish(),
                _ => self.forget_one(),
            }
            self.clock.pass(self.dice.magnitude(100..40 * MICROSECOND));
        }
        // Some programs leave what they hold to the node.
        if self.dice.per_mille(500) {
            self.free_many(&mut allocator);
        }
    }

    fn weight(&mut self) -> u32 {
        u32::try_from(self.dice.of(1..8)).unwrap_or(1)
    }

    fn goes_on(&mut self) -> bool {
        !self.board.winds_down() && self.session.client().over().is_none()
    }

    fn join(&mut self, free_max: usize) -> Option<ChunkAllocator> {
        while self.goes_on() {
            let joined = self.session.chunks(ChunkOptions { free_max });
            if let Some(allocator) = self.note("joining the chunks", joined) {
                return Some(allocator);
            }
            self.clock.pass(self.dice.magnitude(10 * MICROSECOND..500 * MICROSECOND));
        }
        None
    }

    fn allocate(&mut self, allocator: &mut ChunkAllocator) {
        let allocated = allocator.allocate(&mut self.session);
        if let Some(chunk) = self.noted("a chunk", allocated) {
            self.keep(chunk);
        }
    }

    fn allocate_many(&mut self, allocator: &mut ChunkAllocator) {
        let count = 1 + self.dice.index(AT_ONCE);
        let chunks = match allocator.allocate_many(&mut self.session, count) {
            Ok(chunks) => chunks,
            Err(NotAllAllocated { chunks, error }) => {
                self.noted("chunks", Err::<(), _>(error));
                chunks
            }
        };
        chunks.into_iter().for_each(|chunk| self.keep(chunk));
    }

    /// Keeps a chunk that the program has just allocated, and sometimes reads it at once. It must contain only zeros.
    fn keep(&mut self, chunk: Chunk) {
        self.board.told().chunks.push((chunk.address(), chunk.credential(), chunk.length()));
        let length = usize::try_from(chunk.length()).unwrap_or(0);
        let mut held = Held { it: chunk, bytes: Some(vec![0; length]) };
        if self.dice.per_mille(600) {
            self.read(&mut held, 0, length);
        }
        self.chunks.push(held);
    }

    fn take_one(&mut self) -> Option<Chunk> {
        if self.chunks.is_empty() {
            return None;
        }
        let place = self.dice.index(self.chunks.len());
        let chunk = self.chunks.swap_remove(place).it;
        self.past = Some((chunk.address(), chunk.credential(), chunk.length()));
        Some(chunk)
    }

    fn free(&mut self, allocator: &mut ChunkAllocator) {
        if let Some(chunk) = self.take_one() {
            let freed = allocator.free(&mut self.session, chunk);
            self.noted("the end of a chunk", freed);
            if self.dice.per_mille(60) {
                self.come_late();
            }
        }
    }

    fn free_many(&mut self, allocator: &mut ChunkAllocator) {
        let count = 1 + self.dice.index(AT_ONCE);
        let chunks: Vec<_> = (0..count).map_while(|_| self.take_one()).collect();
        if let Err(NotAllFreed { left, error }) = allocator.free_many(&mut self.session, chunks) {
            self.noted("the end of chunks", Err::<(), _>(error));
            self.chunks.extend(left.into_iter().map(|it| Held { it, bytes: None }));
        }
    }

    fn allocate_objects(&mut self, allocator: &mut ChunkAllocator) {
        if self.objects.len() >= OBJECTS_MAX {
            return self.free_object(allocator);
        }
        let bytes = self.dice.magnitude(1..allocator.terms().chunk_bytes + 1);
        let count = 1 + self.dice.index(4);
        let allocated = allocator.allocate_objects(&mut self.session, count, bytes);
        for it in self.noted("objects", allocated).unwrap_or_default() {
            // The session's own bytes may be there, and no others.
            self.objects.push(Held { it, bytes: None });
        }
    }

    fn free_object(&mut self, allocator: &mut ChunkAllocator) {
        if self.objects.is_empty() {
            return;
        }
        let place = self.dice.index(self.objects.len());
        let object = self.objects.swap_remove(place).it;
        if let Err(NotFreed { error, .. }) = allocator.free_object(&mut self.session, object) {
            self.noted("the end of an object", Err::<(), _>(error));
        }
    }

    fn use_a_chunk(&mut self) {
        if self.chunks.is_empty() {
            return;
        }
        let place = self.dice.index(self.chunks.len());
        let mut held = self.chunks.swap_remove(place);
        self.access(&mut held);
        self.chunks.push(held);
    }

    fn use_an_object(&mut self) {
        if self.objects.is_empty() {
            return;
        }
        let place = self.dice.index(self.objects.len());
        let mut held = self.objects.swap_remove(place);
        self.access(&mut held);
        self.objects.push(held);
    }

    fn access<T: std::ops::Deref<Target = Bare>>(&mut self, held: &mut Held<T>) {
        let whole = held.it.length();
        let offset = self.dice.of(0..whole);
        let length = usize::try_from(self.dice.of(1..(whole - offset).min(ACCESS_MAX) + 1)).unwrap_or(1);
        match self.dice.of(0..5) {
            0 | 1 => self.read(held, offset, length),
            2 | 3 => self.write(held, offset, length),
            _ => self.add(held, offset & !7),
        }
    }

    fn read<T: std::ops::Deref<Target = Bare>>(&mut self, held: &mut Held<T>, offset: u64, length: usize) {
        let mut bytes = vec![0; length];
        let done = self.session.read(&held.it, offset, &mut bytes);
        if self.note("a read", done).is_none() {
            return;
        }
        let from = usize::try_from(offset).unwrap_or(0);
        let expected = held.bytes.as_ref().map(|known| &known[from..from + length]);
        let what = match expected {
            Some(expected) if expected != bytes => format!("{bytes:x?} where {expected:x?} must be"),
            None if self.first_foreign(held.it.address().0 + offset, &bytes).is_some() => {
                format!("{bytes:x?}, which neither it has written nor are zeros")
            }
            _ => return,
        };
        let what = format!("a read at {:#x} brought {what}", held.it.address().0 + offset);
        self.board.told().wrong.push((Promise::Truth, what));
    }

    /// Returns the byte that the program writes at an address unless it writes zero. The byte depends on the address
    /// and the program alone.
    fn byte_at(&self, address: u64) -> u8 {
        let [low, high, ..] = (u64::from(self.mark).wrapping_mul(address | 1)).to_be_bytes();
        (low ^ high) | 1
    }

    fn first_foreign(&self, address: u64, bytes: &[u8]) -> Option<usize> {
        bytes.iter().zip(address..).position(|(&byte, at)| byte != 0 && byte != self.byte_at(at))
    }

    fn write<T: std::ops::Deref<Target = Bare>>(&mut self, held: &mut Held<T>, offset: u64, length: usize) {
        self.writes = self.writes.wrapping_add(1);
        // Every second write clears the bytes, so that a lost write shows.
        let clears = self.writes.is_multiple_of(2);
        let first = held.it.address().0 + offset;
        let places = (first..).take(length);
        let bytes: Vec<u8> = places.map(|at| if clears { 0 } else { self.byte_at(at) }).collect();
        let done = self.session.write(&held.it, offset, &bytes);
        let from = usize::try_from(offset).unwrap_or(0);
        match (self.note("a write", done), &mut held.bytes) {
            (Some(()), Some(known)) => known[from..from + length].copy_from_slice(&bytes),
            (None, known) => *known = None,
            (Some(()), None) => {}
        }
    }

    /// Executes an atomic that changes nothing, so the bytes that others may find there still identify their writer.
    fn add<T: std::ops::Deref<Target = Bare>>(&mut self, held: &mut Held<T>, offset: u64) {
        let is_word = (held.it.address().0 + offset).is_multiple_of(8) && offset + 8 <= held.it.length();
        if !is_word {
            return;
        }
        let done = self.session.fetch_and_add(&held.it, offset, 0);
        let from = usize::try_from(offset).unwrap_or(0);
        if let (Some(found), Some(known)) = (self.note("an atomic", done), &held.bytes)
            && known[from..from + 8] != found.to_le_bytes()
        {
            let what = format!("an atomic found {found:#x} where {:x?} must be", &known[from..from + 8]);
            self.board.told().wrong.push((Promise::Truth, what));
        }
    }

    /// Accesses a chunk that the program has freed. The node's NIC refuses the access, and it costs the program its
    /// queue pair.
    fn come_late(&mut self) {
        let Some((address, credential, length)) = self.past else { return };
        let length = u32::try_from(length.min(16)).unwrap_or(8);
        let Ok(buffer) = self.session.buffer(length) else { return };
        let read = Access::read(Unchecked::new(address, credential), 0, buffer);
        let begun = self.session.client().dangerous_access(read);
        let Ok(operation) = begun else { return };
        // If a NIC executes the access, the checkers that watch the network find it.
        let _ = self.session.wait(operation);
    }

    /// Drops a chunk without freeing it.
    fn forget_one(&mut self) {
        if self.dice.per_mille(50) {
            drop(self.take_one());
        }
    }

    /// Ends the program in the middle of an allocation, or of freeing a chunk.
    fn vanish(mut self) {
        let now = self.session.now();
        if let Some(chunk) = self.take_one() {
            let begun = self.session.client().call(now, ControlRequest::FreeChunk(chunk.into_bare()));
            self.note("the beginning of an end", begun.map_err(Error::from));
        }
        let begun = self.session.client().call(now, ControlRequest::AllocateChunk);
        self.noted("the beginning of an allocation", begun.map_err(Error::from));
        self.clock.pass(self.dice.magnitude(100..20 * MICROSECOND));
    }

    /// Reports an error. After an error that means that the workers are gone, requests new ones.
    fn noted<T>(&mut self, what: &str, done: Result<T, Error>) -> Option<T> {
        let are_gone = matches!(done, Err(Error::Refused(Refusal::NicFailed)));
        let noted = self.note(what, done);
        let by = self.session.client().chunk_terms().map(|terms| terms.by);
        if are_gone && by == Some(HandedOutBy::Nic) && self.goes_on() {
            let joined = self.session.join_chunks();
            self.note("joining the chunks again", joined);
        }
        noted
    }

    fn note<T>(&self, what: &str, done: Result<T, Error>) -> Option<T> {
        done.map_err(|error| self.board.told().errors.push((error, what.to_owned()))).ok()
    }
}
