//! Blocks on several nodes, with nodes that are sets of keys: they join, are lost, come back empty or not, leave, and
//! are full.

use portcullis_blocks::rank::{Candidate, ranked};
use portcullis_blocks::spread::{NodeNumber, Nodes, SpreadGet, SpreadPut, SpreadRemoval};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::collections::BTreeSet;

const KEYS: u8 = 6;

/// A node of the model.
#[derive(Clone, Debug, Default)]
struct Node {
    name: String,
    weight: u32,
    keys: BTreeSet<u8>,
    is_lost: bool,
    is_full: bool,
    is_young: bool,
}

#[derive(Clone, Debug)]
enum Event {
    Put(u8),
    Get(u8),
    Remove(u8),
    Joins(u32),
    Leaves(usize),
    IsLost(usize),
    /// The node is back, with its blocks or without them.
    IsBack(usize, bool),
    Fills(usize, bool),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        5 => (0..KEYS).prop_map(Event::Put),
        5 => (0..KEYS).prop_map(Event::Get),
        1 => (0..KEYS).prop_map(Event::Remove),
        1 => (1_u32..100).prop_map(Event::Joins),
        1 => any::<usize>().prop_map(Event::Leaves),
        2 => any::<usize>().prop_map(Event::IsLost),
        2 => (any::<usize>(), any::<bool>()).prop_map(|(node, keeps)| Event::IsBack(node, keeps)),
        1 => (any::<usize>(), any::<bool>()).prop_map(|(node, is_full)| Event::Fills(node, is_full)),
    ]
}

#[derive(Debug)]
struct World {
    nodes: Vec<Node>,
    copies: usize,
    /// Number of nodes that have joined.
    joined: usize,
    near: Option<String>,
}

impl World {
    fn new(copies: usize, is_near: bool) -> Self {
        let node = |number: u32| Node { name: format!("bank/{number}"), weight: 8, ..Node::default() };
        let near = is_near.then(|| "bank/1".to_owned());
        Self { nodes: (0..4).map(node).collect(), copies, joined: 0, near }
    }

    fn known(&self) -> Nodes {
        let members = self.nodes.iter().map(|node| (&*node.name, node.weight));
        let mut nodes = Nodes::new(members);
        for (number, node) in self.nodes.iter().enumerate() {
            nodes.set_young(number, node.is_young);
            nodes.set_near(number, self.near.as_deref() == Some(&*node.name));
            nodes.set_lost(number, node.is_lost);
        }
        nodes
    }

    fn candidates(&self) -> Vec<Candidate> {
        self.nodes.iter().map(|node| Candidate::new(&node.name, node.weight)).collect()
    }

    fn reachable(&self, key: u8) -> usize {
        self.nodes.iter().filter(|node| !node.is_lost && node.keys.contains(&key)).count()
    }

    fn put(&mut self, key: u8) {
        let name = [key];
        let mut put = SpreadPut::new(&self.known(), self.copies, [&name[..]]);
        loop {
            let requests = put.requests();
            if requests.is_empty() {
                break;
            }
            for request in requests {
                let node = &mut self.nodes[request.node];
                assert!(!node.is_lost, "a lost node is asked");
                if node.is_full && !node.keys.contains(&key) {
                    put.refused(request.places[0]);
                } else {
                    node.keys.insert(key);
                    put.stored(request.places[0]);
                }
            }
        }
        let (told, there) = (put.copies(0), self.reachable(key));
        assert!(told <= there, "{told} copies are reported, and there are {there}");
        assert!(told <= self.copies);
    }

    fn get(&mut self, key: u8) -> Option<NodeNumber> {
        let name = [key];
        let mut get = SpreadGet::new(&self.known(), self.copies, [&name[..]]);
        loop {
            let requests = get.requests();
            let Some(request) = requests.first() else { break };
            assert_eq!(requests.len(), 1);
            assert!(!self.nodes[request.node].is_lost, "a lost node is asked");
            if self.nodes[request.node].keys.contains(&key) {
                get.hit(request.node, 0);
            } else {
                get.missed(request.node, 0);
            }
        }
        for forward in get.forwards() {
            assert!(self.nodes[forward.from].keys.contains(&key));
            for node in &forward.to {
                assert!(!self.nodes[*node].keys.contains(&key), "a copy goes where there is one");
            }
            for node in forward.to.into_iter().chain(forward.unasked) {
                let node = &mut self.nodes[node];
                assert!(!node.is_lost, "a lost node is asked");
                if !node.is_full {
                    node.keys.insert(key);
                }
            }
        }
        let home = ranked(&self.candidates(), &name, self.copies);
        for node in home.into_iter().map(|node| &self.nodes[node]).filter(|_| get.found(0).is_some()) {
            let has = node.keys.contains(&key) || node.is_lost || node.is_full;
            assert!(has || !node.is_young, "a get leaves a young node without its copy");
        }
        get.found(0)
    }

