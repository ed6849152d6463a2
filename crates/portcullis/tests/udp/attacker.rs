//! A client over UDP that need not keep any rule: it sends any bytes over its connection, and sends operations for any
//! region, under any key and in the name of any client.

use crate::rig::{LONG, wait_for};
use portcullis::{ClientSecurity, Credential, Keep, Lifetime, PermissionId, Rights, Sharing};
use portcullis_attach::tls::{AttachedWithoutQueuePairs, Talk, attach_without_queue_pairs};
use portcullis_onerma::{
    Action, Command, DerivedKey, Destination, Initiator, InitiatorLimits, RegionId, ServiceClass, Status,
    UdpSocket,
};
use portcullis_protocol::{
    Allocate, GrantRequest, Granted, MESSAGE_BYTES, Reply, ReplyBody, Request, RequestBody,
};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

pub const LIMITS: InitiatorLimits = InitiatorLimits {
    slots: 1024,
    window: 1 << 22,
    packet_max: 1232,
    dispatch_timeout: Duration::from_secs(20),
    timeout: Duration::from_millis(60),
};

/// A client that need not keep any rule.
pub struct Attacker {
    pub talk: Talk,
    pub number: u64,
    pub node: SocketAddr,
    pub control_depth: u32,
    pub socket: UdpSocket,
    pub initiator: Initiator,
    began: Instant,
}

impl Attacker {
    /// `address`: `HOST:PORT`.
    pub fn attach(address: &str) -> Self {
        let plain = ClientSecurity::Plain { anywhere: false };
        let attached = attach_without_queue_pairs(address, &plain, LONG);
        Self::over(attached.expect("even an attacker gets in"))
    }

    fn over(attached: AttachedWithoutQueuePairs) -> Self {
        let AttachedWithoutQueuePairs { client, terms, node, local, talk } = attached;
        Self {
            talk,
            number: client,
            node,
            control_depth: terms.control_depth,
            socket: bind(local),
            initiator: Initiator::new(LIMITS),
            began: Instant::now(),
        }
    }

    /// Sends bytes over the connection, and returns the node's answer. `None`: the node hung up.
    pub fn say(&mut self, bytes: &[u8]) -> Option<ReplyBody> {
        self.talk.say(bytes);
        let mut answer = None;
        wait_for("an answer", || {
            answer = self.talk.hear();
            answer.is_some() || !self.talk.is_alive()
        });
        let bytes: [u8; MESSAGE_BYTES] = answer?.try_into().expect("a message");
        Some(Reply::decode(bytes).expect("the node's replies are sound").body)
    }

    pub fn ask(&mut self, body: RequestBody) -> ReplyBody {
        self.say(&Request { sequence: 1, body }.encode()).expect("the node serves it")
    }

    pub fn allocate(&mut self, size: u64, rights: Rights) -> Granted {
        let (lifetime, sharing, keep) = (Lifetime::seconds(9), Sharing::Exclusive, Keep::No);
        let body = RequestBody::Grant(GrantRequest::Allocate(Allocate {
            size,
            alignment: 0,
            lifetime,
            rights,
            sharing,
            keep,
        }));
        match self.ask(body) {
            ReplyBody::Granted(granted) => granted,
            other => panic!("no memory: {other:?}"),
        }
    }

    pub fn revoke(&mut self, permission: PermissionId) {
        assert_eq!(
            self.ask(RequestBody::Grant(GrantRequest::Revoke { permission, free: false })),
            ReplyBody::Done
        );
    }

    /// Returns the destination of a permission's operations.
    pub fn to(&self, granted: &Granted) -> Destination {
        let Credential::RegionKey { region, key } = granted.credential else {
            panic!("another mechanism: {granted:?}")
        };
        let region = RegionId { index: region.index, generation: region.generation };
        let key = DerivedKey::from_bytes(key.0).set_up();
        Destination { address: self.node, client: self.number, region, key }
    }

    /// Begins an operation without waiting.
    pub fn begin(&mut self, to: &Destination, address: u64, action: Action) {
        let command = Command { action, to: to.clone(), address, class: ServiceClass::Latency };
        self.initiator.issue(command, self.began.elapsed()).expect("there is room");
    }

    /// Sends the pending packets.
    pub fn send(&mut self) {
        let Self { initiator, socket, .. } = self;
        let _ = socket.send(|packet| initiator.poll_transmit(packet));
    }

    /// Carries one operation out, once: an operation that the node does not answer is not repeated.
    pub fn try_once(&mut self, to: &Destination, address: u64, action: Action) -> Status {
        self.begin(to, address, action);
        let mut status = None;
        wait_for("an operation to end", || {
            self.send();
            let Self { initiator, socket, began, .. } = self;
            let now = began.elapsed();
            let _ = socket.receive(|from, packet| {
                initiator.handle_packet(from, packet, now);
            });
            initiator.handle_timeout(began.elapsed());
            status = initiator.poll_completion().map(|it| it.status);
            status.is_some()
        });
        status.expect("it was waited for")
    }

    /// Carries one operation out, and repeats it while it ends only because time has run out: the machine may be busy.
    pub fn try_operation(&mut self, to: &Destination, address: u64, action: Action) -> Status {
        loop {
            match self.try_once(to, address, action.clone()) {
                Status::Timeout | Status::Nack | Status::DispatchTimeout => {}
                status => return status,
            }
        }
    }
}

/// Binds a socket at an address of this machine.
pub fn bind(host: impl Into<IpAddr>) -> UdpSocket {
    UdpSocket::bind((host.into(), 0).into()).expect("a socket")
}
