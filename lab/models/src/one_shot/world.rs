//! All hosts and the network, with one queue of events.

use super::host::{Client, End, Host, HostTimes, address, end_of};
use crate::time::Nanos;
use portcullis_nic::Memory;
use portcullis_onerma::{
    Allowed, Destination, Executor, HEADER_BYTES, HostAddress, Initiator, OperationType, Region, RegionId,
    RegionKey, RegionTable, Responder, ResponderLimits, TAG_BYTES,
};
use portcullis_sim::{EventQueue, LinkFaults, LinkTerms, Links, SimMemory};
use std::net::SocketAddr;
use std::time::Duration;

/// The parameters of a world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorldTerms {
    pub link: LinkTerms,
    pub host: HostTimes,
    /// Bytes that each datagram has on the wire besides its own.
    pub framing: u64,
    pub faults: LinkFaults,
    pub seed: u64,
}

/// An event to which the driver of the world may want to react.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Happening {
    /// A host's client has processed a datagram or a time-out.
    Client(usize),
    /// The time of an alarm that [`World::wake`] has set has arrived.
    Alarm(u64),
}

#[derive(Debug)]
struct Datagram {
    from: SocketAddr,
    to: SocketAddr,
    bytes: Vec<u8>,
}

#[derive(Debug)]
enum Event {
    AtSwitch(Datagram),
    Received(Datagram),
    /// A host's port has sent the datagram that its responder gave it.
    Serve(usize),
    ClientTimer(usize),
    ResponderTimer(usize),
    Alarm(u64),
}

/// Hosts on a network.
#[derive(Debug)]
pub(crate) struct World {
    terms: WorldTerms,
    now: Nanos,
    events: EventQueue<Event>,
    links: Links,
    hosts: Vec<Host>,
    /// The tables of hosts with responders, and the region in each.
    regions: Vec<Option<(RegionTable, RegionId)>>,
    /// The datagrams that clients have sent: the time, the sender and the receiver of each.
    sent: Option<Vec<(Nanos, usize, usize)>>,
}

fn time(at: Nanos) -> Duration {
    Duration::from_nanos(at)
}

fn nanos(at: Duration) -> Nanos {
    Nanos::try_from(at.as_nanos()).expect("virtual time is short")
}

/// Returns the byte that a memory has at an offset before anything is written.
pub(crate) fn pattern(offset: u64) -> u8 {
    (offset % 251).to_le_bytes()[0]
}

impl World {
    /// Creates hosts without clients and responders.
    pub fn new(terms: WorldTerms, hosts: usize) -> Self {
        Self {
            terms,
            now: 0,
            events: EventQueue::default(),
            links: Links::new(hosts, terms.link, terms.faults, terms.seed),
            hosts: (0..hosts).map(|_| Host::default()).collect(),
            regions: (0..hosts).map(|_| None).collect(),
            sent: None,
        }
    }

    /// Gives a host a responder, with a region of this many bytes.
    pub fn add_responder(&mut self, host: usize, bytes: u64, limits: ResponderLimits) {
        let memory = SimMemory::new(bytes);
        let filling: Vec<u8> = (0..memory.length()).map(pattern).collect();
        memory.write(0, &filling);
        let mut table = RegionTable::new(1 + host as u64, 16);
        let allowed = Allowed::these(&OperationType::ALL);
        let region = Region {
            key: RegionKey::new([7; 32]),
            address: 0,
            length: bytes,
            offset: 0,
            lifetime_word: None,
            allowed,
        };
        let region = table.insert(region).expect("the table has room");
        self.hosts[host].responder = Some(Responder::new(memory, &table, limits));
        self.regions[host] = Some((table, region));
    }

    /// Gives a host a client with congestion control.
    pub fn add_executor(&mut self, host: usize, executor: Executor) {
        self.hosts[host].client = Some(Client::Executor(Box::new(executor)));
    }

    /// Gives a host a client without congestion control.
    pub fn add_initiator(&mut self, host: usize, initiator: Initiator) {
        self.hosts[host].client = Some(Client::Initiator(Box::new(initiator)));
    }

    /// Returns the destination of a client's operations on a host's region, with the key that the region has now.
    /// Destinations are created only here and in [`destination_at`](Self::destination_at).
    pub fn grant(&mut self, server: usize, client: usize) -> Destination {
        let region = self.region(server);
        let to = address(client, End::Client);
        let number = client as u64 + 1;
        let key =
            self.regions(server).derive(region, HostAddress::from(to.ip()), number).expect("it is there");
        Destination { address: address(server, End::Responder), client: number, region, key: key.set_up() }
    }

