//! The server: a store of documents in memory of its own.
//!
//! A client passes a document in a scope. The call copies the scope before the method begins, so the client cannot
//! change the document any more. The method checks that it is a document, and packs it: memory of the server alone has
//! the document's bytes as they were received, and the places of the pointers among them. The documents that a search
//! finds are put into a scope of the client's heap, which takes a copy, and an addition for each pointer.

use crate::query::{Index, Indexed, Query};
use crate::value::Value;
use portcullis_rpc::channel::{Copied, Failure, Reply, ServeError, Server, ServerOptions, serve};
use portcullis_rpc::{Boxed, HeapFull, Packed, PointerError, Room, Text, Vector, View};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Stores the document under the key that is the call's word. Returns 1 if it replaces another document, and else 0.
pub const PUT: u32 = 1;
/// Returns the document under the key that is the call's word.
pub const GET: u32 = 2;
/// Returns the documents that are found: a [`Vector`] of [`Found`].
pub const FIND: u32 = 3;
/// Removes the document under the key that is the call's word. Returns 1 if there was one, and else 0.
pub const REMOVE: u32 = 4;

/// No document is under the key.
pub const NO_DOCUMENT: u32 = 1;
/// The passed value is no document.
pub const BROKEN: u32 = 2;
/// The store is full.
pub const FULL: u32 = 3;
/// There is no such kind of search.
pub const NO_SEARCH: u32 = 4;

/// The most bytes of documents that a store holds.
const STORE_BYTES: u64 = 16 << 30;

/// A search, in the form in which a call passes it.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct Sought {
    /// [`Sought::TEXT`] or [`Sought::BETWEEN`].
    kind: u64,
    from: i64,
    to: i64,
    text: Text,
}

impl Sought {
    const TEXT: u64 = 0;
    const BETWEEN: u64 = 1;

    /// Puts a search into a scope.
    ///
    /// # Errors
    /// There is no room.
    pub fn plant<R: Room>(room: &R, query: &Query) -> Result<Boxed<Self>, HeapFull> {
        let sought = match query {
            Query::Text(text) => Self { kind: Self::TEXT, from: 0, to: 0, text: Text::new(room, text)? },
            Query::Between(from, to) => Self { kind: Self::BETWEEN, from: *from, to: *to, text: Text::EMPTY },
        };
        Boxed::new(room, sought)
    }
}

/// A document that was found.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct Found {
    /// The document's key.
    pub key: u64,
    /// The document.
    pub document: Boxed<Value>,
}

/// A document in the store.
struct Kept {
    document: Packed<Value>,
    by: Indexed,
}

/// Documents by their keys.
#[derive(Default)]
struct Store {
    documents: HashMap<u64, Kept>,
    index: Index,
    /// Bytes of all documents.
    bytes: u64,
}

/// Serves a store at a path, until the server is dropped.
///
/// # Errors
/// No socket can be made at the path, or the machine refuses.
pub fn start(path: &Path, options: ServerOptions) -> Result<Server, ServeError> {
    let store = Arc::new(Mutex::new(Store::default()));
    let with_store = || Arc::clone(&store);
    let (putting, getting, finding, removing) = (with_store(), with_store(), with_store(), with_store());
    let channel = serve(path)
        .with(options)
        .copied(PUT, move |document, reply| {
            reply.set_word(lock(&putting).put(&document)?);
            Ok(())
        })
        .copied(GET, move |key: Copied<'_, u64>, reply| lock(&getting).get(key.word(), reply))
        .copied(FIND, move |sought, reply| lock(&finding).find(&sought, reply))
        .copied(REMOVE, move |key: Copied<'_, u64>, reply| {
            reply.set_word(lock(&removing).remove(key.word()).into());
            Ok(())
        });
    channel.start()
}

/// Locks the store. A method that panicked has made all of its changes, or none, so a poisoned lock can be used.
fn lock(store: &Mutex<Store>) -> MutexGuard<'_, Store> {
    store.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the values by which a document is found.
fn indexed(document: &Value, view: &View<'_>) -> Result<Indexed, PointerError> {
    let text = document.field(view, "str1")?.map(|value| value.text(view)).transpose()?.flatten();
    let number = document.field(view, "num")?.and_then(Value::integer);
    Ok(Indexed { text: text.map(str::to_owned), number })
}

impl Store {
    fn put(&mut self, passed: &Copied<'_, Value>) -> Result<u64, Failure> {
        let bytes = passed.view().bytes();
        // A document takes no more steps than one for each text and each vector. Two texts in the same bytes are no
        // mistake, but without this limit a few bytes could stand for more values than any program can read.
        let view = View::new(passed.view().address(), bytes, bytes.len() as u64 / 16);
        let document = passed.get()?;
        document.check(&view).map_err(|broken| Failure::new(BROKEN, broken))?;
        let by = indexed(document, passed.view())?;
        let document = Packed::new(passed.view(), passed.root())?;
        if self.bytes + document.room() > STORE_BYTES {
            return Err(Failure::new(FULL, format_args!("the store has {} bytes of documents", self.bytes)));
        }
        let key = passed.word();
        let replaced = self.remove(key);
        self.index.add(key, &by);
        self.bytes += document.room();
        self.documents.insert(key, Kept { document, by });
        Ok(replaced.into())
    }

    fn remove(&mut self, key: u64) -> bool {
        let Some(kept) = self.documents.remove(&key) else { return false };
        self.index.remove(key, &kept.by);
        self.bytes -= kept.document.room();
        true
    }

    fn get(&self, key: u64, reply: &mut Reply<'_>) -> Result<(), Failure> {
        let Some(kept) = self.documents.get(&key) else {
            return Err(Failure::new(NO_DOCUMENT, format_args!("no document has the key {key}")));
        };
        let root = kept.document.put(reply.scope(kept.document.room())?)?;
        reply.set_root(root);
        Ok(())
    }

    fn find(&self, sought: &Copied<'_, Sought>, reply: &mut Reply<'_>) -> Result<(), Failure> {
        let asked = sought.get()?;
        let keys: Vec<u64> = match asked.kind {
            Sought::TEXT => self.index.text(asked.text.get(sought.view())?).to_vec(),
            Sought::BETWEEN => self.index.between(asked.from, asked.to).collect(),
            other => return Err(Failure::new(NO_SEARCH, format_args!("no search has the kind {other}"))),
        };
        let kept: Vec<(u64, &Kept)> =
            keys.into_iter().filter_map(|key| Some((key, self.documents.get(&key)?))).collect();
        let lengths: u64 = kept.iter().map(|(_, kept)| kept.document.room()).sum();
        let around = (kept.len() * size_of::<Found>() + size_of::<Vector<Found>>()) as u64;
        let scope = reply.scope(lengths + around)?;
        let put = kept.iter().map(|&(key, kept)| Ok(Found { key, document: kept.document.put(scope)? }));
        let found: Vec<Found> = put.collect::<Result<_, HeapFull>>()?;
        let root = Boxed::new(scope, Vector::new(scope, &found)?)?;
        reply.set_root(root);
        Ok(())
    }
}
