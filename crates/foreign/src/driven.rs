//! A structure with the session and the pipeline that drive it, as one value that can go from thread to thread.
//!
//! A table and its pipeline share one session by reference counts that only one thread may change. As long as all that share
//! it go together, it does not matter which thread that is.

use portcullis::{DirectoryName, Lifetime, ObjectRef, Session};
use portcullis_structures::Pipeline;
use portcullis_structures::queue::{Queue, QueueError, QueueOptions};
use portcullis_structures::table::{Access, Table, TableError, TableOptions};
use std::rc::Rc;

/// A structure, and what drives it.
#[derive(Debug)]
pub struct Driven<S> {
    structure: S,
    pipeline: Rc<Pipeline>,
}

// SAFETY: every reference count of the pipeline, and of what it and the structure share, is held inside this value: `new` is
// private to this module, the pipeline that it makes is handed to the structure alone, and neither Table nor Queue gives it, or
// anything else that is counted in this way, out. What `run` returns is Send, so it holds none of them. So all of them go to
// another thread together, and a value that is not Sync is used by one thread at a time.
unsafe impl Send for Driven<Table> {}
// SAFETY: as for a table.
unsafe impl Send for Driven<Queue> {}

impl<S> Driven<S> {
    fn new<E>(session: Session, make: impl AsyncFnOnce(&Rc<Pipeline>) -> Result<S, E>) -> Result<Self, E> {
        let pipeline = Rc::new(Pipeline::new(session));
        let structure = pipeline.block_on(make(&pipeline))?;
        Ok(Self { structure, pipeline })
    }

    /// Carries one operation out.
    pub fn run<T: Send>(&mut self, operation: impl AsyncFnOnce(&S) -> T) -> T {
        self.pipeline.block_on(operation(&self.structure))
    }

    /// Carries one operation out for as long as `goes_on` returns true, which is asked `every` so often. `None`: the operation was
    /// given up where it stood, as if its client had died there, and others go on. An entry that it had just taken is lost.
    pub fn run_while<T: Send>(
        &mut self,
        operation: impl AsyncFnOnce(&S) -> T,
        every: Lifetime,
        mut goes_on: impl FnMut() -> bool,
    ) -> Option<T> {
        self.pipeline.block_on_while(operation(&self.structure), every, async || goes_on())
    }

    /// Carries out the operation that ends the structure.
    pub fn end<T: Send>(self, operation: impl AsyncFnOnce(S) -> T) -> T {
        self.pipeline.block_on(operation(self.structure))
    }

    /// Whether the session is over: nothing succeeds any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.pipeline.is_over()
    }
}

/// Where a structure is found.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// The object that is its head.
    Object(ObjectRef),
    /// The name that it was published under, by a client of the same tenant.
    Name(DirectoryName),
}

impl Driven<Table> {
    /// Makes an empty table with a name, if it is to have one.
    ///
    /// # Errors
    /// As [`Table::create`] and [`Table::publish`]: then there is no new table.
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
                    // Where this fails, the table goes with its tenant.
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
    pub fn open(session: Session, place: Place, access: Access) -> Result<Self, TableError> {
        Self::new(session, async |pipeline| match place {
            Place::Object(head) => Table::open(pipeline, head, access).await,
            Place::Name(name) => Table::open_named(pipeline, name, access).await,
        })
    }
}

impl Driven<Queue> {
    /// Makes an empty queue with a name, if it is to have one.
    ///
    /// # Errors
    /// As [`Queue::create`] and [`Queue::publish`]. A queue that got no name goes with its tenant's last client at the latest.
    pub fn create(
        session: Session,
        options: &QueueOptions,
        name: Option<DirectoryName>,
    ) -> Result<Self, QueueError> {
        Self::new(session, async |pipeline| {
            let queue = Queue::create(pipeline, options).await?;
            if let Some(name) = name {
                queue.publish(name).await?;
            }
            Ok(queue)
        })
    }

    /// Opens a queue that exists.
    ///
    /// # Errors
    /// As [`Queue::open`] and [`Queue::open_named`].
    pub fn open(session: Session, place: Place) -> Result<Self, QueueError> {
        Self::new(session, async |pipeline| match place {
            Place::Object(head) => Queue::open(pipeline, head).await,
            Place::Name(name) => Queue::open_named(pipeline, name).await,
        })
    }
}