    /// Returns a destination like the given one, on a host that may have nothing there.
    pub fn destination_at(&self, host: usize, like: &Destination) -> Destination {
        Destination { address: address(host, End::Responder), ..like.clone() }
    }

    /// Returns the region of a host.
    pub fn region(&self, server: usize) -> RegionId {
        let (_, region) = self.regions[server].as_ref().expect("the host has a responder");
        *region
    }

    /// Returns the table of regions of a host.
    pub fn regions(&mut self, server: usize) -> &mut RegionTable {
        let (table, _) = self.regions[server].as_mut().expect("the host has a responder");
        table
    }

    /// Returns a host's responder.
    pub fn responder(&mut self, host: usize) -> &mut Responder<SimMemory> {
        self.hosts[host].responder.as_mut().expect("the host has a responder")
    }

    /// Returns the data of a host's reads: the latest byte at each offset within a read.
    pub fn read_data(&self, host: usize) -> &[u8] {
        &self.hosts[host].read
    }

    /// Lets a host's executor act, and sends the resulting datagrams.
    pub fn with_executor<R>(&mut self, host: usize, act: impl FnOnce(&mut Executor, Duration) -> R) -> R {
        let Some(Client::Executor(executor)) = &mut self.hosts[host].client else {
            panic!("host {host} has no executor")
        };
        let result = act(executor, time(self.now));
        self.go_on_with_client(host);
        result
    }

    /// Lets a host's initiator act, and sends the resulting datagrams.
    pub fn with_initiator<R>(&mut self, host: usize, act: impl FnOnce(&mut Initiator, Duration) -> R) -> R {
        let Some(Client::Initiator(initiator)) = &mut self.hosts[host].client else {
            panic!("host {host} has no initiator")
        };
        let result = act(initiator, time(self.now));
        self.go_on_with_client(host);
        result
    }

    /// Records from here on what clients send.
    pub fn note_sent(&mut self) {
        self.sent = Some(Vec::new());
    }

    /// Returns what clients have sent since [`note_sent`](Self::note_sent): the time, the sender and the receiver of
    /// each datagram.
    pub fn sent(&self) -> &[(Nanos, usize, usize)] {
        self.sent.as_deref().unwrap_or_default()
    }

    /// Returns the number of datagrams that found a full queue.
    pub fn dropped(&self) -> u64 {
        self.links.dropped()
    }

    /// Returns the virtual time.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Makes [`step`](Self::step) return an alarm at a time.
    pub fn wake(&mut self, at: Nanos, alarm: u64) {
        self.put(at, Event::Alarm(alarm));
    }

    /// Advances to the next happening before `end`. `None`: there is no such happening, and the time is `end` now.
    pub fn step(&mut self, end: Nanos) -> Option<Happening> {
        while let Some((at, event)) = self.events.next_before(end) {
            self.now = at;
            if let Some(happening) = self.handle(event) {
                return Some(happening);
            }
        }
        self.now = end;
        None
    }

    fn put(&mut self, at: Nanos, event: Event) {
        self.events.put(at.max(self.now), event);
    }

    fn handle(&mut self, event: Event) -> Option<Happening> {
        let now = time(self.now);
        match event {
            Event::AtSwitch(datagram) => self.forward(datagram),
            Event::Received(datagram) => return self.receive(datagram),
            Event::Serve(host) => self.serve(host),
            Event::ClientTimer(host) => {
                if self.hosts[host].client_timer == Some(self.now) {
                    self.hosts[host].client_timer = None;
                    self.hosts[host].client.as_mut().expect("its timer runs").handle_timeout(now);
                    self.go_on_with_client(host);
                    return Some(Happening::Client(host));
                }
            }
            Event::ResponderTimer(host) => {
                if self.hosts[host].responder_timer == Some(self.now) {
                    self.hosts[host].responder_timer = None;
                    self.responder(host).handle_timeout(now);
                    self.go_on_with_responder(host);
                }
            }
            Event::Alarm(alarm) => return Some(Happening::Alarm(alarm)),
        }
        None
    }

