//! Connections that are not attached yet, and the choice of the one to close when there are too many.
//!
//! A new connection is always accepted, and an older one is closed. If new connections were refused, an attacker could
//! fill all places with silent connections and lock out every other client until their time is up, at no cost. Instead
//! an attacker must connect again as often as there are places within the few milliseconds that an honest attach takes.
//! The closed connection belongs to the holder with the most connections: an address or, once its certificate is known,
//! a tenant. So a holder with one connection keeps it as long as other holders have several. Among equals, connections
//! without a certificate are closed first.

use crate::handshake::Holder;
use std::collections::{BTreeMap, HashMap};

#[derive(Debug)]
pub(super) struct Crowd<K> {
    places: usize,
    /// Holder of each connection, by token: the lowest token is the oldest connection.
    there: BTreeMap<u64, K>,
    /// Number of connections of each holder.
    each: HashMap<K, usize>,
}

impl<K: Holder> Crowd<K> {
    /// Creates a crowd of at most `places` connections. One holder gets at most half of them.
    pub fn new(places: usize) -> Self {
        Self { places: places.max(1), there: BTreeMap::new(), each: HashMap::new() }
    }

    /// Adds a connection. Tokens must increase.
    pub fn come(&mut self, token: u64, holder: K) {
        *self.each.entry(holder.clone()).or_default() += 1;
        self.there.insert(token, holder);
    }

    /// Counts a connection among those of its holder, which is proven now.
    pub fn prove(&mut self, token: u64, holder: K) {
        if self.there.contains_key(&token) {
            self.leave(token);
            self.come(token, holder);
        }
    }

    /// Removes a connection that is attached or closed.
    pub fn leave(&mut self, token: u64) {
        let Some(holder) = self.there.remove(&token) else { return };
        let its = self.each.get_mut(&holder).expect("each connection counts for its holder");
        *its -= 1;
        if *its == 0 {
            self.each.remove(&holder);
        }
    }

    /// Returns the connection that must be closed so that `newest` can stay, if any. Never returns `newest`.
    pub fn surplus(&self, newest: u64) -> Option<u64> {
        let holder = self.there.get(&newest)?;
        let mut others = self.there.iter().filter(|(token, _)| **token != newest);
        if self.each[holder] > (self.places / 2).max(1) {
            return others.find(|(_, other)| *other == holder).map(|(token, _)| *token);
        }
        if self.there.len() <= self.places {
            return None;
        }
        let rank = |holder: &K| (std::cmp::Reverse(self.each[holder]), holder.is_proven());
        others.min_by_key(|(token, holder)| (rank(holder), **token)).map(|(token, _)| *token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    enum Somebody {
        Address(u8),
        Tenant,
    }

    impl Holder for Somebody {
        fn is_proven(&self) -> bool {
            *self == Self::Tenant
        }
    }

    fn address(number: u8) -> Somebody {
        Somebody::Address(number)
    }

    fn tenant() -> Somebody {
        Somebody::Tenant
    }

    fn tokens(crowd: &Crowd<Somebody>) -> Vec<u64> {
        crowd.there.keys().copied().collect()
    }

    /// Removes the surplus, as the server does.
    fn make_room(crowd: &mut Crowd<Somebody>, newest: u64) -> Option<u64> {
        let surplus = crowd.surplus(newest);
        surplus.inspect(|&token| crowd.leave(token))
    }

    /// Adds connections, and returns those that had to be closed.
    fn comers(crowd: &mut Crowd<Somebody>, from: u64, addresses: &[u8]) -> Vec<u64> {
        let come = |(token, &number)| {
            crowd.come(token, address(number));
            make_room(crowd, token)
        };
        (from..).zip(addresses).filter_map(come).collect()
    }

    #[test]
    fn one_address_displaces_only_itself() {
        let mut crowd = Crowd::new(8);
        assert!(comers(&mut crowd, 0, &[1, 2]).is_empty());
        let gone = comers(&mut crowd, 2, &[3; 100]);
        assert_eq!(gone, (2..98).collect::<Vec<u64>>());
        assert_eq!(tokens(&crowd), [0, 1, 98, 99, 100, 101]);
    }

    #[test]
    fn whoever_has_the_most_gives_way() {
        let mut crowd = Crowd::new(4);
        assert_eq!(comers(&mut crowd, 0, &[1, 2, 2, 3, 4]), [1]);
    }

    #[test]
    fn whoever_has_shown_a_certificate_stays_longer_than_its_like() {
        let mut crowd = Crowd::new(4);
        comers(&mut crowd, 0, &[1]);
        crowd.prove(0, tenant());
        assert_eq!(comers(&mut crowd, 1, &[1, 2, 3, 4, 5, 6]), [1, 2, 3]);
        assert!(tokens(&crowd).contains(&0));
    }

    #[test]
    fn a_tenant_that_comes_from_everywhere_has_half_and_gives_way_to_single_addresses() {
        let mut crowd = Crowd::new(6);
        let mut gone = Vec::new();
        for (token, number) in (0..5).zip(1..) {
            gone.extend(comers(&mut crowd, token, &[number]));
            crowd.prove(token, tenant());
            gone.extend(make_room(&mut crowd, token));
        }
        assert_eq!(gone, [0, 1]);
        assert_eq!(comers(&mut crowd, 5, &[11, 12, 13, 14]), [2]);
    }

    proptest! {
        #[test]
        fn the_newest_stays_and_nobody_has_more_than_half(
            places in 1..20usize,
            addresses in prop::collection::vec(0..6u8, 0..200),
        ) {
            let mut crowd = Crowd::new(places);
            for (token, &number) in (0..).zip(&addresses) {
                let gone = comers(&mut crowd, token, &[number]);
                prop_assert!(!gone.contains(&token));
                prop_assert!(crowd.there.len() <= places);
                let its = crowd.there.values().filter(|holder| **holder == address(number)).count();
                prop_assert!(its <= (places / 2).max(1));
            }
        }
    }
}
