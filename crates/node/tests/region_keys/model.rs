//! Random sequences beside a model that knows the holder of each permission.

use super::world::{NOW, World, name, revoke};
use crate::rig::{self, acquire, free};
use portcullis_node::NodeConfig;
use portcullis_protocol::{
    Allocate, ClientId, GrantRequest, Granted, Keep, Lifetime, ObjectRef, Refusal, RegionName, ReplyBody,
    RequestBody, Rights, Sharing,
};
use proptest::prelude::*;

/// A step of a client in a random sequence.
#[derive(Clone, Copy, Debug)]
enum Op {
    Allocate { by: usize, shared: bool },
    Acquire { by: usize, of: usize, shared: bool },
    Revoke { which: usize, free: bool },
    Free { by: usize, of: usize },
    Leave { by: usize },
    WithQueuePairs { of: usize },
    RevokeWithQueuePairs,
}

/// A permission in the model, with its holder.
#[derive(Clone, Copy, Debug)]
struct Held {
    by: usize,
    granted: Granted,
    shared: bool,
}

const TENANTS: [&str; 4] = ["a", "a", "a", "b"];
const SHARE: u32 = 4;
const SIZE: usize = 6;

fn op() -> impl Strategy<Value = Op> {
    let (by, any_object, shared) = (0..TENANTS.len(), 0..8usize, any::<bool>());
    prop_oneof![
        4 => (by.clone(), shared).prop_map(|(by, shared)| Op::Allocate { by, shared }),
        6 => (by.clone(), any_object.clone(), shared)
            .prop_map(|(by, of, shared)| Op::Acquire { by, of, shared }),
        4 => (0..8usize, any::<bool>()).prop_map(|(which, free)| Op::Revoke { which, free }),
        1 => (by.clone(), any_object.clone()).prop_map(|(by, of)| Op::Free { by, of }),
        1 => by.prop_map(|by| Op::Leave { by }),
        3 => any_object.prop_map(|of| Op::WithQueuePairs { of }),
        3 => Just(Op::RevokeWithQueuePairs),
    ]
}

/// A random sequence, with the model of what is held.
struct Modelled {
    world: World,
    guests: Vec<ClientId>,
    /// A client of tenant `a` with queue pairs. `own` is the permission that it holds.
    client: usize,
    own: Option<Granted>,
    held: Vec<Held>,
    objects: Vec<ObjectRef>,
}

impl Modelled {
    fn new() -> Self {
        let config = NodeConfig { tenant_regions_max: SHARE, ..rig::config() };
        let mut world = World::new(config, SIZE);
        let guests = TENANTS.map(|tenant| world.guest(tenant)).to_vec();
        let client = world.rig.attach("a");
        Self { world, guests, client, own: None, held: Vec::new(), objects: Vec::new() }
    }

    /// Sends a guest's request, and takes `alone` turns of the node before the NIC does anything.
    fn ask(&mut self, by: usize, body: RequestBody, alone: u8) -> ReplyBody {
        let sequence = self.world.say(self.guests[by], body);
        (0..alone).for_each(|_| self.world.turn_alone());
        self.world.settle();
        self.world.reply(self.guests[by], sequence).expect("each request is answered")
    }

    fn was_granted(&mut self, by: usize, shared: bool, reply: ReplyBody) {
        let of = |tenant| self.held.iter().filter(move |it| TENANTS[it.by] == tenant).count();
        let is_shared_out = of(TENANTS[by]) == SHARE as usize;
        let is_full = self.held.len() == SIZE;
        match reply {
            ReplyBody::Granted(granted) => {
                assert!(!is_shared_out && !is_full, "there was no room");
                let others = self.held.iter().filter(|it| it.granted.object == granted.object);
                let own = self.own.filter(|own| own.object == granted.object);
                assert!(own.is_none() && others.into_iter().all(|it| it.shared && shared));
                if !self.objects.contains(&granted.object) {
                    self.objects.push(granted.object);
                }
                self.held.push(Held { by, granted, shared });
            }
            ReplyBody::Refused(Refusal::Quota { .. }) => assert!(is_shared_out),
            ReplyBody::Refused(Refusal::NodeFull { .. }) => assert!(is_full),
            ReplyBody::Refused(_) => {}
            other => panic!("{other:?}"),
        }
    }

