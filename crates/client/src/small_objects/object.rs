//! A small object as a permission over its bytes.

use super::{SmallObjectId, SmallObjects};
use crate::{Error, Permission};
use portcullis_errors::{Coded, ErrorCode};
use std::ops::Deref;
use std::sync::Arc;

/// Bytes of a chunk that the client holds.
///
/// Reads, writes and atomics take it like any permission, within the bytes that were asked for. The client library checks
/// this range. The NIC checks the chunk: to the NIC all objects of a chunk are one thing of one client. So a mistake of
/// this program that gets past the library can reach a neighbour of the same client, and never what is another's.
///
/// An object holds whatever this client has last written to these bytes of the chunk, and zeros where it has written
/// nothing: a chunk comes as zeros, and no object is zeroed. Dropping an object frees nothing.
#[derive(Debug)]
#[must_use = "an object that is dropped stays allocated until the session ends"]
pub struct SmallObject {
    id: SmallObjectId,
    permission: Permission,
}

impl SmallObject {
    /// Its name in its allocator. Two allocators give the same names.
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
    /// The object that was handed in. `None`: the object is free, but its chunk could not be given back to the node.
    pub object: Option<Box<SmallObject>>,
    /// Why.
    #[source]
    pub error: Error,
}

impl NotFreed {
    /// Of an object that comes back.
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
    /// [`NotFreed`] with the object back: [`Error::NoSuchSmallObject`] if it is another allocator's.
    pub fn free_object(&mut self, object: SmallObject) -> Result<(), NotFreed> {
        // Two allocators give the same names. The lease tells whose chunk an object is a part of.
        let is_own = self
            .locate(object.id)
            .is_some_and(|own| Arc::ptr_eq(own.chunk.lease(), object.permission.lease()));
        if !is_own {
            return Err(NotFreed::still_held(object, Error::NoSuchSmallObject));
        }
        self.free(object.id).map_err(|error| NotFreed::still_held(object, error))
    }
}
