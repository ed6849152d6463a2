//! An honest program with a [`Session`], whose calls wait. It runs on its own fiber, and so does its keeper, if it has one.

mod blocks;
mod chunks;
mod claims;
mod commons;
mod permissions;
mod queue;
mod structure;
mod table;

pub(crate) use commons::Commons;
pub(crate) use structure::{LAST_LOOKS, LEASES_OF_A_LOOK, WORDS_OF_LOOKS};

use crate::clock::{MICROSECOND, Nanos};
use crate::dice::Dice;
use crate::endpoint::{SimEndpoint, Switch};
use crate::fiber::{Fiber, FiberClock, TurnEnd};
use crate::oracle::{Promise, SessionId};
use crate::scene::Scene;
use crate::worker::{TOLERANCE, check_error};
use blocks::BlockUser;
use chunks::ChunkUser;
use claims::ClaimUser;
use permissions::PermissionUser;
use portcullis::{Kept, Session, Tending};
use portcullis_client::{ClientConfig, Error, Lease};
use portcullis_protocol::{Credential, Lifetime, ObjectRef, PermissionId, RemoteAddress};
use queue::QueueUser;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use structure::User;
use table::TableUser;

type SimSession = Session<SimEndpoint, FiberClock>;

/// How often a keeper looks for a lease to keep.
const KEEPER_LOOKS_EVERY: Nanos = 50 * MICROSECOND;

/// Reports of a program's fibers to the cluster and to each other.
#[derive(Debug, Default)]
struct Told {
    /// Errors of calls, each with the operation that failed.
    errors: Vec<(Error, String)>,
    /// Permissions that were refused before their end, each with the time that was left.
    early: Vec<(PermissionId, Lifetime)>,
    /// Operations that exceeded their time limit: the operation, its duration, and its limit.
    slow: Vec<(String, Lifetime, Lifetime)>,
    /// Broken promises that no fault excuses.
    wrong: Vec<(Promise, String)>,
    /// Objects that siblings may acquire.
    objects: Vec<ObjectRef>,
    /// Chunks that others may try to reach.
    chunks: Vec<(RemoteAddress, Credential, u64)>,
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
    /// The limit that each operation has to keep to.
    limit: Option<Lifetime>,
}

impl Board {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn winds_down(&self) -> bool {
        self.winding_down.load(Ordering::Relaxed)
    }
}

/// A structure that programs share.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Structure {
    Table,
    Queue,
    Claims,
    Blocks,
}

/// Purpose of a program.
#[derive(Debug)]
pub(crate) enum Purpose {
    /// The program gets permissions of at most this lifetime, and uses them.
    Permissions(Lifetime),
    /// The program allocates chunks, and uses them.
    Chunks,
    /// The program works on the structure of its run. One program, the founder, creates the structure and checks it
    /// at the end.
    Structure { kind: Structure, commons: Commons, is_founder: bool, lease_min: Lifetime, values_max: usize },
}

