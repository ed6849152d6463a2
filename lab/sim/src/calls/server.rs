//! A simulated server: a process with the real server's ends, one for each of its connections.

use super::holding::Holding;
use super::hostile;
use super::methods::{Meanwhile, Scene, TRUSTED, clock, methods};
use super::world::{Message, Next, Offer, Process, Socket, World};
use crate::clock::{MICROSECOND, MILLISECOND, Nanos};
use crate::dice::Dice;
use crate::oracle::Promise;
use crate::plan::FaultKind;
use portcullis_directory::{HeapRange, Lease, Who};
use portcullis_memory::{Mapping, PrivateView};
use portcullis_protocol::TenantName;
use portcullis_rpc::channel::ends::{
    DEPTH, Methods, REPLIES, RING_BYTES, ReplyLine, Request, ServerEnd, ShardHeap, Writer,
};
use portcullis_rpc::heap::{Heap, HeapPlace, Owner, Steps};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Owner number of the server in each heap.
const SERVER: Owner = Owner(1);
/// Number of calls of a connection that are served in one step.
const CALLS_PER_STEP: u32 = 4;
/// How long a client may take to map the memory that it was offered.
const MAPPED_WITHIN: Nanos = 1_000 * MILLISECOND;
/// How often a server checks whether its clients still hold their heaps.
const WATCH_EVERY: Nanos = 150 * MILLISECOND;
/// The longest that a method takes.
const METHOD_MAX: Nanos = 60 * MILLISECOND;

/// A connection, at the server.
#[derive(Debug)]
pub(super) struct Served {
    end: ServerEnd,
    heap: Heap,
    range: HeapRange,
    client_lease: Option<portcullis_directory::LeaseId>,
    /// Owner number of the client in the heap of all clients.
    owner: Option<Owner>,
    /// Time until which the client must have mapped the memory. `None`: it has mapped it.
    unmapped_until: Option<Nanos>,
    is_hostile: bool,
    /// Writer of a server that breaks the rules.
    lies: Option<Writer>,
}

/// The heap of all clients.
#[derive(Debug)]
struct Shared {
    heap: Heap,
    shard_heap: ShardHeap,
    range: HeapRange,
    /// Number of free bytes in the heap when it was new.
    all: u64,
    owners: u16,
}

/// A reply that is not in the ring yet.
#[derive(Debug)]
struct Underway {
    socket: u64,
    reply: ReplyLine,
    ready: Nanos,
}

/// A server, from its start to its end.
#[derive(Debug)]
pub(super) struct ServerLife {
    steps: Steps,
    holding: Option<Holding>,
    is_named: bool,
    shared: Option<Shared>,
    connections: BTreeMap<u64, Served>,
    methods: Methods,
    underway: Option<Underway>,
    next_watch: Nanos,
}

impl ServerLife {
    pub fn new(scene: &Arc<Scene>) -> Self {
        Self {
            steps: Steps::default(),
            holding: None,
            is_named: false,
            shared: None,
            connections: BTreeMap::new(),
            methods: methods(scene),
            underway: None,
            next_watch: 0,
        }
    }

    fn lease(&self) -> Option<&Lease> {
        self.holding.as_ref().map(|it| &it.lease)
    }
}

/// Creates a heap at the range that the directory gave, and the view to which its arguments are copied.
fn make_heap(range: HeapRange) -> Option<(Heap, PrivateView)> {
    let place = HeapPlace::new(range.address, range.bytes).ok()?;
    Some((Heap::create(place, SERVER).ok()?, PrivateView::anywhere(range.bytes).ok()?))
}

impl World {
    /// Executes a step of a server.
    pub(super) fn step_of_server(&mut self, server: usize) -> Next {
        let slot = &mut self.servers[server];
        let mut life = slot.life.take().expect("it lives");
        let mut dice = slot.dice.clone();
        let next = self.serve(server, &mut life, &mut dice);
        self.servers[server].dice = dice.clone();
        match next {
            Next::At(_) if !life.steps.are_over() => {
                self.servers[server].life = Some(life);
                next
            }
            _ => {
                // Later steps of a dead process must have no effect.
                life.steps.die_after(0);
                let sockets: Vec<u64> = life.connections.keys().copied().collect();
                for socket in sockets {
                    self.close(socket, Process::Server(server), &mut dice);
                }
                Next::Dead(self.now + dice.magnitude(MILLISECOND..2_000 * MILLISECOND))
            }
        }
    }

