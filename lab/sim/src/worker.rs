//! The work of an honest client: it acquires, uses, extends, revokes, lets expire, and acts late. It keeps the rules.

mod bursts;
mod sharing;

use crate::dice::Dice;
use crate::memory::SimMemory;
use crate::oracle::{Kind, LONGEST_KEEP, Promise, key_of};
use crate::scene::{Scene, Sighting, SimClient};
use portcullis_client::{
    Access, Acquire, Allocate, Answer, Buffer, Call, ControlRequest, Error, Lease, Operation, Outcome,
    Permission,
};
use portcullis_nic::RemoteSpan;
use portcullis_protocol::{
    Credential, Holders, LIFETIME_OFFSET, Lifetime, Moment, PermissionId, Refusal, RemoteAddress, Rights,
    Sharing,
};
use portcullis_softnic::core::WireRequest;
use sharing::Names;

/// Number of expired permissions kept for late use.
const STALE_MAX: usize = 4;
/// Weights of a client that holds all that it may: reads, writes, atomics, extensions.
const FILLED: [u32; 12] = [0, 0, 0, 0, 1, 0, 0, 4, 0, 4, 4, 4];
/// The end of a lease, with which an extension races.
const LAST_MOMENT: Lifetime = Lifetime::micros(8);
const OPERATIONS_MAX: usize = 24;
/// How many of a thousand accesses of a batch depend on the one before them.
const LINKED: u64 = 400;

#[derive(Debug)]
enum Purpose {
    Grant {
        sharing: Sharing,
    },
    /// A call about a name.
    Naming,
    /// A lookup of an entry of a directory: another tenant's, or its own.
    Lookup {
        foreign: bool,
    },
    Extension,
    End,
}

/// A pending operation, with the end of its permission on the client's clock.
#[derive(Debug)]
struct UnderWay {
    operation: Operation,
    kind: Kind,
    permission: PermissionId,
    deadline: Moment,
    /// Whether the permission was revoked while the operation was under way, or its object's tenant can take it back.
    raced: bool,
    /// Whether a fault touched the client while the operation was under way. The operation's end may be reported much
    /// later.
    excused: bool,
}

/// The habits of a client: the weights of its actions.
#[derive(Clone, Debug)]
struct Habits {
    weights: [u32; 12],
    size_max: u64,
    lifetime_max: u64,
    shared: u64,
    kept: u64,
    /// How often the client requests a part, in thousandths.
    parts: u64,
    /// How often the client extends at the last moment, in thousandths.
    eager: u64,
}

