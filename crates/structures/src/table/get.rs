//! Gets: the look that serves most of them, and the rest of those for which it is not enough.

use super::blocks::Named;
use super::find::{Attempts, Found, Retry};
use super::index::{Candidates, KeyHash};
use super::{Table, TableError};
use crate::pipeline::join;
use portcullis::{Clock, Effect, Error, Moment, VerbsEndpoint};

/// The result of a first look that was not enough for its get.
enum Left {
    /// The key. Its value has pieces, or expires, and the node's time is not known.
    Found(Found),
    Retry(Retry),
    Failed(TableError),
    /// Nothing of use: a permission over the subtable is to be acquired first, a split has moved buckets, or too many
    /// slots have the key's fingerprint.
    Everything,
}

impl From<TableError> for Left {
    fn from(error: TableError) -> Self {
        Self::Failed(error)
    }
}

impl From<Error> for Left {
    fn from(error: Error) -> Self {
        Self::Failed(error.into())
    }
}

impl<E: VerbsEndpoint, C: Clock> Table<E, C> {
    /// Returns the value of a key.
    ///
    /// # Errors
    /// The node is gone or refuses, or the table is damaged.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, TableError> {
        self.pipeline.limited(("a get of a table", Effect::Nothing), self.get_now(key)).await
    }

    pub(super) async fn get_now(&self, key: &[u8]) -> Result<Option<Vec<u8>>, TableError> {
        let hash = self.index.hash_of(key);
        match self.first_look(key, hash).await {
            Ok(value) => Ok(value),
            // The future is boxed, so that most gets stay small.
            Err(left) => Box::pin(self.go_on(key, hash, left)).await,
        }
    }

    /// Looks a key up in two round trips: two reads of buckets in one doorbell, and one of a block.
    async fn first_look(&self, key: &[u8], hash: KeyHash) -> Result<Option<Vec<u8>>, Left> {
        let asked = self.index.ask_view(hash).ok_or(Left::Everything)?;
        let candidates = self.index.take_candidates(asked, hash).await?.ok_or(Left::Everything)?;
        for &(at, slot) in candidates.slots() {
            let block = match self.blocks.ask_block(slot) {
                Some(asked) => asked.await?,
                // This acquires a permission first: the future is boxed, so that most gets stay small.
                None => match Box::pin(self.blocks.read_block(slot)).await? {
                    Some(block) => block,
                    None => return Err(Left::Retry(Retry::Stale(at, slot))),
                },
            };
            match self.blocks.name(block, slot, key) {
                Named::Same { value, expires } => {
                    return match self.is_known_to_have_expired(expires) {
                        Some(true) => Ok(None),
                        Some(false) if value.pieces.is_empty() => Ok(Some(value.rest)),
                        _ => Err(Left::Found(Found { at, slot, value, expires })),
                    };
                }
                Named::Other => {}
                Named::Stale => return Err(Left::Retry(Retry::Stale(at, slot))),
            }
        }
        Ok(None)
    }

    /// Goes on with a get for which the first look was not enough.
    async fn go_on(&self, key: &[u8], hash: KeyHash, left: Left) -> Result<Option<Vec<u8>>, TableError> {
        let mut attempts = Attempts::new(self.pipeline.now());
        let mut seen = None;
        match left {
            Left::Found(found) => seen = Some(found),
            Left::Retry(retry) => self.again(&mut attempts, retry).await?,
            Left::Failed(error) => self.leases.mend(error).await?,
            Left::Everything => {}
        }
        loop {
            let found = match seen.take() {
                Some(found) => Some(found),
                None => self.find(key, hash).await?,
            };
            let Some(found) = found else { return Ok(None) };
            if self.has_expired(&found).await? {
                return Ok(None);
            }
            if found.value.pieces.is_empty() {
                return Ok(Some(found.value.rest));
            }
            match self.whole_of(&found).await? {
                Ok(value) => return Ok(Some(value)),
                Err(retry) => self.again(&mut attempts, retry).await?,
            }
        }
    }

    /// Returns the values of several keys, which are looked up at once. The results are in the keys' order.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub async fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, TableError> {
        let operation = async {
            let mut values = vec![None; keys.len()];
            let left = self.get_at_once(keys, &mut values).await?;
            let hash_of = |key| self.index.hash_of(key);
            let gets = left.iter().map(|&it| self.go_on(keys[it], hash_of(keys[it]), Left::Everything));
            for (&place, value) in left.iter().zip(join(gets).await) {
                values[place] = value?;
            }
            Ok(values)
        };
        self.pipeline.limited(("a get of a table", Effect::Nothing), operation).await
    }

    /// Looks several keys up in two round trips: with one doorbell for all buckets, and one for all blocks. Returns the
    /// places of the keys for which that was not enough: permissions are to be acquired first, a split has moved buckets,
    /// other clients are changing the slots, or two keys have one fingerprint.
    async fn get_at_once(
        &self,
        keys: &[&[u8]],
        values: &mut [Option<Vec<u8>>],
    ) -> Result<Vec<usize>, TableError> {
        let mut left = Vec::new();
        let hashes = keys.iter().map(|key| self.index.hash_of(key));
        let views: Vec<_> = hashes.map(|hash| (hash, self.index.ask_view(hash))).collect();
        let mut blocks = Vec::with_capacity(keys.len());
        for (place, (hash, asked)) in views.into_iter().enumerate() {
            let read = match asked {
                Some(asked) => self.index.take_candidates(asked, hash).await,
                None => Ok(None),
            };
            match read.as_ref().map(|read| read.as_ref().map(Candidates::slots)) {
                Ok(Some([])) => {}
                Ok(Some(&[(_, slot)])) => match self.blocks.ask_block(slot) {
                    Some(asked) => blocks.push((place, slot, asked)),
                    None => left.push(place),
                },
                Err(error) if !error.wants_permission() => return Err(*error),
                _ => left.push(place),
            }
        }
        for (place, slot, asked) in blocks {
            let named = match asked.await {
                Ok(block) => self.blocks.name(block, slot, keys[place]),
                Err(error) if TableError::from(error).wants_permission() => Named::Stale,
                Err(error) => return Err(error.into()),
            };
            match named {
                Named::Same { value, expires: None } if value.pieces.is_empty() => {
                    values[place] = Some(value.rest);
                }
                Named::Other => {}
                Named::Same { .. } | Named::Stale => left.push(place),
            }
        }
        Ok(left)
    }

    /// Whether a key that ends at a time of the node has expired. `None`: the node's time is not known.
    #[inline]
    pub(super) fn is_known_to_have_expired(&self, expires: Option<Moment>) -> Option<bool> {
        match expires {
            None => Some(false),
            Some(at) => self.head.known_node_time().map(|now| at <= now),
        }
    }
}
