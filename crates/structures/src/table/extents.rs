//! Extents: how they are made, found, and numbered.
//!
//! A number names an extent in slots. The head has a record for each number, with the object of the extent and the
//! class of its blocks. Extents are given back ([`super::retire`]), and their numbers are used for others. So records
//! change: a client that changes a record first takes it, with one COMPARE_AND_SWAP of its check, and writes it only
//! until a lease later. A sweep takes over a record that is left half changed for longer than that.
//!
//! The blocks of an extent have later versions than those of the earlier extents under its number. So an old slot, an
//! old name of a piece, and an old COMPARE_AND_SWAP never match a block of the new extent.

use super::leases::{Leased, Leases, Part};
use super::shape::{CHANGES_AT, EXTENTS_AT};
use super::sizes::{ExtentShape, SizeClass, extent_bytes};
use super::words::{Claim, EXTENTS_MAX, Version};
use super::{BlockMemory, Table, TableError};
use crate::record::{CHECK_AT, RECORD_BYTES, Record, check_of, no_check};
use portcullis::{
    Acquire, BarePermission, Clock, Error, Incarnation, Lifetime, Moment, ObjectRef, Refusal, RemoteAddress,
    Rights, VerbsEndpoint,
};
use portcullis_planted::planted;
use std::rc::Rc;

/// Number of extents at the end of the list that may not be kept yet, and are read again.
const UNKNOWN_MAX: u32 = 16;

const BASE_SHIFT: u32 = 8;
const BASE_BITS: u64 = 0xFF_FFFF;
const VACANT: u64 = 1 << 40;

/// The head's record of the extent with a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ExtentRecord {
    /// The record's words: equal at two looks if no client is changing it.
    pub bytes: [u8; RECORD_BYTES],
    /// The object that the record names, whether it is complete or not. `None`: the record names no object.
    pub object: Option<ObjectRef>,
    /// The class of the extent's blocks.
    class: Option<SizeClass>,
    /// The version after which the versions of the extent's blocks begin, or those of the next extent under this
    /// number.
    pub base: Version,
    pub state: RecordState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RecordState {
    /// Clients use the extent.
    Kept,
    /// The number is free for another extent.
    Vacant,
    /// A client makes the extent or gives it back, or has died while it did so.
    Changing,
}

impl ExtentRecord {
    fn parse(bytes: [u8; RECORD_BYTES], incarnation: Incarnation) -> Self {
        let words = Record::from_words(bytes, incarnation);
        let state = match Record::from_bytes(bytes, incarnation) {
            Some(record) if record.detail & VACANT != 0 => RecordState::Vacant,
            Some(record) if record.is_kept => RecordState::Kept,
            Some(_) | None => RecordState::Changing,
        };
        Self {
            bytes,
            object: (words.object.birth != 0).then_some(words.object),
            class: SizeClass::from_number(words.detail & 0xFF),
            base: Version::from_number(words.detail >> BASE_SHIFT & BASE_BITS),
            state,
        }
    }

    /// Returns the extent that clients use, and its division into blocks.
    pub fn kept(&self, number: u32) -> Option<(ObjectRef, ExtentShape)> {
        let (object, class) = (self.object?, self.class?);
        (self.state == RecordState::Kept).then(|| (object, ExtentShape::new(class, number)))
    }

    /// Returns the extent's present or past division into blocks, as far as the record's words contain it.
    pub fn shape(&self, number: u32) -> Option<ExtentShape> {
        self.class.map(|class| ExtentShape::new(class, number))
    }

    pub fn check(&self) -> u64 {
        check_of(&self.bytes)
    }
}

/// Makes the record of an extent, kept or not.
pub(super) fn record_of(object: ObjectRef, class: SizeClass, base: Version, is_kept: bool) -> Record {
    Record { object, detail: class.number() | u64::from(base.number()) << BASE_SHIFT, is_kept }
}

/// Makes the record of a number that is free for another extent.
pub(super) fn vacant_record(base: Version, incarnation: Incarnation) -> Record {
    let object = ObjectRef { incarnation, address: RemoteAddress(0), birth: 0 };
    Record { object, detail: VACANT | u64::from(base.number()) << BASE_SHIFT, is_kept: false }
}

/// A part of an extent: its claims, its blocks for reading, or one of these.
pub(super) struct InExtent<'t, E: VerbsEndpoint, C: Clock> {
    table: &'t Table<E, C>,
    part: Part,
    extent: u32,
}

