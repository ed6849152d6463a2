//! The head of a table: its options, its words and its records, and the objects that belong to it.

use super::leases::{Leased, Leases, Part};
use super::shape::TableOptions;
use super::{MADE_WITHIN, TableError};
use crate::Pipeline;
use crate::record::{RECORD_BYTES, Record};
use portcullis::{
    Acquire, Allocate, BarePermission, Clock, Error, Incarnation, Keep, Lifetime, Moment, ObjectRef, Rights,
    Sharing, VerbsEndpoint,
};
use std::rc::Rc;

/// The head of a table.
pub(super) struct Head<E: VerbsEndpoint, C: Clock> {
    pipeline: Rc<Pipeline<E, C>>,
    leases: Rc<Leases<E, C>>,
    options: TableOptions,
    object: ObjectRef,
}

impl<E: VerbsEndpoint, C: Clock> Leased<E, C> for Head<E, C> {
    fn leases(&self) -> &Leases<E, C> {
        &self.leases
    }

    fn part(&self) -> Part {
        Part::Head
    }

    async fn acquire(&self) -> Result<BarePermission, TableError> {
        Ok(self.pipeline.acquire(self.leases.ask_for_head(self.object)).await?)
    }
}

impl<E: VerbsEndpoint, C: Clock> Head<E, C> {
    pub fn new(
        pipeline: &Rc<Pipeline<E, C>>,
        leases: &Rc<Leases<E, C>>,
        options: TableOptions,
        object: ObjectRef,
    ) -> Self {
        Self { pipeline: Rc::clone(pipeline), leases: Rc::clone(leases), options, object }
    }

    /// Reads the options and the seed from an object that may be the head of a table.
    ///
    /// # Errors
    /// The object is gone or is no head.
    pub async fn read_options(
        pipeline: &Rc<Pipeline<E, C>>,
        object: ObjectRef,
    ) -> Result<(TableOptions, u64), TableError> {
        let ask = Acquire::object(object).rights(Rights::READ).shared().part(0, TableOptions::BYTES as u64);
        let permission = Rc::new(pipeline.acquire(ask.lifetime(MADE_WITHIN)).await?);
        let bytes = pipeline.read_bytes(&permission, 0, TableOptions::BYTES).await?;
        TableOptions::from_bytes(bytes.try_into().expect("as many as were read"))
    }

    pub fn object(&self) -> ObjectRef {
        self.object
    }

    /// Returns the incarnation of the node that has the table.
    pub fn incarnation(&self) -> Incarnation {
        self.object.incarnation
    }

    /// Returns the time on the node's clock, or a little later.
    pub async fn node_time(&self) -> Result<Moment, TableError> {
        Ok(self.node_time_under(&*self.permission().await?))
    }

    /// Returns [`Head::node_time`], if the handle has the permission for that.
    #[inline]
    pub fn known_node_time(&self) -> Option<Moment> {
        self.leases.fresh(Part::Head).map(|permission| self.node_time_under(&permission))
    }

    /// Returns [`Head::node_time`] from a permission over the head.
    pub fn node_time_under(&self, permission: &BarePermission) -> Moment {
        let since = self.pipeline.now().since(permission.lease().started_after());
        permission.id().start.after(since)
    }

    /// Reads a record. `None`: no client has written it.
    pub async fn record_at(&self, at: u64) -> Result<Option<Record>, TableError> {
        let bytes = self.read(at, RECORD_BYTES).await?;
        let bytes = bytes.try_into().expect("as many as were read");
        Ok(Record::from_bytes(bytes, self.incarnation()))
    }

    /// Enters new memory, keeps it, makes it belong to the head, and marks it as kept. A client that dies before the
    /// second step leaves only the record. A client that dies before the last step leaves memory that no client uses
    /// and a sweep finds.
    pub async fn enter(&self, at: u64, record: Record) -> Result<(), TableError> {
        self.write(at, &record.to_bytes()).await?;
        self.keep_part(record.object).await?;
        self.include(record.object).await?;
        self.write(at, &Record { is_kept: true, ..record }.to_bytes()).await
    }

    /// Makes memory belong to the head.
    pub async fn include(&self, object: ObjectRef) -> Result<(), TableError> {
        Ok(self.pipeline.include(object, self.object).await?)
    }

    /// Keeps memory for as long as the table.
    ///
    /// # Errors
    /// [`Error::Expired`]: the memory was freed with its permission before this.
    pub async fn keep_part(&self, object: ObjectRef) -> Result<(), TableError> {
        match self.pipeline.keep_object(object, self.options.keep).await {
            Ok(()) => Ok(()),
            Err(error) if TableError::from(error).is_gone() => Err(Error::Expired.into()),
            Err(error) => Err(error.into()),
        }
    }

    /// Allocates memory of the table, with a shared permission over all of it.
    pub async fn allocate(&self, bytes: u64, lifetime: Lifetime) -> Result<Rc<BarePermission>, TableError> {
        let ask = Allocate {
            size: bytes,
            alignment: 64,
            lifetime: lifetime.max(self.options.lease),
            rights: Rights::all(),
            sharing: Sharing::Shared,
            // Until the memory is written down, it is freed with its permission: no client would find it.
            keep: Keep::No,
        };
        Ok(Rc::new(self.pipeline.allocate(ask).await?))
    }

    /// Frees an object of the table, unless it is gone already.
    pub async fn free_object(&self, object: ObjectRef) -> Result<(), TableError> {
        match self.pipeline.free(object).await.map_err(TableError::from) {
            Err(error) if !error.is_gone() => Err(error),
            _ => Ok(()),
        }
    }
}
