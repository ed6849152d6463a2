//! A part of a table, and the accesses to it.

use super::{Leases, Part};
use crate::held::AtEnd;
use crate::pipeline::word_of;
use crate::table::TableError;
use portcullis::{BarePermission, Clock, VerbsEndpoint};
use std::rc::Rc;

/// Largest number of bytes that are read at a time: as many as one operation over UDP carries.
const PIECE_BYTES: usize = 4096;

/// A part of a table that finds its own object. Each access to it is made under a permission that the handle has, or
/// under a new one.
pub(in crate::table) trait Leased<E: VerbsEndpoint, C: Clock> {
    /// Returns the permissions of the handle.
    fn leases(&self) -> &Leases<E, C>;

    /// Returns the name of the part among the permissions.
    fn part(&self) -> Part;

    /// Acquires a new permission over the part.
    async fn acquire(&self) -> Result<BarePermission, TableError>;

    /// Returns a permission over the part, from those that the handle has or a new one.
    async fn permission(&self) -> Result<Rc<BarePermission>, TableError> {
        let (leases, part) = (self.leases(), self.part());
        loop {
            let now = leases.pipeline.now();
            {
                let mut permissions = leases.permissions.borrow_mut();
                if let Some(permission) = permissions.fresh(part, now) {
                    return Ok(permission);
                }
                if !permissions.held(part).acquiring {
                    permissions.held(part).acquiring = true;
                    break;
                }
            }
            // Another operation of this pipeline is acquiring the permission.
            leases.pipeline.anything().await?;
        }
        let done = AtEnd::new(&leases.pipeline, || {
            leases.permissions.borrow_mut().held(part).acquiring = false;
        });
        let permission = loop {
            match (self.acquire().await, part.extent()) {
                (Err(error), Some(extent)) if error.needs_room() => leases.make_way(extent).await?,
                (acquired, _) => break Rc::new(acquired?),
            }
        };
        drop(done);
        if matches!(part, Part::Block(_)) {
            leases.let_surplus_go();
        }
        leases.keep(part, &permission);
        Ok(permission)
    }

    /// Calls `act` under a permission over the part, and again under a new one if the permission has ended: then the
    /// first call had no effect.
    async fn under<T>(
        &self,
        act: impl AsyncFn(&Rc<BarePermission>) -> Result<T, TableError>,
    ) -> Result<T, TableError> {
        let leases = self.leases();
        loop {
            let permission = self.permission().await?;
            match act(&permission).await {
                Err(error) if error.wants_permission() && leases.is_replaced(self.part(), &permission) => {}
                Err(error) => leases.mend(error).await?,
                done => return done,
            }
        }
    }

    /// Reads bytes of the part. Long spans are read in pieces, each of which may be read under a permission of its own:
    /// if the network is slow or loses packets, one permission might not last for all, and an operation that began
    /// again with the first piece would do so for ever.
    async fn read(&self, at: u64, length: usize) -> Result<Vec<u8>, TableError> {
        let pipeline = &self.leases().pipeline;
        let piece = async |at: u64, length: usize| {
            self.under(async |permission| Ok(pipeline.read_bytes(permission, at, length).await?)).await
        };
        if length <= PIECE_BYTES {
            return piece(at, length).await;
        }
        let mut bytes = Vec::with_capacity(length);
        while bytes.len() < length {
            let next = PIECE_BYTES.min(length - bytes.len());
            bytes.extend(piece(at + bytes.len() as u64, next).await?);
        }
        Ok(bytes)
    }

    /// Reads a word of the part.
    async fn word(&self, at: u64) -> Result<u64, TableError> {
        Ok(word_of(&self.read(at, 8).await?, 0))
    }

    /// Writes bytes of the part.
    async fn write(&self, at: u64, bytes: &[u8]) -> Result<(), TableError> {
        let pipeline = &self.leases().pipeline;
        self.under(async |permission| Ok(pipeline.write(permission, at, bytes).await?)).await
    }

    /// Writes `new` to a word of the part if it holds `old`. Returns the word's old value.
    async fn swap(&self, at: u64, old: u64, new: u64) -> Result<u64, TableError> {
        let pipeline = &self.leases().pipeline;
        let act = async |permission: &_| Ok(pipeline.compare_and_swap(permission, at, old, new).await?);
        self.under(act).await
    }

    /// Adds one to a word of the part. Returns the word's old value.
    async fn count(&self, at: u64) -> Result<u64, TableError> {
        let pipeline = &self.leases().pipeline;
        self.under(async |permission| Ok(pipeline.fetch_and_add(permission, at, 1).await?)).await
    }

    /// Waits until all accesses to the part that were begun before have been carried out.
    async fn settle(&self) -> Result<(), TableError> {
        let pipeline = &self.leases().pipeline;
        self.under(async |permission| Ok(pipeline.all_before(permission).await?)).await
    }
}