impl<E: VerbsEndpoint, C: Clock> Leased<E, C> for InExtent<'_, E, C> {
    fn leases(&self) -> &Leases<E, C> {
        &self.table.leases
    }

    fn part(&self) -> Part {
        self.part
    }

    async fn acquire(&self) -> Result<BarePermission, TableError> {
        let table = self.table;
        let (mut object, mut shape) = table.extent(self.extent).await?;
        loop {
            let acquired = table.pipeline.acquire(self.ask(object, &shape)?).await;
            let error = match acquired.map_err(TableError::from) {
                Err(error) if error.is_gone() => error,
                acquired => return acquired,
            };
            // The extent was given back. Another extent may have its number.
            let anew = table.extent_anew(self.extent).await?;
            if anew.0 == object {
                table.forget_extent(self.extent);
                return Err(error);
            }
            (object, shape) = anew;
        }
    }
}

impl<E: VerbsEndpoint, C: Clock> InExtent<'_, E, C> {
    /// Makes a request for a permission over the part.
    ///
    /// # Errors
    /// The error of an extent that is gone, if the extent has no such block.
    fn ask(&self, object: ObjectRef, shape: &ExtentShape) -> Result<Acquire, TableError> {
        let leases = &self.table.leases;
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

impl<E: VerbsEndpoint, C: Clock> Table<E, C> {
    /// Returns a part of an extent, to access it.
    pub(super) fn in_extent(&self, part: Part, extent: u32) -> InExtent<'_, E, C> {
        InExtent { table: self, part, extent }
    }

    /// Returns the claims of an extent, to access them.
    pub(super) fn claims_of(&self, extent: u32) -> InExtent<'_, E, C> {
        self.in_extent(Part::Claims(extent), extent)
    }

    /// Returns the object of an extent, and its division into blocks.
    ///
    /// # Errors
    /// The error of an object that is gone, if this extent does not exist any more: see [`TableError::is_gone`].
    #[inline]
    pub(super) async fn extent(&self, number: u32) -> Result<(ObjectRef, ExtentShape), TableError> {
        if let Some(Some(known)) = self.state.borrow().extents.get(number as usize) {
            return Ok(*known);
        }
        self.extent_anew(number).await
    }

    /// Reads the object and the division of an extent from the head, and learns them.
    pub(super) async fn extent_anew(&self, number: u32) -> Result<(ObjectRef, ExtentShape), TableError> {
        match self.extent_record(number).await?.kept(number) {
            Some((object, shape)) => {
                self.know_extent(number, object, shape);
                Ok((object, shape))
            }
            None => {
                self.forget_extent(number);
                Err(Error::Refused(Refusal::Gone).into())
            }
        }
    }

    /// Learns whether another extent has this number now. While a client holds a permission over an extent that was
    /// given back, it reads blocks there that no slot names.
    pub(super) async fn look_anew_at_extent(&self, number: u32) -> Result<(), TableError> {
        if self.options.blocks == BlockMemory::Chunks {
            return Ok(());
        }
        match self.extent_anew(number).await {
            Err(error) if !error.is_gone() => self.leases.mend(error).await,
            _ => Ok(()),
        }
    }

    /// Reads the head's record of the extent with this number.
    pub(super) async fn extent_record(&self, number: u32) -> Result<ExtentRecord, TableError> {
        let at = self.options.extent_record_at(number);
        // This does not recurse further: the head's permission needs no record.
        let bytes = self.head.read(at, RECORD_BYTES).await?;
        let bytes = bytes.try_into().expect("as many as were read");
        Ok(ExtentRecord::parse(bytes, self.head.incarnation()))
    }

    /// Reads the head's records of the extents from one number to another.
    pub(super) async fn extent_records(
        &self,
        from: u32,
        to: u32,
    ) -> Result<Vec<(u32, ExtentRecord)>, TableError> {
        let bytes = to.saturating_sub(from) as usize * RECORD_BYTES;
        let bytes = self.head.read(self.options.extent_record_at(from), bytes).await?;
        let (records, _) = bytes.as_chunks();
        let parsed = records.iter().map(|bytes| ExtentRecord::parse(*bytes, self.head.incarnation()));
        Ok((from..).zip(parsed).collect())
    }

    pub(super) fn know_extent(&self, number: u32, object: ObjectRef, shape: ExtentShape) {
        let known = self.state.borrow().extents.get(number as usize).copied().flatten();
        if known.is_some_and(|(before, _)| before != object) {
            self.forget_extent(number);
        }
        let extents = &mut self.state.borrow_mut().extents;
        if extents.len() <= number as usize {
            extents.resize(number as usize + 1, None);
        }
        extents[number as usize] = Some((object, shape));
    }

    /// Forgets an extent that is gone, and ends the permissions over it that no operation uses.
    pub(super) fn forget_extent(&self, number: u32) {
        let mut state = self.state.borrow_mut();
        if state.extents.get_mut(number as usize).is_none_or(|known| known.take().is_none()) {
            return;
        }
        state.blocks.forget_extent(number);
        self.leases.end_extent(number);
    }

    /// Learns of the extents that other clients have made or given back. Returns whether there are new ones.
    pub(super) async fn hear_of_extents(&self) -> Result<bool, TableError> {
        // This word is read before the records: changes made meanwhile are read again.
        let changes = self.head.word(CHANGES_AT).await?;
        let count = self.extents_begun().await?;
        let heard_before = std::mem::replace(&mut self.state.borrow_mut().blocks.changes_heard, changes);
        let known = if heard_before == changes { self.state.borrow().blocks.extents_known } else { 0 };
        let (mut all_known, mut heard) = (known, false);
        for (number, record) in self.extent_records(known, count).await? {
            // An extent that is not kept yet may be kept by the next time.
            if record.state != RecordState::Changing && all_known == number {
                all_known = number + 1;
            }
            match record.kept(number) {
                Some((object, shape)) => {
                    self.know_extent(number, object, shape);
                    heard |= self.state.borrow_mut().blocks.add_extent(shape.class, number);
                }
                None => self.forget_extent(number),
            }
            if record.state == RecordState::Vacant {
                self.state.borrow_mut().blocks.vacant.insert(number);
            }
        }
        let mut state = self.state.borrow_mut();
        // Some records are never completed. They are read again until others behind them are known.
        state.blocks.extents_known = all_known.max(count.saturating_sub(UNKNOWN_MAX));
        Ok(heard)
    }

    /// Takes a number whose extent was given back: the smallest, which has the shortest extent. Returns it with its
    /// record.
    async fn vacant_number(&self) -> Result<Option<(u32, ExtentRecord)>, TableError> {
        loop {
            let Some(number) = self.state.borrow_mut().blocks.vacant.pop_first() else { return Ok(None) };
            let record = self.extent_record(number).await?;
            if record.state == RecordState::Vacant {
                return Ok(Some((number, record)));
            }
        }
    }

    /// Makes an extent of blocks of a class. If other clients are quicker, or this client is too slow, there may be
    /// none.
    pub(super) async fn make_extent(&self, class: SizeClass) -> Result<(), TableError> {
        let vacant = self.vacant_number().await?;
        let guess = match &vacant {
            Some((number, _)) => *number,
            None => self.extents_begun().await?,
        };
        if guess >= EXTENTS_MAX {
            return Err(TableError::Full);
        }
        // The object is made before its number is taken: otherwise, if there is no room for an object, numbers would
        // wait for a sweep.
        let permission = match self.head.allocate(extent_bytes(guess), self.options.lease).await {
            Ok(permission) => permission,
            Err(error) => {
                self.state.borrow_mut().blocks.vacant.extend(vacant.map(|(number, _)| number));
                return Err(error);
            }
        };
        let until = self.options.claimed_until(self.pipeline.now());
        let number = match vacant {
            Some((number, record)) if self.take_record(number, &record, until).await? => Some(number),
            Some(_) => None,
            None => self.new_number().await?.filter(|number| extent_bytes(*number) == extent_bytes(guess)),
        };
        let base = vacant.map_or(Version::default(), |(_, record)| record.base);
        if let Some(number) = number {
            match self.set_up_extent((number, class, base), &permission, until).await {
                // This client was so slow that a sweep has freed the object.
                Err(error) if error.is_gone() => {}
                done => done?,
            }
            if vacant.is_some() {
                self.head.count(CHANGES_AT).await?;
            }
        }
        self.pipeline.end(permission);
        Ok(())
    }

    async fn new_number(&self) -> Result<Option<u32>, TableError> {
        let number = self.head.count(EXTENTS_AT).await?;
        Ok(u32::try_from(number).ok().filter(|number| *number < EXTENTS_MAX))
    }

    /// Writes the claims of a new extent, and enters the extent in the head under a number that this client has taken.
    async fn set_up_extent(
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
        if !self.write_record(number, record(false), until).await? {
            return Ok(());
        }
        self.head.keep_part(object).await?;
        self.head.include(object).await?;
        if self.write_record(number, record(true), until).await? {
            self.know_extent(number, object, shape);
            self.state.borrow_mut().blocks.add_extent(class, number);
        }
        Ok(())
    }

    /// Writes the claims at the start of an extent, which no other client uses yet.
    async fn write_claims(&self, permission: &Rc<BarePermission>, claims: &[u8]) -> Result<(), TableError> {
        let pieces = claims.chunks(crate::pipeline::ZEROS).enumerate();
        let writes = pieces.map(|(index, piece)| {
            self.pipeline.write(permission, (index * crate::pipeline::ZEROS) as u64, piece)
        });
        crate::pipeline::all(writes).await?;
        Ok(())
    }

    /// Takes an extent's record, to change it. Returns whether it still had the given content, and there was time until
    /// `until`.
    pub(super) async fn take_record(
        &self,
        number: u32,
        seen: &ExtentRecord,
        until: Moment,
    ) -> Result<bool, TableError> {
        let at = self.options.extent_record_at(number) + CHECK_AT;
        // The word is different for each client, and for each time.
        let own = no_check(self.pipeline.number() << 40 ^ self.pipeline.now().0);
        self.on_head_until(until, async |permission| {
            let before = self.pipeline.compare_and_swap(permission, at, seen.check(), own).await?;
            Ok(before == seen.check())
        })
        .await
    }

    /// Writes an extent's record, which this client has taken. Returns whether there was time for that.
    pub(super) async fn write_record(
        &self,
        number: u32,
        record: Record,
        until: Moment,
    ) -> Result<bool, TableError> {
        let at = self.options.extent_record_at(number);
        self.on_head_until(until, async |permission| {
            self.pipeline.write(permission, at, &record.to_bytes()).await?;
            Ok(true)
        })
        .await
    }

    /// Calls `act` with a permission over the head from before `until`. Returns whether there was such a permission and
    /// `act` has succeeded.
    async fn on_head_until(
        &self,
        until: Moment,
        act: impl AsyncFn(&Rc<BarePermission>) -> Result<bool, TableError>,
    ) -> Result<bool, TableError> {
        self.head
            .under(async |permission| {
                // The time is checked under the permission: the permission must not be from after that time.
                if self.pipeline.now() >= until {
                    return Ok(false);
                }
                act(permission).await
            })
            .await
    }

    /// Time for which the memory of a freed object may stay with other clients that had a permission on it.
    pub(super) fn comes_back_after(&self) -> Lifetime {
        Lifetime(self.options.hold().0 * 5 / 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_record_says_of_an_extent_what_was_written(
            class in 0u64..70, base in 0u64..1 << 22, address in 1u64.., birth in 1u64.., number in 0..EXTENTS_MAX,
        ) {
            let incarnation = Incarnation(3);
            let object = ObjectRef { incarnation, address: RemoteAddress(address), birth };
            let (class, base) = (SizeClass::from_number(class).expect("a class"), Version::from_number(base));
            let kept = ExtentRecord::parse(record_of(object, class, base, true).to_bytes(), incarnation);
            prop_assert_eq!(kept.kept(number), Some((object, ExtentShape::new(class, number))));
            prop_assert_eq!((kept.base, kept.state), (base, RecordState::Kept));
            let unfinished = ExtentRecord::parse(record_of(object, class, base, false).to_bytes(), incarnation);
            prop_assert_eq!((unfinished.kept(number), unfinished.object), (None, Some(object)));
            prop_assert_eq!((unfinished.base, unfinished.state), (base, RecordState::Changing));
            let vacant = ExtentRecord::parse(vacant_record(base, incarnation).to_bytes(), incarnation);
            prop_assert_eq!((vacant.kept(number), vacant.object), (None, None));
            prop_assert_eq!((vacant.base, vacant.state), (base, RecordState::Vacant));
        }
    }

    #[test]
    fn a_record_that_nobody_has_written_is_being_changed() {
        let record = ExtentRecord::parse([0; RECORD_BYTES], Incarnation(1));
        assert_eq!(
            (record.state, record.object, record.base),
            (RecordState::Changing, None, Version::default())
        );
    }
}
