//! Keys that a client held until a moment ago. They distinguish a late access from a guess.

use portcullis_protocol::{Credential, Moment, RegionName, RemoteAddress, Rkey};
use std::collections::VecDeque;

/// The keys of a permission that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EndedKeys {
    /// The credential that its holder showed.
    pub credential: Credential,
    /// Address of its lifetime word.
    pub word: RemoteAddress,
    pub at: Moment,
}

impl EndedKeys {
    /// Whether this key opened the lifetime word, on any queue pair of its tenant.
    pub fn opened_word(&self, key: Rkey) -> bool {
        matches!(self.credential, Credential::Keys { lifetime, .. } if lifetime == key)
    }
}

/// One client's ended keys, the latest last. Their number is bounded: a client that ends permissions without end takes
/// a bounded amount of memory, and costs its siblings nothing.
#[derive(Debug, Default)]
pub(crate) struct RecentKeys {
    ended: VecDeque<EndedKeys>,
}

impl RecentKeys {
    /// Adds the keys of an ended permission. If there are `most` already, drops the oldest.
    pub fn push(&mut self, keys: EndedKeys, most: u32) {
        if self.ended.len() >= most as usize {
            self.ended.pop_front();
        }
        self.ended.push_back(keys);
    }

    /// Returns the moment at which the last permission with this key ended.
    pub fn ended(&self, key: Rkey) -> Option<Moment> {
        let had = |keys: &&EndedKeys| keys.credential.has_key(key);
        self.ended.iter().rev().find(had).map(|keys| keys.at)
    }

    /// Returns the moment at which the permission over this region ended.
    pub fn region_ended(&self, name: RegionName) -> Option<Moment> {
        let had = |keys: &&EndedKeys| matches!(keys.credential, Credential::RegionKey { region, .. } if region == name);
        self.ended.iter().rev().find(had).map(|keys| keys.at)
    }

    /// Iterates over the keys of the permissions that ended at `since` or later, the latest first.
    pub fn since(&self, since: Moment) -> impl Iterator<Item = &EndedKeys> {
        self.ended.iter().rev().take_while(move |keys| keys.at >= since)
    }

    /// Returns the moment at which the last permission ended.
    pub fn last_end(&self) -> Option<Moment> {
        self.ended.back().map(|keys| keys.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(number: u32, at: u64) -> EndedKeys {
        let (buffer, lifetime) = (Rkey(2 * number), Rkey(2 * number + 1));
        let credential = Credential::Keys { buffer, lifetime };
        EndedKeys { credential, word: RemoteAddress(u64::from(number)), at: Moment(at) }
    }

    #[test]
    fn the_oldest_of_too_many_is_forgotten() {
        let mut recent = RecentKeys::default();
        for number in 0..5 {
            recent.push(keys(number, 10 + u64::from(number)), 3);
        }
        assert_eq!([0, 3].map(|key| recent.ended(Rkey(key))), [None, None]);
        assert_eq!([4, 9].map(|key| recent.ended(Rkey(key))), [Some(Moment(12)), Some(Moment(14))]);
        assert_eq!(recent.last_end(), Some(Moment(14)));
    }

    #[test]
    fn keys_are_known_for_a_while_the_latest_first() {
        let mut recent = RecentKeys::default();
        recent.push(keys(7, 10), 3);
        recent.push(keys(8, 20), 3);
        let since = |moment| recent.since(Moment(moment)).map(|keys| keys.word.0).collect::<Vec<_>>();
        assert_eq!([since(10), since(11), since(21)], [vec![8, 7], vec![8], vec![]]);
    }
}
