//! The parts of an extent for which there are permissions.

use super::super::sizes::ExtentShape;
use super::Extents;
use crate::table::TableError;
use crate::table::leases::{Leased, Leases, Part};
use portcullis::{Acquire, BarePermission, Clock, Error, ObjectRef, Refusal, Rights, VerbsEndpoint};

/// A part of an extent: its claims, or its blocks for reading, or one of them.
pub(in crate::table) struct InExtent<'t, E: VerbsEndpoint, C: Clock> {
    extents: &'t Extents<E, C>,
    part: Part,
    number: u32,
}

impl<E: VerbsEndpoint, C: Clock> Leased<E, C> for InExtent<'_, E, C> {
    fn leases(&self) -> &Leases<E, C> {
        &self.extents.leases
    }

    fn part(&self) -> Part {
        self.part
    }

    async fn acquire(&self) -> Result<BarePermission, TableError> {
        let extents = self.extents;
        let (mut object, mut shape) = extents.find(self.number).await?;
        loop {
            let acquired = extents.pipeline.acquire(self.ask(object, &shape)?).await;
            let error = match acquired.map_err(TableError::from) {
                Err(error) if error.is_gone() => error,
                acquired => return acquired,
            };
            // The extent was given back. Another extent may have its number.
            let anew = extents.find_anew(self.number).await?;
            if anew.0 == object {
                extents.forget(self.number);
                return Err(error);
            }
            (object, shape) = anew;
        }
    }
}

impl<'t, E: VerbsEndpoint, C: Clock> InExtent<'t, E, C> {
    pub fn new(extents: &'t Extents<E, C>, part: Part, number: u32) -> Self {
        Self { extents, part, number }
    }

    /// Makes a request for a permission over the part.
    ///
    /// # Errors
    /// The error of an extent that is gone, if the extent has no such block.
    fn ask(&self, object: ObjectRef, shape: &ExtentShape) -> Result<Acquire, TableError> {
        let leases = &self.extents.leases;
        Ok(match self.part {
            Part::Claims(_) => leases.ask_for_words(object, (0, shape.claims_bytes())),
            Part::Block(block_id) if block_id.block >= shape.blocks => {
                return Err(Error::Refused(Refusal::Gone).into());
            }
            Part::Block(block_id) => {
                leases.ask(object, (shape.block_at(block_id.block), shape.block_bytes.into()), Rights::READ)
            }
            Part::Extent(_) | Part::Head | Part::Subtable(_) => {
                leases.ask(object, (shape.claims_bytes(), 0), Rights::READ)
            }
        })
    }
}
