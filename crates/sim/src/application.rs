//! An honest program with a [`Session`], whose calls wait, and a keeper. Each of the two runs on its own strand.

use crate::clock::{MICROSECOND, Nanos};
use crate::dice::Dice;
use crate::endpoint::{SimEndpoint, Switch};
use crate::oracle::{Promise, SessionId};
use crate::scene::Scene;
use crate::strand::{Said, Strand, StrandClock};
use crate::worker::{TOLERANCE, check_error};
use portcullis::{Clock, Kept, Permission, Session, Tending};
use portcullis_client::{Acquire, Allocate, ClientConfig, Error, Lease};
use portcullis_protocol::{Lifetime, Moment, ObjectRef, PermissionId, Rights};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type SimSession = Session<SimEndpoint, StrandClock>;

/// How often a keeper looks for a lease to keep.
const KEEPER_LOOKS_EVERY: Nanos = 50 * MICROSECOND;
/// The end of a lease, with which an access or extension races.
const LAST_MOMENT: Lifetime = Lifetime::micros(12);

/// What a program's strands tell the cluster and each other.
#[derive(Debug, Default)]
struct Told {
    /// Errors of calls, each with what failed.
    errors: Vec<(Error, String)>,
    /// Permissions that were refused early, and how early.
    early: Vec<(PermissionId, Lifetime)>,
    /// Broken promises, whatever faults there were.
    wrong: Vec<(Promise, String)>,
    /// Objects that siblings may acquire.
    objects: Vec<ObjectRef>,
    /// The latest object that a sibling has shared.
    heard: Option<ObjectRef>,
    /// A lease for the keeper, and its step.
    to_keep: Option<(Arc<Lease>, Lifetime)>,
    kept: Option<Kept>,
}

#[derive(Clone, Debug, Default)]
struct Board {
    told: Arc<Mutex<Told>>,
    winding_down: Arc<AtomicBool>,
}

impl Board {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn winds_down(&self) -> bool {
        self.winding_down.load(Ordering::Relaxed)
    }
}

/// A program with sessions, as the cluster sees it.
#[derive(Debug)]
pub(crate) struct Application {
    board: Board,
    work: Strand,
    keeper: Option<(SessionId, Strand)>,
    /// The switches that tell the two ends that the node is gone.
    node_gone: Vec<(SessionId, Switch)>,
    /// Faults have touched the program.
    excused: bool,
}

/// The result of a program's turn.
pub(crate) enum Turn {
    /// The program wants its next turn after this time.
    Waits(Nanos),
    /// The program is done, or its session is over.
    Ended,
}

impl Application {
    /// Starts a program over the ends of its session and of its keeper, if there is one.
    ///
    /// # Errors
    /// The machine cannot start a thread.
    pub fn start(
        mut dice: Dice,
        config: ClientConfig,
        longest: Lifetime,
        (session, endpoint): (SessionId, SimEndpoint),
        keeper: Option<(SessionId, SimEndpoint)>,
    ) -> std::io::Result<Self> {
        let board = Board::default();
        let mut node_gone = vec![(session, endpoint.switches().1)];
        node_gone.extend(keeper.as_ref().map(|(session, endpoint)| (*session, endpoint.switches().1)));
        let (own, its) = (Dice::new(dice.any(), 1), board.clone());
        let work = strand(&mut dice, config, endpoint, move |session, clock| {
            Program { session, clock, dice: own, longest, board: its }.run();
        })?;
        let keeper = match keeper {
            Some((session, endpoint)) => {
                let its = board.clone();
                let keep = move |session, clock: StrandClock| keep(session, &clock, &its);
                Some((session, strand(&mut dice, config, endpoint, keep)?))
            }
            None => None,
        };
        Ok(Self { board, work, keeper, node_gone, excused: false })
    }

    /// The session of the keeper.
    pub fn keeper(&self) -> Option<SessionId> {
        self.keeper.as_ref().map(|(session, _)| *session)
    }

    /// Ends a session whose node is gone or has shown it out. Returns whether it was the program's.
    pub fn node_gone(&self, session: SessionId) -> bool {
        let its = self.node_gone.iter().find(|(number, _)| *number == session);
        its.inspect(|(_, gone)| gone.set(true)).is_some()
    }

    /// Gives each strand its turn, and passes what the strands report on to the checkers.
    pub fn turn(&mut self, scene: &mut Scene<'_>) -> Turn {
        self.excused |= scene.excused;
        self.board.winding_down.store(scene.winding_down, Ordering::Relaxed);
        self.board.told().heard = scene.gossip.objects[scene.tenant].back().copied();
        let kept = self.keeper.as_mut().map(|(_, keeper)| keeper.turn(scene.moment));
        let worked = self.work.turn(scene.moment);
        self.report(scene);
        let next = match (worked, kept) {
            (Said::Panicked(words), _) | (_, Some(Said::Panicked(words))) => {
                scene.fail(Promise::Soundness, format!("a session panicked, which says: {words}"));
                return Turn::Ended;
            }
            (Said::Ended, _) => return Turn::Ended,
            (Said::Waits(work), Some(Said::Waits(keeper))) => work.min(keeper),
            (Said::Waits(work), _) => work,
        };
        Turn::Waits(next)
    }

