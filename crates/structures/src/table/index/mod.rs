//! The index of a table: where the slots of a key lie.
//!
//! A hint of the directory leads to a [subtable](subtables), and its links lead on to the subtables that were split off it.
//! The index knows slots, and nothing of the blocks that they name.

mod bucket;
mod buckets;
mod candidates;
mod directory;
mod hashing;
mod progress;
mod routes;
mod subtables;
mod views;

pub(super) use bucket::{Bucket, SlotAt, View};
pub(super) use candidates::Candidates;
pub(super) use hashing::KeyHash;
pub(super) use progress::Progress;

use super::TableOptions;
use super::head::Head;
use super::leases::Leases;
use crate::Pipeline;
use portcullis::{Clock, ObjectRef, VerbsEndpoint};
use routes::Routes;
use std::cell::RefCell;
use std::rc::Rc;

/// The index of a table.
pub(super) struct Index<E: VerbsEndpoint, C: Clock> {
    pipeline: Rc<Pipeline<E, C>>,
    options: TableOptions,
    /// The seed of the hashes of keys.
    seed: u64,
    leases: Rc<Leases<E, C>>,
    head: Rc<Head<E, C>>,
    routes: RefCell<Routes>,
    /// The objects of the subtables, by number.
    objects: RefCell<Vec<Option<ObjectRef>>>,
}

impl<E: VerbsEndpoint, C: Clock> Index<E, C> {
    pub fn new(
        pipeline: &Rc<Pipeline<E, C>>,
        (options, seed): (TableOptions, u64),
        leases: &Rc<Leases<E, C>>,
        head: &Rc<Head<E, C>>,
    ) -> Self {
        Self {
            pipeline: Rc::clone(pipeline),
            options,
            seed,
            leases: Rc::clone(leases),
            head: Rc::clone(head),
            routes: RefCell::default(),
            objects: RefCell::default(),
        }
    }

    /// Computes the hash of a key in this table.
    #[inline]
    pub fn hash_of(&self, key: &[u8]) -> KeyHash {
        KeyHash::new(key, self.seed, self.options.choices())
    }
}
