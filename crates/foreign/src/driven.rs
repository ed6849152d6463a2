//! A structure with the session and the pipeline that drive it, as one value that can move from thread to thread.
//!
//! A table and its pipeline share one session by reference counts that only one thread may change. As long as all
//! values that share the session move together, it does not matter which thread that is.

use crate::Failure;
use crate::asks::{PAUSE_MAX_IN_CALL, PAUSE_MAX_IN_TURNS, Structure, StructureAsk, Surroundings};
use portcullis::{DirectoryName, Lifetime, ObjectRef, Session};
use portcullis_structures::queue::{Queue, QueueError, QueueOptions};
use portcullis_structures::table::{Access, Table, TableError, TableOptions};
use portcullis_structures::{Pipeline, Turns};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::os::fd::RawFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The number of an operation that was begun, and its result.
type Numbered<S> = (u64, Result<<S as Structure>::Done, Failure>);

/// A structure, with the session and the pipeline that drive it.
#[derive(Debug)]
pub struct Driven<S: Structure> {
    /// The operations that were begun. They are dropped first: each has a reference to the structure.
    turns: Turns<Numbered<S>>,
    /// Whether the caller still awaits an operation that was begun, by number. An operation that is not awaited ends
    /// early if it may.
    awaited: HashMap<u64, Arc<AtomicBool>>,
    ended: Vec<Numbered<S>>,
    /// Entries that operations have taken out of the structure although no caller awaited them any more.
    left_over: Rc<RefCell<VecDeque<Vec<u8>>>>,
    next: u64,
    structure: Rc<S>,
    pipeline: Rc<Pipeline>,
}

// SAFETY: every reference count of the pipeline, and of what it and the structure share, is held inside this value:
// `new` is private to this module, the pipeline that it makes is handed to the structure alone, and neither Table nor
// Queue gives out the pipeline or anything else that is counted in this way. The result of `run` is Send, so it holds
// none of them. The operations in `turns` were made by `begin` alone: each has the structure, the pipeline, an ask,
// which is Send, and the futures that these make of it. The trait StructureAsk is sealed, so nothing else of another crate is in
// them. So all of them go to another thread together, and a value that is not Sync is used by one thread at a time.
unsafe impl Send for Driven<Table> {}
// SAFETY: as for a table.
unsafe impl Send for Driven<Queue> {}

impl<S: Structure> Driven<S> {
    fn new<E>(session: Session, make: impl AsyncFnOnce(&Rc<Pipeline>) -> Result<S, E>) -> Result<Self, E> {
        let pipeline = Rc::new(Pipeline::new(session));
        let structure = pipeline.block_on(make(&pipeline))?;
        Ok(Self {
            turns: Turns::default(),
            awaited: HashMap::new(),
            ended: Vec::new(),
            left_over: Rc::default(),
            next: 0,
            structure: Rc::new(structure),
            pipeline,
        })
    }

    /// Carries one operation out, and meanwhile carries on the operations that were begun.
    pub fn run<T: Send>(&mut self, operation: impl AsyncFnOnce(&S) -> T) -> T {
        let Self { turns, ended, structure, pipeline, .. } = self;
        pipeline.block_on_beside(pin!(operation(structure)), turns, |result| ended.push(result))
    }

    /// Carries one operation out for as long as `goes_on`, which is called once in each `every`, returns true. `None`:
    /// the operation was given up at the step that it had reached, as if its client had died there, and other
    /// operations continue. An entry that it had just taken is lost.
    pub fn run_while<T: Send>(
        &mut self,
        operation: impl AsyncFnOnce(&S) -> T,
        every: Lifetime,
        mut goes_on: impl FnMut() -> bool,
    ) -> Option<T> {
        let Self { turns, ended, structure, pipeline, .. } = self;
        let operation = pipeline.given_up_unless(operation(structure), every, async || goes_on());
        pipeline.block_on_beside(pin!(operation), turns, |result| ended.push(result))
    }

