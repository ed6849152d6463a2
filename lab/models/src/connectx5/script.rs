//! The program of a microbenchmark's client: a few steps that repeat, through the real client library.

use super::counts::counts;
use super::ends::ModelClient;
use super::rig::Driver;
use crate::time::Nanos;
use portcullis_client::{
    Access, Acquire, Allocate, Answer, Call, ControlRequest, Error, Operation, Permission,
};
use portcullis_protocol::{Lifetime, Moment, ObjectRef, Sharing};
use portcullis_sim::Dice;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Bytes of an access.
pub(super) const ACCESS_BYTES: u32 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Allocates an object that stays, and shares it.
    Allocate { bytes: u64, lifetime: Lifetime },
    /// Waits until all clients are ready.
    Gather,
    /// Begins a counted round.
    Begin,
    /// Acquires a random one of the shared objects.
    Acquire { lifetime: Lifetime, sharing: Sharing },
    /// Reads 64 bytes: at a random offset if `first`, else at the same offset as the last read.
    Read { first: bool },
    /// Extends by this time, with the lifetime word or a message.
    Extend { by: Lifetime, message: bool },
    /// Revokes the permission.
    Revoke,
    /// Forgets the permission, which then expires.
    Forget,
    /// Does nothing for this time.
    Hang(Nanos),
    /// Ends a counted round.
    End,
}

/// The counts of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Score {
    /// Completed rounds.
    pub rounds: u64,
    /// Time of the rounds, in ns.
    pub round_ns: Nanos,
    pub accesses: u64,
    pub grants: u64,
    /// Time from the requests for permissions to their grants, in ns.
    pub grant_ns: Nanos,
    /// Rounds that were given up, because a permission had ended before its use or was refused.
    pub given_up: u64,
}

counts!(Score: rounds, round_ns, accesses, grants, grant_ns, given_up);

/// State that the clients of a run share.
#[derive(Debug)]
pub(super) struct Common {
    /// The shared objects of each core.
    pub objects: Vec<RefCell<Vec<ObjectRef>>>,
    /// Number of clients that are ready.
    pub ready: Cell<usize>,
    /// Whether the clients may go on.
    pub go: Cell<bool>,
}

#[derive(Debug)]
enum Pending {
    Call(Call),
    Operation(Operation),
}

/// A client that runs a program.
#[derive(Debug)]
pub(super) struct Script {
    steps: Vec<Step>,
    /// The step at which the repetition begins.
    repeat: usize,
    at: usize,
    core: usize,
    common: Rc<Common>,
    dice: Dice,
    pending: Option<Pending>,
    permission: Option<Permission>,
    offset: u64,
    gathered: bool,
    hangs_until: Option<Nanos>,
    asked: Nanos,
    begun: Nanos,
    pub score: Score,
}

fn moment(now: Nanos) -> Moment {
    Moment(now / 1000)
}

impl Script {
    /// Runs `once`, then `again` for ever.
    pub fn new(once: &[Step], again: &[Step], core: usize, common: Rc<Common>, dice: Dice) -> Self {
        Self {
            steps: [once, again].concat(),
            repeat: once.len(),
            at: 0,
            core,
            common,
            dice,
            pending: None,
            permission: None,
            offset: 0,
            gathered: false,
            hangs_until: None,
            asked: 0,
            begun: 0,
            score: Score::default(),
        }
    }

    fn advance(&mut self) {
        self.at += 1;
        if self.at == self.steps.len() {
            self.at = self.repeat;
        }
    }

    fn give_up(&mut self) {
        self.score.given_up += 1;
        self.permission = None;
        self.at = self.repeat;
    }

    /// Takes the result of the pending step. Returns whether no step is pending any more.
    fn take(&mut self, client: &mut ModelClient, now: Nanos) -> bool {
        let ended = match self.pending.take() {
            None => return true,
            Some(Pending::Call(call)) => match client.take_call(call) {
                None => {
                    self.pending = Some(Pending::Call(call));
                    return false;
                }
                Some(Ok(Answer::Granted(permission))) => {
                    self.score.grants += 1;
                    self.score.grant_ns += now - self.asked;
                    if matches!(self.steps[self.at], Step::Allocate { .. }) {
                        self.common.objects[self.core].borrow_mut().push(permission.object());
                    }
                    self.permission = Some(permission);
                    true
                }
                Some(answer) => answer.is_ok(),
            },
            Some(Pending::Operation(operation)) => match client.take(operation) {
                None => {
                    self.pending = Some(Pending::Operation(operation));
                    return false;
                }
                Some(outcome) => {
                    self.score.accesses += u64::from(outcome.result.is_ok());
                    outcome.result.is_ok()
                }
            },
        };
        if ended {
            self.advance()
        } else {
            self.give_up()
        }
        true
    }