/// A program with sessions, as the cluster sees it.
#[derive(Debug)]
pub(crate) struct Application {
    board: Board,
    work: Fiber,
    keeper: Option<(SessionId, Fiber)>,
    /// The switches that mark the node as gone, for the ends of the program's sessions.
    node_gone: Vec<(SessionId, Switch)>,
    /// Whether faults have touched the program.
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
        (config, (within, kept_limit)): (ClientConfig, (Option<Lifetime>, Option<Lifetime>)),
        purpose: Purpose,
        ((session, endpoint), keeper): ((SessionId, SimEndpoint), Option<(SessionId, SimEndpoint)>),
    ) -> std::io::Result<Self> {
        let board = Board { limit: kept_limit, ..Board::default() };
        let config = (config, within);
        let mut node_gone = vec![(session, endpoint.switches().1)];
        node_gone.extend(keeper.as_ref().map(|(session, endpoint)| (*session, endpoint.switches().1)));
        let (own, its) = (Dice::new(dice.any(), 1), board.clone());
        let work = fiber(&mut dice, config, endpoint, move |session, clock| match purpose {
            Purpose::Permissions(longest) => {
                PermissionUser { session, clock, dice: own, longest, board: its }.run();
            }
            Purpose::Chunks => ChunkUser::new(session, clock, own, its).run(),
            Purpose::Structure { kind, commons, is_founder, lease_min, values_max } => {
                let user = User { clock, dice: own.into(), commons, board: its, is_founder, lease_min };
                match kind {
                    Structure::Table => TableUser { user, values_max }.run(session),
                    Structure::Queue => QueueUser(user).run(session),
                    Structure::Claims => ClaimUser(user).run(session),
                    Structure::Blocks => BlockUser(user).run(session),
                }
            }
        })?;
        let keeper = match keeper {
            Some((session, endpoint)) => {
                let its = board.clone();
                let keep = move |session, clock: FiberClock| keep(session, &clock, &its);
                Some((session, fiber(&mut dice, config, endpoint, keep)?))
            }
            None => None,
        };
        Ok(Self { board, work, keeper, node_gone, excused: false })
    }

    /// Returns the session of the keeper, if the program has one.
    pub fn keeper(&self) -> Option<SessionId> {
        self.keeper.as_ref().map(|(session, _)| *session)
    }

    /// Ends a session whose node is gone or has evicted it. Returns whether the session was the program's.
    pub fn node_gone(&self, session: SessionId) -> bool {
        let its = self.node_gone.iter().find(|(number, _)| *number == session);
        its.inspect(|(_, gone)| gone.set(true)).is_some()
    }

    /// Gives each fiber its turn, and passes what the fibers report on to the checkers.
    pub fn turn(&mut self, scene: &mut Scene<'_>) -> Turn {
        self.excused |= scene.excused;
        self.board.winding_down.store(scene.winding_down, Ordering::Relaxed);
        self.board.told().heard = scene.gossip.objects[scene.tenant].back().copied();
        let kept = self.keeper.as_mut().map(|(_, keeper)| keeper.turn(scene.moment));
        let worked = self.work.turn(scene.moment);
        self.report(scene);
        let next = match (worked, kept) {
            (TurnEnd::Panicked(words), _) | (_, Some(TurnEnd::Panicked(words))) => {
                scene.fail(Promise::Soundness, format!("a session panicked: {words}"));
                return Turn::Ended;
            }
            (TurnEnd::Ended, _) => return Turn::Ended,
            (TurnEnd::Waits(work), Some(TurnEnd::Waits(keeper))) => work.min(keeper),
            (TurnEnd::Waits(work), _) => work,
        };
        Turn::Waits(next)
    }

    fn report(&self, scene: &mut Scene<'_>) {
        let mut told = self.board.told();
        for object in told.objects.drain(..) {
            scene.gossip.share(scene.tenant, object);
        }
        told.chunks.drain(..).for_each(|chunk| scene.gossip.sight_chunk(chunk));
        for (error, of) in told.errors.drain(..) {
            check_error(scene, error, self.excused, &of);
        }
        for (what, took, most) in told.slow.drain(..) {
            let what =
                format!("session {}: {what} took {} µs, and may take {}", scene.session, took.0, most.0);
            scene.fail(Promise::Progress, what);
        }
        for (promise, what) in told.wrong.drain(..) {
            let what = format!("session {}: {what}", scene.session);
            scene.fail(promise, what);
        }
        for (permission, early) in told.early.drain(..) {
            let unasked = !scene.clocks_off
                && !scene.oracle.was_barred(scene.session)
                && !scene.oracle.may_end_early(scene.session, permission);
            if early > TOLERANCE && unasked {
                let session = scene.session;
                let what =
                    format!("session {session} was refused {} µs before the end of its permission", early.0);
                scene.fail(Promise::Truth, what);
            }
        }
    }
}

/// Starts a fiber with a session over `endpoint`.
fn fiber(
    dice: &mut Dice,
    (config, within): (ClientConfig, Option<Lifetime>),
    mut endpoint: SimEndpoint,
    script: impl FnOnce(SimSession, FiberClock) + Send + 'static,
) -> std::io::Result<Fiber> {
    Fiber::start(Dice::new(dice.any(), 2), move |clock| {
        endpoint.waits_on(clock.clone());
        if let Ok(session) = Session::over(endpoint, 0, config, clock.clone()) {
            let session = match within {
                Some(within) => session.limited_to(within),
                None => session,
            };
            script(session, clock);
        }
    })
}

/// Runs the real keeper's turns, without its thread and its channel.
fn keep(session: SimSession, clock: &FiberClock, board: &Board) {
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
