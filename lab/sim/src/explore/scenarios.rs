//! The races: their clients, what each client does, and when.

use portcullis_client::{Acquire, Allocate};
use portcullis_protocol::{Lifetime, RemoteAddress};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Act {
    Allocate(Allocate),
    /// Acquires the race's object. The address here is ignored.
    Acquire(Acquire),
    /// Extends its own permission, by compare and swap.
    Extend(Lifetime),
    ExtendByMessage(Lifetime),
    /// Extends the first client's permission, like a keeper in the same process.
    ExtendOther(Lifetime),
    Revoke,
    Write,
    Read,
    /// Writes with its old keys, unchecked by the library.
    LateWrite,
    /// Waits for any time, in scripts in which it matters what the client knows when it continues.
    Hesitate,
    /// Waits until everything that the client has begun has ended.
    Settle,
    Depart,
}

impl Act {
    /// Whether the moment of this action is a choice. All other actions are taken as soon as possible: a late request
    /// is equivalent to a request whose packet travels for long, and a client that acts after its lease has ended posts
    /// nothing.
    pub fn hesitates(self) -> bool {
        matches!(self, Self::Hesitate | Self::Depart)
    }
}

/// A race.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Race {
    /// A holder extends while its lease runs out, and writes under the lease that was reported to it.
    ExtendOrExpire,
    /// A keeper extends a permission that its holder revokes and then uses.
    ExtendOrRevoke,
    /// A holder extends while another client requests the object: extension or final notice.
    ExtendOrGiveWay,
    /// Two sessions extend one lease, one by compare and swap and one by message.
    TwoExtend,
    /// A permission expires and its window is handed over to the next holder. A write with the old key is in transit.
    HandoverOnExpiry,
    /// A permission is revoked and its window is handed over to the next holder. A write with the old key is in
    /// transit.
    HandoverOnRevoke,
    /// An ended permission's window lingers over memory that another tenant requests.
    LingerOrReuse,
    /// A client's process ends while its extension and its write are in transit. Another client waits for the object.
    Departure,
    /// One of two sharers extends and the other revokes, while a third client wants the object exclusively.
    SharersGiveWay,
}

impl Race {
    /// All races.
    pub const ALL: [Self; 9] = [
        Self::ExtendOrExpire,
        Self::ExtendOrRevoke,
        Self::ExtendOrGiveWay,
        Self::TwoExtend,
        Self::HandoverOnExpiry,
        Self::HandoverOnRevoke,
        Self::LingerOrReuse,
        Self::Departure,
        Self::SharersGiveWay,
    ];
}

/// A race on a kind of node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Scenario {
    /// The race.
    pub race: Race,
    /// Whether the node uses the techniques that save window operations (Patronus §5.4): all of them or none.
    pub reductions: bool,
}

impl Scenario {
    /// Every race with and without the techniques that save window operations.
    pub const ALL: [Self; 2 * Race::ALL.len()] = {
        let mut all = [Self { race: Race::ExtendOrExpire, reductions: true }; 2 * Race::ALL.len()];
        let mut at = 0;
        while at < all.len() {
            all[at] = Self { race: Race::ALL[at / 2], reductions: at.is_multiple_of(2) };
            at += 1;
        }
        all
    };

    /// Whether the news of one client changes the actions of another: threads of one process share a lease.
    pub(super) fn is_one_process(self) -> bool {
        self.race == Race::TwoExtend
    }

    /// Returns the clients, their scripts, and the times.
    pub(super) fn cast(self) -> Cast {
        let all = Acquire::dangerous_at(RemoteAddress(0)).lifetime(LIFE).wait(PATIENCE);
        let kept = Allocate::bytes(64).lifetime(LIFE).keep();
        let kept_not = |bytes| Allocate::bytes(bytes).lifetime(LIFE);
        let holder = |script: &[Act]| Role::new(0, &[Act::Allocate(kept)], script);
        let other = |script: &[Act]| Role::new(0, &[], script);
        let (roles, instants): (Vec<Role>, &'static [u64]) = match self.race {
            Race::ExtendOrExpire => {
                (vec![holder(&[Act::Extend(LONGER), Act::Settle, Act::Write])], &[99, 100, 199, 200, 241])
            }
            Race::ExtendOrRevoke => {
                (vec![holder(&[Act::Revoke, Act::LateWrite]), other(&[Act::ExtendOther(LONGER)])], &[100])
            }
            Race::ExtendOrGiveWay => (
                vec![holder(&[Act::Extend(LONGER), Act::Settle, Act::Write]), other(&[Act::Acquire(all)])],
                &[100, 200],
            ),
            Race::TwoExtend => (
                vec![
                    holder(&[Act::ExtendByMessage(LONGER)]),
                    other(&[Act::Hesitate, Act::ExtendOther(Lifetime::micros(150))]),
                ],
                &[100, 150],
            ),
            Race::HandoverOnExpiry => (
                vec![holder(&[Act::LateWrite]), other(&[Act::Acquire(all), Act::Settle, Act::Write])],
                &[100],
            ),
            Race::HandoverOnRevoke => (
                vec![
                    holder(&[Act::Revoke, Act::LateWrite]),
                    other(&[Act::Acquire(all), Act::Settle, Act::Write]),
                ],
                &[],
            ),
            Race::LingerOrReuse => {
                let (first, second) = (kept_not(30 << 10), kept_not(40 << 10));
                let first = Role::new(0, &[Act::Allocate(first)], &[Act::Revoke, Act::LateWrite]);
                let second = Role::new(1, &[], &[Act::Allocate(second), Act::Settle, Act::Read]);
                (vec![first, second], &[LINGER.0 + 1])
            }
            Race::Departure => (
                vec![holder(&[Act::Extend(LONGER), Act::Write, Act::Depart]), other(&[Act::Acquire(all)])],
                &[100],
            ),
            Race::SharersGiveWay => {
                let first = Role::new(0, &[Act::Allocate(kept.shared())], &[Act::Extend(LONGER)]);
                let second = Role::new(0, &[Act::Acquire(all.shared())], &[Act::Revoke]);
                (vec![first, second, other(&[Act::Acquire(all)])], &[100, 200])
            }
        };
        let nic_apart = match self.race {
            Race::ExtendOrExpire | Race::ExtendOrRevoke | Race::SharersGiveWay => false,
            Race::Departure => self.reductions,
            _ => true,
        };
        Cast { roles, instants, nic_apart }
    }
}

/// The lifetime of the first permission.
const LIFE: Lifetime = Lifetime::micros(100);
/// The lifetime to which a permission is extended.
const LONGER: Lifetime = Lifetime::micros(200);
/// How long a client is ready to wait for the object: longer than any client may hold it.
const PATIENCE: Lifetime = Lifetime::millis(5);
/// How long the window of an ended permission may linger.
pub(super) const LINGER: Lifetime = Lifetime::micros(40);

/// The part of a client in a race.
#[derive(Clone, Debug)]
pub(super) struct Role {
    pub tenant: usize,
    /// The client's actions before the race, which nothing disturbs.
    pub prologue: Vec<Act>,
    pub script: Vec<Act>,
}

impl Role {
    fn new(tenant: usize, prologue: &[Act], script: &[Act]) -> Self {
        Self { tenant, prologue: prologue.to_vec(), script: script.to_vec() }
    }
}

/// The clients of a race, and the times to which the clock moves, in µs from the beginning of the race.
#[derive(Clone, Debug)]
pub(super) struct Cast {
    pub roles: Vec<Role>,
    pub instants: &'static [u64],
    /// Whether the turns of the node's NIC are steps of their own.
    pub nic_apart: bool,
}
