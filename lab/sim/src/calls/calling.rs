//! The calls of a simulated client.

use super::client::{ClientLife, Connected};
use super::judge::{Asked, Ending};
use super::methods::{ARGUMENTS_MAX, BACK, Content, FAIL, LIST, NONE, PANIC, SUM, TRUSTED};
use super::world::{Socket, World};
use crate::clock::{MICROSECOND, MILLISECOND, Nanos};
use crate::dice::Dice;
use crate::oracle::Promise;
use portcullis_rpc::channel::ends::{Answer, Call, CallError, CallId, ClientEnd, DEPTH};
use portcullis_rpc::heap::Heap;
use portcullis_rpc::{Boxed, List, Scope, ScopeRef, Vector};

/// The most bytes of results that are read.
const RESULTS_MAX: u64 = 1 << 20;
/// The most answers that a client keeps.
const KEPT_MAX: usize = 3;
/// The most numbers of a list, which is followed element by element.
const LIST_MAX: usize = 700;

/// A call that is under way.
#[derive(Debug)]
pub(super) struct Underway {
    pub id: u64,
    call: CallId,
    scope: Option<Scope>,
    deadline: Option<Nanos>,
    begun: Nanos,
}

/// An answer that is kept, with the numbers of its result.
#[derive(Debug)]
pub(super) struct Kept {
    answer: Answer,
    numbers: Vec<u64>,
}

impl World {
    /// Processes the answers that have arrived.
    pub(super) fn hear_answers(&mut self, it: &mut Connected, life: &ClientLife, dice: &mut Dice) {
        let (mut at, now) = (0, self.now);
        while at < it.calls.len() && !life.steps.are_over() {
            let Underway { id, call, deadline, begun, .. } = it.calls[at];
            let Some(outcome) = it.end.poll(call, || now) else {
                let is_late = deadline.is_some_and(|deadline| now >= deadline);
                self.judge.check(Promise::Timeliness, !is_late, || {
                    format!("the caller of call {id} still waits at {now}, whose deadline was {deadline:?}")
                });
                self.judge.check(Promise::Progress, !it.is_gone, || {
                    format!("call {id}, begun at {begun}, is still under way when its server is gone")
                });
                at += 1;
                continue;
            };
            let underway = it.calls.remove(at);
            self.hear(it, underway, outcome, dice);
        }
    }

    fn hear(
        &mut self,
        it: &mut Connected,
        underway: Underway,
        outcome: Result<Answer, CallError>,
        dice: &mut Dice,
    ) {
        let Underway { id, call, scope, .. } = underway;
        let mut kept = None;
        let method = self.judge.asked.get(&id).map(|asked| asked.method);
        let ending = match outcome {
            Err(error) => Ending::Error(error),
            Ok(answer) if method == Some(BACK) || it.is_lied_to => match numbers(&mut it.end, &answer) {
                Ok(numbers) => {
                    let ending = Ending::Done(answer.word(), Some(numbers.clone()));
                    kept = Some(Kept { answer, numbers });
                    ending
                }
                Err(error) => Ending::Error(error),
            },
            Ok(answer) => Ending::Done(answer.word(), None),
        };
        self.note(&[7, it.socket, id], || format!("call {id} ends at its caller"));
        if !it.is_lied_to {
            self.judge.answered(id, &ending, it.is_gone);
            let again = it.end.poll(call, || 0);
            let is_known = !it.is_gone && !matches!(again, Some(Err(CallError::NoSuchCall)));
            self.judge
                .check(Promise::Answer, !is_known, || format!("call {id} is answered again: {again:?}"));
        }
        if let Some(kept) = kept {
            if it.kept.len() < KEPT_MAX && dice.per_mille(400) {
                it.kept.push(kept)
            } else {
                self.let_go(it, kept)
            }
        }
        if let Some(scope) = scope {
            // A caller that no longer waits may put something else into its scope.
            if ending == Ending::Error(CallError::Late) {
                write_over(&scope, it, dice.any());
            }
            self.judge.scope_freed(scope.address());
        }
    }

    /// Releases an answer, whose result must be unchanged.
    pub(super) fn let_go(&mut self, it: &mut Connected, kept: Kept) {
        let Kept { answer, numbers: before } = kept;
        if !it.is_lied_to {
            let is_same = numbers(&mut it.end, &answer).is_ok_and(|now| now == before);
            let socket = it.socket;
            self.judge.check(Promise::Answer, is_same, || {
                format!("a result of connection {socket} has changed while it was kept")
            });
        }
    }

    /// Cancels a call now and then.
    pub(super) fn cancel_some(&mut self, it: &mut Connected, life: &ClientLife, dice: &mut Dice) {
        if life.steps.are_over() || it.calls.is_empty() || !dice.per_mille(80) {
            return;
        }
        let Underway { id, call, .. } = it.calls[dice.index(it.calls.len())];
        if it.end.cancel(call).is_some()
            && let Some(asked) = self.judge.asked.get_mut(&id)
        {
            asked.is_cancelled = true;
            self.note(&[8, id], || format!("call {id} is cancelled"));
        }
    }

