//! A simulated client: a process with the real client's end of a connection.

use super::calling::{Kept, Underway};
use super::holding::Holding;
use super::hostile;
use super::world::{Message, Next, Offer, Process, World};
use crate::clock::{MICROSECOND, MILLISECOND, Nanos};
use crate::dice::Dice;
use crate::oracle::Promise;
use crate::plan::FaultKind;
use portcullis_directory::{HeapRange, Lease, LeaseId};
use portcullis_memory::PrivateView;
use portcullis_rpc::channel::ends::{CallId, ClientEnd, DEPTH, REQUESTS, Writer};
use portcullis_rpc::heap::{Heap, HeapPlace, Owner, Steps};

/// Owner number of the client in the heap of its connection.
const CLIENT: Owner = Owner(2);
/// How long a client waits for an offer.
const OFFERED_WITHIN: Nanos = 1_500 * MILLISECOND;
/// How often a client checks whether its server still holds the connection's heap.
const WATCH_EVERY: Nanos = 150 * MILLISECOND;
/// How long a client tolerates a server that may break the rules.
const PATIENCE: Nanos = 3_000 * MILLISECOND;

/// A connection, at the client.
#[derive(Debug)]
pub(super) struct Connected {
    pub socket: u64,
    pub end: ClientEnd,
    range: HeapRange,
    server_lease: LeaseId,
    pub shared: Option<(Heap, HeapRange)>,
    pub calls: Vec<Underway>,
    pub kept: Vec<Kept>,
    pub last: Option<CallId>,
    /// Number of free bytes in its heap when the heap was new.
    all: u64,
    next_watch: Nanos,
    since: Nanos,
    pub is_gone: bool,
    is_closing: bool,
    /// Whether the server serves the connection.
    is_welcome: bool,
    /// Whether the server may break the rules.
    pub is_lied_to: bool,
    /// Writer of a hostile client.
    garbage: Option<Writer>,
}

/// A client, from its start to its end.
#[derive(Debug, Default)]
pub(super) struct ClientLife {
    pub steps: Steps,
    holding: Option<Holding>,
    /// Time until which the client waits for an offer.
    knocked_until: Option<Nanos>,
    connected: Option<Connected>,
}

impl ClientLife {
    fn lease(&self) -> Option<&Lease> {
        self.holding.as_ref().map(|it| &it.lease)
    }
}

impl World {
    /// Returns the lease of a connection's client, while the client is still in the life that has the connection.
    pub(super) fn lease_of_client(&self, socket: u64) -> Option<LeaseId> {
        let (client, life) = self.sockets.get(&socket)?.client;
        let slot = self.clients.get(client).filter(|it| it.living() == Some(life))?;
        slot.life.as_ref()?.lease().map(Lease::id)
    }

    /// Executes a step of a client.
    pub(super) fn step_of_client(&mut self, client: usize) -> Next {
        let slot = &mut self.clients[client];
        let mut life = slot.life.take().expect("it lives");
        let mut dice = slot.dice.clone();
        let next = self.act(client, &mut life, &mut dice);
        let next = if life.steps.are_over() {
            Next::Dead(self.now + dice.magnitude(MILLISECOND..2_000 * MILLISECOND))
        } else {
            next
        };
        match next {
            Next::At(_) => self.clients[client].life = Some(life),
            Next::Dead(_) => {
                // Later steps of a dead process must have no effect.
                life.steps.die_after(0);
                if let Some(Connected { socket, .. }) = life.connected {
                    self.close(socket, Process::Client(client), &mut dice);
                    self.judge.connection_ended(socket);
                }
            }
        }
        self.clients[client].dice = dice;
        next
    }

    fn act(&mut self, client: usize, life: &mut ClientLife, dice: &mut Dice) -> Next {
        let now = self.now;
        if life.holding.as_ref().is_some_and(|it| it.is_over(now)) {
            // The client has stood still for longer than its lease, so what it had is no longer its own.
            return Next::Dead(now);
        }
        if self.strikes(FaultKind::ClientStop, 2, dice) {
            life.steps.die_after(dice.of(0..24));
        }
        let tenant = self.clients[client].tenant;
        match &mut life.holding {
            Some(holding) => {
                holding.keep(self);
            }
            None => life.holding = Holding::open(self, &tenant),
        }
        while let Some(message) = self.clients[client].inbox.pop_front() {
            self.hear_at_client(client, life, message, dice);
        }
        match life.connected.take() {
            Some(connected) => life.connected = self.use_connection(client, life, connected, dice),
            None => self.knock(client, life, dice),
        }
        if self.strikes(FaultKind::ClientPause, 4, dice) {
            return Next::At(now + Self::standstill(dice));
        }
        Next::At(now + dice.magnitude(MICROSECOND..2 * self.terms.think))
    }