    /// Carries out an operation that is given as a value, as [`Driven::run`] does.
    ///
    /// # Errors
    /// As the operation.
    pub fn ask(&mut self, ask: impl StructureAsk<S>) -> Result<S::Done, Failure> {
        self.settle();
        let Self { turns, ended, left_over, structure, pipeline, .. } = self;
        let is_awaited = AtomicBool::new(true);
        let around =
            Surroundings { pipeline, is_awaited: &is_awaited, left_over, pause_max: PAUSE_MAX_IN_CALL };
        let operation = ask.carry_out(structure, around);
        pipeline.block_on_beside(pin!(operation), turns, |result| ended.push(result))
    }

    /// Carries out an operation that is given as a value, as [`Driven::run_while`] does.
    pub fn ask_while(
        &mut self,
        ask: impl StructureAsk<S>,
        every: Lifetime,
        mut goes_on: impl FnMut() -> bool,
    ) -> Option<Result<S::Done, Failure>> {
        let Self { turns, ended, left_over, structure, pipeline, .. } = self;
        let is_awaited = AtomicBool::new(true);
        let around =
            Surroundings { pipeline, is_awaited: &is_awaited, left_over, pause_max: PAUSE_MAX_IN_CALL };
        let operation = ask.carry_out(structure, around);
        let operation = pipeline.given_up_unless(operation, every, async || goes_on());
        pipeline.block_on_beside(pin!(operation), turns, |result| ended.push(result))
    }

    /// Carries out the operation that ends the structure. Operations that were begun are given up at the steps that
    /// they have reached.
    ///
    /// # Panics
    /// Never: nothing else refers to the structure by then.
    pub fn end<T: Send>(self, operation: impl AsyncFnOnce(S) -> T) -> T {
        let Self { turns, structure, pipeline, .. } = self;
        drop(turns);
        let structure = Rc::into_inner(structure).expect("only operations refer to the structure");
        pipeline.block_on(operation(structure))
    }

    /// Begins an operation without waiting, and returns its number. [`Driven::turn`] carries the operation on, and
    /// returns its result under that number.
    pub fn begin(&mut self, ask: impl StructureAsk<S>) -> u64 {
        let number = self.next;
        self.next += 1;
        let is_awaited = Arc::new(AtomicBool::new(true));
        self.awaited.insert(number, Arc::clone(&is_awaited));
        let (structure, pipeline) = (Rc::clone(&self.structure), Rc::clone(&self.pipeline));
        let left_over = Rc::clone(&self.left_over);
        let operation = async move {
            let pause_max = PAUSE_MAX_IN_TURNS;
            let around = Surroundings {
                pipeline: &pipeline,
                is_awaited: &is_awaited,
                left_over: &left_over,
                pause_max,
            };
            (number, ask.carry_out(&structure, around).await)
        };
        self.pipeline.begin(&mut self.turns, Box::pin(operation));
        number
    }

    /// Notes that the caller does not await a begun operation any more. The operation continues, and [`Driven::turn`]
    /// does not return its result. If it takes an entry out of the structure, the entry is left over: the next pop
    /// returns it.
    pub fn forget(&mut self, number: u64) {
        if let Some(awaited) = self.awaited.get(&number) {
            awaited.store(false, Ordering::Relaxed);
        }
        self.settle();
    }

    /// Carries on the operations that were begun, as far as they go without waiting. Returns the results of those that
    /// have ended.
    pub fn turn(&mut self) -> Vec<Numbered<S>> {
        let Self { turns, ended, pipeline, .. } = self;
        pipeline.turn(turns, |result| ended.push(result));
        self.settle();
        for (number, _) in &self.ended {
            self.awaited.remove(number);
        }
        std::mem::take(&mut self.ended)
    }

