//! The head's records of extents.
//!
//! A number names an extent in slots. The head has a record for each number, with the object of the extent and the
//! class of its blocks. Records change. A client that changes a record first takes it, with one COMPARE_AND_SWAP of its
//! check, and writes it only until a lease later. A sweep takes over a record that is left half changed for longer than
//! that.

use super::super::sizes::{ExtentShape, SizeClass};
use crate::Pipeline;
use crate::record::{CHECK_AT, RECORD_BYTES, Record, check_of, no_check};
use crate::table::head::Head;
use crate::table::leases::Leased;
use crate::table::shape::{CHANGES_AT, EXTENTS_AT};
use crate::table::words::{EXTENTS_MAX, Version};
use crate::table::{TableError, TableOptions};
use portcullis::{BarePermission, Clock, Incarnation, Moment, ObjectRef, RemoteAddress, VerbsEndpoint};
use std::rc::Rc;

const BASE_SHIFT: u32 = 8;
const BASE_BITS: u64 = 0xFF_FFFF;
const VACANT: u64 = 1 << 40;

/// The head's record of the extent with a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::table) struct ExtentRecord {
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
pub(in crate::table) enum RecordState {
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

/// The records of a table's extents.
pub(in crate::table) struct Records<E: VerbsEndpoint, C: Clock> {
    pipeline: Rc<Pipeline<E, C>>,
    options: TableOptions,
    head: Rc<Head<E, C>>,
}

impl<E: VerbsEndpoint, C: Clock> Records<E, C> {
    pub fn new(pipeline: &Rc<Pipeline<E, C>>, options: TableOptions, head: &Rc<Head<E, C>>) -> Self {
        Self { pipeline: Rc::clone(pipeline), options, head: Rc::clone(head) }
    }

    /// Number of extents that were ever begun.
    pub async fn begun(&self) -> Result<u32, TableError> {
        let count = self.head.word(EXTENTS_AT).await?;
        Ok(u32::try_from(count).unwrap_or(EXTENTS_MAX).min(EXTENTS_MAX))
    }

    /// Takes the next number. `None`: there is none.
    pub async fn new_number(&self) -> Result<Option<u32>, TableError> {
        let number = self.head.count(EXTENTS_AT).await?;
        Ok(u32::try_from(number).ok().filter(|number| *number < EXTENTS_MAX))
    }

    /// Number of extents that had been given back, or made in the place of such ones.
    pub async fn changes(&self) -> Result<u64, TableError> {
        self.head.word(CHANGES_AT).await
    }

    /// Counts an extent that was given back, or made in the place of such a one.
    pub async fn count_change(&self) -> Result<(), TableError> {
        self.head.count(CHANGES_AT).await?;
        Ok(())
    }

    /// Reads the head's record of the extent with this number.
    pub async fn read(&self, number: u32) -> Result<ExtentRecord, TableError> {
        let at = self.options.extent_record_at(number);
        let bytes = self.head.read(at, RECORD_BYTES).await?;
        let bytes = bytes.try_into().expect("as many as were read");
        Ok(ExtentRecord::parse(bytes, self.head.incarnation()))
    }

    /// Reads the head's records of the extents from one number to another.
    pub async fn read_all(&self, from: u32, to: u32) -> Result<Vec<(u32, ExtentRecord)>, TableError> {
        let bytes = to.saturating_sub(from) as usize * RECORD_BYTES;
        let bytes = self.head.read(self.options.extent_record_at(from), bytes).await?;
        let (records, _) = bytes.as_chunks();
        let parsed = records.iter().map(|bytes| ExtentRecord::parse(*bytes, self.head.incarnation()));
        Ok((from..).zip(parsed).collect())
    }

    /// Takes an extent's record, to change it. Returns whether it still had the given content, and there was time until
    /// `until`.
    pub async fn take(&self, number: u32, seen: &ExtentRecord, until: Moment) -> Result<bool, TableError> {
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
    pub async fn write(&self, number: u32, record: Record, until: Moment) -> Result<bool, TableError> {
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