    /// Looks up a channel, and requests a connection from its server.
    fn knock(&mut self, client: usize, life: &mut ClientLife, dice: &mut Dice) {
        let is_waiting = life.knocked_until.is_some_and(|until| self.now < until);
        if is_waiting || self.is_resting() || life.holding.is_none() {
            return;
        }
        let server = dice.index(self.servers.len());
        let (name, tenant) = (self.name(server), self.clients[client].tenant);
        let Some(at) = self.directory.look_up(&tenant, &name, self.now, &mut self.judge) else { return };
        let Ok(life_of_server) = at.parse() else { return };
        life.knocked_until = Some(self.now + OFFERED_WITHIN);
        let message = Message::Knock { client, life: self.clients[client].lives };
        self.send(Process::Server(server), life_of_server, message, dice);
    }

    fn hear_at_client(&mut self, client: usize, life: &mut ClientLife, message: Message, dice: &mut Dice) {
        match message {
            Message::Offer(offer) => {
                let (socket, is_wanted) = (offer.socket, life.knocked_until.take().is_some());
                let connected = if is_wanted { self.take_offer(client, life, *offer) } else { None };
                match connected {
                    Some(connected) => {
                        let (server, of) = self.sockets[&socket].server;
                        self.send(Process::Server(server), of, Message::Mapped { socket }, dice);
                        self.note(&[5, socket], || {
                            format!("client {client} has connection {socket} to {server}")
                        });
                        life.connected = Some(connected);
                    }
                    None => self.close(socket, Process::Client(client), dice),
                }
            }
            Message::Refused => life.knocked_until = None,
            Message::Closed { socket } => {
                if let Some(connected) = life.connected.as_mut().filter(|it| it.socket == socket) {
                    connected.is_gone = true;
                }
            }
            Message::Welcome { socket } => {
                if let Some(connected) = life.connected.as_mut().filter(|it| it.socket == socket) {
                    connected.is_welcome = true;
                }
            }
            Message::Knock { .. } | Message::Mapped { .. } => {}
        }
    }

    fn take_offer(&mut self, client: usize, life: &ClientLife, offer: Offer) -> Option<Connected> {
        let Offer { socket, heap, range, ring, server_lease, shared } = offer;
        let lease = life.lease()?.clone();
        if !self.directory.hold(&lease, range.address, self.now, &mut self.judge) {
            return None;
        }
        let open = |heap: &Heap, range: HeapRange, owner| {
            let place = HeapPlace::new(range.address, range.bytes).ok()?;
            let file = heap.file().try_clone_to_owned().ok()?;
            Some(Heap::open(file, place, owner).ok()?.dying(life.steps.clone()))
        };
        let (heap, results) = (open(&heap, range, CLIENT)?, PrivateView::anywhere(range.bytes).ok()?);
        let shared = shared.and_then(|(file, range, owner)| {
            let may_hold = self.directory.hold(&lease, range.address, self.now, &mut self.judge);
            may_hold.then(|| open(&file, range, owner)).flatten().map(|heap| (heap, range))
        });
        let is_hostile = self.is_hostile(client);
        Some(Connected {
            socket,
            garbage: is_hostile.then(|| Writer::new(ring.clone(), REQUESTS, DEPTH)),
            is_lied_to: self.is_lying(self.sockets[&socket].server.0),
            all: heap.free_bytes(),
            end: ClientEnd::new(heap, results, ring),
            range,
            server_lease,
            shared,
            calls: Vec::new(),
            kept: Vec::new(),
            last: None,
            next_watch: self.now,
            since: self.now,
            is_gone: false,
            is_closing: false,
            is_welcome: false,
        })
    }

