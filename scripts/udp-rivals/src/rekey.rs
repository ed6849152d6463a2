//! How long a client that reads all the time is refused when the key of its region changes (1RMA §5.2, Figure 14).
//!
//! It counts from the client's last good answer to its next one. With the next key handed out beforehand the client changes to
//! it when it is refused. Without, it asks the region's owner for one, over TCP. The node's thread hands keys out, as a node
//! hears control messages. A round trip is that of a read in the same loop, in which the client looks at two sockets.

use super::{BYTES, Client, Node};
use portcullis_onerma::{
    Action, Allowed, DerivedKey, Destination, HolderTerms, HostAddress, RegionKey, RegionTerms, Status,
};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

const REKEYS: u8 = 200;

/// Who changes the key, and who reads.
pub struct Parties<'a> {
    pub node: &'a Node,
    pub address: SocketAddr,
    pub host: SocketAddr,
    pub holder: &'a mut Client,
    pub manager: &'a mut Client,
}

/// Medians in microseconds.
pub struct Figures {
    pub with_next_key: f64,
    pub without: f64,
    /// A round trip of a read.
    pub read: f64,
    /// A round trip to the owner, with its derivation.
    pub control: f64,
}

pub fn measure(parties: &mut Parties<'_>, owner: &mut TcpStream) -> Figures {
    let region = parties.grant(super::HOLDER);
    let reads = (0..super::EXCHANGES / 10).map(|_| {
        let before = Instant::now();
        assert_eq!(parties.read(&region, &mut Vec::new()), Status::Ok);
        super::micros(before.elapsed())
    });
    let read = super::median(reads.collect());
    let controls = (0..REKEYS).map(|_| {
        let before = Instant::now();
        std::hint::black_box(ask(owner));
        super::micros(before.elapsed())
    });
    let control = super::median(controls.collect());
    let with = (0..REKEYS).map(|turn| {
        let key = key(1, turn);
        let next = parties.next(key);
        parties.refused_for(key, || next)
    });
    let with_next_key = super::median(with.collect());
    let without = (0..REKEYS).map(|turn| {
        let next = || Destination { key: ask(owner).set_up(), ..region.clone() };
        parties.refused_for(key(2, turn), next)
    });
    let without = super::median(without.collect());
    Figures { with_next_key, without, read, control }
}

/// Another key for each run and turn: a key that is there already would refuse nobody.
fn key(run: u8, turn: u8) -> [u8; 32] {
    let mut key = [turn; 32];
    key[0] = run;
    key
}

/// Hands the holder's key to whoever has sent a byte.
pub fn hand_out(client: &mut TcpStream, key: impl FnOnce() -> DerivedKey) {
    if client.read(&mut [0]).is_ok_and(|bytes| bytes > 0) {
        client.write_all(&key().to_bytes()).expect("it is there");
    }
}

fn ask(owner: &mut TcpStream) -> DerivedKey {
    let mut key = [0; 32];
    owner.write_all(&[1]).expect("it is there");
    loop {
        match owner.read(&mut key) {
            Ok(bytes) => break assert_eq!(bytes, key.len()),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    DerivedKey::from_bytes(key)
}

/// The two ends of a control connection, which nobody waits at.
pub fn control() -> [TcpStream; 2] {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let client = TcpStream::connect(listener.local_addr().expect("its address")).expect("connects");
    let ends = [client, listener.accept().expect("the client").0];
    for end in &ends {
        end.set_nodelay(true).expect("it may be set");
        end.set_nonblocking(true).expect("it may be set");
    }
    ends
}

impl Parties<'_> {
    fn grant(&self, client: u64) -> Destination {
        self.node.grant(self.address, self.host, client)
    }

    /// What will open the region to the holder.
    fn next(&self, key: [u8; 32]) -> Destination {
        let now = self.grant(super::HOLDER);
        let terms = RegionTerms {
            incarnation: super::INCARNATION,
            index: now.region.index,
            generation: now.region.generation,
            address: 0,
            length: super::REGION_BYTES,
            allowed: Allowed::these(&super::ALLOWED),
        };
        let holder = HolderTerms { initiator: HostAddress::from(self.host.ip()), client: super::HOLDER };
        let key = RegionKey::new(key).derivation_key(&terms).derive(&holder).set_up();
        Destination { key, ..now }
    }

    fn refused_for(&mut self, key: [u8; 32], next: impl FnOnce() -> Destination) -> f64 {
        let (old, manage) = (self.grant(super::HOLDER), self.grant(super::MANAGER));
        self.manager.begin(&manage, Action::Rekey(RegionKey::new(key)));
        let (mut rekeyed, mut last) = (Vec::new(), Instant::now());
        loop {
            match self.read(&old, &mut rekeyed) {
                Status::Ok => last = Instant::now(),
                refused => break assert_eq!(refused, Status::RemoteAuthenticationFailure),
            }
        }
        let next = next();
        assert_eq!(self.read(&next, &mut rekeyed), Status::Ok);
        let time = super::micros(last.elapsed());
        while rekeyed.is_empty() {
            self.manager.turn(&mut rekeyed);
        }
        assert_eq!(rekeyed, [Status::Ok]);
        time
    }

    fn read(&mut self, to: &Destination, rekeyed: &mut Vec<Status>) -> Status {
        let mut ended = Vec::new();
        self.holder.begin(to, Action::Read(vec![0; BYTES]));
        while ended.is_empty() {
            self.manager.turn(rekeyed);
            self.holder.turn(&mut ended);
        }
        ended[0]
    }
}