    fn report(&self, scene: &mut Scene<'_>) {
        let mut told = self.board.told();
        for object in told.objects.drain(..) {
            scene.gossip.share(scene.tenant, object);
        }
        for (error, of) in told.errors.drain(..) {
            check_error(scene, error, self.excused, &of);
        }
        for (promise, what) in told.wrong.drain(..) {
            let what = format!("session {}: {what}", scene.session);
            scene.fail(promise, what);
        }
        for (permission, early) in told.early.drain(..) {
            let unasked = !scene.clocks_off
                && !scene.oracle.was_barred(scene.session)
                && !scene.oracle.is_vandalised(scene.session, permission);
            if early > TOLERANCE && unasked {
                let session = scene.session;
                let what =
                    format!("session {session} was refused {} µs before the end of its permission", early.0);
                scene.fail(Promise::Truth, what);
            }
        }
    }
}

/// Starts a strand with a session over `endpoint`.
fn strand(
    dice: &mut Dice,
    config: ClientConfig,
    mut endpoint: SimEndpoint,
    script: impl FnOnce(SimSession, StrandClock) + Send + 'static,
) -> std::io::Result<Strand> {
    Strand::start(Dice::new(dice.any(), 2), move |clock| {
        endpoint.waits_on(clock.clone());
        if let Ok(session) = Session::over(endpoint, 0, config, clock.clone()) {
            script(session, clock);
        }
    })
}

/// The real keeper's turns, without its thread and its channel.
fn keep(session: SimSession, clock: &StrandClock, board: &Board) {
    let mut tending = Tending::new(session);
    while !board.winds_down() {
        let next = board.told().to_keep.take();
        if let Some((lease, by)) = next {
            let kept = tending.keep(lease, by);
            board.told().kept = Some(kept);
        }
        let sleep = u64::try_from(tending.tend().as_nanos()).unwrap_or(u64::MAX);
        clock.pass(sleep.min(KEEPER_LOOKS_EVERY));
    }
}

/// What runs on a program's strand.
struct Program {
    session: SimSession,
    clock: StrandClock,
    dice: Dice,
    longest: Lifetime,
    board: Board,
}

impl Program {
    fn run(mut self) {
        while !self.board.winds_down() && self.session.client().over().is_none() {
            let granted = self.get();
            if let Some(permission) = self.note("a grant", granted) {
                self.use_up(permission);
            }
            self.clock.pass(self.dice.magnitude(MICROSECOND..50 * MICROSECOND));
        }
    }

    fn lifetime(&mut self) -> Lifetime {
        Lifetime(self.dice.magnitude(60..self.longest.0.max(100)))
    }

    fn get(&mut self) -> Result<Permission, Error> {
        let lifetime = self.lifetime();
        let heard = self.board.told().heard;
        if let Some(object) = heard.filter(|_| self.dice.per_mille(400)) {
            let wait = Lifetime(self.dice.magnitude(1..5_000));
            return self.session.acquire(Acquire::object(object).lifetime(lifetime).wait(wait));
        }
        let mut ask = Allocate::bytes(8 * self.dice.of(1..64)).lifetime(lifetime);
        if self.dice.per_mille(300) {
            ask = ask.keep();
        }
        self.session.allocate(ask)
    }

    /// Works under a permission until it is done with or over.
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
            let ended = self.session.revoke(permission);
            self.note("a revocation", ended);
        }
    }

    fn write(&mut self, permission: &Permission, written: &mut Option<u64>) -> bool {
        if permission.length() < 8 || !permission.rights().contains(Rights::WRITE) {
            return true;
        }
        let (stamp, ends) = (self.dice.any(), permission.lease().deadline());
        let done = self.session.write(permission, 0, &stamp.to_le_bytes());
        *written = done.is_ok().then_some(stamp);
        self.judge("a write", permission, ends, done)
    }

    fn read(&mut self, permission: &Permission, written: Option<u64>) -> bool {
        if permission.length() < 8 || !permission.rights().contains(Rights::READ) {
            return true;
        }
        let (mut bytes, ends) = ([0; 8], permission.lease().deadline());
        let done = self.session.read(permission, 0, &mut bytes);
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
        let extended = self.session.extend_to(permission, deadline);
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

    /// Reports an access's error. Returns whether there was none.
    fn judge(&self, what: &str, permission: &Permission, ends: Moment, done: Result<(), Error>) -> bool {
        if let Err(Error::Revoked) = done {
            let now = self.clock.now();
            self.board.told().early.push((permission.id(), ends.since(now)));
            if now >= ends {
                let wrong = format!(
                    "{what} under {:?} came {} µs after its end, and is said to have been revoked",
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
