//! Clients that allocate, use, free, send nonsense, die and attach again, in an order that a seed draws. A client holds
//! the chunks whose records name it, no other client reaches them, and they have the bytes that their holder wrote.

mod rig;

use portcullis_nic::Status;
use portcullis_offload::{ChunkWindow, Handle};
use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use rig::{ALLOC, Chunk, Client, FREE, GROUP, Kind, Rig};
use std::collections::BTreeSet;

const CHUNKS: u64 = 10;
const ROUNDS: usize = 300;
const CLIENTS: usize = 4;

struct Member {
    client: Client,
    held: Vec<Chunk>,
    /// Windows that the client could reach before.
    lost: Vec<ChunkWindow>,
}

struct Walk {
    rig: Rig,
    members: Vec<Member>,
    dice: Pcg64Mcg,
    /// Number of clients so far: no two have the same number.
    numbers: u64,
}

impl Walk {
    fn new(seed: u64) -> Self {
        let mut walk = Self {
            rig: Rig::new(CHUNKS),
            members: Vec::new(),
            dice: Pcg64Mcg::seed_from_u64(seed),
            numbers: 0,
        };
        for _ in 0..CLIENTS {
            let member = walk.newcomer();
            walk.members.push(member);
        }
        walk
    }

    fn newcomer(&mut self) -> Member {
        self.numbers += 1;
        let queue_pairs = self.dice.random_range(1..=GROUP);
        let client = self.rig.attach(self.numbers, queue_pairs);
        Member { client, held: Vec::new(), lost: Vec::new() }
    }

    /// Sends requests of all clients at once, so that their chains run side by side.
    fn round(&mut self) {
        let geometry = self.rig.pool.geometry();
        let mut asked = Vec::new();
        for (number, member) in self.members.iter().enumerate() {
            let request = match self.dice.random_range(0..5) {
                0 | 1 => (ALLOC, Handle(0)),
                2 | 3 if !member.held.is_empty() => {
                    let chunk = member.held[self.dice.random_range(0..member.held.len())].number;
                    (FREE, geometry.handle::<GROUP>(chunk))
                }
                2 => (FREE, geometry.handle::<GROUP>(self.dice.random_range(0..CHUNKS))),
                3 => (FREE, Handle(u16::try_from(self.dice.next_u32() & 0xffff).expect("16 bits"))),
                _ => continue,
            };
            self.rig.expect_reply(&member.client, request.0);
            self.rig.send(&member.client, request.0, &request.1.to_request());
            asked.push((number, request));
        }
        self.rig.settle();
        for (number, (worker, handle)) in asked {
            self.take(number, worker, handle);
        }
    }

    fn take(&mut self, number: usize, worker: usize, handle: Handle) {
        let member = &mut self.members[number];
        let reply = self.rig.take_reply(&mut member.client).expect("every request is answered");
        if worker == ALLOC {
            member.held.extend(self.rig.chunk(&reply));
            return;
        }
        let geometry = self.rig.pool.geometry();
        let named = member.held.iter().position(|chunk| geometry.handle::<GROUP>(chunk.number) == handle);
        assert_eq!(reply.is_done, named.is_some(), "a client frees what it holds, and nothing else");
        if let Some(place) = named {
            let chunk = member.held.swap_remove(place);
            member.lost.push(chunk.windows[0]);
        }
    }

    fn access(&mut self) {
        let number = self.dice.random_range(0..CLIENTS);
        let member = &self.members[number];
        let pair = self.dice.random_range(0..member.client.access.len());
        if let Some(chunk) = member.held.first() {
            let byte = u8::try_from(chunk.number + 1).expect("few chunks");
            let window = chunk.windows[pair];
            self.rig.fill(&member.client, byte);
            assert_eq!(self.rig.access(&member.client, pair, window, Kind::Write), Status::Success);
            self.rig.fill(&member.client, 0);
            assert_eq!(self.rig.access(&member.client, pair, window, Kind::Read), Status::Success);
            assert_eq!(self.rig.data(&member.client)[0], byte);
        }
        let Some(&window) = member.lost.last() else { return };
        let again = member.held.iter().any(|chunk| chunk.windows[0].rkey == window.rkey);
        if !again {
            let status = self.rig.access(&member.client, 0, window, Kind::Write);
            assert_eq!(status, Status::RemoteAccessError, "a key from before its chunk was freed");
            self.rig.recover(member.client.access[0]);
        }
    }

    fn death(&mut self) {
        let number = self.dice.random_range(0..CLIENTS);
        let newcomer = self.newcomer();
        let member = std::mem::replace(&mut self.members[number], newcomer);
        if self.dice.random_range(0..2) == 0 {
            // The client dies with requests under way.
            self.rig.send(&member.client, ALLOC, &Handle(0).to_request());
            self.rig.send(&member.client, FREE, &Handle(2).to_request());
            for _ in 0..self.dice.random_range(0..3) {
                self.rig.nic.turn();
            }
        }
        self.rig.reclaim(member.client);
    }

    fn check(&self) {
        let census = self.rig.pool.census().expect("a sound table");
        for member in &self.members {
            let says: BTreeSet<_> = self.rig.pool.chunks_of(member.client.number).into_iter().collect();
            let knows: BTreeSet<_> = member.held.iter().map(|chunk| chunk.number).collect();
            assert_eq!(says, knows, "what client {:?} holds", member.client.number);
        }
        let held: usize = self.members.iter().map(|member| member.held.len()).sum();
        assert_eq!((census.free.len() + held, census.held.len()), (10, held));
    }
}

#[test]
fn whatever_clients_do_each_chunk_is_one_holders_or_free() {
    for seed in 0..30 {
        eprintln!("seed {seed}");
        let mut walk = Walk::new(seed);
        for _ in 0..ROUNDS {
            walk.round();
            walk.access();
            if walk.dice.random_range(0..20) == 0 {
                walk.death();
            }
            walk.check();
        }
    }
}
