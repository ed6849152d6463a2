//! Memory that changes hands under load: the key of an ended permission never opens what another client was given.

mod world;

use crate::rig::{Rig, keys, word};
use portcullis_nic::Status;
use portcullis_node::{NodeConfig, Reductions};
use portcullis_protocol::{
    Acquire, Allocate, GrantRequest, Keep, Lifetime, Mechanism, Part, RequestBody, Rights, Sharing,
};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use world::{LONGEST, World};

#[derive(Clone, Copy, Debug)]
enum Op {
    Allocate {
        by: usize,
        size: u64,
        keep: bool,
        rights: Rights,
        sharing: Sharing,
    },
    Acquire {
        by: usize,
        which: usize,
        rights: Rights,
        sharing: Sharing,
    },
    Revoke {
        which: usize,
        free: bool,
    },
    /// One client's revoke and another client's allocation reach the node together.
    RevokeAndAllocate {
        which: usize,
        by: usize,
        size: u64,
    },
    /// One client waits for an object whose permission another client revokes.
    WaitAndRevoke {
        which: usize,
        by: usize,
    },
    Free {
        which: usize,
    },
    /// Writes to the client's own lifetime word: an honest extension, or garbage.
    TouchWord {
        which: usize,
        value: u64,
    },
    Fill {
        which: usize,
    },
    Pass {
        micros: u64,
    },
    Attach {
        tenant: usize,
    },
    Detach {
        by: usize,
    },
}

fn ops() -> impl Strategy<Value = Op> {
    let (by, which) = (0usize..8, 0usize..64);
    let size = prop_oneof![
        4 => Just(64u64), 3 => Just(1000), 3 => Just(4096), 2 => Just(30_000), 2 => Just(70_000), 1 => Just(260_000)
    ];
    let rights = prop_oneof![
        6 => Just(Rights::all()), 2 => Just(Rights::READ | Rights::WRITE), 1 => Just(Rights::READ)
    ];
    let sharing = prop_oneof![2 => Just(Sharing::Exclusive), 1 => Just(Sharing::Shared)];
    let micros = prop_oneof![4 => 0u64..10, 4 => 100u64..3_000, 1 => 20_000u64..120_000];
    let value = prop_oneof![Just(0u64), Just(u64::MAX), 100_000u64..400_000, any::<u64>()];
    prop_oneof![
        6 => (by.clone(), size.clone(), any::<bool>(), rights.clone(), sharing.clone())
            .prop_map(|(by, size, keep, rights, sharing)| Op::Allocate { by, size, keep, rights, sharing }),
        5 => (by.clone(), which.clone(), rights, sharing)
            .prop_map(|(by, which, rights, sharing)| Op::Acquire { by, which, rights, sharing }),
        6 => (which.clone(), any::<bool>()).prop_map(|(which, free)| Op::Revoke { which, free }),
        3 => (which.clone(), by.clone(), size)
            .prop_map(|(which, by, size)| Op::RevokeAndAllocate { which, by, size }),
        2 => (which.clone(), by.clone()).prop_map(|(which, by)| Op::WaitAndRevoke { which, by }),
        2 => which.clone().prop_map(|which| Op::Free { which }),
        2 => (which.clone(), value).prop_map(|(which, value)| Op::TouchWord { which, value }),
        1 => which.prop_map(|which| Op::Fill { which }),
        4 => micros.prop_map(|micros| Op::Pass { micros }),
        1 => (0usize..2).prop_map(|tenant| Op::Attach { tenant }),
        1 => by.prop_map(|by| Op::Detach { by }),
    ]
}

const LIFETIME: Lifetime = Lifetime::millis(50);

