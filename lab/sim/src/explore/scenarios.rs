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
    /// Waits for any time, where it matters what the client knows when it goes on.
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
    /// A holder extends while its lease runs out, and writes under the lease that it was told.
    ExtendOrExpire,
    /// A keeper extends a permission that its holder revokes and then uses.
    ExtendOrRevoke,
    /// A holder extends while another client asks for the object: extension or final notice.
    ExtendOrGiveWay,
    /// Two sessions extend one lease, one by compare and swap and one by message.
    TwoExtend,
    /// A permission expires and its window goes to the next holder; a write with the old key is on its way.
    HandoverOnExpiry,
    /// The same with a revoke.
    HandoverOnRevoke,
    /// An ended permission's window lingers over memory that another tenant asks for.
    LingerOrReuse,
    /// A client's process ends while its extension and its write are on their way; another client waits for the object.
    Departure,
    /// Of two sharers, one extends and one revokes, while a third client wants the object exclusively.
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

    /// Whether one client's news changes what another does: threads of one process share a lease.
    pub(super) fn is_one_process(self) -> bool {
        self.race == Race::TwoExtend
    }

    /// The clients, their scripts, and the times.
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
/// What it is extended to.
const LONGER: Lifetime = Lifetime::micros(200);
/// How long a client is ready to wait for the object: longer than any client may hold it.
const PATIENCE: Lifetime = Lifetime::millis(5);
/// How long the window of an ended permission may linger.
pub(super) const LINGER: Lifetime = Lifetime::micros(40);

/// A client's part.
#[derive(Clone, Debug)]
pub(super) struct Role {
    pub tenant: usize,
    /// What the client does before the race, with nothing in its way.
    pub prologue: Vec<Act>,
    pub script: Vec<Act>,
}

impl Role {
    fn new(tenant: usize, prologue: &[Act], script: &[Act]) -> Self {
        Self { tenant, prologue: prologue.to_vec(), script: script.to_vec() }
    }
}

/// The clients of a race, and what the clock shows when it moves, in µs from the beginning of the race.
#[derive(Clone, Debug)]
pub(super) struct Cast {
    pub roles: Vec<Role>,
    pub instants: &'static [u64],
    /// The turns of the node's NIC are steps of their own.
    pub nic_apart: bool,
}
