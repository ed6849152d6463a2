//! The table in a node's memory in which a cache keeps its items.

use crate::cache::{Shared, Store, StoreError, Takes};
use portcullis::{DirectoryName, Error, Keep, Lifetime, Refusal};
use portcullis_structures::Pipeline;
use portcullis_structures::table::{
    Access, Condition, Stored, Table, TableError, TableOptions, Vacated, block_bytes, stored_bytes,
};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Maximum number of blocks that are claimed at once if as many clients store something.
const CLAIMED_AT_ONCE_MAX: usize = 64;

/// A handle on the table, and the pipeline that carries its operations out.
#[derive(Debug)]
pub struct TableStore {
    pub pipeline: Rc<Pipeline>,
    pub table: Table,
    shared: Arc<Shared>,
}

impl TableStore {
    /// Opens the table with this name, or makes it. If another gateway makes it at the same time, both use the same
    /// table.
    pub fn open_or_make(
        pipeline: Rc<Pipeline>,
        (name, options): (DirectoryName, &TableOptions),
        item_bytes_max: u64,
        shared: Arc<Shared>,
    ) -> Result<Self, TableError> {
        let table = pipeline.block_on(open_or_make(&pipeline, name, options))?;
        table.claim_up_to(CLAIMED_AT_ONCE_MAX);
        table.let_caller_make_room();
        // Memcached counts a header of its own, which is longer than that of an item here.
        table.store_values_up_to(usize::try_from(item_bytes_max).unwrap_or(usize::MAX));
        Ok(Self { pipeline, table, shared })
    }
}

impl TableStore {
    /// Records the memory limit of the tenant, if that limit is the reason why there is no more memory.
    fn note_limit(&self, error: &TableError) {
        let TableError::Session(Error::Quota { limit, .. }) = error else {
            return;
        };
        // Other quotas, for example of objects, are counted in other units: items take more bytes than their number.
        let (_, taken) = self.shared.age.total();
        if *limit >= taken {
            self.shared.limit_bytes.store(*limit, Ordering::Relaxed);
        }
    }
}

/// Options for making the table of a cache.
pub fn options(keep: Keep) -> TableOptions {
    TableOptions { keep, ..TableOptions::default() }
}

async fn open_or_make(
    pipeline: &Rc<Pipeline>,
    name: DirectoryName,
    options: &TableOptions,
) -> Result<Table, TableError> {
    loop {
        match Table::open_named(pipeline, name, Access::Write).await {
            Err(TableError::Session(Error::Refused(Refusal::NoSuchName))) => {}
            opened => return opened,
        }
        let table = Table::create(pipeline, options).await?;
        match table.publish(name).await {
            Ok(()) => return Ok(table),
            Err(error) => {
                // The unnamed table would stay, and no client could find it.
                table.destroy(None).await?;
                if !matches!(error, TableError::Session(Error::Refused(Refusal::NameTaken))) {
                    return Err(error);
                }
            }
        }
    }
}

impl Store for TableStore {
    async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.table.get(key).await?)
    }

    async fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        Ok(self.table.get_many(keys).await?)
    }

    async fn put(
        &self,
        key: &[u8],
        value: &[u8],
        condition: Condition<'_>,
        live: Option<Lifetime>,
    ) -> Result<Stored, StoreError> {
        let stored = self.table.store(key, value, condition, live).await;
        if let Err(error) = &stored {
            self.note_limit(error);
        }
        Ok(stored?)
    }

    async fn take(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.table.take(key).await?)
    }

    async fn remove(&self, key: &[u8]) -> Result<bool, StoreError> {
        Ok(self.table.remove(key).await?)
    }

    async fn vacate(&self, key: &[u8], removed: impl FnMut(&[u8])) -> Result<u64, StoreError> {
        match self.table.vacate(key, removed).await? {
            Vacated::GivenBack { bytes } => Ok(bytes),
            Vacated::InUse | Vacated::Missing => Ok(0),
        }
    }

    async fn anything(&self) -> Result<(), StoreError> {
        Ok(self.pipeline.anything().await.map_err(TableError::from)?)
    }

    fn wake_waiting(&self) {
        self.pipeline.wake_waiting();
    }

    fn takes(&self, key_bytes: usize, value_bytes: usize) -> Takes {
        takes(key_bytes, value_bytes)
    }
}

/// Returns the memory that a value takes in a table.
pub fn takes(key_bytes: usize, value_bytes: usize) -> Takes {
    Takes { size: block_bytes(key_bytes, value_bytes), bytes: stored_bytes(key_bytes, value_bytes) }
}

impl From<TableError> for StoreError {
    fn from(error: TableError) -> Self {
        match error {
            TableError::Full
            | TableError::Session(
                Error::Quota { .. } | Error::Refused(Refusal::OutOfMemory { .. } | Refusal::NodeFull { .. }),
            ) => Self::NoRoom,
            TableError::Session(Error::ArenaFull { .. }) => Self::Crowded,
            error => Self::Failed(error.to_string()),
        }
    }
}
