//! A small object as a permission over its bytes.

use super::{SmallObjectId, SmallObjects};
use crate::{Error, Permission};
use portcullis_errors::{Coded, ErrorCode};
use std::ops::Deref;
use std::sync::Arc;

/// Bytes of a chunk that the client holds.
///
/// Reads, writes and atomics take a small object like any permission, within the requested bytes. The client library
/// checks this range. The NIC checks only that the access lies in the chunk, whose objects all belong to one client. So
/// a mistake of this program that gets past the library can reach a neighbouring object of the same client, but never
/// the memory of another client.
///
/// An object holds whatever this client has last written to these bytes of the chunk, and zeros if it has written
/// nothing: the node hands out chunks zeroed, and the client does not zero objects. Dropping an object frees nothing.
#[derive(Debug)]
#[must_use = "an object that is dropped stays allocated until the session ends"]
pub struct SmallObject {
    id: SmallObjectId,
    permission: Permission,
}

impl SmallObject {
    /// Returns the object's name in its allocator. Two allocators may give the same names.
    #[must_use]
    pub fn id(&self) -> SmallObjectId {
        self.id
    }
}

impl Deref for SmallObject {
    type Target = Permission;

    fn deref(&self) -> &Permission {
        &self.permission
    }
}

/// An object that was not freed.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotFreed {
    /// The object that the caller handed in. `None`: the object is free, but its chunk could not be given back to the
    /// node.
    pub object: Option<Box<SmallObject>>,
    /// The reason.
    #[source]
    pub error: Error,
}

impl NotFreed {
    /// Makes the error that returns an object to the caller.
    #[must_use]
    pub fn still_held(object: SmallObject, error: Error) -> Self {
        Self { object: Some(Box::new(object)), error }
    }
}

impl Coded for NotFreed {
    fn code(&self) -> ErrorCode {
        self.error.code()
    }
}

impl SmallObjects<Permission> {
    /// Allocates an object. `None`: another chunk is needed first.
    ///
    /// # Errors
    /// As [`SmallObjects::place`].
    pub fn allocate(&mut self, bytes: u64) -> Result<Option<SmallObject>, Error> {
        let Some(id) = self.place(bytes)? else { return Ok(None) };
        let located = self.locate(id).expect("it was placed just now");
        let permission = located.chunk.part_of_chunk(located.offset, bytes);
        Ok(Some(SmallObject { id, permission }))
    }

    /// Frees an object.
    ///
    /// # Errors
    /// [`NotFreed`] with the object back: [`Error::NoSuchSmallObject`] if the object belongs to another allocator.
    pub fn free_object(&mut self, object: SmallObject) -> Result<(), NotFreed> {
        // Two allocators may give the same names. The lease identifies the chunk that an object is a part of.
        let is_own = self
            .locate(object.id)
            .is_some_and(|own| Arc::ptr_eq(own.chunk.lease(), object.permission.lease()));
        if !is_own {
            return Err(NotFreed::still_held(object, Error::NoSuchSmallObject));
        }
        self.free(object.id).map_err(|error| NotFreed::still_held(object, error))
    }
}