    fn serve(&mut self, server: usize, life: &mut ServerLife, dice: &mut Dice) -> Next {
        let now = self.now;
        if life.holding.as_ref().is_some_and(|it| it.is_over(now)) {
            // The server has stood still for longer than its lease, so what it had is no longer its own.
            return Next::Dead(now);
        }
        if self.strikes(FaultKind::NodeStop, 1, dice) {
            life.steps.die_after(dice.of(0..24));
        }
        self.keep_place(server, life, dice);
        while let Some(message) = self.servers[server].inbox.pop_front() {
            self.hear_at_server(server, life, message, dice);
        }
        self.watch_clients(server, life, dice);
        if life.steps.are_over() {
            return Next::Dead(now);
        }
        if self.is_lying(server) {
            self.lie(life, dice);
        } else {
            self.serve_calls(life, dice);
        }
        if self.strikes(FaultKind::NodePause, 2, dice) {
            return Next::At(now + Self::standstill(dice));
        }
        let pause = dice.magnitude(MICROSECOND..self.terms.think / 2);
        let ready = life.underway.as_ref().map_or(0, |it| it.ready);
        Next::At(ready.max(now + pause))
    }

    /// Keeps the lease, the name and the heap of all clients.
    fn keep_place(&mut self, server: usize, life: &mut ServerLife, dice: &mut Dice) {
        let tenant = self.servers[server].tenant;
        match &mut life.holding {
            Some(holding) => {
                holding.keep(self);
            }
            None => life.holding = Holding::open(self, &tenant),
        }
        let Some(lease) = life.lease().cloned() else { return };
        if !life.is_named {
            let at = self.servers[server].lives.to_string();
            let name = self.name(server);
            life.is_named = self.directory.register(&lease, &name, &at, self.now, &mut self.judge);
        }
        if life.shared.is_none() && life.is_named && dice.per_mille(300) {
            life.shared = self.share(&lease, &life.steps, dice);
        }
    }

    fn share(&mut self, lease: &Lease, steps: &Steps, dice: &mut Dice) -> Option<Shared> {
        let tenants = (0..self.plan.tenants).filter(|_| dice.per_mille(700)).take(Who::TENANTS_MAX);
        let tenants = tenants.map(|it| TenantName::new(&format!("t{it}")).expect("a name"));
        let others = Who::tenants(tenants).expect("they are few");
        let range =
            self.directory.create(lease, self.terms.heap_bytes, &others, self.now, &mut self.judge)?;
        let (heap, view) = make_heap(range)?;
        let heap = heap.dying(steps.clone());
        let shard_heap = ShardHeap::new(&heap, Some(view)).ok()?;
        Some(Shared { all: heap.free_bytes(), heap, shard_heap, range, owners: SERVER.0 })
    }

    fn hear_at_server(&mut self, server: usize, life: &mut ServerLife, message: Message, dice: &mut Dice) {
        match message {
            Message::Knock { client, life: of } => {
                let message = match self.offer(server, life, (client, of)) {
                    Some(offer) => Message::Offer(Box::new(offer)),
                    None => Message::Refused,
                };
                self.send(Process::Client(client), of, message, dice);
            }
            Message::Mapped { socket } => {
                if let Some(served) = life.connections.get_mut(&socket) {
                    served.unmapped_until = None;
                    let (client, of) = self.sockets[&socket].client;
                    self.send(Process::Client(client), of, Message::Welcome { socket }, dice);
                }
            }
            Message::Closed { socket } => self.drop_served(life, socket),
            Message::Offer(_) | Message::Refused | Message::Welcome { .. } => {}
        }
    }