impl World {
    fn apply(&mut self, op: Op) {
        match op {
            Op::Allocate { by, size, keep, rights, sharing } => {
                let Some(client) = self.client(by, None) else { return };
                let keep = if keep { Keep::Attached } else { Keep::No };
                let lifetime = LIFETIME;
                let body = Allocate { size, alignment: 0, lifetime, rights, sharing, keep };
                let reply = self.rig.ask(client, GrantRequest::Allocate(body).into());
                self.note(client, (rights, sharing), true, reply);
            }
            Op::Acquire { by, which, rights, sharing } => {
                let Some((client, body)) = self.acquisition(by, which, (rights, sharing), Lifetime(0)) else {
                    return;
                };
                let reply = self.rig.ask(client, body);
                self.note(client, (rights, sharing), false, reply);
            }
            Op::Revoke { which, free } => {
                let Some(at) = self.live(which) else { return };
                let (client, permission) = (self.records[at].client, self.records[at].granted.permission);
                self.rig.ask_soon(client, RequestBody::Grant(GrantRequest::Revoke { permission, free }));
                self.records[at].ended = true;
            }
            Op::RevokeAndAllocate { which, by, size } => {
                let Some(at) = self.live(which) else { return };
                let Some(client) = self.client(by, Some(self.records[at].tenant)) else { return };
                self.both(at, client, crate::rig::allocate(size, false), true);
            }
            Op::WaitAndRevoke { which, by } => {
                let Some(at) = self.live(which) else { return };
                let Some(client) = self.client(by, Some(self.records[at].tenant)) else { return };
                let object = self.records[at].granted.object;
                for record in self.records.iter_mut().filter(|it| it.granted.object == object) {
                    record.touched = true;
                }
                self.both(at, client, crate::rig::acquire(object, Sharing::Exclusive, Lifetime(1)), false);
            }
            Op::Free { which } => {
                if self.records.is_empty() {
                    return;
                }
                let record = &self.records[which % self.records.len()];
                let object = record.granted.object;
                let Some(client) = self.client(which, Some(record.tenant)) else { return };
                self.rig.ask(client, crate::rig::free(object));
            }
            Op::TouchWord { which, value } => {
                let Some(at) = self.live(which) else { return };
                let (client, granted) = (self.records[at].client, self.records[at].granted);
                let (status, old) =
                    self.rig.swap(client, keys(&granted).1, word(&granted), granted.lifetime.0, value);
                assert_eq!(status, Status::Success, "a live permission's word, now {old}");
                self.records[at].touched = true;
            }
            Op::Fill { which } => {
                if let Some(at) = self.live(which) {
                    self.fill(at);
                }
            }
            Op::Pass { micros } => self.rig.pass(Lifetime(micros)),
            Op::Attach { tenant } => {
                if self.tenants.len() < 5 {
                    self.attach(tenant);
                }
            }
            Op::Detach { by } => {
                if let Some(client) = self.client(by, None) {
                    self.detach(client);
                }
            }
        }
    }

    fn acquisition(
        &self,
        by: usize,
        which: usize,
        (rights, sharing): (Rights, Sharing),
        wait: Lifetime,
    ) -> Option<(usize, RequestBody)> {
        let record = self.records.iter().rev().nth(which % self.records.len().max(1))?;
        let client = self.client(by, Some(record.tenant))?;
        let (object, part) = (record.granted.object.into(), Part::WHOLE);
        Some((
            client,
            RequestBody::Grant(GrantRequest::Acquire(Acquire {
                object,
                part,
                lifetime: LIFETIME,
                rights,
                sharing,
                wait,
            })),
        ))
    }

    /// Sends a revoke of record `at` and a request of `client` in one turn.
    fn both(&mut self, at: usize, client: usize, body: RequestBody, is_new: bool) {
        let (holder, permission) = (self.records[at].client, self.records[at].granted.permission);
        let wants = self.rig.send(client, body);
        let revoke =
            self.rig.send(holder, RequestBody::Grant(GrantRequest::Revoke { permission, free: false }));
        self.rig.settle();
        self.records[at].ended = true;
        self.rig.reply(holder, revoke).expect("a reply to the revoke");
        let mut reply = self.rig.reply(client, wants);
        if reply.is_none() && !is_new {
            // Other clients share the object. The wait is a microsecond.
            self.rig.pass(Lifetime(1));
            reply = self.rig.reply(client, wants);
        }
        self.see_ends();
        self.note(client, (Rights::all(), Sharing::Exclusive), is_new, reply.expect("a reply"));
    }
}

fn config(reductions: Reductions, mechanism: Mechanism) -> NodeConfig {
    let mut config = NodeConfig {
        mechanism,
        reductions,
        pool_bytes: 1 << 20,
        headers: 24,
        longest_lifetime: LONGEST,
        windows_ready: 2,
        windows_max: 40,
        window_rest: Lifetime::millis(5),
        ..NodeConfig::default()
    };
    config.violations.free_max = u32::MAX;
    config
}

fn reductions() -> impl Strategy<Value = Reductions> {
    let some = (any::<bool>(), any::<bool>(), any::<bool>());
    some.prop_map(|(delayed_unbinding, contiguity, handover)| Reductions {
        delayed_unbinding,
        contiguity,
        handover,
    })
}

fn run(config: NodeConfig, steps: &[(Op, usize, usize)]) {
    let mut world = World::new(Rig::new(config));
    for tenant in [0, 1, 0, 1] {
        world.attach(tenant);
    }
    for &(op, pick, by) in steps {
        world.apply(op);
        world.see_ends();
        for more in 0..2 {
            world.try_stale(pick / (1 + more * 7), by + more);
        }
        world.look_at_all();
    }
    world.rig.settle();
    world.rig.end();
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 96,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn no_stale_key_opens_what_another_was_given(
        reductions in prop_oneof![2 => Just(Reductions::default()), 1 => reductions()],
        steps in prop::collection::vec((ops(), 0usize..1000, 0usize..8), 1..80),
    ) {
        run(config(reductions, Mechanism::MemoryWindow), &steps);
    }

    #[test]
    fn no_stale_region_opens_what_another_was_given(
        reductions in reductions(),
        steps in prop::collection::vec((ops(), 0usize..1000, 0usize..8), 1..40),
    ) {
        run(config(reductions, Mechanism::MemoryRegion), &steps);
    }
}
