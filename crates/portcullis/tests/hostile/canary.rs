//! Canaries: bytes that an attacker must never read or change.

use portcullis::{Allocate, Lifetime, Permission, Session};
use portcullis_nic::Memory;

/// The word that a canary's bytes repeat.
const WORD: u64 = 0xc0ff_ee5a_fe00_bead;

/// An object of another client, filled with one word. The test gives its address and key to the attacker.
pub struct Canary {
    session: Session,
    object: Permission,
}

impl Canary {
    pub fn new(mut session: Session, length: usize) -> Self {
        let ask = Allocate::bytes(length as u64).lifetime(Lifetime::seconds(60));
        let object = session.allocate(ask).expect("memory");
        session.write(&object, 0, &WORD.to_le_bytes().repeat(length / 8)).expect("its own bytes");
        Self { session, object }
    }

    pub fn object(&self) -> &Permission {
        &self.object
    }

    pub fn address(&self) -> u64 {
        self.object.address().0
    }

    pub fn key(&self) -> u32 {
        crate::attacker::key(self.object.credential())
    }

    /// Panics if another client has written to the canary.
    pub fn assert_untouched(&mut self) {
        let mut bytes = vec![0; usize::try_from(self.object.length()).expect("a short object")];
        self.session.read(&self.object, 0, &mut bytes).expect("its own bytes");
        let intact = bytes.chunks(8).all(|word| word == WORD.to_le_bytes());
        assert!(intact, "somebody else wrote to the canary");
    }

    /// Returns whether this memory contains the canary's word, at any alignment.
    pub fn is_in(memory: &impl Memory, offset: u64, length: usize) -> bool {
        let mut bytes = vec![0; length];
        memory.read(offset, &mut bytes);
        bytes.windows(8).any(|word| word == WORD.to_le_bytes())
    }
}