    fn offer(&mut self, server: usize, life: &mut ServerLife, client: (usize, u64)) -> Option<Offer> {
        let lease = life.lease()?.clone();
        let tenant = self.clients[client.0].tenant;
        let others = Who::tenants([tenant]).expect("it is one");
        let range =
            self.directory.create(&lease, self.terms.heap_bytes, &others, self.now, &mut self.judge)?;
        let (file, view) = make_heap(range)?;
        let heap = file.dying(life.steps.clone());
        let ring = Mapping::private(RING_BYTES).ok()?;
        let (is_hostile, is_lying) = (self.is_hostile(client.0), self.is_lying(server));
        let shared = life.shared.as_mut().filter(|_| !is_hostile && !is_lying).and_then(|shared| {
            // Numbers are not reused: a client that arrives when none is left has no part in that heap.
            shared.owners = shared.owners.checked_add(1)?;
            Some((shared.heap.clone(), shared.range, Owner(shared.owners)))
        });
        let socket = self.sockets.len() as u64 + 1;
        let life_of_server = self.servers[server].lives;
        let of = Socket {
            server: (server, life_of_server),
            client,
            is_hostile: is_hostile || is_lying,
            begun: 0,
            replied: 0,
        };
        self.sockets.insert(socket, of);
        let end = ServerEnd::new(heap.clone(), view, ring.clone());
        let served = Served {
            end,
            heap,
            range,
            client_lease: None,
            owner: shared.as_ref().map(|it| it.2),
            unmapped_until: Some(self.now + MAPPED_WITHIN),
            is_hostile,
            lies: is_lying.then(|| Writer::new(ring.clone(), REPLIES, DEPTH)),
        };
        life.connections.insert(socket, served);
        Some(Offer { socket, heap: file, range, ring, server_lease: lease.id(), shared })
    }

    /// Ends a connection that its client has left.
    fn drop_served(&mut self, life: &mut ServerLife, socket: u64) {
        let Some(served) = life.connections.remove(&socket) else { return };
        self.note(&[3, socket], || format!("the server's end of connection {socket} ends"));
        life.underway.take_if(|it| it.socket == socket);
        // Its client has left, or stands still without a lease.
        self.judge.connection_ended(socket);
        if let (Some(shared), Some(owner)) = (&life.shared, served.owner) {
            shared.heap.reclaim(owner);
        }
        if let Some(lease) = life.lease() {
            self.directory.release(lease, served.range.address, self.now, &mut self.judge);
        }
    }

    /// Finds clients that no longer hold their heap, or never did.
    fn watch_clients(&mut self, server: usize, life: &mut ServerLife, dice: &mut Dice) {
        if self.now < life.next_watch {
            return;
        }
        life.next_watch = self.now + WATCH_EVERY;
        let sockets: Vec<u64> = life.connections.keys().copied().collect();
        for socket in sockets {
            let Some(served) = life.connections.get_mut(&socket) else { continue };
            let is_there = match (served.unmapped_until, served.client_lease) {
                (Some(until), _) => self.now < until,
                (None, Some(lease)) => {
                    let address = served.range.address;
                    self.directory.is_held(address, lease, self.now, &mut self.judge)
                }
                (None, None) => {
                    served.client_lease = self.lease_of_client(socket);
                    true
                }
            };
            if !is_there {
                self.close(socket, Process::Server(server), dice);
                self.drop_served(life, socket);
            }
        }
    }

    fn serve_calls(&mut self, life: &mut ServerLife, dice: &mut Dice) {
        if let Some(underway) = life.underway.take_if(|it| it.ready <= self.now) {
            self.reply(life, underway.socket, &underway.reply);
        }
        let sockets: Vec<u64> = life.connections.keys().copied().collect();
        for socket in sockets {
            for _ in 0..CALLS_PER_STEP {
                let Some(served) = life.connections.get_mut(&socket) else { break };
                if life.underway.is_some() || served.unmapped_until.is_some() {
                    break;
                }
                let Some(request) = served.end.take() else { break };
                if self.strikes(FaultKind::NodeStop, 1, dice) {
                    return life.steps.die_after(0);
                }
                self.carry_out(life, socket, &request, dice);
                if life.steps.are_over() {
                    return;
                }
            }
        }
    }

