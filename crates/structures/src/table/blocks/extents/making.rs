//! New extents.

use super::super::sizes::{ExtentShape, SizeClass, extent_bytes};
use super::records::{ExtentRecord, record_of};
use super::{Extents, RecordState};
use crate::pipeline::{ZEROS, all};
use crate::table::TableError;
use crate::table::words::{Claim, EXTENTS_MAX, Version};
use portcullis::{BarePermission, Clock, Moment, VerbsEndpoint};
use portcullis_planted::planted;
use std::rc::Rc;

impl<E: VerbsEndpoint, C: Clock> Extents<E, C> {
    /// Takes a number whose extent was given back: the smallest, which has the shortest extent. Returns it with its
    /// record.
    async fn vacant_number(&self) -> Result<Option<(u32, ExtentRecord)>, TableError> {
        loop {
            let Some(number) = self.known.borrow_mut().vacant.pop_first() else { return Ok(None) };
            let record = self.records.read(number).await?;
            if record.state == RecordState::Vacant {
                return Ok(Some((number, record)));
            }
        }
    }

    /// Makes an extent of blocks of a class. If other clients are quicker, or this client is too slow, there may be
    /// none.
    pub(super) async fn make(&self, class: SizeClass) -> Result<(), TableError> {
        let vacant = self.vacant_number().await?;
        let guess = match &vacant {
            Some((number, _)) => *number,
            None => self.records.begun().await?,
        };
        if guess >= EXTENTS_MAX {
            return Err(TableError::Full);
        }
        // The object is made before its number is taken: otherwise, if there is no room for an object, numbers would
        // wait for a sweep.
        let permission = match self.head.allocate(extent_bytes(guess), self.options.lease).await {
            Ok(permission) => permission,
            Err(error) => {
                self.known.borrow_mut().vacant.extend(vacant.map(|(number, _)| number));
                return Err(error);
            }
        };
        let until = self.options.claimed_until(self.pipeline.now());
        let number = match vacant {
            Some((number, record)) if self.records.take(number, &record, until).await? => Some(number),
            Some(_) => None,
            None => {
                self.records.new_number().await?.filter(|number| extent_bytes(*number) == extent_bytes(guess))
            }
        };
        let base = vacant.map_or(Version::default(), |(_, record)| record.base);
        if let Some(number) = number {
            match self.set_up((number, class, base), &permission, until).await {
                // This client was so slow that a sweep has freed the object.
                Err(error) if error.is_gone() => {}
                done => done?,
            }
            if vacant.is_some() {
                self.records.count_change().await?;
            }
        }
        self.pipeline.end(permission);
        Ok(())
    }

    /// Writes the claims of a new extent, and enters the extent in the head under a number that this client has taken.
    async fn set_up(
        &self,
        (number, class, base): (u32, SizeClass, Version),
        permission: &Rc<BarePermission>,
        until: Moment,
    ) -> Result<(), TableError> {
        let shape = ExtentShape::new(class, number);
        let base = if planted!(VersionsBeginAgain) { Version::default() } else { base };
        let free = Claim::free_after(base).0.to_le_bytes();
        self.write_claims(permission, &free.repeat(shape.blocks as usize)).await?;
        let object = permission.object();
        let record = |is_kept| record_of(object, class, base, is_kept);
        if !self.records.write(number, record(false), until).await? {
            return Ok(());
        }
        self.head.keep_part(object).await?;
        self.head.include(object).await?;
        if self.records.write(number, record(true), until).await? {
            self.know(number, object, shape);
            self.free.borrow_mut().add_extent(class, number);
        }
        Ok(())
    }

    /// Writes the claims at the start of an extent, which no other client uses yet.
    async fn write_claims(&self, permission: &Rc<BarePermission>, claims: &[u8]) -> Result<(), TableError> {
        let pieces = claims.chunks(ZEROS).enumerate();
        let writes =
            pieces.map(|(index, piece)| self.pipeline.write(permission, (index * ZEROS) as u64, piece));
        all(writes).await?;
        Ok(())
    }
}
