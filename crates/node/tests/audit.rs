//! The queue of audit records: its size is limited, and a note in the log reports how many records are missing at that
//! point.

use crate::rig::Rig;
use portcullis_node::{AuditEvent, AuditEvents, AuditRecord, NodeConfig};
use portcullis_protocol::Moment;

/// A rig whose node records only grants, and holds at most this many records.
fn rig(most: u32) -> Rig {
    let audit_events = AuditEvents::none().with(AuditEvent::Grant);
    Rig::new(NodeConfig { audit: true, audit_events, audit_records_max: most, ..crate::rig::config() })
}

/// Makes this many grants.
fn grant(rig: &mut Rig, client: usize, count: usize) {
    for _ in 0..count {
        rig.allocate(client, 64, false);
    }
}

fn next(rig: &mut Rig) -> Option<(AuditEvent, Option<u64>)> {
    rig.node.poll_audit().map(|record| (record.event, record.count))
}

const GRANT: Option<(AuditEvent, Option<u64>)> = Some((AuditEvent::Grant, None));

fn lost(count: u64) -> Option<(AuditEvent, Option<u64>)> {
    Some((AuditEvent::Lost, Some(count)))
}

#[test]
fn as_many_records_wait_as_may_and_none_is_lost_while_there_is_room() {
    let mut rig = rig(4);
    let client = rig.attach("a");
    grant(&mut rig, client, 4);
    assert_eq!(rig.node.counters().audit_lost, 0);
    assert_eq!([(); 5].map(|()| next(&mut rig)), [GRANT, GRANT, GRANT, GRANT, None]);
    grant(&mut rig, client, 4);
    assert_eq!(rig.node.counters().audit_lost, 0);
    rig.end();
}

#[test]
fn the_note_about_what_is_missing_takes_a_place_too() {
    let mut rig = rig(3);
    let client = rig.attach("a");
    grant(&mut rig, client, 5);
    assert_eq!(rig.node.counters().audit_lost, 2);
    assert_eq!(next(&mut rig), GRANT);
    // One place is free: enough for the note or the record, not for both.
    grant(&mut rig, client, 1);
    assert_eq!(rig.node.counters().audit_lost, 3);
    assert_eq!(next(&mut rig), GRANT);
    grant(&mut rig, client, 1);
    assert_eq!(rig.node.counters().audit_lost, 3, "two are free");
    assert_eq!([(); 4].map(|()| next(&mut rig)), [GRANT, lost(3), GRANT, None]);
    rig.end();
}

#[test]
fn the_note_says_when_the_last_of_them_was_lost() {
    let mut rig = rig(1);
    let client = rig.attach("a");
    grant(&mut rig, client, 1);
    let mut last = Moment(0);
    for _ in 0..3 {
        rig.pass(portcullis_protocol::Lifetime::millis(1));
        grant(&mut rig, client, 1);
        last = rig.now;
    }
    assert_eq!(next(&mut rig), GRANT);
    let note: AuditRecord = rig.node.poll_audit().expect("a note");
    assert_eq!((note.event, note.count, note.at), (AuditEvent::Lost, Some(3), last));
    assert_eq!((rig.node.poll_audit(), rig.node.counters().audit_lost), (None, 3));
    rig.end();
}
