//! Keeps a lease alive and a name registered, turn by turn.
//!
//! Without the name nothing is lost, except that other processes do not find it. So nothing here ends because a
//! directory is away, or because another process has the name for a while: the registrar tries again, and reports the
//! change. With each new lease it holds the heaps again, as far as they still exist.
//!
//! Each turn checks that the registered entry still exists: an operator, a restore or a clean-up may have deleted it in
//! a store such as etcd although the lease lives.

use crate::directory::Directory;
use crate::entry::Entry;
use crate::error::DirectoryError;
use crate::lease::Lease;
use crate::name::Name;
use portcullis_errors::{Coded, ErrorCode};
use portcullis_protocol::TenantName;
use std::collections::BTreeSet;
use std::time::Duration;

/// A tenant's lease, and the entry registered with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holding {
    /// The tenant that owns the lease.
    pub tenant: TenantName,
    /// Time that the lease lives after the process has ended.
    pub time_to_live: Duration,
    /// The name and its entry. `None`: the lease is for heaps alone.
    pub entry: Option<(Name, Entry)>,
}

/// Change since the last turn that reported one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Everything is registered for the first time.
    Registered,
    /// The registration has failed until now, for this reason, and is tried again.
    Late(DirectoryError),
    /// The lease has ended, or may have: other processes may not find the entry. The registration is tried again.
    Lost(DirectoryError),
    /// Everything is registered again after it was lost.
    Back,
}

/// Keeps a [`Holding`] in a directory. It reads no clock and does not wait: see [`Registration`](crate::Registration)
/// for both.
#[derive(Debug)]
pub struct Registrar {
    holding: Holding,
    held: Option<Held>,
    /// The heaps that every lease must hold, by address.
    heaps: BTreeSet<u64>,
    told: Told,
}

#[derive(Debug)]
struct Held {
    lease: Lease,
    /// Time at which the last request was sent to which the directory replied that the lease lives.
    confirmed: Duration,
    /// Whether the entry is registered completely, as far as is known.
    is_registered: bool,
    /// The heaps that this lease holds.
    heaps: BTreeSet<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Told {
    Nothing,
    Registered,
    Late(ErrorCode),
    Lost(ErrorCode),
}

/// The longest pause before a failed turn is tried again.
const AGAIN: Duration = Duration::from_secs(1);

impl Registrar {
    /// Creates a registrar. Nothing is registered before the first turn.
    #[must_use]
    pub const fn new(holding: Holding) -> Self {
        Self { holding, held: None, heaps: BTreeSet::new(), told: Told::Nothing }
    }

    /// Sets the heaps to hold with each lease from the next turn on. Heaps that leave the set are not released here.
    pub fn want_heaps(&mut self, heaps: BTreeSet<u64>) {
        if let Some(held) = &mut self.held {
            held.heaps.retain(|address| heaps.contains(address));
        }
        self.heaps = heaps;
    }

    /// Returns the heaps that the present lease holds.
    #[must_use]
    pub fn heaps_held(&self) -> BTreeSet<u64> {
        self.held.as_ref().map(|held| held.heaps.clone()).unwrap_or_default()
    }

    /// Returns the lease, if one exists and has not ended, as far as is known.
    #[must_use]
    pub fn lease(&self) -> Option<&Lease> {
        self.held.as_ref().map(|held| &held.lease)
    }

    /// Registers everything for the first time. If that fails, nothing stays registered.
    ///
    /// # Errors
    /// The directory refuses, or is away.
    pub fn begin(&mut self, directory: &dyn Directory, now: Duration) -> Result<(), DirectoryError> {
        let done = self.try_turn(directory, now);
        match &done {
            Ok(()) => self.told = Told::Registered,
            Err(_) => self.end(directory),
        }
        done
    }

    /// Does the work that is due at `now`, the time of a clock that never goes back. Returns the change, if any, and
    /// the longest pause before the next turn.
    pub fn turn(&mut self, directory: &dyn Directory, now: Duration) -> (Option<Change>, Duration) {
        let mut done = self.try_turn(directory, now);
        if let Err(DirectoryError::LeaseEnded(_)) = &done {
            // When a lease ends, everything that it had is free at once, for the next lease too. In a store whose keys
            // were deleted, some keys of the ended lease may be left, and would block the next one.
            self.end(directory);
            let told = self.judge(done, now);
            done = self.try_turn(directory, now);
            let (again, pause) = (self.judge(done.clone(), now), self.pause(&done));
            // If the registration is lost and restored in one turn, only the restoration is reported.
            return (again.or(told), pause);
        }
        let pause = self.pause(&done);
        (self.judge(done, now), pause)
    }

