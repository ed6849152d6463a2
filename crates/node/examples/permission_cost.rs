//! The cost of a permission to the node, with and without its records: acquires and revokes permissions over and over,
//! on one thread.
//!
//! `scripts/instructions` counts its instructions. `permission_cost PERMISSIONS none|wrong|all` sets the number of
//! permissions, and the events that are recorded.

#[path = "../tests/rig/mod.rs"]
mod rig;

use portcullis_node::{AuditEvent, AuditEvents, NodeConfig};
use rig::Rig;

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
    for _ in 0..permissions {
        let it = rig.acquire(client, kept.object);
        rig.revoke(client, it.permission);
        records += std::iter::from_fn(|| rig.node.poll_audit()).count();
    }
    println!("{permissions} permissions, {records} records");
}
