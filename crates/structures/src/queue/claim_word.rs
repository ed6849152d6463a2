//! The word of an entry's claim: the claim's state, nonce and lease, and the number of deliveries of the entry.

use portcullis::Lifetime;

/// State of the delivery of an entry that was taken, as one word.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct ClaimWord(pub u64);

/// The state of an entry that was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// The consumer that took the entry has not written its claim: it is about to, or has died.
    Untold,
    /// A consumer holds the entry, for a lease that other consumers measure from when they first see this word.
    Held(Lifetime),
    /// The consumer gave the entry back.
    GivenBack,
    /// The entry is acknowledged.
    Done,
}

const STATE_AT: u32 = 62;
const STATES: u64 = 3 << STATE_AT;
const HELD: u64 = 1 << STATE_AT;
const GIVEN_BACK: u64 = 2 << STATE_AT;
const DONE: u64 = 3 << STATE_AT;
const NONCE_BITS: u32 = 30;
const LEASE_AT: u32 = NONCE_BITS;
const LEASE_BITS: u32 = 22;
const DELIVERIES_AT: u32 = LEASE_AT + LEASE_BITS;
const DELIVERIES_BITS: u32 = STATE_AT - DELIVERIES_AT;
const MILLISECOND: u64 = 1_000;

const fn ones(bits: u32) -> u64 {
    (1 << bits) - 1
}

impl ClaimWord {
    /// The word of a slot that no consumer has taken, or whose claim is not written yet.
    pub const UNTOLD: Self = Self(0);
    /// The shortest lease, and the longest.
    pub const LEASES: (Lifetime, Lifetime) = (Lifetime::millis(1), Lifetime(ones(LEASE_BITS) * MILLISECOND));

    /// The largest number of deliveries that is counted.
    pub const DELIVERIES_MAX: u32 = (1 << DELIVERIES_BITS) - 1;

    /// Returns the word of a new claim on the entry whose word this is. `nonce` distinguishes claims.
    pub fn claimed(self, lease: Lifetime, nonce: u64) -> Self {
        let deliveries = u64::from(self.deliveries()).saturating_add(1).min(ones(DELIVERIES_BITS));
        Self(HELD | deliveries << DELIVERIES_AT | lease_bits(lease) | nonce & ones(NONCE_BITS))
    }

    /// Returns the word of the same claim with a lease that begins anew. It differs from the old word.
    pub fn extended(self, lease: Lifetime) -> Self {
        let kept = self.0 & !(ones(LEASE_BITS) << LEASE_AT | ones(NONCE_BITS));
        let nonce = (self.0 & ones(NONCE_BITS)).wrapping_add(1) & ones(NONCE_BITS);
        Self(kept | lease_bits(lease) | nonce)
    }

    /// Returns the word after this claim was acknowledged.
    pub fn done(self) -> Self {
        Self(self.0 | DONE)
    }

    /// Returns the word after this claim was given back.
    pub fn given_back(self) -> Self {
        Self(self.0 & !STATES | GIVEN_BACK)
    }

    pub fn standing(self) -> Standing {
        match self.0 & STATES {
            HELD => Standing::Held(Lifetime((self.0 >> LEASE_AT & ones(LEASE_BITS)) * MILLISECOND)),
            GIVEN_BACK => Standing::GivenBack,
            DONE => Standing::Done,
            _ => Standing::Untold,
        }
    }

    /// Number of times that the entry was delivered.
    pub fn deliveries(self) -> u32 {
        u32::try_from(self.0 >> DELIVERIES_AT & ones(DELIVERIES_BITS)).expect("ten bits")
    }
}

fn lease_bits(lease: Lifetime) -> u64 {
    lease.0.div_ceil(MILLISECOND).clamp(1, ones(LEASE_BITS)) << LEASE_AT
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_claim_counts_deliveries_and_each_change_is_another_word(
            before in 0u64..1 << 62, lease in 1_000u64..4_000_000_000, nonce: u64,
        ) {
            let before = ClaimWord(before);
            let claim = before.claimed(Lifetime(lease), nonce);
            prop_assert_eq!(claim.deliveries(), (before.deliveries() + 1).min(1_023));
            prop_assert_eq!(claim.standing(), Standing::Held(Lifetime(lease.div_ceil(1_000) * 1_000)));
            let longer = claim.extended(Lifetime(lease));
            prop_assert_ne!(longer, claim);
            prop_assert_eq!((longer.deliveries(), longer.standing()), (claim.deliveries(), claim.standing()));
            prop_assert_eq!((claim.done().standing(), claim.done().deliveries()), (Standing::Done, claim.deliveries()));
            let back = claim.given_back();
            prop_assert_eq!((back.standing(), back.deliveries()), (Standing::GivenBack, claim.deliveries()));
        }
    }

    #[test]
    fn a_word_of_zeros_is_a_claim_that_is_not_written() {
        assert_eq!((ClaimWord::UNTOLD.standing(), ClaimWord::UNTOLD.deliveries()), (Standing::Untold, 0));
    }
}