    /// Takes a turn when the directory cannot even be opened.
    pub fn turn_without(&mut self, error: DirectoryError, now: Duration) -> (Option<Change>, Duration) {
        let done = Err(error);
        let pause = self.pause(&done);
        (self.judge(done, now), pause)
    }

    /// Ends the lease, if there is one.
    pub fn end(&mut self, directory: &dyn Directory) {
        if let Some(held) = self.held.take() {
            // If this fails, the lease ends by itself.
            let _ = directory.end_lease(&held.lease);
        }
    }

    /// Whether everything is registered, as far as is known.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.told == Told::Registered
    }

    fn try_turn(&mut self, directory: &dyn Directory, now: Duration) -> Result<(), DirectoryError> {
        let held = match &mut self.held {
            Some(held) => {
                directory.keep_alive(&held.lease)?;
                held.confirmed = now;
                held
            }
            none => {
                let lease = directory.open_lease(&self.holding.tenant, self.holding.time_to_live)?;
                let is_registered = self.holding.entry.is_none();
                none.insert(Held { lease, confirmed: now, is_registered, heaps: BTreeSet::new() })
            }
        };
        if let Some((name, entry)) = &self.holding.entry {
            if held.is_registered && !is_found(directory, &held.lease, name, entry)? {
                held.is_registered = false;
                self.told = Told::Lost(ErrorCode::NoSuchName);
            }
            // If the name is found, this repairs the data that belongs to it, and changes nothing if nothing is
            // missing.
            directory.register(&held.lease, name, entry)?;
            held.is_registered = true;
        }
        if self.heaps.is_empty() {
            return Ok(());
        }
        let there: BTreeSet<u64> =
            directory.heaps(&held.lease)?.into_iter().map(|range| range.address).collect();
        held.heaps = self.heaps.intersection(&there).copied().collect();
        for address in self.heaps.difference(&there) {
            match directory.hold_heap(&held.lease, *address) {
                Ok(_) => _ = held.heaps.insert(*address),
                // The heap has lost all its holders: its addresses are free, or another heap has them. Callers that
                // check the heap see that.
                Err(DirectoryError::NoSuchHeap(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn judge(&mut self, done: Result<(), DirectoryError>, now: Duration) -> Option<Change> {
        let was_there = matches!(self.told, Told::Registered | Told::Lost(_));
        let Err(error) = done else {
            let told = std::mem::replace(&mut self.told, Told::Registered);
            return match told {
                Told::Registered => None,
                Told::Lost(_) => Some(Change::Back),
                Told::Nothing | Told::Late(_) => Some(Change::Registered),
            };
        };
        let lives = |held: &Held| {
            held.is_registered && now.saturating_sub(held.confirmed) < held.lease.time_to_live()
        };
        if self.told == Told::Registered && self.held.as_ref().is_some_and(lives) {
            // The directory may answer before the lease ends.
            return None;
        }
        let told = if was_there { Told::Lost(error.code()) } else { Told::Late(error.code()) };
        let is_news = std::mem::replace(&mut self.told, told) != told;
        is_news.then_some(if was_there { Change::Lost(error) } else { Change::Late(error) })
    }

    fn pause(&self, done: &Result<(), DirectoryError>) -> Duration {
        let time_to_live = self.lease().map_or(self.holding.time_to_live, Lease::time_to_live);
        let third = time_to_live / 3;
        if done.is_ok() { third } else { third.min(AGAIN) }
    }
}

/// Whether other processes find the lease's entry under the name.
fn is_found(
    directory: &dyn Directory,
    lease: &Lease,
    name: &Name,
    entry: &Entry,
) -> Result<bool, DirectoryError> {
    match directory.look_up(lease.tenant(), name) {
        Ok(found) => Ok(found.lease == lease.id() && found.target == entry.target),
        Err(DirectoryError::NoSuchName(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Access, Address, Target, Who};
    use crate::state::DirectoryState;
    use crate::{Embedded, Space};

    /// A directory in virtual time that can be away.
    #[derive(Debug)]
    struct Rig {
        registrar: Registrar,
        directory: Embedded,
        now: Duration,
    }

    const SECOND: Duration = Duration::from_secs(1);

    fn name() -> Name {
        Name::new("bank/n1").expect("a name")
    }

    fn holding(address: &str) -> Holding {
        let addresses = vec![Address::new(address).expect("an address")];
        let entry = Entry { target: Target::Node { addresses, memory_bytes: 1 }, access: Access::public() };
        let tenant = TenantName::new("bank").expect("a tenant");
        Holding { tenant, time_to_live: 9 * SECOND, entry: Some((name(), entry)) }
    }

    fn away() -> DirectoryError {
        let (at, why) = ("nowhere".to_owned(), "it is away".to_owned());
        DirectoryError::Away { at, why, may_have_happened: false }
    }

    impl Rig {
        fn new() -> Self {
            let (directory, registrar) = (Embedded::new(Space::usual()), Registrar::new(holding("udp:a:1")));
            Self { registrar, directory, now: Duration::ZERO }
        }

        fn turn(&mut self) -> Option<Change> {
            self.now += SECOND;
            self.registrar.turn(&self.directory, self.now).0
        }

        fn turn_away(&mut self) -> Option<Change> {
            self.now += SECOND;
            self.registrar.turn_without(away(), self.now).0
        }

        fn is_found(&self) -> bool {
            let tenant = TenantName::new("shop").expect("a tenant");
            self.directory.look_up(&tenant, &name()).is_ok()
        }
    }

    #[test]
    fn a_name_is_registered_once_and_then_kept() {
        let mut rig = Rig::new();
        assert_eq!(rig.turn(), Some(Change::Registered));
        assert!(rig.is_found());
        assert_eq!((rig.turn(), rig.turn()), (None, None));
        rig.registrar.end(&rig.directory);
        assert!(!rig.is_found());
    }

    #[test]
    fn a_directory_that_is_away_makes_it_late_and_is_told_once() {
        let mut rig = Rig::new();
        assert_eq!(rig.turn_away(), Some(Change::Late(away())));
        assert_eq!((rig.turn_away(), rig.turn_away()), (None, None));
        assert_eq!(rig.turn(), Some(Change::Registered));
    }

    #[test]
    fn a_name_is_lost_when_the_lease_must_have_ended_and_not_before() {
        let mut rig = Rig::new();
        rig.turn();
        for _ in 0..8 {
            assert_eq!(rig.turn_away(), None, "{:?}", rig.now);
        }
        assert_eq!(rig.turn_away(), Some(Change::Lost(away())));
        assert_eq!(rig.turn_away(), None);
        assert!(!rig.registrar.is_well());
        // The lease has lived on: a directory that returns may give leases their whole time again.
        let lease = rig.registrar.lease().cloned();
        assert_eq!((rig.turn(), rig.registrar.lease().cloned()), (Some(Change::Back), lease));
    }

    #[test]
    fn a_lease_that_has_ended_is_followed_by_another() {
        let mut rig = Rig::new();
        rig.turn();
        let first = rig.registrar.lease().cloned().expect("there is one");
        rig.directory.end_lease(&first).expect("it is there");
        assert!(!rig.is_found());
        assert_eq!(rig.turn(), Some(Change::Back));
        assert!(rig.is_found());
        assert_ne!(rig.registrar.lease(), Some(&first));
    }

    #[test]
    fn a_name_that_is_removed_while_its_lease_lives_is_back_with_the_next_turn() {
        let mut rig = Rig::new();
        rig.turn();
        let lease = rig.registrar.lease().cloned().expect("there is one");
        rig.directory.withdraw(&lease, &name()).expect("it is there");
        assert!(!rig.is_found());
        assert_eq!((rig.turn(), rig.is_found()), (Some(Change::Back), true));
        assert_eq!(rig.registrar.lease(), Some(&lease), "the lease has lived on");
        assert_eq!(rig.turn(), None);
    }

    #[test]
    fn a_name_that_another_takes_while_the_lease_lives_is_lost_until_it_is_free() {
        let mut rig = Rig::new();
        rig.turn();
        let lease = rig.registrar.lease().cloned().expect("there is one");
        rig.directory.withdraw(&lease, &name()).expect("it is there");
        let mut other = Registrar::new(holding("udp:b:1"));
        other.turn(&rig.directory, rig.now);
        assert_eq!(rig.turn(), Some(Change::Lost(DirectoryError::NameTaken(name()))));
        assert_eq!(rig.turn(), None);
        other.end(&rig.directory);
        assert_eq!(rig.turn(), Some(Change::Back));
    }

    #[test]
    fn a_heap_that_is_let_go_of_behind_the_registrars_back_is_held_again_or_told_of() {
        let mut rig = Rig::new();
        rig.turn();
        let lease = rig.registrar.lease().cloned().expect("there is one");
        let heap = |lease: &Lease| rig.directory.create_heap(lease, 1 << 21, &Who::nobody());
        let (shared, own) = (heap(&lease).expect("room").address, heap(&lease).expect("room").address);
        rig.registrar.want_heaps(BTreeSet::from([shared, own]));
        let other = rig.directory.open_lease(lease.tenant(), 60 * SECOND).expect("room");
        rig.directory.hold_heap(&other, shared).expect("the tenant's own");
        rig.turn();
        for address in [shared, own] {
            rig.directory.release_heap(&lease, address).expect("it is held");
        }
        rig.turn();
        assert_eq!(rig.registrar.heaps_held(), BTreeSet::from([shared]), "nobody holds the other one");
    }

    #[test]
    fn the_next_lease_holds_the_heaps_that_are_still_there() {
        let mut rig = Rig::new();
        rig.turn();
        let first = rig.registrar.lease().cloned().expect("there is one");
        let create = |lease: &Lease| rig.directory.create_heap(lease, 1 << 21, &Who::nobody());
        let (shared, own) = (create(&first).expect("room").address, create(&first).expect("room").address);
        rig.registrar.want_heaps(BTreeSet::from([shared, own]));
        let other = rig.directory.open_lease(first.tenant(), 60 * SECOND).expect("room");
        rig.directory.hold_heap(&other, shared).expect("the tenant's own");
        rig.turn();
        assert_eq!(rig.registrar.heaps_held(), BTreeSet::from([shared, own]));
        rig.directory.end_lease(&first).expect("it is there");
        assert_eq!(rig.turn(), Some(Change::Back));
        let second = rig.registrar.lease().cloned().expect("there is another");
        assert_eq!(
            rig.registrar.heaps_held(),
            BTreeSet::from([shared]),
            "nobody held the other one meanwhile"
        );
        let held = rig.directory.heaps(&second).expect("it lives");
        assert_eq!(held.iter().map(|range| range.address).collect::<Vec<_>>(), [shared]);
        // When the last holder leaves, its addresses are free again.
        rig.directory.end_lease(&other).expect("it is there");
        assert!(rig.directory.hold_heap(&second, shared).is_ok());
        rig.registrar.want_heaps(BTreeSet::new());
        assert!(rig.registrar.heaps_held().is_empty());
    }

    #[test]
    fn the_name_of_a_dead_one_is_waited_for() {
        let mut rig = Rig::new();
        let mut dead = Registrar::new(holding("udp:b:1"));
        dead.turn(&rig.directory, rig.now);
        assert_eq!(rig.turn(), Some(Change::Late(DirectoryError::NameTaken(name()))));
        assert_eq!(rig.turn(), None);
        // The lease of the dead process ends.
        dead.end(&rig.directory);
        assert_eq!(rig.turn(), Some(Change::Registered));
    }

    #[test]
    fn a_name_that_somebody_else_took_meanwhile_is_lost_until_it_is_free() {
        let mut rig = Rig::new();
        rig.turn();
        let first = rig.registrar.lease().cloned().expect("there is one");
        rig.directory.end_lease(&first).expect("it is there");
        let mut other = Registrar::new(holding("udp:b:1"));
        other.turn(&rig.directory, rig.now);
        assert_eq!(rig.turn(), Some(Change::Lost(DirectoryError::NameTaken(name()))));
        assert_eq!(rig.turn(), None);
        other.end(&rig.directory);
        assert_eq!(rig.turn(), Some(Change::Back));
    }

    #[test]
    fn turns_come_often_enough_for_the_lease() {
        let mut rig = Rig::new();
        let (_, pause) = rig.registrar.turn(&rig.directory, rig.now);
        assert_eq!(pause, 3 * SECOND);
        let (_, pause) = rig.registrar.turn_without(away(), rig.now);
        assert_eq!(pause, AGAIN);
        // The state agrees that three turns fit into a lease.
        let mut state = DirectoryState::new(Space::usual());
        let lease = state.open_lease(&holding("x").tenant, 9 * SECOND, Duration::ZERO).expect("room");
        assert!(state.keep_alive(&lease, 8 * SECOND).is_ok());
    }
}