impl Habits {
    fn draw(dice: &mut Dice, longest: Lifetime) -> Self {
        let weights = std::array::from_fn(|_| u32::try_from(dice.of(0..10)).unwrap_or(1) + 1);
        Self {
            weights,
            size_max: dice.magnitude(8..9000),
            lifetime_max: dice.of(100..longest.0 + 1),
            shared: dice.of(0..1000),
            kept: dice.of(0..1000),
            parts: if dice.per_mille(300) { dice.of(0..1000) } else { 0 },
            eager: dice.of(0..600),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Worker {
    dice: Dice,
    habits: Habits,
    held_max: usize,
    /// The lifetime with which the client still fills up, if it does.
    filling: Option<Lifetime>,
    /// No permission of the client ends before this moment.
    first_end: Moment,
    held: Vec<Permission>,
    stale: Vec<Permission>,
    calls: Vec<(Call, Purpose)>,
    under_way: Vec<UnderWay>,
    ended: Vec<(Operation, Outcome<SimMemory>)>,
    stamps: u64,
    names: Option<Names>,
}

impl Worker {
    /// Creates a worker. `fill`: the client first takes all that it may hold. `names`: it uses names, with this
    /// randomness and among this many tenants.
    pub fn new(
        mut dice: Dice,
        held_max: usize,
        longest: Lifetime,
        fill: bool,
        names: Option<(Dice, usize)>,
    ) -> Self {
        let mut habits = Habits::draw(&mut dice, longest);
        if fill {
            // Small objects; none is shared, kept or given back.
            habits = Habits { weights: FILLED, size_max: 64, shared: 0, kept: 0, eager: 0, ..habits };
        }
        Self {
            dice,
            habits,
            held_max,
            filling: fill.then_some(longest),
            first_end: Moment(u64::MAX),
            held: Vec::new(),
            stale: Vec::new(),
            calls: Vec::new(),
            under_way: Vec::new(),
            ended: Vec::new(),
            stamps: 0,
            names: names.map(|(dice, tenants)| Names::new(dice, tenants)),
        }
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.calls.is_empty() && self.under_way.is_empty()
    }

    /// Returns the number of pending calls and operations, for reports.
    pub fn under_way(&self) -> (usize, usize) {
        (self.calls.len(), self.under_way.len())
    }

    /// Processes what has ended, and begins one action if it may.
    pub fn act(&mut self, client: &mut SimClient, scene: &mut Scene<'_>, may_begin: bool) {
        self.under_way.iter_mut().for_each(|it| it.excused |= scene.excused);
        self.take_operations(client, scene);
        self.take_calls(client, scene);
        if !scene.winding_down && client.over().is_none() {
            self.extend_at_the_last_moment(client, scene);
        }
        self.let_expire(scene.moment);
        if scene.winding_down || client.over().is_some() {
            return;
        }
        if let Some(longest) = self.filling {
            self.fill(client, scene, longest);
        } else if may_begin {
            self.begin(client, scene);
        }
    }

    fn let_expire(&mut self, now: Moment) {
        if now < self.first_end {
            return;
        }
        let mut index = 0;
        while index < self.held.len() {
            if self.held[index].lease().deadline() > now {
                index += 1;
                continue;
            }
            let expired = self.held.swap_remove(index);
            if self.stale.len() == STALE_MAX {
                self.stale.remove(0);
            }
            self.stale.push(expired);
        }
        self.first_end = self.held.iter().map(|it| it.lease().deadline()).min().unwrap_or(Moment(u64::MAX));
    }
}

/// Endings.
impl Worker {
    fn take_operations(&mut self, client: &mut SimClient, scene: &mut Scene<'_>) {
        let mut ended = std::mem::take(&mut self.ended);
        client.drain(&mut ended);
        for (operation, outcome) in ended.drain(..) {
            let number = operation.number();
            let known = self.under_way.iter().position(|it| it.operation == operation);
            let Some(known) = known.map(|at| self.under_way.swap_remove(at)) else {
                scene.fail(Promise::Truth, format!("operation {number:#x} ended, and was not under way"));
                continue;
            };
            let mut bytes = Vec::new();
            if let (Ok(value), Kind::Atomic) = (&outcome.result, known.kind) {
                bytes = value.to_le_bytes().to_vec();
            } else if let (Some(buffer), Kind::Read) = (&outcome.buffer, known.kind) {
                bytes = vec![0; buffer.len() as usize];
                buffer.read(0, &mut bytes);
            }
            let result = outcome.result.as_ref().map(|_| &bytes[..]).map_err(|error| *error);
            scene.oracle.ended(scene.now, scene.session, number, result);
            if let Err(error) = outcome.result {
                check_error(scene, error, known.excused, &format!("{:?} {number:#x}", known.kind));
                check_revoked(scene, error, &known);
            }
        }
        self.ended = ended;
    }

    fn take_calls(&mut self, client: &mut SimClient, scene: &mut Scene<'_>) {
        let mut index = 0;
        while index < self.calls.len() {
            let Some(answer) = client.take_call(self.calls[index].0) else {
                index += 1;
                continue;
            };
            let (_, purpose) = self.calls.swap_remove(index);
            match answer {
                Ok(Answer::Granted(permission)) => self.granted(scene, permission, &purpose),
                Ok(Answer::Entry(entry)) => {
                    let foreign = matches!(purpose, Purpose::Lookup { foreign: true });
                    self.names.iter_mut().for_each(|names| names.found(entry, foreign));
                }
                Ok(_) => {}
                Err(error) => check_error(scene, error, scene.excused, &format!("{purpose:?}")),
            }
        }
    }

    fn granted(&mut self, scene: &mut Scene<'_>, permission: Permission, purpose: &Purpose) {
        if let Purpose::Grant { sharing } = purpose
            && !self.is_foreign(&permission)
            && (*sharing == Sharing::Shared || self.dice.per_mille(500))
        {
            scene.gossip.share(scene.tenant, permission.object());
        }
        scene.gossip.sight(sighting(&permission));
        self.first_end = self.first_end.min(permission.lease().deadline());
        self.held.push(permission);
    }
}

/// Returns what a hostile client could learn of a permission.
pub(crate) fn sighting(permission: &Permission) -> Sighting {
    let credential = permission.credential();
    let region = match credential {
        Credential::RegionKey { region, key } => Some((region, key)),
        _ => None,
    };
    let stands = region.map(|(region, _)| key_of(region));
    let key = credential.buffer_key().or(stands).unwrap_or_default();
    let word_key = credential.lifetime_key().or(stands).unwrap_or_default();
    let word = RemoteAddress(permission.id().header.0 + LIFETIME_OFFSET);
    Sighting {
        object: permission.object(),
        address: permission.address(),
        length: permission.length(),
        key,
        word: (word, word_key),
        permission: permission.id(),
        region,
    }
}

/// Checks whether an honest client may get this error. `excused`: faults have touched the client.
pub(crate) fn check_error(scene: &mut Scene<'_>, error: Error, excused: bool, of: &str) {
    let wrong = match error {
        Error::Violation | Error::LocalFault(_) | Error::Refused(Refusal::Malformed) => true,
        // Only sessions with a limit return `TimedOut`, and only a fault makes an operation take so long.
        Error::Interrupted
        | Error::Unanswered
        | Error::TimedOut { .. }
        | Error::SessionLost
        | Error::NodeGone
        | Error::Refused(Refusal::NicFailed) => !excused,
        Error::Paused { .. } | Error::Barred => !scene.oracle.has_offended(scene.session),
        _ => false,
    };
    let (session, tenant) = (scene.session, scene.tenant);
    scene.trace.remark(scene.now, || format!("session {session}: {of} ended with: {error}"));
    if wrong {
        scene.fail(
            Promise::Isolation,
            format!("session {session} of tenant {tenant} got an error that is not its own: {of} ended with: {error}"),
        );
    }
}

/// Checks an error that reports a permission as revoked. With sound clocks a permission lives as long as its holder
/// expects, unless its holder or its tenant ended it.
fn check_revoked(scene: &mut Scene<'_>, error: Error, known: &UnderWay) {
    let early = known.deadline.since(scene.moment);
    let unasked = !known.raced
        && !scene.clocks_off
        && !scene.oracle.was_barred(scene.session)
        && !scene.oracle.may_end_early(scene.session, known.permission);
    if error == Error::Revoked && early > TOLERANCE && unasked {
        let session = scene.session;
        scene.fail(
            Promise::Truth,
            format!("session {session} was refused {} µs before the end of its permission", early.0),
        );
    }
}

/// How far two sound clocks may drift apart in the longest lifetime, plus a margin.
pub(crate) const TOLERANCE: Lifetime = Lifetime::micros(100);

/// How many of a thousand turns of a worker that would free something do something else.
const FREES_NOT: u64 = 700;

/// Beginnings.
impl Worker {
    fn begin(&mut self, client: &mut SimClient, scene: &mut Scene<'_>) {
        if self.use_names(client, scene) || self.burst(client, scene) {
            return;
        }
        let weights = self.habits.weights;
        match self.dice.weighted(&weights) {
            0 | 1 if self.held.len() < self.held_max => self.allocate(client, scene),
            2 | 3 if self.held.len() < self.held_max => self.acquire(client, scene),
            4 => self.extend(client, scene),
            5 => self.revoke(client, scene),
            6 => self.free(client, scene),
            7 => self.batch(client, scene),
            8 => self.come_late(client, scene),
            _ => self.operate(client, scene),
        }
    }

    /// Requests as many permissions as the queue takes.
    fn fill(&mut self, client: &mut SimClient, scene: &mut Scene<'_>, longest: Lifetime) {
        while self.held.len() + self.calls.len() < self.held_max {
            let ask = Allocate::bytes(self.dice.of(8..65)).lifetime(longest);
            let Ok(call) = client.call(scene.moment, ask) else { return };
            self.calls.push((call, Purpose::Grant { sharing: ask.sharing }));
        }
        if self.held.len() >= self.held_max {
            self.filling = None;
        }
    }

    fn lifetime(&mut self) -> Lifetime {
        Lifetime(self.dice.magnitude(20..self.habits.lifetime_max.max(40)))
    }

    fn rights(&mut self) -> Rights {
        let some = [
            Rights::all(),
            Rights::all(),
            Rights::READ,
            Rights::READ | Rights::WRITE,
            Rights::ATOMIC,
            Rights::WRITE,
        ];
        self.dice.pick(&some).copied().unwrap_or(Rights::all())
    }

    fn allocate(&mut self, client: &mut SimClient, scene: &mut Scene<'_>) {
        let ask = self.allocation();
        let call = client.call(scene.moment, ask);
        self.began(call, Purpose::Grant { sharing: ask.sharing });
    }

    fn allocation(&mut self) -> Allocate {
        let mut ask = Allocate::bytes(self.dice.magnitude(1..self.habits.size_max + 1));
        ask = ask.lifetime(self.lifetime()).rights(self.rights());
        if self.dice.per_mille(self.habits.shared) {
            ask = ask.shared();
        }
        if self.dice.per_mille(self.habits.kept) {
            let time = Lifetime(self.dice.magnitude(1..LONGEST_KEEP.0 + 1));
            ask = if self.dice.per_mille(500) { ask.keep() } else { ask.keep_for(time) };
        }
        if self.dice.per_mille(100) {
            ask = ask.aligned(1 << self.dice.of(0..17));
        }
        ask
    }

    fn acquire(&mut self, client: &mut SimClient, scene: &mut Scene<'_>) {
        let Some(ask) = self.acquisition(scene) else { return self.allocate(client, scene) };
        let call = client.call(scene.moment, ask);
        self.began(call, Purpose::Grant { sharing: ask.sharing });
    }

    /// Returns a request for an object that the client knows. `None`: the client knows none.
    fn acquisition(&mut self, scene: &mut Scene<'_>) -> Option<Acquire> {
        let lost = self.dice.per_mille(30);
        let known = match lost {
            true => &scene.gossip.lost[scene.tenant][..],
            false => scene.gossip.objects[scene.tenant].make_contiguous(),
        };
        let &object = self.dice.pick(known)?;
        let wait = Lifetime(self.dice.magnitude(1..20_000));
        let mut ask = Acquire::object(object).lifetime(self.lifetime()).rights(self.rights()).wait(wait);
        if self.dice.per_mille(self.habits.shared) {
            ask = ask.shared();
        }
        if self.dice.per_mille(self.habits.parts) {
            let offset = self.dice.of(0..self.habits.size_max.min(256));
            ask = ask.part(offset, self.dice.of(0..128));
        }
        Some(ask)
    }

    /// Whether a permission is over another tenant's object.
    fn is_foreign(&self, permission: &Permission) -> bool {
        self.names.as_ref().is_some_and(|names| names.is_foreign(permission.object()))
    }

    fn began<R>(&mut self, call: Result<Call, R>, purpose: Purpose) {
        if let Ok(call) = call {
            self.calls.push((call, purpose));
        }
    }

    fn extend(&mut self, client: &mut SimClient, scene: &mut Scene<'_>) {
        let Some(at) = self.some_held() else { return };
        let lease = self.held[at].lease().clone();
        let deadline = longer(&lease, Lifetime(self.dice.magnitude(1..4_000)));
        let call = if self.dice.per_mille(800) {
            client.call(scene.moment, ControlRequest::extend_to(&lease, deadline)).map_err(Error::from)
        } else {
            client.extend_by_rpc(scene.moment, &lease, deadline)
        };
        self.began(call, Purpose::Extension);
    }

    /// Extends leases that are about to end.
    fn extend_at_the_last_moment(&mut self, client: &mut SimClient, scene: &mut Scene<'_>) {
        let (now, eager) = (scene.moment, self.habits.eager);
        if now.after(LAST_MOMENT) < self.first_end {
            return;
        }
        for at in 0..self.held.len() {
            let lease = self.held[at].lease().clone();
            let left = lease.deadline().since(now);
            if left.0 == 0 || left > LAST_MOMENT || !self.dice.per_mille(eager) {
                continue;
            }
            let deadline = longer(&lease, Lifetime(self.dice.magnitude(1..2_000)));
            let call = client.call(now, ControlRequest::extend_to(&lease, deadline));
            self.began(call, Purpose::Extension);
        }
    }

    fn some_held(&mut self) -> Option<usize> {
        if self.held.is_empty() { None } else { Some(self.dice.index(self.held.len())) }
    }

    fn revoke(&mut self, client: &mut SimClient, scene: &mut Scene<'_>) {
        let Some(at) = self.some_held() else { return };
        let permission = self.held.swap_remove(at);
        if self.dice.per_mille(200) {
            // The permission expires by itself.
            return;
        }
        let free = self.dice.per_mille(300);
        let id = permission.id();
        self.under_way.iter_mut().filter(|it| it.permission == id).for_each(|it| it.raced = true);
        match client.call(scene.moment, ControlRequest::Revoke { permission, free }) {
            Ok(call) => self.calls.push((call, Purpose::End)),
            Err(refused) => {
                self.first_end = Moment(0);
                if let ControlRequest::Revoke { permission, .. } = *refused.ask {
                    self.held.push(permission);
                }
            }
        }
    }

    fn free(&mut self, client: &mut SimClient, scene: &mut Scene<'_>) {
        let known = scene.gossip.objects[scene.tenant].make_contiguous();
        let Some(&object) = self.dice.pick(known) else { return };
        if self.dice.per_mille(FREES_NOT) {
            // A freed object is of no use to any client any more.
            return self.operate(client, scene);
        }
        let holders = match self.dice.of(0..10) {
            0..7 => Holders::Stay,
            7 | 8 => Holders::End,
            _ => Holders::Await,
        };
        let request = ControlRequest::Free { object: object.into(), holders };
        let call = client.call(scene.moment, request);
        self.began(call, Purpose::End);
    }

    /// Uses an expired permission. The client library must refuse this and send nothing.
    fn come_late(&mut self, client: &mut SimClient, scene: &mut Scene<'_>) {
        let Some(permission) = self.stale.pop() else { return self.operate(client, scene) };
        if permission.lease().deadline() > scene.moment {
            return;
        }
        let begun = client.access(scene.moment, Access::fetch_and_add(&permission, 0, 1));
        if begun.is_ok() {
            scene.fail(Promise::Truth, "an operation began under an expired permission".to_owned());
        }
    }

    fn batch(&mut self, client: &mut SimClient, scene: &mut Scene<'_>) {
        let Some(at) = self.some_held() else { return };
        let count = 2 + self.dice.index(4);
        let permission = &self.held[at];
        if permission.length() < 8 || !permission.rights().contains(Rights::WRITE) {
            return;
        }
        let mut begun = Vec::new();
        let mut buffers = Vec::new();
        for _ in 0..count {
            if let Ok(mut buffer) = client.buffer(8) {
                self.stamps += 1;
                buffer.write(0, &stamp(scene.session, self.stamps));
                buffers.push(buffer);
            }
        }
        let (mut batch, mut before) = (client.batch(), None);
        for buffer in buffers {
            let link = before.filter(|_| self.dice.per_mille(LINKED));
            // A linked write is often under another permission, which may live when the first one has ended.
            let at = if link.is_some() { self.dice.index(self.held.len()) } else { at };
            let permission = &self.held[at];
            if permission.length() < 8 || !permission.rights().contains(Rights::WRITE) {
                continue;
            }
            let offset = self.dice.of(0..permission.length() - 7);
            let mut bytes = vec![0; 8];
            buffer.read(0, &mut bytes);
            let write = Access::write(permission, offset, buffer);
            let written = match link {
                Some(before) => batch.access_behind(scene.moment, before, write),
                None => batch.access(scene.moment, write),
            };
            before = written.ok();
            let intended = WireRequest::Write { remote: remote(permission, offset), bytes };
            begun.extend(before.map(|operation| (operation, link, at, intended)));
        }
        batch.post();
        for (operation, link, at, intended) in begun {
            let permission = &self.held[at];
            // A linked write ends with the error of the one before it.
            let raced = link.is_some() || self.is_foreign(permission);
            let of = (permission.id(), permission.lease().deadline(), raced);
            self.note_begun(scene, operation, Kind::Write, of, intended);
            if let Some(before) = link {
                scene.oracle.linked(scene.session, operation.number(), before.number());
            }
        }
    }

    fn operate(&mut self, client: &mut SimClient, scene: &mut Scene<'_>) {
        let Some(at) = self.some_held() else { return self.allocate(client, scene) };
        if self.under_way.len() >= OPERATIONS_MAX {
            return;
        }
        let permission = &self.held[at];
        let (rights, length) = (permission.rights(), permission.length());
        let most = length.min(64);
        let kind = match self.dice.of(0..10) {
            0..4 if rights.contains(Rights::READ) => Kind::Read,
            4..8 if rights.contains(Rights::WRITE) => Kind::Write,
            _ if rights.contains(Rights::ATOMIC) && length >= 8 => Kind::Atomic,
            _ if rights.contains(Rights::READ) => Kind::Read,
            _ if rights.contains(Rights::WRITE) => Kind::Write,
            _ => return,
        };
        let intended;
        let begun = if kind == Kind::Atomic {
            let offset = self.dice.of(0..length / 8) * 8;
            let (one, other) = (self.dice.of(0..3), self.dice.of(0..3));
            let at = remote(permission, offset);
            intended = if one == 0 {
                WireRequest::FetchAndAdd { remote: at, add: other }
            } else {
                WireRequest::CompareAndSwap { remote: at, compare: one - 1, swap: other }
            };
            if one == 0 {
                client.access(scene.moment, Access::fetch_and_add(permission, offset, other))
            } else {
                client.access(scene.moment, Access::compare_and_swap(permission, offset, one - 1, other))
            }
        } else {
            let size = self.dice.of(1..most + 1);
            let offset = self.dice.of(0..length - size + 1);
            let Ok(mut buffer) = client.buffer(u32::try_from(size).unwrap_or(1)) else { return };
            let at = remote(permission, offset);
            if kind == Kind::Read {
                intended = WireRequest::Read { remote: at, length: buffer.len() };
                client.access(scene.moment, Access::read(permission, offset, buffer))
            } else {
                self.stamps += 1;
                fill(&mut buffer, &stamp(scene.session, self.stamps));
                let mut bytes = vec![0; buffer.len() as usize];
                buffer.read(0, &mut bytes);
                intended = WireRequest::Write { remote: at, bytes };
                client.access(scene.moment, Access::write(permission, offset, buffer))
            }
        };
        let begun = begun.map_err(Error::from);
        let foreign = self.is_foreign(permission);
        let of = (permission.id(), permission.lease().deadline(), foreign);
        self.note(scene, begun, kind, of, intended);
    }

    fn note(
        &mut self,
        scene: &mut Scene<'_>,
        begun: Result<Operation, Error>,
        kind: Kind,
        of: (PermissionId, Moment, bool),
        intended: WireRequest,
    ) {
        match begun {
            Ok(operation) => self.note_begun(scene, operation, kind, of, intended),
            Err(error) => {
                let honest = matches!(error, Error::Expired | Error::QueueFull { .. } | Error::Misaligned);
                if !honest {
                    check_error(scene, error, scene.excused, "an operation that did not begin");
                }
            }
        }
    }

    fn note_begun(
        &mut self,
        scene: &mut Scene<'_>,
        operation: Operation,
        kind: Kind,
        (permission, deadline, raced): (PermissionId, Moment, bool),
        intended: WireRequest,
    ) {
        let number = (scene.session, operation.number());
        scene.oracle.begun(scene.now, number, kind, Some(intended));
        let excused = scene.excused;
        self.under_way.push(UnderWay { operation, kind, permission, deadline, raced, excused });
    }
}

/// Returns the deadline of a lease that is extended by this time, as far as its node allows.
fn longer(lease: &Lease, by: Lifetime) -> Moment {
    let last = lease.started_after().after(lease.longest());
    lease.deadline().after(by).min(last)
}

/// Returns the remote address and key of an operation.
fn remote(permission: &Permission, offset: u64) -> RemoteSpan {
    RemoteSpan { address: RemoteAddress(permission.address().0 + offset), rkey: sighting(permission).key }
}

/// Returns eight bytes that no other client writes.
fn stamp(session: usize, number: u64) -> [u8; 8] {
    (((session as u64) << 40) | number | 0xa5 << 56).to_le_bytes()
}

fn fill(buffer: &mut Buffer<SimMemory>, stamp: &[u8; 8]) {
    let bytes: Vec<u8> = stamp.iter().copied().cycle().take(buffer.len() as usize).collect();
    buffer.write(0, &bytes);
}
