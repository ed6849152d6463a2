//! The errors of a table.

use super::shape::KEY_BYTES_MAX;
use portcullis::{Error, Refusal};
use portcullis_errors::{Coded, ErrorCode};

/// The reason why an operation on a table did not succeed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The session failed, or the node refused.
    #[error(transparent)]
    Session(#[from] Error),
    /// The object is something else, or a table of another version.
    #[error("the object is not a table of this version")]
    NotATable,
    /// An option of a new table is out of its range.
    #[error("{what} of a table is {least} to {most}, not {value}")]
    Option {
        /// The name of the option.
        what: &'static str,
        /// The value that was requested.
        value: u64,
        /// The least allowed value.
        least: u64,
        /// The greatest allowed value.
        most: u64,
    },
    /// A table cannot be made without being kept.
    #[error(
        "a table is always kept: no client holds a permission on it in a pause that is longer than its \
         lease, and without keep its memory and keys would be freed in the first one. Keep it until the \
         tenant's last client goes (the default), for a time after that, or for ever, and destroy it when it \
         is not needed any more"
    )]
    NotKept,
    /// The machine gives no random numbers, so no seed was drawn.
    #[error("this machine gives no random numbers for the seed of a table: see getrandom(2)")]
    NoRandomness,
    /// The key is too long. This is the caller's mistake: nothing was sent.
    #[error("a key has at most {KEY_BYTES_MAX} bytes, not {bytes}")]
    KeyTooLong {
        /// Bytes of the key.
        bytes: u64,
    },
    /// The value is too long for this handle. This is the caller's mistake: nothing was sent.
    #[error("a value has at most {most} bytes, not {bytes}")]
    ValueTooLong {
        /// Bytes of the value.
        bytes: u64,
        /// Largest number of bytes that this handle accepts.
        most: u64,
    },
    /// The caller's mistake: the table was opened for reading only.
    #[error("the table was opened for reading only: open it for writing")]
    ReadOnly,
    /// The table's blocks lie in chunks of another handle's session, or of another handle of this one.
    #[error(
        "the table's values lie in chunks, which only the handle that made the table can read while its session lives: \
         use that handle, discard the table, or make one with blocks in objects"
    )]
    OfOneHandle,
    /// The table has as many subtables, or as many extents, as it can have.
    #[error("the table is full: make one with a greater depth_max or more groups")]
    Full,
    /// The table's memory is invalid, for longer than any change of it takes: another program of the tenant has written
    /// over it.
    #[error("the table's memory is damaged at subtable {subtable}, bucket {bucket}")]
    Damaged {
        /// The subtable.
        subtable: u32,
        /// The bucket in the subtable.
        bucket: u32,
    },
}

impl Coded for TableError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Session(error) => error.code(),
            Self::NotATable => ErrorCode::NotATable,
            Self::NoRandomness => ErrorCode::Machine,
            Self::Option { .. } | Self::NotKept => ErrorCode::TableOption,
            Self::KeyTooLong { .. } => ErrorCode::KeyTooLong,
            Self::ValueTooLong { .. } => ErrorCode::ValueTooLong,
            Self::ReadOnly => ErrorCode::ReadOnlyTable,
            Self::OfOneHandle => ErrorCode::TableOfOneHandle,
            Self::Full => ErrorCode::TableFull,
            Self::Damaged { .. } => ErrorCode::TableDamaged,
        }
    }
}

impl TableError {
    /// Whether the access was refused because its permission has ended. Such an access had no effect, and succeeds with
    /// a new permission.
    pub(super) fn wants_permission(&self) -> bool {
        matches!(self, Self::Session(Error::Expired | Error::Revoked))
    }

    /// Whether an object that the head names is gone: its client died, or was too slow, before it kept the object.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self, Self::Session(Error::Refused(Refusal::Gone)))
    }

    /// Whether an acquisition failed because others hold what was requested.
    pub(super) fn is_conflict(&self) -> bool {
        matches!(self, Self::Session(Error::Refused(Refusal::Conflict)))
    }

    /// Whether an acquisition failed because the object has as many holders as it can have, or the tenant or the node as
    /// many permissions.
    pub(super) fn needs_room(&self) -> bool {
        matches!(self, Self::Session(Error::Quota { .. } | Error::Refused(Refusal::NodeFull { .. })))
    }

    /// Whether there is no room for another object of the table.
    pub(super) fn is_no_room(&self) -> bool {
        let of_node = matches!(self, Self::Session(Error::Refused(Refusal::OutOfMemory { .. })));
        of_node || *self == Self::Full || self.needs_room()
    }
}
