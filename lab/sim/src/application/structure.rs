//! The work of programs on a structure that they share, of whichever kind: one program creates it, the others find
//! it, and each reports to the checkers what went wrong.

use super::{Board, Commons};
use crate::clock::MICROSECOND;
use crate::dice::Dice;
use crate::endpoint::SimEndpoint;
use crate::fiber::FiberClock;
use crate::oracle::Promise;
use portcullis_blocks::BlockError;
use portcullis_client::Error;
use portcullis_protocol::{Lifetime, ObjectRef};
use portcullis_structures::Pipeline;
use portcullis_structures::queue::QueueError;
use portcullis_structures::table::TableError;
use std::cell::RefCell;
use std::fmt::Display;
use std::rc::Rc;

pub(super) type SimPipeline = Rc<Pipeline<SimEndpoint, FiberClock>>;

/// Number of times that the founder tries a last look at the structure.
pub(crate) const LAST_LOOKS: u32 = 8;
/// The most leases that one last look takes. Each of its two sweeps waits for two leases and a 64th of that, and
/// moving the words of the sweeps and of the look takes less than the rest.
pub(crate) const LEASES_OF_A_LOOK: u64 = 6;
/// The most words that the last looks change. The memory that they give back to the node is retired block by block. A
/// few extents have the smallest blocks: some four thousand each.
pub(crate) const WORDS_OF_LOOKS: u32 = 4 << 12;

/// A user of the structure, on its fiber.
pub(super) struct User {
    pub clock: FiberClock,
    pub dice: RefCell<Dice>,
    pub commons: Commons,
    pub board: Board,
    /// Whether this program creates the structure and checks it at the end.
    pub is_founder: bool,
    /// The shortest lease with which users make progress on this network.
    pub lease_min: Lifetime,
}

/// An error of a structure's operation.
pub(super) trait StructureError: Display {
    /// Returns the session's error behind this error, if there is one.
    fn of_session(&self) -> Option<Error>;
}

impl StructureError for TableError {
    fn of_session(&self) -> Option<Error> {
        match self {
            Self::Session(error) => Some(*error),
            _ => None,
        }
    }
}

impl StructureError for BlockError {
    fn of_session(&self) -> Option<Error> {
        match self {
            Self::Session(error) | Self::NoRoom { reason: error, .. } => Some(*error),
            _ => None,
        }
    }
}

impl StructureError for QueueError {
    fn of_session(&self) -> Option<Error> {
        match self {
            Self::Session(error) => Some(*error),
            _ => None,
        }
    }
}

impl User {
    /// Creates the structure, or opens the one that the founder has created.
    pub fn open<S, E: StructureError>(
        &self,
        pipeline: &SimPipeline,
        make: impl Fn() -> Result<(S, ObjectRef), E>,
        find: impl Fn(ObjectRef) -> Result<S, E>,
    ) -> Option<S> {
        while !self.board.winds_down() {
            let head = self.commons.head();
            let opened = match head {
                Some(head) => find(head).map(|structure| (structure, head)),
                None if self.is_founder => make(),
                None => {
                    self.wait_a_little();
                    continue;
                }
            };
            if let Some((structure, head)) = self.note("the structure", opened) {
                self.commons.found(head);
                return Some(structure);
            }
            if pipeline.is_over() {
                return None;
            }
            self.wait_a_little();
        }
        None
    }

    fn wait_a_little(&self) {
        self.clock.pass(100 * MICROSECOND);
    }

    pub fn goes_on(&self, pipeline: &SimPipeline) -> bool {
        !self.board.winds_down() && !pipeline.is_over()
    }

    /// Lets the founder check what is left of the structure, once all other programs are done.
    pub fn look_at_the_end<E: StructureError>(
        &self,
        pipeline: &SimPipeline,
        look: impl AsyncFn() -> Result<(), E>,
    ) {
        while self.commons.is_anybody_at_work() {
            self.wait_a_little();
        }
        for _ in 0..LAST_LOOKS {
            let looked = pipeline.block_on(look());
            if pipeline.is_over() || self.note("the last look", looked).is_some() {
                return;
            }
        }
    }

    pub fn wrong(&self, promise: Promise, what: String) {
        self.board.told().wrong.push((promise, what));
    }

    /// Reports an error. Returns the result if there is no error.
    pub fn note<T, E: StructureError>(&self, what: &str, done: Result<T, E>) -> Option<T> {
        let error = match done {
            Ok(done) => return Some(done),
            Err(error) => error,
        };
        match error.of_session() {
            Some(error) => self.board.told().errors.push((error, what.to_owned())),
            None => self.wrong(Promise::Order, format!("{what} ended with: {error}")),
        }
        None
    }
}
