//! A program that gets permissions, uses them, and lets its keeper extend some.

use super::{Board, SimSession};
use crate::clock::MICROSECOND;
use crate::dice::Dice;
use crate::fiber::FiberClock;
use crate::oracle::Promise;
use portcullis::{Clock, Permission};
use portcullis_client::{Acquire, Allocate, Error};
use portcullis_protocol::{Lifetime, Moment, Rights};
use std::sync::Arc;

/// The end of a lease. An access or extension in this time races with the end.
const LAST_MOMENT: Lifetime = Lifetime::micros(12);

/// The longest that a request of a program waits for objects that others hold.
const WAIT_MAX: Lifetime = Lifetime::millis(5);

/// Time that an operation may take beyond its limit, for turns of its own machine and for messages in transit.
const LIMIT_BOUND: Lifetime = Lifetime::millis(1);

/// User of permissions, running on a program's fiber.
pub(super) struct PermissionUser {
    pub session: SimSession,
    pub clock: FiberClock,
    pub dice: Dice,
    pub longest: Lifetime,
    pub board: Board,
}

impl PermissionUser {
    pub fn run(mut self) {
        while !self.board.winds_down() && self.session.client().over().is_none() {
            let granted = self.timed("a grant", WAIT_MAX, Self::get);
            if let Some(permission) = self.note("a grant", granted) {
                self.use_up(permission);
            }
            self.clock.pass(self.dice.magnitude(MICROSECOND..50 * MICROSECOND));
        }
    }

    /// Executes an operation, and reports it if it takes longer than its limit, its wait for others, and a bound
    /// allow. The limit is kept to within a quarter. An operation may use it up to three times: for the end of what
    /// the program has dropped, for room, and for its own end.
    fn timed<T>(&mut self, what: &str, wait: Lifetime, act: impl FnOnce(&mut Self) -> T) -> T {
        let began = self.clock.now();
        let done = act(self);
        let took = self.clock.now().since(began);
        if let Some(limit) = self.board.limit {
            let most = Lifetime(limit.0 * 15 / 4 + wait.0 + LIMIT_BOUND.0);
            if took > most {
                self.board.told().slow.push((what.to_owned(), took, most));
            }
        }
        done
    }

    fn lifetime(&mut self) -> Lifetime {
        Lifetime(self.dice.magnitude(60..self.longest.0.max(100)))
    }

    fn get(&mut self) -> Result<Permission, Error> {
        let lifetime = self.lifetime();
        let heard = self.board.told().heard;
        if let Some(object) = heard.filter(|_| self.dice.per_mille(400)) {
            let wait = Lifetime(self.dice.magnitude(1..WAIT_MAX.0));
            return self.session.acquire(Acquire::object(object).lifetime(lifetime).wait(wait));
        }
        let mut ask = Allocate::bytes(8 * self.dice.of(1..64)).lifetime(lifetime);
        if self.dice.per_mille(300) {
            ask = ask.keep();
        }
        self.session.allocate(ask)
    }

    /// Works under a permission until the program is done with it or the permission is over.
    fn use_up(&mut self, permission: Permission) {
        if self.dice.per_mille(500) {
            self.board.told().objects.push(permission.object());
        }
        if self.dice.per_mille(400) {
            let by = self.lifetime();
            self.board.told().to_keep = Some((Arc::clone(permission.lease()), by));
        }
        let mut written = None;
        while self.session.client().over().is_none() && !self.board.winds_down() {
            let went_on = match self.dice.of(0..10) {
                0..3 => self.write(&permission, &mut written),
                3..6 => self.read(&permission, written),
                6 => self.extend(&permission),
                7 => self.come_at_the_last_moment(&permission),
                8 => self.pause(),
                _ => break,
            };
            if !went_on {
                break;
            }
        }
        let mut told = self.board.told();
        (told.kept, told.to_keep) = (None, None);
        drop(told);
        if self.dice.per_mille(700) {
            let ended = self.timed("a revocation", Lifetime(0), |user| user.session.revoke(permission));
            self.note("a revocation", ended);
        }
    }

    fn write(&mut self, permission: &Permission, written: &mut Option<u64>) -> bool {
        if permission.length() < 8 || !permission.rights().contains(Rights::WRITE) {
            return true;
        }
        let (stamp, ends) = (self.dice.any(), permission.lease().deadline());
        let bytes = stamp.to_le_bytes();
        let done = self.timed("a write", Lifetime(0), |user| user.session.write(permission, 0, &bytes));
        *written = done.is_ok().then_some(stamp);
        self.judge("a write", permission, ends, done)
    }

    fn read(&mut self, permission: &Permission, written: Option<u64>) -> bool {
        if permission.length() < 8 || !permission.rights().contains(Rights::READ) {
            return true;
        }
        let (mut bytes, ends) = ([0; 8], permission.lease().deadline());
        let done = self.timed("a read", Lifetime(0), |user| user.session.read(permission, 0, &mut bytes));
        if let (Ok(()), Some(written)) = (&done, written)
            && u64::from_le_bytes(bytes) != written
        {
            let what = format!("a read under {:?} brought other bytes than were written", permission.id());
            self.board.told().wrong.push((Promise::Truth, what));
        }
        self.judge("a read", permission, ends, done)
    }

    fn extend(&mut self, permission: &Permission) -> bool {
        let last = permission.lease().started_after().after(permission.lease().longest());
        let by = Lifetime(self.dice.magnitude(1..4_000));
        let deadline = permission.lease().deadline().after(by).min(last);
        let extended =
            self.timed("an extension", Lifetime(0), |user| user.session.extend_to(permission, deadline));
        self.note("an extension", extended).is_some()
    }

    fn pause(&mut self) -> bool {
        self.clock.pass(self.dice.magnitude(MICROSECOND..200 * MICROSECOND));
        true
    }

    /// Makes an access or extension that races with the lease's end.
    fn come_at_the_last_moment(&mut self, permission: &Permission) -> bool {
        let left = permission.lease().deadline().since(self.clock.now());
        if left > Lifetime::millis(1) {
            return true;
        }
        let wait = left.0.saturating_sub(self.dice.of(0..LAST_MOMENT.0));
        let until = self.clock.now().after(Lifetime(wait));
        while self.clock.now() < until {
            self.clock.pass(until.since(self.clock.now()).0 * MICROSECOND);
        }
        if self.dice.per_mille(500) { self.read(permission, None) } else { self.extend(permission) }
    }

    /// Reports the error of an access. Returns whether there was none.
    fn judge(&self, what: &str, permission: &Permission, ends: Moment, done: Result<(), Error>) -> bool {
        if let Err(Error::Revoked) = done {
            let now = self.clock.now();
            self.board.told().early.push((permission.id(), ends.since(now)));
            if now >= ends {
                let wrong = format!(
                    "{what} under {:?} came {} µs after its end, and is reported as revoked",
                    permission.id(),
                    now.since(ends).0
                );
                self.board.told().wrong.push((Promise::Truth, wrong));
            }
        }
        self.note(what, done).is_some()
    }

    fn note<T>(&self, what: &str, done: Result<T, Error>) -> Option<T> {
        done.map_err(|error| self.board.told().errors.push((error, what.to_owned()))).ok()
    }
}