    /// Does something with a connection. Returns it, if it has not ended.
    fn use_connection(
        &mut self,
        client: usize,
        life: &ClientLife,
        mut connected: Connected,
        dice: &mut Dice,
    ) -> Option<Connected> {
        let it = &mut connected;
        let lease = life.lease().expect("who has a connection has a lease").clone();
        if self.now >= it.next_watch && !it.is_gone {
            it.next_watch = self.now + WATCH_EVERY;
            let (address, server) = (it.range.address, it.server_lease);
            it.is_gone = !self.directory.is_held(address, server, self.now, &mut self.judge);
        }
        if it.is_gone {
            it.end.give_up();
        }
        it.is_closing |= self.is_resting() || dice.per_mille(4);
        if it.garbage.is_some() {
            self.break_rules(it, &lease, dice);
        } else {
            self.hear_answers(it, life, dice);
            self.cancel_some(it, life, dice);
            while !it.kept.is_empty() && (it.is_closing || dice.per_mille(300)) {
                let kept = it.kept.swap_remove(dice.index(it.kept.len()));
                self.let_go(it, kept);
            }
            let wanted = if it.is_closing || it.is_gone || !it.is_welcome { 0 } else { dice.index(3) };
            for _ in 0..wanted {
                if it.calls.len() < 2 * self.plan.held && !life.steps.are_over() {
                    self.begin(client, it, life, dice);
                }
            }
        }
        if life.steps.are_over() || !self.may_end(it) {
            return Some(connected);
        }
        self.end_connection(client, connected, &lease, dice);
        None
    }

    /// Whether a connection can end.
    fn may_end(&self, it: &Connected) -> bool {
        let is_impatient = it.is_lied_to && (it.is_closing || self.now > it.since + PATIENCE);
        let socket = &self.sockets[&it.socket];
        let is_quiet = it.calls.is_empty() && it.kept.is_empty() && socket.begun == socket.replied;
        it.is_gone || is_impatient || it.is_closing && (is_quiet || it.garbage.is_some())
    }

    fn end_connection(&mut self, client: usize, mut it: Connected, lease: &Lease, dice: &mut Dice) {
        let is_honest = !self.sockets[&it.socket].is_hostile;
        if is_honest && !it.is_gone {
            // The last answers must be processed, although their callers no longer wait.
            it.last.into_iter().for_each(|last| {
                it.end.has_ended(last);
            });
            let (free, all, socket) = (it.end.heap().free_bytes(), it.all, it.socket);
            self.judge.check(Promise::Rest, free == all, || {
                format!("{free} bytes of {all} are free in the heap of connection {socket}, whose calls have all ended")
            });
        }
        for call in &it.calls {
            if let Some(asked) = self.judge.asked.get_mut(&call.id) {
                asked.has_ended = true;
            }
        }
        self.note(&[6, it.socket], || format!("client {client} ends connection {}", it.socket));
        self.close(it.socket, Process::Client(client), dice);
        self.judge.connection_ended(it.socket);
        self.directory.release(lease, it.range.address, self.now, &mut self.judge);
        if let Some((_, range)) = &it.shared {
            self.directory.release(lease, range.address, self.now, &mut self.judge);
        }
    }

    /// Breaks the rules as a hostile client.
    fn break_rules(&mut self, it: &mut Connected, lease: &Lease, dice: &mut Dice) {
        let Some(writer) = &mut it.garbage else { return };
        for _ in 0..dice.of(1..6) {
            hostile::request(it.end.heap(), writer, dice);
        }
        // The client processes what arrives, as an honest client does.
        let _ = it.end.has_reply();
        if let Some(address) = self.directory.any_heap(dice) {
            // If that heap is for its tenant, or a mistake lets the client in, it does not stay.
            if self.directory.hold(lease, address, self.now, &mut self.judge) && address != it.range.address {
                self.directory.release(lease, address, self.now, &mut self.judge);
            }
        }
    }

    /// Checks the state of a client after the end of the run.
    pub(super) fn conclude_client(&mut self, client: usize) {
        let Some(life) = self.clients[client].life.take() else { return };
        if let Some(it) = &life.connected {
            let (socket, calls, kept) = (it.socket, it.calls.len(), it.kept.len());
            let what = format!(
                "client {client} cannot end connection {socket}, with {calls} calls and {kept} answers"
            );
            self.judge.fail(Promise::Progress, what);
        }
        if let Some(lease) = life.lease() {
            self.directory.end(lease, self.now);
        }
    }
}
