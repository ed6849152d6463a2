//! The client of the cache.

use crate::cache::{DELETE, Entry, GET, SET};
use crate::ycsb::{BoxError, Cache};
use portcullis_rpc::channel::{Answer, Connection};
use portcullis_rpc::{Scope, Vector};
use std::path::Path;

/// Bytes of the scope for calls: it has room for the longest key and value.
const SCOPE_BYTES: u64 = 2 << 20;

/// A connection to a cache.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
    scope: Scope,
}

impl Client {
    /// Connects to the cache at a path.
    ///
    /// # Errors
    /// There is no server at the path, or it refuses the client.
    pub fn open(path: &Path) -> Result<Self, BoxError> {
        let connection = Connection::open(path)?;
        let scope = connection.scope(SCOPE_BYTES)?;
        Ok(Self { connection, scope })
    }

    fn call(&mut self, method: u32, key: &[u8], value: &[u8]) -> Result<Answer, BoxError> {
        self.scope.reset();
        let entry = Entry::plant(&self.scope, key, value)?;
        Ok(self.connection.call(method, &self.scope, entry)?)
    }
}

impl Cache for Client {
    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, BoxError> {
        let answer = self.call(GET, key, &[])?;
        if answer.word() == 0 {
            return Ok(None);
        }
        // The value is read once, by value: what the server does with it afterwards does not affect this client.
        let value = answer.read::<Vector<u8>>()?.read(self.connection.heap())?;
        Ok(Some(value))
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), BoxError> {
        self.call(SET, key, value)?;
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, BoxError> {
        Ok(self.call(DELETE, key, &[])?.word() != 0)
    }
}
