//! The client: builds documents where the server reads them, and reads the documents that were found where the server
//! put them.

use crate::course::{BoxError, Course, Timed};
use crate::query::Query;
use crate::store::{FIND, Found, GET, NO_DOCUMENT, PUT, REMOVE, Sought};
use crate::value::{Broken, Value};
use portcullis_rpc::channel::{Answer, CallError, Connection, ConnectionError};
use portcullis_rpc::{Boxed, HeapFull, PointerError, Scope, Vector, View};
use serde_json::Value as Json;
use std::path::Path;
use std::time::Instant;

/// Bytes of a client's first scope for documents. A document that needs more gets a larger one.
const SCOPE_BYTES: u64 = 64 << 10;

/// A connection to a store.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
    /// The scope in which documents and searches are built.
    scope: Scope,
}

/// Error of an operation of a store.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The connection could not be made.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// The call failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The connection's heap has no room for the document.
    #[error(transparent)]
    Full(#[from] HeapFull),
    /// The server's answer is no valid document.
    #[error("the server's answer is broken: {0}")]
    Broken(#[from] Broken),
}

impl ClientError {
    /// Whether no document is under the key.
    pub fn is_no_document(&self) -> bool {
        matches!(self, Self::Call(CallError::Failed { number: NO_DOCUMENT, .. }))
    }
}

impl From<PointerError> for ClientError {
    fn from(error: PointerError) -> Self {
        Self::Broken(error.into())
    }
}

/// Documents that were found: a copy that the server cannot change. They are read in place.
#[derive(Debug)]
pub struct FoundDocuments<'a> {
    found: &'a [Found],
    view: View<'a>,
}

impl<'a> FoundDocuments<'a> {
    /// The view through which their pointers are followed.
    pub fn view(&self) -> &View<'a> {
        &self.view
    }

    /// Each key with its document.
    pub fn iter(&self) -> impl Iterator<Item = Result<(u64, &'a Value), PointerError>> {
        self.found.iter().map(|found| Ok((found.key, found.document.get(&self.view)?)))
    }
}

impl Client {
    /// Connects to the store at a path.
    ///
    /// # Errors
    /// There is no server at the path, or it refuses the client.
    pub fn open(path: &Path) -> Result<Self, ClientError> {
        let connection = Connection::open(path)?;
        let scope = connection.scope(SCOPE_BYTES)?;
        Ok(Self { connection, scope })
    }

    /// Builds a value in the scope. If the scope is too small, a larger one replaces it.
    fn build<T>(
        &mut self,
        plant: impl Fn(&Scope) -> Result<Boxed<T>, HeapFull>,
    ) -> Result<Boxed<T>, ClientError> {
        loop {
            self.scope.reset();
            match plant(&self.scope) {
                Ok(root) => return Ok(root),
                Err(full) if full.wanted > self.connection.heap().place().length => return Err(full.into()),
                Err(_) => self.scope = self.connection.scope(2 * self.scope.length())?,
            }
        }
    }

    /// Stores a document. Returns whether it has replaced another.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn put(&mut self, key: u64, document: &Json) -> Result<bool, ClientError> {
        let root = self.build(|scope| Value::plant(scope, document))?;
        let call = self.connection.begin(PUT, self.scope.reference(), root, key, None)?;
        Ok(self.connection.wait(call)?.word() != 0)
    }

    /// Returns the document under a key.
    ///
    /// # Errors
    /// There is no document under the key, or the call failed: see [`ClientError`].
    pub fn get(&mut self, key: u64) -> Result<Json, ClientError> {
        let answer = self.connection.call_with_word(GET, key)?;
        let document = self.connection.look::<Value>(&answer)?;
        Ok(document.get()?.to_json(document.view())?)
    }

    /// Removes the document under a key. Returns whether there was one.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn remove(&mut self, key: u64) -> Result<bool, ClientError> {
        Ok(self.connection.call_with_word(REMOVE, key)?.word() != 0)
    }

    /// Searches, and returns what `look` returns for the documents that were found.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn find<R>(
        &mut self,
        query: &Query,
        look: impl FnOnce(&FoundDocuments<'_>) -> Result<R, Broken>,
    ) -> Result<R, ClientError> {
        let root = self.build(|scope| Sought::plant(scope, query))?;
        let answer: Answer = self.connection.call(FIND, &self.scope, root)?;
        let found = self.connection.look::<Vector<Found>>(&answer)?;
        let view = View::new(found.view().address(), found.view().bytes(), found.view().bytes().len() as u64);
        Ok(look(&FoundDocuments { found: found.get()?.get(found.view())?, view })?)
    }
}

impl Course for Client {
    fn put(&mut self, key: u64, document: &Json) -> Result<(), BoxError> {
        Self::put(self, key, document)?;
        Ok(())
    }

    fn find(&mut self, query: &Query) -> Result<Timed, BoxError> {
        let before = Instant::now();
        let timed = Self::find(self, query, |found| {
            let mut sum = 0_i64;
            for document in found.iter() {
                let number = document?.1.field(found.view(), "num")?.and_then(Value::integer);
                sum = sum.wrapping_add(number.unwrap_or(0));
            }
            let took = before.elapsed();
            let documents = found.iter().map(|document| {
                let (key, document) = document?;
                Ok((key, document.to_json(found.view())?))
            });
            Ok(Timed { took, sum, documents: documents.collect::<Result<_, Broken>>()? })
        });
        Ok(timed?)
    }
}
