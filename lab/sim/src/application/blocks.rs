//! A program that stores, looks up, reads and removes blocks. All programs of its run share the store.
//!
//! A key determines the bytes of its block, so every wrong byte shows.

use super::SimSession;
use super::commons::BlockEvent;
use super::structure::{SimPipeline, User};
use crate::endpoint::SimEndpoint;
use crate::fiber::FiberClock;
use crate::oracle::Promise;
use portcullis_blocks::{BlockError, Got, Put, StoreOptions};
use portcullis_client::Error;
use portcullis_protocol::{DirectoryName, Lifetime, Refusal};
use portcullis_structures::Pipeline;
use std::rc::Rc;

type SimStore = portcullis_blocks::Store<SimEndpoint, FiberClock>;

const KEYS: u64 = 8;
/// The most bytes of a block.
const LENGTH_MAX: usize = 4_000;
/// Leases of look-ups, in µs.
const LEASES: std::ops::Range<u64> = 500..2_000;

/// User of the blocks, running on the program's fiber.
pub(super) struct BlockUser(pub User);

/// Returns the bytes that a key determines.
fn content(key: u64) -> Vec<u8> {
    let length = 1 + usize::try_from(key * 1_237).expect("it is small") % LENGTH_MAX;
    (0..).flat_map(|word: u64| (word << 8 | key).to_le_bytes()).take(length).collect()
}

impl BlockUser {
    pub fn run(self, session: SimSession) {
        let pipeline = Rc::new(Pipeline::new(session));
        let at_work = self.0.commons.go_to_work();
        let lease = Lifetime(self.0.dice.borrow_mut().of(LEASES));
        let Some(store) = self.open(&pipeline, lease) else { return };
        pipeline.block_on(self.work(&pipeline, &store, lease));
        drop(at_work);
        if self.0.is_founder {
            self.0.look_at_the_end(&pipeline, async || self.look(&store).await);
        }
    }

    fn open(&self, pipeline: &SimPipeline, lease: Lifetime) -> Option<SimStore> {
        let options = {
            let mut dice = self.0.dice.borrow_mut();
            let table_lease = Lifetime(dice.of(1_000..4_000)).max(self.0.lease_min);
            let seed = Some(dice.any());
            StoreOptions { lease, table_lease, seed, evicts: false, ..StoreOptions::default() }
        };
        let name = DirectoryName::new("blocks").expect("a name");
        while self.0.goes_on(pipeline) {
            let opened = pipeline.block_on(SimStore::open(pipeline, name, &options));
            if let Some(store) = self.0.note("the store", opened) {
                return Some(store);
            }
            let _ = pipeline.block_on(pipeline.sleep(Lifetime::micros(100)));
        }
        None
    }

    /// Executes one operation after another, until the run winds down.
    async fn work(&self, pipeline: &SimPipeline, store: &SimStore, lease: Lifetime) {
        while self.0.goes_on(pipeline) {
            let (way, key, pause) = {
                let mut dice = self.0.dice.borrow_mut();
                (dice.of(0..10), dice.of(0..KEYS), Lifetime(dice.magnitude(1..60)))
            };
            match way {
                0..4 => self.put(store, key).await,
                4 => self.remove(store, key).await,
                5..8 => self.look_up_and_get(pipeline, store, (key, lease)).await,
                _ => {
                    self.get(store, key).await;
                }
            }
            // If the session is over, the loop ends.
            let _ = pipeline.sleep(pause).await;
        }
    }

    async fn put(&self, store: &SimStore, key: u64) {
        let start = self.0.commons.now();
        match store.put(&key.to_le_bytes(), &content(key)).await {
            Ok(Put::Stored) => self.0.commons.note_on_block(key, BlockEvent::Stored, start),
            // Another client has stored it, stores it now, or has removed it at the same time.
            Ok(Put::ThereAlready | Put::Busy) | Err(BlockError::Session(Error::Refused(Refusal::Gone))) => {}
            Err(error) => {
                self.0.note("a put", Err::<(), _>(error));
            }
        }
    }

    async fn remove(&self, store: &SimStore, key: u64) {
        // A program that dies in the middle may have removed the block, and may not.
        let place = self.0.commons.begin_on_block(key, BlockEvent::Removed);
        let removed = store.remove(&key.to_le_bytes()).await;
        if self.0.note("a removal", removed).is_some() {
            self.0.commons.end_on_block(place);
        }
    }

    /// Looks a block up, and reads it a little later. Within half of the lease it is there.
    async fn look_up_and_get(&self, pipeline: &SimPipeline, store: &SimStore, (key, lease): (u64, Lifetime)) {
        let begun = pipeline.now();
        let found = self.0.note("a look-up", store.look_up(&[&key.to_le_bytes()]).await);
        if found.is_none_or(|found| found[0].is_none()) {
            return;
        }
        let pause = Lifetime(self.0.dice.borrow_mut().magnitude(1..1_000));
        let _ = pipeline.sleep(pause).await;
        let got = self.get(store, key).await;
        let is_lost = matches!(got, Some(Got::Absent | Got::Failed(Error::Refused(Refusal::Conflict))));
        let took = pipeline.now().since(begun);
        if is_lost && took < Lifetime(lease.0 / 2) {
            let what =
                format!("block {key} was found, and {took} later it is {got:?}, with a lease of {lease}");
            self.0.wrong(Promise::Order, what);
        }
    }

    async fn get(&self, store: &SimStore, key: u64) -> Option<Got> {
        let expected = content(key);
        let mut bytes = vec![0; expected.len()];
        let start = self.0.commons.now();
        let got = self.0.note("a read of a block", store.get(&key.to_le_bytes(), &mut bytes).await)?;
        match got {
            Got::Hit if bytes != expected => {
                let at = bytes.iter().zip(&expected).position(|(is, should)| is != should);
                self.0.wrong(
                    Promise::Order,
                    format!("block {key} is torn, or another one, from byte {at:?} on"),
                );
            }
            Got::Hit => {}
            Got::Absent => self.0.commons.note_on_block(key, BlockEvent::Absent, start),
            Got::OtherLength(length) => {
                self.0.wrong(Promise::Order, format!("block {key} has {length} bytes"));
            }
            Got::Failed(error) => {
                self.0.note("a read of a block", Err::<(), _>(BlockError::Session(error)));
            }
        }
        Some(got)
    }

    /// Reads and removes all blocks. After that there are none.
    async fn look(&self, store: &SimStore) -> Result<(), BlockError> {
        for key in 0..KEYS {
            self.get(store, key).await;
            self.remove(store, key).await;
        }
        let usage = store.usage().await?;
        if usage.blocks > 0 {
            self.0.wrong(Promise::Rest, format!("blocks are left: {usage:?}"));
        }
        Ok(())
    }
}