    fn forward(&mut self, datagram: Datagram) {
        // No host has this address.
        let Some((host, end)) = end_of(datagram.to).filter(|it| it.0 < self.hosts.len()) else { return };
        let bytes = datagram.bytes.len() as u64 + self.terms.framing;
        let Some(arrival) = self.links.forward(host, self.now, bytes) else { return };
        let times = self.terms.host;
        let received = self.hosts[host].received.max(arrival) + times.packet;
        self.hosts[host].received = received;
        let stored = if end == End::Client { times.store } else { 0 };
        self.put(received + stored, Event::Received(datagram));
    }

    fn receive(&mut self, datagram: Datagram) -> Option<Happening> {
        let Datagram { from, to, mut bytes } = datagram;
        let (host, end) = end_of(to)?;
        let now = time(self.now);
        match end {
            End::Responder => {
                self.hosts[host].responder.as_mut()?.handle_packet(from, &mut bytes, now);
                self.go_on_with_responder(host);
                None
            }
            End::Client => {
                let Host { client, read, .. } = &mut self.hosts[host];
                if let Some((offset, data)) = client.as_mut()?.handle_packet(from, &mut bytes, now) {
                    let end = offset + data.len();
                    read.resize(read.len().max(end), 0);
                    read[offset..end].copy_from_slice(data);
                }
                self.go_on_with_client(host);
                Some(Happening::Client(host))
            }
        }
    }

    fn send(&mut self, host: usize, datagram: Datagram, own_time: Nanos) {
        let bytes = datagram.bytes.len() as u64 + self.terms.framing;
        let [first, second] = self.links.leave(host, self.now, bytes);
        if let Some(at) = second {
            let Datagram { from, to, ref bytes } = datagram;
            self.put(at + own_time, Event::AtSwitch(Datagram { from, to, bytes: bytes.clone() }));
        }
        if let Some(at) = first {
            self.put(at + own_time, Event::AtSwitch(datagram));
        }
    }

    /// Returns the host's own time before a datagram can leave. It is the same for all datagrams of a kind, so it
    /// makes no difference that it follows the port's queue here.
    fn own_time(&self, bytes: &[u8], otherwise: Nanos) -> Nanos {
        let has_data = bytes.len() > HEADER_BYTES + TAG_BYTES;
        if has_data { self.terms.host.fetch } else { otherwise }
    }

    fn go_on_with_client(&mut self, host: usize) {
        let from = address(host, End::Client);
        while let Some((to, bytes)) = self.hosts[host].client.as_mut().and_then(Client::poll_transmit) {
            if let Some(sent) = &mut self.sent {
                sent.push((self.now, host, end_of(to).map_or(usize::MAX, |it| it.0)));
            }
            let own_time = self.own_time(&bytes, self.terms.host.command);
            self.send(host, Datagram { from, to, bytes }, own_time);
        }
        let next = self.hosts[host].client.as_ref().and_then(Client::next_timeout);
        let next = next.map(|at| nanos(at).max(self.now + 1));
        if let Some(at) = next.filter(|&at| self.hosts[host].client_timer.is_none_or(|before| at < before)) {
            self.hosts[host].client_timer = Some(at);
            self.put(at, Event::ClientTimer(host));
        }
    }

    fn go_on_with_responder(&mut self, host: usize) {
        if !self.hosts[host].is_serving {
            self.hosts[host].is_serving = true;
            self.put(self.links.idle_at(host), Event::Serve(host));
        }
        let next = self.responder(host).next_timeout().map(|at| nanos(at).max(self.now + 1));
        if let Some(at) = next.filter(|&at| self.hosts[host].responder_timer.is_none_or(|it| at < it)) {
            self.hosts[host].responder_timer = Some(at);
            self.put(at, Event::ResponderTimer(host));
        }
    }

