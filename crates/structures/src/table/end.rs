//! The end of a handle, and the end of a table.

use super::head::Head;
use super::leases::Leased;
use super::{Access, Table, TableError, TableOptions};
use crate::Pipeline;
use portcullis::{Clock, DirectoryName, Effect, Error, ObjectRef, Refusal, VerbsEndpoint};
use std::rc::Rc;

impl<E: VerbsEndpoint, C: Clock> Table<E, C> {
    /// Gives back the blocks that the handle keeps ready, and waits until all requests that it began have been carried
    /// out.
    ///
    /// A program that ends without this leaves the same as a dead client: a few claimed blocks, which a sweep frees.
    ///
    /// Blocks in chunks end with the handle: the chunks go back to the node, and no client has the values any more. Use
    /// [`Table::destroy`] to free the rest of the table as well.
    ///
    /// # Errors
    /// As [`Table::insert`].
    pub async fn close(self) -> Result<(), TableError> {
        let operation = async {
            self.blocks.extents().settle_stocks().await?;
            self.blocks.give_all_chunks_back().await?;
            self.head.settle().await
        };
        self.pipeline.limited(("the end of a handle on a table", Effect::Perhaps), operation).await
    }

    /// Frees all memory of the table, and removes its name if it has this one. Other handles on the table are useless
    /// from here on, and no client can open it any more.
    ///
    /// The node frees all objects of the table with the head, at once, including objects that other clients add
    /// meanwhile.
    ///
    /// # Errors
    /// As [`Table::insert`].
    pub async fn destroy(self, name: Option<DirectoryName>) -> Result<(), TableError> {
        let operation = async {
            self.leases.check_writable()?;
            self.blocks.give_all_chunks_back().await?;
            // A client that holds the head a moment longer must not take it for a table.
            self.head.write(0, &[0; TableOptions::BYTES]).await?;
            if let Some(name) = name {
                match self.pipeline.unpublish(name).await {
                    Ok(()) | Err(Error::Refused(Refusal::NoSuchName)) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            self.blocks.extents().end_stocks();
            self.head.free_object(self.head.object()).await
        };
        self.pipeline.limited(("the end of a table", Effect::Perhaps), operation).await
    }

    /// Frees all memory of a table that no client can open, because its values were in chunks of a session: the memory
    /// that this session has left. While the session lives, this takes its table away from it, as [`Table::destroy`]
    /// would.
    ///
    /// # Errors
    /// The object is gone or is not a table, or an error of [`Table::insert`].
    pub async fn discard(
        pipeline: &Rc<Pipeline<E, C>>,
        head: ObjectRef,
        name: Option<DirectoryName>,
    ) -> Result<(), TableError> {
        let opening = Head::read_options(pipeline, head);
        let options = pipeline.limited(("opening a table", Effect::Nothing), opening).await?;
        Self::new(pipeline, head, options, Access::Write, None).destroy(name).await
    }
}