    /// Removes the results that no caller awaits from those that have ended.
    fn settle(&mut self) {
        let Self { awaited, ended, left_over, .. } = self;
        let is_awaited = |number: &u64| awaited.get(number).is_some_and(|it| it.load(Ordering::Relaxed));
        let forgotten: Vec<_> = ended.extract_if(.., |(number, _)| !is_awaited(number)).collect();
        for (number, result) in forgotten {
            awaited.remove(&number);
            left_over.borrow_mut().extend(result.into_iter().flat_map(S::taken));
        }
    }

    /// Keeps an entry that was taken out of the structure and that no caller received: the next pop returns it.
    pub fn leave_over(&mut self, entry: Vec<u8>) {
        self.left_over.borrow_mut().push_back(entry);
    }

    /// Number of operations that were begun and have not ended, including those that no caller awaits.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.turns.under_way()
    }

    /// Prepares the descriptor. Returns how long an event loop may wait for it before it calls [`Driven::turn`].
    pub fn arm(&mut self) -> Duration {
        if self.ended.is_empty() { self.pipeline.arm() } else { Duration::ZERO }
    }

    /// The descriptor that [`Driven::arm`] prepares.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.pipeline.descriptor()
    }

    /// Whether the session is over: nothing succeeds any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.pipeline.is_over()
    }
}

/// Address of a structure: how a program that opens the structure names it.
#[derive(Clone, Copy, Debug)]
pub enum StructureAddress {
    /// The object that is its head.
    Object(ObjectRef),
    /// The name under which a client of the same tenant published the structure.
    Name(DirectoryName),
}

impl Driven<Table> {
    /// Makes an empty table, with a name if one is given.
    ///
    /// # Errors
    /// As [`Table::create`] and [`Table::publish`]. If one of them fails, there is no new table.
    pub fn create(
        session: Session,
        options: &TableOptions,
        name: Option<DirectoryName>,
    ) -> Result<Self, TableError> {
        Self::new(session, async |pipeline| {
            let table = Table::create(pipeline, options).await?;
            let Some(name) = name else { return Ok(table) };
            match table.publish(name).await {
                Ok(()) => Ok(table),
                Err(error) => {
                    // If this fails, the table is freed with its tenant.
                    let _ = table.destroy(None).await;
                    Err(error)
                }
            }
        })
    }

    /// Opens a table that exists.
    ///
    /// # Errors
    /// As [`Table::open`] and [`Table::open_named`].
    pub fn open(session: Session, address: StructureAddress, access: Access) -> Result<Self, TableError> {
        Self::new(session, async |pipeline| match address {
            StructureAddress::Object(head) => Table::open(pipeline, head, access).await,
            StructureAddress::Name(name) => Table::open_named(pipeline, name, access).await,
        })
    }
}

impl Driven<Queue> {
    /// Makes an empty queue, with a name if one is given.
    ///
    /// # Errors
    /// As [`Queue::create`] and [`Queue::publish`]. A queue that gets no name is freed.
    pub fn create(
        session: Session,
        options: &QueueOptions,
        name: Option<DirectoryName>,
    ) -> Result<Self, QueueError> {
        Self::new(session, async |pipeline| {
            let queue = Queue::create(pipeline, options).await?;
            let Some(name) = name else { return Ok(queue) };
            match queue.publish(name).await {
                Ok(()) => Ok(queue),
                Err(error) => {
                    // If this fails, the queue exists for as long as it is kept.
                    let _ = queue.destroy().await;
                    Err(error)
                }
            }
        })
    }

    /// Opens a queue that exists.
    ///
    /// # Errors
    /// As [`Queue::open`] and [`Queue::open_named`].
    pub fn open(session: Session, address: StructureAddress) -> Result<Self, QueueError> {
        Self::new(session, async |pipeline| match address {
            StructureAddress::Object(head) => Queue::open(pipeline, head).await,
            StructureAddress::Name(name) => Queue::open_named(pipeline, name).await,
        })
    }
}
