//! The catalogue: for each place, the block's number and the reference to its object. The catalogue lies in remote
//! memory. The reference to the catalogue itself is in a file.

use crate::BLOCKS;
use portcullis::{Acquire, Allocate, Error, Lifetime, ObjectRef, Permission, Session};
use std::path::Path;

/// Bytes of an entry: the block's number, its object, and a checksum that detects a half-written entry.
const ENTRY_BYTES: usize = 8 + ObjectRef::BYTES + 8;
/// The lease of a permission over the catalogue.
const LEASE: Lifetime = Lifetime::seconds(2);
/// The permission is requested again when less than this is left of its lease.
const LEAST: Lifetime = Lifetime::seconds(1);
const FILE: &str = "catalogue";

/// A block in the catalogue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub number: u64,
    pub object: ObjectRef,
}

impl Entry {
    fn check(&self) -> u64 {
        let words = self.object.to_bytes();
        let words = words.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
        words.fold(self.number ^ 0xb10c_b10c_b10c_b10c, |sum, word| sum.rotate_left(13) ^ word)
    }

    fn to_bytes(self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..32].copy_from_slice(&self.object.to_bytes());
        bytes[32..].copy_from_slice(&self.check().to_le_bytes());
        bytes
    }

    /// `None`: nothing is listed at the place yet, or the entry is only half written.
    fn from_bytes(bytes: &[u8; ENTRY_BYTES]) -> Option<Self> {
        let (number, rest) = bytes.split_first_chunk::<8>()?;
        let (object, check) = rest.split_first_chunk::<{ ObjectRef::BYTES }>()?;
        let entry = Self { number: u64::from_le_bytes(*number), object: ObjectRef::from_bytes(*object) };
        (check == entry.check().to_le_bytes()).then_some(entry)
    }
}

/// The catalogue, as one of the processes that share it holds it.
pub struct Catalogue {
    object: ObjectRef,
    held: Permission,
}

impl Catalogue {
    /// Creates a catalogue and puts its reference where other processes find it.
    pub fn create(session: &mut Session, folder: &Path) -> Result<Self, Box<dyn std::error::Error>> {
        let ask = Allocate::bytes(BLOCKS * ENTRY_BYTES as u64).keep().shared().lifetime(LEASE);
        let held = session.allocate(ask)?;
        let object = held.object();
        session.write(&held, 0, &vec![0; usize::try_from(held.length())?])?;
        let new = folder.join("catalogue.new");
        std::fs::write(&new, object.to_string())?;
        std::fs::rename(new, folder.join(FILE))?;
        Ok(Self { object, held })
    }

    /// Opens the catalogue whose reference is in the file. `None`: there is no such file yet.
    pub fn open(session: &mut Session, folder: &Path) -> Result<Option<Self>, Error> {
        let Ok(text) = std::fs::read_to_string(folder.join(FILE)) else { return Ok(None) };
        let Ok(object) = text.parse() else { return Ok(None) };
        let held = session.acquire(Acquire::object(object).shared().lifetime(LEASE))?;
        Ok(Some(Self { object, held }))
    }

    /// Requests the permission again before its lease ends.
    fn hold(&mut self, session: &mut Session) -> Result<(), Error> {
        if self.held.lease().deadline().since(session.now()) < LEAST {
            self.held = session.acquire(Acquire::object(self.object).shared().lifetime(LEASE))?;
        }
        Ok(())
    }

    fn offset(place: u64) -> u64 {
        place * ENTRY_BYTES as u64
    }

    /// Returns the entry at a place.
    pub fn look_up(&mut self, session: &mut Session, place: u64) -> Result<Option<Entry>, Error> {
        self.hold(session)?;
        let mut bytes = [0; ENTRY_BYTES];
        session.read(&self.held, Self::offset(place), &mut bytes)?;
        Ok(Entry::from_bytes(&bytes))
    }

    /// Writes a block's entry.
    pub fn list(&mut self, session: &mut Session, place: u64, entry: Entry) -> Result<(), Error> {
        self.hold(session)?;
        session.write(&self.held, Self::offset(place), &entry.to_bytes())
    }
}
