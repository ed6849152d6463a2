//! Making a table under a name, also if two clients make it at once.

use super::{Access, Table, TableError, TableOptions};
use crate::Pipeline;
use portcullis::{Clock, DirectoryName, Error, ProcessClock, Refusal, SessionEndpoint, VerbsEndpoint};
use std::rc::Rc;

/// A table that was opened for writing by its name.
#[derive(Debug)]
pub enum Opened<E: VerbsEndpoint = SessionEndpoint, C: Clock = ProcessClock> {
    /// The table was there, or another client made it at the same time.
    Found(Table<E, C>),
    /// This client has made the table.
    Made(Table<E, C>),
}

impl<E: VerbsEndpoint, C: Clock> Table<E, C> {
    /// Opens the table with this name for writing. If there is none, makes one. If another client is quicker, opens that
    /// client's table, and nothing of this client's remains.
    ///
    /// # Errors
    /// As [`Table::create`] and [`Table::open_named`].
    pub async fn open_or_make(
        pipeline: &Rc<Pipeline<E, C>>,
        name: DirectoryName,
        options: &TableOptions,
    ) -> Result<Opened<E, C>, TableError> {
        loop {
            match Self::open_named(pipeline, name, Access::Write).await {
                Err(TableError::Session(Error::Refused(Refusal::NoSuchName))) => {}
                opened => return opened.map(Opened::Found),
            }
            let table = Self::create(pipeline, options).await?;
            let Err(error) = table.publish(name).await else { return Ok(Opened::Made(table)) };
            // The node would keep this table, and no client could find it.
            table.destroy(None).await?;
            if error != TableError::Session(Error::Refused(Refusal::NameTaken)) {
                return Err(error);
            }
        }
    }
}