    fn carry_out(&mut self, op: Op, alone: u8) {
        let sharing = |shared| if shared { Sharing::Shared } else { Sharing::Exclusive };
        let object = |of: usize| (!self.objects.is_empty()).then(|| self.objects[of % self.objects.len()]);
        match op {
            Op::Allocate { by, shared } => {
                let (lifetime, rights, keep) = (Lifetime::millis(100), Rights::all(), Keep::Attached);
                let rights = if shared { Rights::READ } else { rights };
                let sharing = sharing(shared);
                let body = RequestBody::Grant(GrantRequest::Allocate(Allocate {
                    size: 64,
                    alignment: 0,
                    lifetime,
                    rights,
                    sharing,
                    keep,
                }));
                let reply = self.ask(by, body, alone);
                self.was_granted(by, shared, reply);
            }
            Op::Acquire { by, of, shared } => {
                let Some(object) = object(of) else { return };
                let reply = self.ask(by, acquire(object, sharing(shared), NOW), alone);
                self.was_granted(by, shared, reply);
            }
            Op::Revoke { which, free } => {
                if self.held.is_empty() {
                    return;
                }
                let Held { by, granted, .. } = self.held.remove(which % self.held.len());
                assert_eq!(self.ask(by, revoke(&granted, false), alone), ReplyBody::Done);
                if free {
                    self.free(by, granted.object, alone);
                }
            }
            Op::Free { by, of } => {
                if let Some(object) = object(of) {
                    self.free(by, object, alone);
                }
            }
            Op::Leave { by } => {
                self.world.leave(self.guests[by]);
                self.held.retain(|it| it.by != by);
                (0..alone).for_each(|_| self.world.turn_alone());
                self.guests[by] = self.world.guest(TENANTS[by]);
                self.world.settle();
            }
            Op::WithQueuePairs { of } => {
                let Some(object) = object(of).filter(|_| self.own.is_none()) else { return };
                let reply = self.world.rig.ask(self.client, acquire(object, Sharing::Exclusive, NOW));
                if let ReplyBody::Granted(granted) = reply {
                    assert!(self.held.iter().all(|it| it.granted.object != object));
                    self.own = Some(granted);
                }
            }
            Op::RevokeWithQueuePairs => {
                if let Some(own) = self.own.take() {
                    self.world.rig.send(self.client, revoke(&own, false));
                    self.world.rig.deliver();
                    (0..alone).for_each(|_| self.world.turn_alone());
                }
            }
        }
    }

    fn free(&mut self, by: usize, object: ObjectRef, alone: u8) {
        // The object goes with its last holder. Until then it can be acquired.
        self.ask(by, free(object), alone);
    }

    fn check(&mut self) {
        let open = self.world.table.lock().expect("not poisoned").open.clone();
        let mut held: Vec<RegionName> = self.held.iter().map(|it| name(&it.granted)).collect();
        held.sort();
        assert_eq!(open.keys().copied().collect::<Vec<_>>(), held);
        for Held { by, granted, .. } in &self.held {
            let region = open[&name(granted)];
            assert_eq!((region.client, region.address), (self.guests[*by], granted.address()));
        }
    }

    fn end(mut self) {
        for guest in std::mem::take(&mut self.guests) {
            self.world.leave(guest);
        }
        self.world.end();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_open_is_what_is_held(ops in prop::collection::vec((op(), 0u8..4), 1..80)) {
        let mut modelled = Modelled::new();
        for (op, alone) in ops {
            modelled.carry_out(op, alone);
            modelled.check();
        }
        modelled.end();
    }
}
