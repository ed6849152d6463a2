//! A client's permissions over its mailbox: one to write its part, and one to read the server's. They are renewed
//! before they expire.

use super::mailbox::HeapHalves;
use portcullis::{
    Acquire, Allocate, AtDrop, Error, Lifetime, Moment, ObjectRef, Permission, Refusal, Rights, Session,
};
use std::time::Duration;

/// The lifetime that is requested. After this time at the latest, a server detects that a client has stopped.
const LIFETIME: Lifetime = Lifetime::seconds(8);
/// A permission is renewed when less than one part in this many of its lifetime is left.
const RENEWED_AT_PART: u64 = 2;

/// Acquires a permission with the requested lifetime, or with the longest that the node grants.
pub(super) fn acquire(session: &mut Session, ask: Acquire) -> Result<Permission, Error> {
    match session.acquire(ask) {
        Err(Error::Refused(Refusal::LifetimeTooLong { longest })) => session.acquire(ask.lifetime(longest)),
        other => other,
    }
}

/// Allocates memory with the requested lifetime, or with the longest that the node grants.
pub(super) fn allocate(session: &mut Session, ask: Allocate) -> Result<Permission, Error> {
    match session.allocate(ask) {
        Err(Error::Refused(Refusal::LifetimeTooLong { longest })) => session.allocate(ask.lifetime(longest)),
        other => other,
    }
}

/// Both permissions over a mailbox.
#[derive(Debug)]
pub(super) struct Permissions {
    mailbox: ObjectRef,
    halves: HeapHalves,
    pub reading: Permission,
    /// `None` only while the next one is acquired, and after acquiring it has failed.
    writing: Option<Permission>,
}

impl Permissions {
    pub fn acquire(session: &mut Session, mailbox: ObjectRef, halves: HeapHalves) -> Result<Self, Error> {
        let reading = Self::acquire_reading(session, mailbox, halves)?;
        let writing = Self::acquire_writing(session, mailbox, halves)?;
        Ok(Self { mailbox, halves, reading, writing: Some(writing) })
    }

    fn acquire_reading(
        session: &mut Session,
        mailbox: ObjectRef,
        halves: HeapHalves,
    ) -> Result<Permission, Error> {
        let (offset, length) = halves.read_part();
        let ask = Acquire::object(mailbox).part(offset, length).read_only().shared().lifetime(LIFETIME);
        // Reads that are under way when the permission is renewed continue with the old one.
        Ok(acquire(session, ask)?.at_drop(AtDrop::Expire))
    }

    /// Acquires the permission to write. It is exclusive: then a write whose answer is lost can be repeated, since no
    /// other client writes there.
    fn acquire_writing(
        session: &mut Session,
        mailbox: ObjectRef,
        halves: HeapHalves,
    ) -> Result<Permission, Error> {
        let (offset, length) = halves.written_part();
        let ask = Acquire::object(mailbox).part(offset, length).rights(Rights::WRITE);
        acquire(session, ask.lifetime(LIFETIME))
    }

    /// The permission to write.
    ///
    /// # Errors
    /// The client has no such permission any more.
    pub fn writing(&self) -> Result<&Permission, Error> {
        self.writing.as_ref().ok_or(Error::Expired)
    }

    /// Whether the permission to write should be renewed.
    pub fn is_writing_due(&self, now: Moment) -> bool {
        self.writing.as_ref().is_none_or(|writing| is_due(writing, now))
    }

    /// Renews the permission to write. No write is under way.
    pub fn renew_writing(&mut self, session: &mut Session) -> Result<(), Error> {
        // While it is held, no client can acquire this part, not even its holder once more. It may have ended by
        // itself.
        match self.writing.take().map_or(Ok(()), |writing| session.revoke(writing)) {
            Ok(()) | Err(Error::Expired | Error::Revoked | Error::Refused(_)) => {}
            Err(error) => return Err(error),
        }
        self.writing = Some(Self::acquire_writing(session, self.mailbox, self.halves)?);
        Ok(())
    }

    /// Renews the permission to read, if it is due.
    pub fn renew_reading(&mut self, session: &mut Session) -> Result<(), Error> {
        if is_due(&self.reading, session.now()) {
            self.reading = Self::acquire_reading(session, self.mailbox, self.halves)?;
        }
        Ok(())
    }
}

impl Permissions {
    /// Interval at which the permissions must be renewed.
    pub fn renewed_every(&self) -> Duration {
        // A renewal may be late, and may have to be tried again.
        Duration::from(self.reading.lease().lifetime()) / (2 * u32::try_from(RENEWED_AT_PART).unwrap_or(1))
    }
}

/// Whether a permission should be renewed, because too little of its lifetime is left.
fn is_due(permission: &Permission, now: Moment) -> bool {
    let lease = permission.lease();
    now.after(Lifetime(lease.lifetime().0 / RENEWED_AT_PART)) >= lease.deadline()
}
