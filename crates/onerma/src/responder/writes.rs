//! Writes under way: from the solicitation to the last byte.

use crate::arrivals::Arrivals;
use crate::packet::Header;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

/// A write whose bytes are on their way.
#[derive(Debug)]
pub(super) struct Write {
    from: SocketAddr,
    request: Header,
    /// What the region's version was when the request was authenticated.
    pub version: u64,
    deadline: Duration,
    pub bytes: Vec<u8>,
    arrivals: Arrivals,
}

/// What came of a request to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Begun {
    /// It is under way.
    New,
    /// It was under way before: the request was repeated.
    Before,
    /// Too many are under way.
    Full,
}

/// The writes, by their salts.
#[derive(Debug)]
pub(super) struct Writes {
    most: usize,
    most_of_a_client: usize,
    by_salt: HashMap<u64, Write>,
    /// The salts of each client's writes, by operation.
    by_client: HashMap<u64, HashMap<u64, u64>>,
    /// Deadlines, which all come after the same time, with their salts. Some are done before.
    deadlines: VecDeque<(Duration, u64)>,
}

impl Writes {
    pub fn new(most: usize, most_of_a_client: usize) -> Self {
        let (by_salt, by_client) = (HashMap::new(), HashMap::new());
        Self { most, most_of_a_client, by_salt, by_client, deadlines: VecDeque::new() }
    }

    /// Begins a write under a salt that no other ever had.
    pub fn begin(
        &mut self,
        from: SocketAddr,
        request: Header,
        (salt, version): (u64, u64),
        deadline: Duration,
    ) -> Begun {
        let of_client = self.by_client.get(&request.client);
        if of_client.is_some_and(|writes| writes.contains_key(&request.operation)) {
            return Begun::Before;
        }
        let has_many = of_client.is_some_and(|writes| writes.len() >= self.most_of_a_client);
        if has_many || self.by_salt.len() >= self.most {
            return Begun::Full;
        }
        self.by_client.entry(request.client).or_default().insert(request.operation, salt);
        let bytes = vec![0; request.length as usize];
        let write = Write { from, request, version, deadline, bytes, arrivals: Arrivals::default() };
        self.by_salt.insert(salt, write);
        self.deadlines.push_back((deadline, salt));
        Begun::New
    }

    /// Whether a packet claims to be of a write that is under way.
    pub fn wants(&self, header: &Header, from: SocketAddr, now: Duration) -> bool {
        self.by_salt.get(&header.salt).is_some_and(|write| {
            let Header { length, client, region, operation, address, .. } = write.request;
            write.from.ip() == from.ip()
                && now < write.deadline
                && (length, client, region, operation, address)
                    == (header.length, header.client, header.region, header.operation, header.address)
        })
    }

    /// Takes in a part of a write that [`wants`](Self::wants) it. Returns the write if that was the last part.
    pub fn add(&mut self, header: &Header, body: &[u8]) -> Option<Write> {
        let write = self.by_salt.get_mut(&header.salt)?;
        let start = header.offset as usize;
        write.bytes[start..start + body.len()].copy_from_slice(body);
        let end = header.offset + u32::try_from(body.len()).expect("a body is shorter than an operation");
        write.arrivals.add(header.offset, end);
        if !write.arrivals.is_all(header.length) {
            return None;
        }
        self.remove(header.salt)
    }

    fn remove(&mut self, salt: u64) -> Option<Write> {
        let write = self.by_salt.remove(&salt)?;
        let of_client = self.by_client.get_mut(&write.request.client).expect("each write is its client's");
        of_client.remove(&write.request.operation);
        if of_client.is_empty() {
            self.by_client.remove(&write.request.client);
        }
        Some(write)
    }

    /// The next deadline.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.deadlines.front().map(|&(deadline, _)| deadline)
    }

    /// Drops what has run out of time. Returns how many writes that were.
    pub fn expire(&mut self, now: Duration) -> u64 {
        let mut expired = 0;
        while let Some((_, salt)) = self.deadlines.pop_front_if(|&mut (deadline, _)| deadline <= now) {
            expired += u64::from(self.remove(salt).is_some());
        }
        expired
    }
}