    fn carry_out(&mut self, life: &mut ServerLife, socket: u64, request: &Request, dice: &mut Dice) {
        let ServerLife { connections, methods, shared, .. } = life;
        let served = connections.get_mut(&socket).expect("it is served");
        let (id, is_hostile) = (request.line.word, served.is_hostile);
        self.scene.set_time(self.now);
        if is_hostile {
            // The sender writes to its scope while the method reads.
            let (address, length) = (request.line.scope.address, request.line.scope.length);
            let meanwhile = Meanwhile::writing(&served.heap, address, length, dice.any());
            self.scene.set_meanwhile(meanwhile);
        } else {
            self.judge.taken(id);
            self.stand_still_with(served, shared.as_ref(), request, dice);
        }
        let reply = {
            let scene = Arc::clone(&self.scene);
            let shard_heap = shared.as_mut().map(|it| &mut it.shard_heap);
            served.end.answer(methods, request, shard_heap, &clock(&scene))
        };
        for ran in self.scene.take_ran() {
            let is_sound = ran.is_steady || ran.method == TRUSTED;
            self.judge.check(Promise::Arguments, is_sound, || {
                format!("what method {} read for call {} changed while it ran", ran.method, ran.id)
            });
            if !is_hostile {
                self.judge.ran(ran.id, ran.method, ran.content, ran.at);
            }
        }
        self.note(&[4, socket, u64::from(reply.status), reply.call], || {
            format!(
                "connection {socket}: call {id} of method {} ends with {}",
                request.line.method, reply.status
            )
        });
        if life.steps.are_over() {
            return;
        }
        let takes = if dice.per_mille(250) { dice.magnitude(MICROSECOND..METHOD_MAX) } else { 0 };
        let ready = self.scene.time() + takes;
        if ready > self.now {
            life.underway = Some(Underway { socket, reply, ready });
        } else {
            self.reply(life, socket, &reply);
        }
    }

    /// Sometimes makes the server stand still after it has checked a deadline. Meanwhile an honest caller, informed
    /// that its call is late, puts something else into its scope.
    fn stand_still_with(
        &mut self,
        served: &Served,
        shared: Option<&Shared>,
        request: &Request,
        dice: &mut Dice,
    ) {
        let line = &request.line;
        let (address, length) = (line.scope.address, line.scope.length);
        if line.deadline == 0 || !self.strikes(FaultKind::NodePause, 150, dice) {
            return;
        }
        let shared = shared.map(|it| &it.heap).filter(|heap| heap.place().offset(address, length).is_some());
        let meanwhile = Meanwhile::writing(shared.unwrap_or(&served.heap), address, length, dice.any());
        let until = line.deadline.max(self.now) + dice.magnitude(1..100 * MILLISECOND);
        self.scene.stand_still(until, meanwhile.filter(|_| self.now < line.deadline));
    }

    fn reply(&mut self, life: &mut ServerLife, socket: u64, reply: &ReplyLine) {
        let Some(served) = life.connections.get_mut(&socket) else { return };
        served.end.reply(reply);
        if let Some(socket) = self.sockets.get_mut(&socket) {
            socket.replied += 1;
        }
    }

    /// Breaks the rules as a server.
    fn lie(&mut self, life: &mut ServerLife, dice: &mut Dice) {
        for served in life.connections.values_mut() {
            let Some(writer) = &mut served.lies else { continue };
            for _ in 0..CALLS_PER_STEP {
                let call = served.end.take().map(|request| request.line.call);
                hostile::lie(&served.heap, writer, call, dice);
            }
        }
    }

    /// Checks the state of a server after the end of the run.
    pub(super) fn conclude_server(&mut self, server: usize) {
        let Some(life) = self.servers[server].life.take() else { return };
        let left = life.connections.keys().next().copied();
        self.judge.check(Promise::Progress, left.is_none(), || {
            format!("server {server} still has connection {left:?}, whose client is gone")
        });
        if let Some(Shared { heap, all, .. }) = life.shared.as_ref().filter(|_| left.is_none()) {
            let free = heap.free_bytes();
            self.judge.check(Promise::Rest, free == *all, || {
                format!("{free} bytes of {all} are free in the heap of all clients when none is left")
            });
        }
        if let Some(lease) = life.lease() {
            self.directory.end(lease, self.now);
        }
    }
}