    /// Begins a call, if there is room for its arguments.
    pub(super) fn begin(&mut self, client: usize, it: &mut Connected, life: &ClientLife, dice: &mut Dice) {
        let method = [SUM, BACK, TRUSTED, FAIL, PANIC, LIST, NONE][dice.weighted(&[30, 25, 15, 6, 6, 15, 3])];
        let made = arguments(it, method, dice);
        // A full heap has room again after answers have arrived.
        let Some(Arguments { scope, root, content }) = made.filter(|_| !life.steps.are_over()) else {
            return;
        };
        let reference = scope.as_ref().map_or(ScopeRef::default(), Scope::reference);
        // A method that reads arguments in place may do so until it has ended, however late.
        let may_be_late = method != TRUSTED && dice.per_mille(450);
        let deadline = may_be_late.then(|| self.now + dice.magnitude(10 * MICROSECOND..1_000 * MILLISECOND));
        let (id, bytes, begun, socket) = (self.next_id, reference.length, self.now, it.socket);
        let call = match it.end.begin(Call { method, scope: reference, root, word: id, deadline }) {
            Ok(call) => call,
            Err(error) => {
                let Socket { begun, replied, .. } = self.sockets[&socket];
                let is_full = begun - replied >= u64::from(DEPTH) || it.is_lied_to;
                return self.judge.check(Promise::Service, is_full && error == CallError::TooMany, || {
                    format!("client {client} cannot call beside {} calls: {error}", begun - replied)
                });
            }
        };
        self.next_id += 1;
        self.note(&[9, socket, id, u64::from(method), content.hash], || {
            format!("client {client} begins call {id} of method {method} on connection {socket}")
        });
        if let Some(scope) = scope.as_ref().filter(|_| !it.is_lied_to) {
            self.use_scope(scope, socket);
        }
        let asked = Asked { method, content, bytes, deadline, has_ended: it.is_lied_to, ..Asked::default() };
        self.judge.asked.insert(id, asked);
        it.calls.push(Underway { id, call, scope, deadline, begun });
        it.last = Some(call);
        let socket = self.sockets.get_mut(&socket).expect("it is there");
        socket.begun += 1;
        self.judge.under_way_peak = self.judge.under_way_peak.max(socket.begun - socket.replied);
    }

    /// Records that a connection uses a scope from here on.
    fn use_scope(&mut self, scope: &Scope, socket: u64) {
        let (address, length) = (scope.address(), scope.length());
        // A client that stands still without a lease has lost what it had.
        if let Some(other) = self.judge.user_of(address, length)
            && let Some(lease) = self.lease_of_client(other)
            && !self.directory.lives(lease, self.now)
        {
            self.judge.connection_ended(other);
        }
        self.judge.scope_taken(address, length, socket);
    }
}

/// Arguments of a call.
#[derive(Debug)]
struct Arguments {
    scope: Option<Scope>,
    root: u64,
    content: Content,
}

/// Creates the arguments of a call in one of the client's heaps. `None`: the heap has no room.
fn arguments(it: &Connected, method: u32, dice: &mut Dice) -> Option<Arguments> {
    let count = if dice.per_mille(50) { ARGUMENTS_MAX / 8 + 100 } else { dice.magnitude(1..1_500) };
    let sent: Vec<u64> = (0..count).map(|_| dice.any()).collect();
    let heap = match &it.shared {
        Some((heap, _)) if dice.per_mille(400) => heap,
        _ => it.end.heap(),
    };
    let sent = &sent[..if method == LIST { sent.len().min(LIST_MAX) } else { sent.len() }];
    let (scope, root) = match method {
        FAIL | PANIC | NONE => return Some(Arguments { scope: None, root: 0, content: Content::default() }),
        LIST => list(heap, sent),
        _ => vector(heap, sent),
    }?;
    Some(Arguments { scope: Some(scope), root, content: Content::of(sent) })
}

fn vector(heap: &Heap, sent: &[u64]) -> Option<(Scope, u64)> {
    let scope = heap.scope(sent.len() as u64 * 8 + 64).ok()?;
    let vector = Vector::new(&scope, sent).ok()?;
    let root = Boxed::new(&scope, vector).ok()?.address();
    Some((scope, root))
}

fn list(heap: &Heap, sent: &[u64]) -> Option<(Scope, u64)> {
    let scope = heap.scope(sent.len() as u64 * 32 + 64).ok()?;
    let mut list = List::<u64>::EMPTY;
    for &number in sent {
        list.push_back(&scope, number).ok()?;
    }
    let root = Boxed::new(&scope, list).ok()?.address();
    Some((scope, root))
}

/// Returns the numbers of a result.
fn numbers(end: &mut ClientEnd, answer: &Answer) -> Result<Vec<u64>, CallError> {
    let looked = end.look::<Vector<u64>>(answer, RESULTS_MAX)?;
    let numbers = looked.get().and_then(|it| it.get(looked.view()));
    numbers.map(<[u64]>::to_vec).map_err(|_| CallError::Nonsense)
}

fn write_over(scope: &Scope, it: &Connected, with: u64) {
    let shared = it.shared.as_ref().map(|(heap, _)| heap);
    let heap = shared.filter(|heap| heap.place().offset(scope.address(), 1).is_some());
    let heap = heap.unwrap_or_else(|| it.end.heap());
    for at in (0..scope.used() & !7).step_by(8) {
        let _ = heap.set(Boxed::at(scope.address() + at), with ^ at);
    }
}