    fn call<E>(&mut self, call: Result<Call, E>, now: Nanos) {
        self.asked = now;
        match call {
            Ok(call) => self.pending = Some(Pending::Call(call)),
            Err(_) => self.give_up(),
        }
    }

    fn read(&mut self, client: &mut ModelClient, first: bool, now: Nanos) {
        let Some(permission) = &self.permission else { return self.give_up() };
        if first {
            let places = permission.length() / u64::from(ACCESS_BYTES);
            self.offset = self.dice.of(0..places.max(1)) * u64::from(ACCESS_BYTES);
        }
        let Ok(buffer) = client.buffer(ACCESS_BYTES) else { return self.give_up() };
        match client.access(moment(now), Access::read(permission, self.offset, buffer)) {
            Ok(operation) => self.pending = Some(Pending::Operation(operation)),
            Err(_) => self.give_up(),
        }
    }

    fn extend(&mut self, client: &mut ModelClient, by: Lifetime, message: bool, now: Nanos) {
        let Some(permission) = &self.permission else { return self.give_up() };
        let (lease, deadline) = (permission.lease(), permission.lease().deadline().after(by));
        let call = if message {
            client.extend_by_rpc(moment(now), lease, deadline)
        } else {
            client.call(moment(now), ControlRequest::extend_to(lease, deadline)).map_err(Error::from)
        };
        self.call(call, now);
    }

    /// Begins the current step. `Err`: the client waits, until the given time if no completion arrives.
    fn begin(&mut self, client: &mut ModelClient, now: Nanos) -> Result<(), Option<Nanos>> {
        match self.steps[self.at] {
            Step::Allocate { bytes, lifetime } => {
                let call = client.call(moment(now), Allocate::bytes(bytes).lifetime(lifetime).keep());
                self.call(call, now);
            }
            Step::Gather => {
                if !std::mem::replace(&mut self.gathered, true) {
                    self.common.ready.set(self.common.ready.get() + 1);
                }
                if !self.common.go.get() {
                    return Err(None);
                }
                self.advance();
            }
            Step::Begin => {
                self.begun = now;
                self.advance();
            }
            Step::Acquire { lifetime, sharing } => {
                let object = self.dice.pick(&self.common.objects[self.core].borrow()).copied();
                let Some(object) = object else { return Err(None) };
                let ask = Acquire { sharing, ..Acquire::object(object).lifetime(lifetime) };
                let call = client.call(moment(now), ask);
                self.call(call, now);
            }
            Step::Read { first } => self.read(client, first, now),
            Step::Extend { by, message } => self.extend(client, by, message, now),
            Step::Revoke => match self.permission.take() {
                Some(permission) => {
                    let call = client.call(moment(now), ControlRequest::revoke(permission));
                    self.call(call, now);
                }
                None => self.give_up(),
            },
            Step::Forget => {
                self.permission = None;
                self.advance();
            }
            Step::Hang(time) => match self.hangs_until {
                None if time > 0 => {
                    self.hangs_until = Some(now + time);
                    return Err(Some(now + time));
                }
                Some(until) if until > now => return Err(Some(until)),
                _ => {
                    self.hangs_until = None;
                    self.advance();
                }
            },
            Step::End => {
                self.score.rounds += 1;
                self.score.round_ns += now - self.begun;
                self.advance();
            }
        }
        Ok(())
    }
}

/// The most steps of a client at one moment. A client that does more makes no progress.
const AT_ONCE_MAX: usize = 64;
/// How long a client without progress pauses.
const PAUSE: Nanos = 1_000;

impl Driver for Script {
    fn act(&mut self, client: &mut ModelClient, now: Nanos) -> Option<Nanos> {
        for _ in 0..AT_ONCE_MAX {
            if !self.take(client, now) {
                return None;
            }
            if let Err(next) = self.begin(client, now) {
                return next;
            }
        }
        Some(now + PAUSE)
    }
}
