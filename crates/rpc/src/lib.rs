//! Calls through shared memory with native pointers, between processes that distrust each other (RPCool).
//!
//! A call passes a pointer to a tree, not a serialised copy of it.
//!
//! - [`Heap`]: shared memory that has the same addresses in every process, with an allocator that many processes use at once and
//!   that a process may die in at any step. [`Scope`]: pages of a heap for one call.
//! - [`Boxed`], [`Vector`], [`List`], [`Text`], [`Map`]: what lies in a heap. Any bytes are a valid value of theirs ([`Plain`]), so
//!   whatever a peer writes there is wrong at worst.
//! - [`copy_from`]: copies a linked value with everything that it leads to from one heap to another ([`Linked`], with a derive).
//! - [`View`]: bytes that nobody changes while they are looked at. A `&T` into a heap exists only there; everything else is read
//!   by value ([`Source`]).
//! - [`channel`]: servers, their methods, and connections to them. Each method chooses whether its arguments are copied.
#![forbid(unsafe_code)]

// What the derive writes names this crate.
extern crate self as portcullis_rpc;

pub mod channel;
pub mod heap;
mod linked;
mod list;
mod map;
mod plain;
mod pointer;
mod scope;
mod source;
mod text;
mod vector;
mod view;

pub use heap::{Heap, HeapError, HeapPlace, NotAllocated, Owner};
pub use linked::{Copying, Linked, copy_from};
pub use list::List;
pub use map::{Key, Map};
pub use plain::Plain;
pub use pointer::{Boxed, PointerError};
pub use portcullis_derive::Linked;
pub use scope::{Scope, ScopeRef};
pub use source::{GrowError, HeapFull, Room, Source};
pub use text::Text;
pub use vector::Vector;
pub use view::View;