    fn remove(&mut self, key: u8) {
        let there = self.reachable(key);
        let mut removal = SpreadRemoval::new(&self.known(), 1);
        for request in removal.requests() {
            if self.nodes[request.node].keys.remove(&key) {
                removal.removed(0);
            }
        }
        assert!(removal.requests().is_empty(), "a node is asked twice");
        assert_eq!(self.reachable(key), 0, "a copy is left where the client could have removed it");
        assert_eq!(removal.copies(0), there, "copies are removed, and not reported");
    }

    fn happen(&mut self, event: &Event) {
        let count = self.nodes.len();
        match *event {
            Event::Put(key) => self.put(key),
            Event::Get(key) => {
                let (there, found) = (self.reachable(key), self.get(key));
                assert_eq!(found.is_some(), there > 0, "block {key} has {there} copies, found on {found:?}");
            }
            Event::Remove(key) => self.remove(key),
            Event::Joins(weight) if count < 12 => {
                self.joined += 1;
                let name = format!("bank/joined {}", self.joined);
                let node = Node { name, weight, is_young: true, ..Node::default() };
                self.nodes.insert(weight as usize % (count + 1), node);
            }
            Event::Leaves(node) if count > 1 => {
                self.nodes.remove(node % count);
            }
            Event::Joins(_) | Event::Leaves(_) => {}
            Event::IsLost(node) => self.nodes[node % count].is_lost = true,
            Event::IsBack(node, keeps) => {
                let node = &mut self.nodes[node % count];
                node.is_lost = false;
                if !keeps {
                    node.keys.clear();
                    node.is_young = true;
                }
            }
            Event::Fills(node, is_full) => self.nodes[node % count].is_full = is_full,
        }
    }
}

/// Checks that every block of which a node has a copy is found, and that no put reports more copies than there are.
pub fn copies_are_found() {
    // A seed that has failed is in the message of the failure, with its smallest events.
    let mut runner = TestRunner::new(Config { cases: 2_000, failure_persistence: None, ..Config::default() });
    let strategy = (1_usize..4, any::<bool>(), prop::collection::vec(event(), 1..60));
    let done = runner.run(&strategy, |(copies, is_near, events)| {
        let mut world = World::new(copies, is_near);
        events.iter().for_each(|event| world.happen(event));
        Ok(())
    });
    if let Err(error) = done {
        panic!("{error}");
    }
}

#[test]
fn a_block_is_found_while_one_of_its_copies_can_be_reached() {
    copies_are_found();
}

#[test]
fn a_put_on_two_nodes_outlives_one_and_is_whole_again_after_a_get() {
    let mut world = World::new(2, false);
    world.put(1);
    let homes: Vec<_> = (0..4).filter(|node| world.nodes[*node].keys.contains(&1)).collect();
    assert_eq!(homes.len(), 2);
    let first = world.get(1).expect("it is there");
    world.nodes[first].is_lost = true;
    assert!(world.get(1).is_some_and(|node| homes.contains(&node) && node != first));
    // The node comes back empty, and the next get fills it.
    world.nodes[first].is_lost = false;
    world.nodes[first].keys.clear();
    assert!(world.get(1).is_some_and(|node| node != first));
    assert_eq!(world.get(1), Some(first));
    assert_eq!(world.reachable(1), 2);
}

#[test]
fn a_batch_asks_each_node_once_a_round() {
    let world = World::new(2, false);
    let names: Vec<_> = (0..100_u8).map(|key| [key]).collect();
    let mut put = SpreadPut::new(&world.known(), 2, names.iter().map(|name| &name[..]));
    let requests = put.requests();
    assert_eq!(requests.len(), 4);
    assert_eq!(requests.iter().map(|request| request.places.len()).sum::<usize>(), 200);
    for request in &requests {
        request.places.iter().for_each(|place| put.stored(*place));
    }
    assert!(put.requests().is_empty());
    let near = World::new(2, true);
    let mut get = SpreadGet::new(&near.known(), 2, names.iter().map(|name| &name[..]));
    let of_near =
        get.requests().into_iter().find(|request| request.node == 1).expect("the near node is asked");
    // Three of four ranks are asked for each key, and the near node comes first if it has one of them.
    assert!((65..85).contains(&of_near.places.len()), "{}", of_near.places.len());
}
