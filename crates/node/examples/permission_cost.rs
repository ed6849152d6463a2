//! The cost of a permission to the node, with and without its records: acquires and revokes permissions over and over,
//! on one thread.
//!
//! `scripts/instructions` counts its instructions. `permission_cost PERMISSIONS none|wrong|all|packed` sets the number of
//! permissions, and the events that are recorded; with `packed`, none is, and messages carry 32 requests each.

#[path = "../tests/rig/mod.rs"]
mod rig;

use portcullis_node::{AuditEvent, AuditEvents, NodeConfig};
use portcullis_protocol::{GrantRequest, Granted, Lifetime, ReplyBody, RequestBody, Sharing};
use rig::Rig;

/// Requests of a packed message.
const PACKED: u32 = 32;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let permissions: u32 = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(100_000);
    let wrong = [AuditEvent::Violation, AuditEvent::Pause, AuditEvent::Bar, AuditEvent::Unbar];
    let (audit, audit_events) = match arguments.next().as_deref() {
        Some("wrong") => (true, wrong.into_iter().collect()),
        Some("all") => (true, AuditEvents::all()),
        _ => (false, AuditEvents::none()),
    };
    let mut rig = Rig::new(NodeConfig { audit, audit_events, ..rig::config() });
    let client = rig.attach("a");
    let kept = rig.allocate(client, 64, true);
    rig.revoke(client, kept.permission);
    let mut records = 0;
    if std::env::args().nth(2).is_some_and(|mode| mode == "packed") {
        return packed(&mut rig, client, permissions);
    }
    for _ in 0..permissions {
        let it = rig.acquire(client, kept.object);
        rig.revoke(client, it.permission);
        records += std::iter::from_fn(|| rig.node.poll_audit()).count();
    }
    println!("{permissions} permissions, {records} records");
}

/// Acquires and revokes permissions over objects of their own, in messages with [`PACKED`] requests.
fn packed(rig: &mut Rig, client: usize, permissions: u32) {
    let objects: Vec<_> = (0..PACKED).map(|_| rig.keep(client).object).collect();
    let acquire: Vec<_> =
        objects.iter().map(|&it| rig::acquire(it, Sharing::Exclusive, Lifetime(0))).collect();
    for _ in 0..permissions / PACKED {
        let numbers = rig.send_packed(client, &acquire);
        rig.settle();
        let held =
            numbers.into_iter().map(|number| rig::granted(rig.reply(client, number).expect("a reply")));
        let revoke = |it: Granted| GrantRequest::Revoke { permission: it.permission, free: false }.into();
        let revoke: Vec<RequestBody> = held.map(revoke).collect();
        let numbers = rig.send_packed(client, &revoke);
        rig.settle();
        assert!(numbers.into_iter().all(|number| rig.reply(client, number) == Some(ReplyBody::Done)));
    }
    println!("{permissions} permissions, {PACKED} in a message");
}
