//! A node with a table of regions, and clients of both kinds.

use crate::rig::{Rig, allocate, granted};
use portcullis_node::{NodeConfig, OpenRegion, Regions};
use portcullis_protocol::{
    ClientId, Credential, GrantRequest, Granted, HolderKey, Lifetime, RegionName, Reply, ReplyBody, Request,
    RequestBody,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

pub const HOST: [u8; 16] = [7; 16];
/// Number of places of the table, unless a test needs another.
pub const PLACES: usize = 64;
pub const NOW: Lifetime = Lifetime(0);
pub const WHILE: Lifetime = Lifetime::seconds(5);

/// A table of regions that holds no memory, and carries out each call without checks.
#[derive(Debug, Default)]
pub struct Table {
    size: usize,
    pub open: BTreeMap<RegionName, OpenRegion>,
    generations: Vec<u32>,
    pub opened: u32,
    closed: u32,
    /// Whether an operation is carried out on each region at the moment at which it is closed.
    pub is_in_use: bool,
    /// The closed regions on which an operation is still carried out.
    pub in_use: BTreeSet<RegionName>,
    /// Number of further questions after which these operations have ended.
    pub ends_after: Option<u32>,
}

#[derive(Debug)]
struct Lent(Arc<Mutex<Table>>);

impl Regions for Lent {
    fn open(&mut self, region: OpenRegion) -> Option<(RegionName, HolderKey)> {
        let mut table = self.0.lock().expect("not poisoned");
        if table.open.len() == table.size {
            return None;
        }
        let index = (0..).find(|&index| !table.open.keys().any(|it| it.index == index)).expect("a place");
        if table.generations.len() <= index as usize {
            table.generations.resize(index as usize + 1, 0);
        }
        let name = RegionName { index, generation: table.generations[index as usize] };
        table.open.insert(name, region);
        table.opened += 1;
        Some((name, HolderKey([1; _])))
    }

    fn close(&mut self, region: RegionName) {
        let mut table = self.0.lock().expect("not poisoned");
        assert!(table.open.remove(&region).is_some(), "{region:?} is closed once, and was open");
        table.generations[region.index as usize] += 1;
        table.closed += 1;
        if table.is_in_use {
            table.in_use.insert(region);
        }
    }

    fn has_ended(&mut self, region: RegionName) -> bool {
        let mut table = self.0.lock().expect("not poisoned");
        if let Some(questions) = table.ends_after.as_mut() {
            *questions = questions.saturating_sub(1);
            if *questions == 0 {
                table.in_use.clear();
            }
        }
        !table.in_use.contains(&region)
    }
}

/// A node with a table of regions, its NIC, clients with queue pairs, and guests: clients without queue pairs.
pub struct World {
    pub rig: Rig,
    pub table: Arc<Mutex<Table>>,
    sequence: u32,
    replies: HashMap<(ClientId, u32), ReplyBody>,
}

impl World {
    pub fn new(config: NodeConfig, places: usize) -> Self {
        let mut rig = Rig::new(config);
        let table = Arc::new(Mutex::new(Table { size: places, ..Table::default() }));
        rig.node.lend_regions(Box::new(Lent(Arc::clone(&table))));
        Self { rig, table, sequence: 0, replies: HashMap::new() }
    }

    pub fn guest(&mut self, tenant: &str) -> ClientId {
        let Rig { node, nic, now, .. } = &mut self.rig;
        let admission = node.admit(nic, tenant, *now).expect("the tenant may come");
        node.attach_without_queue_pairs(admission.tenant, HOST, 1024, *now).expect("attached")
    }

    pub fn leave(&mut self, guest: ClientId) {
        let Rig { node, nic, now, .. } = &mut self.rig;
        node.detach(nic, guest, *now);
    }

    pub fn say(&mut self, guest: ClientId, body: RequestBody) -> u32 {
        self.sequence += 1;
        self.rig.node.hear(guest, Request { sequence: self.sequence, body }.encode());
        self.sequence
    }

    /// One turn of the node, in which the NIC does nothing.
    pub fn turn_alone(&mut self) {
        let Rig { node, nic, now, .. } = &mut self.rig;
        node.turn(nic, *now);
        self.listen();
    }

    pub fn settle(&mut self) {
        self.rig.settle();
        self.listen();
    }

    pub fn pass(&mut self, time: Lifetime) {
        self.rig.pass(time);
        self.listen();
    }

    pub fn listen(&mut self) {
        while let Some((guest, message)) = self.rig.node.poll_reply() {
            let Reply { sequence, body } = Reply::decode(message).expect("a node's reply means something");
            assert!(self.replies.insert((guest, sequence), body).is_none(), "two replies to one request");
        }
    }

    pub fn reply(&mut self, guest: ClientId, sequence: u32) -> Option<ReplyBody> {
        self.replies.remove(&(guest, sequence))
    }

    pub fn ask(&mut self, guest: ClientId, body: RequestBody) -> ReplyBody {
        let sequence = self.say(guest, body);
        self.settle();
        self.reply(guest, sequence).unwrap_or_else(|| panic!("no reply to {body:?}"))
    }

    pub fn hold(&mut self, guest: ClientId) -> Granted {
        granted(self.ask(guest, allocate(64, false)))
    }

    pub fn revoke(&mut self, guest: ClientId, it: &Granted) {
        assert_eq!(self.ask(guest, revoke(it, false)), ReplyBody::Done);
    }

    pub fn open(&self) -> usize {
        self.table.lock().expect("not poisoned").open.len()
    }

    pub fn region(&self, it: &Granted) -> Option<OpenRegion> {
        self.table.lock().expect("not poisoned").open.get(&name(it)).copied()
    }

    /// Ends the node. Objects without holders go, and nothing may stay.
    pub fn end(self) {
        let (clients, regions) = (self.rig.node.clients(self.rig.now), Arc::clone(&self.table));
        let with_queue_pairs = self.rig.clients().len();
        assert_eq!(clients.len(), with_queue_pairs, "the guests have left");
        self.rig.end();
        let table = regions.lock().expect("not poisoned");
        assert!(table.open.is_empty(), "{table:?}");
        assert_eq!(table.opened, table.closed);
    }
}

pub fn name(it: &Granted) -> RegionName {
    let Credential::RegionKey { region, .. } = it.credential else { panic!("no region: {it:?}") };
    region
}

pub fn revoke(it: &Granted, free: bool) -> RequestBody {
    RequestBody::Grant(GrantRequest::Revoke { permission: it.permission, free })
}