    /// Sends one datagram of a responder. The next one is taken after the port has sent this one: waiting datagrams
    /// stay in the responder's queue, where its limit counts them.
    fn serve(&mut self, host: usize) {
        let mut bytes = Vec::new();
        let Some(to) = self.responder(host).poll_transmit(&mut bytes) else {
            self.hosts[host].is_serving = false;
            return;
        };
        let own_time = self.own_time(&bytes, 0);
        self.send(host, Datagram { from: address(host, End::Responder), to, bytes }, own_time);
        self.put(self.links.idle_at(host), Event::Serve(host));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis_onerma::{
        Action, ExecutorLimits, InitiatorLimits, ServiceClass, Status, Transfer, TransferEnd,
    };

    const BYTES: usize = 40_000;

    fn micros(count: u64) -> Duration {
        Duration::from_micros(count)
    }

    /// Creates one server and one client, whose transfers are patient.
    fn pair(faults: LinkFaults, seed: u64) -> (World, Destination) {
        let link = LinkTerms { bits_per_second: 100_000_000_000, propagation: 500, queue: 1 << 20 };
        let host = HostTimes { command: 200, fetch: 400, store: 200, packet: 10 };
        let mut world = World::new(WorldTerms { link, host, framing: 66, faults, seed }, 2);
        let limits = ResponderLimits {
            packet_max: 1472,
            waiting_max: 1 << 16,
            changes_max: 16,
            client_changes_max: 16,
            change_timeout: micros(30),
            finished_max: 16,
        };
        world.add_responder(0, BYTES as u64, limits);
        let initiator = InitiatorLimits {
            slots: 64,
            window: 1 << 16,
            packet_max: 1472,
            dispatch_timeout: micros(10),
            timeout: micros(40),
        };
        let limits = ExecutorLimits {
            transfers: 4,
            patience: Duration::from_secs(1),
            local_target: micros(2),
            remote_target: micros(10),
            rtt: micros(5),
        };
        world.add_executor(1, Executor::new(Initiator::new(initiator), limits));
        let to = world.grant(0, 1);
        (world, to)
    }

    fn read(world: &mut World, to: &Destination, bytes: usize) -> (Nanos, TransferEnd) {
        let action = Action::Read(bytes);
        let class = ServiceClass::Bulk;
        let transfer = Transfer { action, to: to.clone(), address: 0, class, may_repeat: false };
        let begun = world.now();
        world.with_executor(1, |it, now| it.begin(transfer, now).expect("there is room"));
        while world.step(begun + 1_000_000_000).is_some() {
            if let Some(end) = world.with_executor(1, |it, _| it.poll_end()) {
                return (world.now() - begun, end);
            }
        }
        panic!("the transfer has not ended")
    }

    #[test]
    fn a_read_takes_the_sum_of_what_is_on_its_way() {
        let (mut world, to) = pair(LinkFaults::default(), 1);
        let (took, end) = read(&mut world, &to, 1000);
        assert_eq!(end.status, Status::Ok);
        assert!(world.read_data(1).iter().zip(0..).all(|(&it, at)| it == pattern(at)));
        // Each datagram is sent by two ports, and crosses two links.
        let [request, answer] = [146u64, 1146].map(|bytes| 2 * (bytes * 8 / 100) + 2 * 500 + 10);
        let expected = 200 + request + 400 + answer + 200;
        assert!(took.abs_diff(expected) <= 6, "{took} and {expected}");
    }

    #[test]
    fn what_is_lost_repeated_and_reordered_arrives_whole_and_as_the_seed_says() {
        let faults = LinkFaults { lost: 50, repeated: 50, jitter: 3_000 };
        let run = |seed| {
            let (mut world, to) = pair(faults, seed);
            let (took, end) = read(&mut world, &to, BYTES);
            assert_eq!(end.status, Status::Ok);
            assert!(world.read_data(1).iter().zip(0..).all(|(&it, at)| it == pattern(at)), "seed {seed}");
            (took, end.operations)
        };
        let all: Vec<_> = (0..20).map(run).collect();
        assert_eq!(all, (0..20).map(run).collect::<Vec<_>>());
        assert!(all.iter().any(|it| it.1 > 10), "nothing was lost: {all:?}");
        let (mut world, to) = pair(LinkFaults::default(), 1);
        assert_eq!(read(&mut world, &to, BYTES).1.operations, 10);
    }

    #[test]
    fn what_goes_to_nobody_ends_all_the_same() {
        let (mut world, to) = pair(LinkFaults::default(), 1);
        let nobody = Destination { address: "192.168.0.1:9".parse().expect("an address"), ..to };
        let action = Action::Read(8);
        let class = ServiceClass::Latency;
        let transfer = Transfer { action, to: nobody, address: 0, class, may_repeat: false };
        world.with_executor(1, |it, now| it.begin(transfer, now).expect("there is room"));
        assert_eq!(world.step(30_000), None);
        assert!(world.step(50_000).is_some(), "it has timed out");
        assert_eq!(world.with_executor(1, |it, _| it.counters().timeouts), 1);
    }
}
