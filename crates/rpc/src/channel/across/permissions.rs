//! A client's permissions over its mailbox: one to write its part, and one to read the server's. They end, and others follow.

use super::mailbox::Places;
use portcullis::{
    Acquire, Allocate, AtDrop, Error, Lifetime, Moment, ObjectRef, Permission, Refusal, Rights, Session,
};
use std::time::Duration;

/// How long they are asked for. A server learns at the latest after this that a client has stopped.
const LIFETIME: Lifetime = Lifetime::seconds(8);
/// The next one is acquired when less than this part of the time is left.
const RENEWED_AT_PART: u64 = 2;

/// A permission with the lifetime that is wanted, or the longest that the node gives.
pub(super) fn acquire(session: &mut Session, ask: Acquire) -> Result<Permission, Error> {
    match session.acquire(ask) {
        Err(Error::Refused(Refusal::LifetimeTooLong { longest })) => session.acquire(ask.lifetime(longest)),
        other => other,
    }
}

/// The same for new memory.
pub(super) fn allocate(session: &mut Session, ask: Allocate) -> Result<Permission, Error> {
    match session.allocate(ask) {
        Err(Error::Refused(Refusal::LifetimeTooLong { longest })) => session.allocate(ask.lifetime(longest)),
        other => other,
    }
}

/// Both permissions.
#[derive(Debug)]
pub(super) struct Permissions {
    mailbox: ObjectRef,
    places: Places,
    pub reading: Permission,
    /// `None` only while the next one is acquired, and after that failed.
    writing: Option<Permission>,
}

impl Permissions {
    pub fn acquire(session: &mut Session, mailbox: ObjectRef, places: Places) -> Result<Self, Error> {
        let reading = Self::acquire_reading(session, mailbox, places)?;
        let writing = Self::acquire_writing(session, mailbox, places)?;
        Ok(Self { mailbox, places, reading, writing: Some(writing) })
    }

    fn acquire_reading(
        session: &mut Session,
        mailbox: ObjectRef,
        places: Places,
    ) -> Result<Permission, Error> {
        let (offset, length) = places.read_part();
        let ask = Acquire::object(mailbox).part(offset, length).read_only().shared().lifetime(LIFETIME);
        // Reads that are under way when another follows it go on with it.
        Ok(acquire(session, ask)?.at_drop(AtDrop::Expire))
    }

    /// Exclusively: then a write whose answer is lost can be repeated, since nobody else writes there.
    fn acquire_writing(
        session: &mut Session,
        mailbox: ObjectRef,
        places: Places,
    ) -> Result<Permission, Error> {
        let (offset, length) = places.written_part();
        let ask = Acquire::object(mailbox).part(offset, length).rights(Rights::WRITE);
        acquire(session, ask.lifetime(LIFETIME))
    }

    /// The one to write.
    ///
    /// # Errors
    /// There is none any more.
    pub fn writing(&self) -> Result<&Permission, Error> {
        self.writing.as_ref().ok_or(Error::Expired)
    }

    /// Whether the one to write should be renewed.
    pub fn is_writing_due(&self, now: Moment) -> bool {
        self.writing.as_ref().is_none_or(|writing| is_due(writing, now))
    }

    /// Renews the one to write. No write is under way.
    pub fn renew_writing(&mut self, session: &mut Session) -> Result<(), Error> {
        // While it is held nobody else can have this part, not even its holder once more. It may have ended by itself.
        match self.writing.take().map_or(Ok(()), |writing| session.revoke(writing)) {
            Ok(()) | Err(Error::Expired | Error::Revoked | Error::Refused(_)) => {}
            Err(error) => return Err(error),
        }
        self.writing = Some(Self::acquire_writing(session, self.mailbox, self.places)?);
        Ok(())
    }

    /// Renews the one to read, if it should be.
    pub fn renew_reading(&mut self, session: &mut Session) -> Result<(), Error> {
        if is_due(&self.reading, session.now()) {
            self.reading = Self::acquire_reading(session, self.mailbox, self.places)?;
        }
        Ok(())
    }
}

impl Permissions {
    /// How often they are to be renewed.
    pub fn renewed_every(&self) -> Duration {
        // A renewal may come late, and may have to be tried again.
        Duration::from(self.reading.lease().lifetime()) / (2 * u32::try_from(RENEWED_AT_PART).unwrap_or(1))
    }
}

/// Whether less than a part of a permission's time is left.
fn is_due(permission: &Permission, now: Moment) -> bool {
    let lease = permission.lease();
    now.after(Lifetime(lease.lifetime().0 / RENEWED_AT_PART)) >= lease.deadline()
}
