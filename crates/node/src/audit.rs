//! The audit log: events of permissions, clients, tenants, names and chunks, one JSON object a line.
//!
//! Records are queued as values, and become text only when they are written, outside of the node's turn. The queue is
//! bounded: a reader that falls behind loses records, which are counted, and never costs the node time or memory.
//! Events that were not chosen make no record.

mod events;

pub use events::{AuditEvents, UnknownAuditEvent};

use portcullis_nic::{Access, RefusedAccess};
use portcullis_protocol::{
    ClientId, DirectoryName, Lifetime, Moment, ObjectRef, PermissionId, RemoteAddress, Rights, Rkey, Sharing,
    TenantName,
};
use serde::{Serialize, Serializer};
use std::collections::VecDeque;
use std::fmt::Display;
use std::sync::Arc;

/// Kind of an audit record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AuditEvent {
    /// The node starts. Written by the node's host, whichever events were chosen.
    Start,
    /// The node has ended. Written by the node's host, whichever events were chosen.
    Stop,
    /// A permission was granted.
    Grant,
    /// A permission's lifetime was extended.
    Extension,
    /// The holder or the node ended a permission before its deadline.
    Revoke,
    /// A permission reached its deadline.
    Expiry,
    /// An access of a client was refused.
    Violation,
    /// A client, or a tenant, is paused.
    Pause,
    /// A client is barred, or a tenant if the record names no client.
    Bar,
    /// A bar has ended by time, or the operator has lifted a bar or a pause.
    Unbar,
    /// A client attached.
    Attach,
    /// A client left.
    Detach,
    /// A peer was refused before it was a client, or the node disconnected the client for what it sent.
    Refuse,
    /// A request was refused because a quota of the tenant is used up.
    Quota,
    /// A client's broken queue pair was rebuilt.
    Recovery,
    /// An object got a name.
    Publish,
    /// A name ended: a client requested that, or its object is removed.
    Unpublish,
    /// A name was shared with another tenant.
    Share,
    /// A name is not shared with another tenant any more.
    Unshare,
    /// An object became a member of another one, and is shared with it from here on.
    Include,
    /// The NIC has allocated a chunk to a client. The node learns of it later.
    AllocateChunk,
    /// The NIC has freed a chunk.
    FreeChunk,
    /// Records were lost here; `count` is their number. Written whichever events were chosen.
    Lost,
}

impl AuditEvent {
    /// Every event.
    pub const ALL: [Self; 23] = [
        Self::Start,
        Self::Stop,
        Self::Grant,
        Self::Extension,
        Self::Revoke,
        Self::Expiry,
        Self::Violation,
        Self::Pause,
        Self::Bar,
        Self::Unbar,
        Self::Attach,
        Self::Detach,
        Self::Refuse,
        Self::Quota,
        Self::Recovery,
        Self::Publish,
        Self::Unpublish,
        Self::Share,
        Self::Unshare,
        Self::Include,
        Self::AllocateChunk,
        Self::FreeChunk,
        Self::Lost,
    ];

    /// The event's name in the log and in `--audit-events`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Grant => "grant",
            Self::Extension => "extension",
            Self::Revoke => "revoke",
            Self::Expiry => "expiry",
            Self::Violation => "violation",
            Self::Pause => "pause",
            Self::Bar => "bar",
            Self::Unbar => "unbar",
            Self::Attach => "attach",
            Self::Detach => "detach",
            Self::Refuse => "refuse",
            Self::Quota => "quota",
            Self::Recovery => "recovery",
            Self::Publish => "publish",
            Self::Unpublish => "unpublish",
            Self::Share => "share",
            Self::Unshare => "unshare",
            Self::Include => "include",
            Self::AllocateChunk => "allocate-chunk",
            Self::FreeChunk => "free-chunk",
            Self::Lost => "lost",
        }
    }
}

const _: () = assert!(AuditEvent::Lost as usize + 1 == AuditEvent::ALL.len(), "no event is left out of ALL");

impl Serialize for AuditEvent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A permission, as the audit log shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct AuditedPermission {
    /// The header and the start, which identify it.
    #[serde(flatten, serialize_with = "permission_id")]
    pub id: PermissionId,
    /// Address of the buffer; hexadecimal in the log.
    #[serde(serialize_with = "hexadecimal")]
    pub address: RemoteAddress,
    /// Number of bytes of the buffer.
    pub length: u64,
    /// `r`, `w` and `a`.
    #[serde(serialize_with = "letters")]
    pub rights: Rights,
    /// `exclusive` or `shared`.
    #[serde(serialize_with = "sharing_name")]
    pub sharing: Sharing,
    /// Time from the permission's start, in µs.
    #[serde(rename = "lifetime_us", serialize_with = "lifetime_us")]
    pub lifetime: Lifetime,
}

/// A refused access, as far as the NIC reports it, as the audit log shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct AuditedAccess {
    /// `read`, `write` or `atomic`.
    pub operation: &'static str,
    /// The access's first byte; hexadecimal in the log.
    #[serde(serialize_with = "hexadecimal")]
    pub address: RemoteAddress,
    /// Number of bytes.
    pub length: u64,
    /// The key that the access showed; hexadecimal in the log.
    #[serde(serialize_with = "key_hexadecimal")]
    pub rkey: Rkey,
    /// The NIC's reason for the refusal.
    pub fault: &'static str,
}

impl From<RefusedAccess> for AuditedAccess {
    fn from(refused: RefusedAccess) -> Self {
        let operation = match refused.needs {
            Access::REMOTE_READ => "read",
            Access::REMOTE_WRITE => "write",
            _ => "atomic",
        };
        let RefusedAccess { address, length, rkey, fault, .. } = refused;
        Self { operation, address, length, rkey, fault: fault.reason() }
    }
}

/// A name in the directory, as the audit log shows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct AuditedName {
    /// The name.
    #[serde(serialize_with = "text")]
    pub name: DirectoryName,
    /// The object that got it.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "text_if_any")]
    pub object: Option<ObjectRef>,
    /// The other tenant with which the name is or was shared.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "text_if_any")]
    pub with: Option<TenantName>,
    /// Rights of that tenant: `r`, `w` and `a`.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "letters_if_any")]
    pub rights: Option<Rights>,
}

/// An object that belongs to another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct AuditedMember {
    /// The member.
    #[serde(serialize_with = "text")]
    pub object: ObjectRef,
    /// The object that it belongs to.
    #[serde(serialize_with = "text")]
    pub head: ObjectRef,
}

/// A chunk, as the audit log shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct AuditedChunk {
    /// Address of the chunk; hexadecimal in the log.
    #[serde(serialize_with = "hexadecimal")]
    pub chunk: RemoteAddress,
    /// Number of the use that began or ended, or of the last use that ended.
    pub number_of_use: u64,
}

/// A peer or a request that was refused, as the audit log shows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct AuditedRefusal {
    /// The peer, which is no client: its address, or its user and process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Reason of the refusal.
    pub reason: String,
}

impl AuditedName {
    /// A name without the other fields.
    #[must_use]
    pub fn new(name: DirectoryName) -> Self {
        Self { name, object: None, with: None, rights: None }
    }
}

/// One record of the audit log. Its text leaves out fields that do not apply to the event. The writer adds the wall
/// clock and the node's incarnation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct AuditRecord {
    /// Time of the event, in µs of the node's time.
    #[serde(rename = "at_us", serialize_with = "moment_us")]
    pub at: Moment,
    /// The kind of the event.
    pub event: AuditEvent,
    /// The tenant's name.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "name")]
    pub tenant: Option<Arc<str>>,
    /// The client, by the node's number for it.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "client_number")]
    pub client: Option<ClientId>,
    /// The client's process id, if the node knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<u32>,
    /// The tenant that owns the permission's object, if it is another one.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "name")]
    pub owner: Option<Arc<str>>,
    /// The name in the directory that the event is about.
    #[serde(flatten)]
    pub name: Option<Box<AuditedName>>,
    /// The object that became a member of another one.
    #[serde(flatten)]
    pub member: Option<Box<AuditedMember>>,
    /// The chunk that the event is about.
    #[serde(flatten)]
    pub chunk: Option<Box<AuditedChunk>>,
    /// The permission that the event is about.
    #[serde(flatten)]
    pub permission: Option<AuditedPermission>,
    /// The access that was refused, if the NIC reports it.
    #[serde(flatten)]
    pub access: Option<AuditedAccess>,
    /// A refusal that concerned no permission. It is boxed: most records do not use it.
    #[serde(flatten)]
    pub refusal: Option<Box<AuditedRefusal>>,
    /// Reason of the event, in a few words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    /// End of a pause or a bar, in µs of the node's time.
    #[serde(rename = "until_us", skip_serializing_if = "Option::is_none", serialize_with = "until_us")]
    pub until: Option<Moment>,
    /// Number of events or records. In a [`FreeChunk`](AuditEvent::FreeChunk) record: how often the chunk was freed
    /// since the node last read its record. In a [`Lost`](AuditEvent::Lost) record: how many records are missing. In a
    /// [`Refuse`](AuditEvent::Refuse) record: how many further peers were refused without a record. In other records:
    /// how many further events of the tenant, within a second, have no record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
}

impl AuditRecord {
    /// A record with the time and the event only.
    #[must_use]
    pub fn new(at: Moment, event: AuditEvent) -> Self {
        Self {
            at,
            event,
            tenant: None,
            client: None,
            process: None,
            owner: None,
            name: None,
            member: None,
            chunk: None,
            permission: None,
            access: None,
            refusal: None,
            reason: None,
            until: None,
            count: None,
        }
    }
}

/// Records that wait to be written, outside of the node's turn.
pub(crate) struct AuditQueue {
    /// `None` if the node keeps no audit log.
    enabled: Option<Bounded>,
}

struct Bounded {
    events: AuditEvents,
    records: VecDeque<AuditRecord>,
    capacity: usize,
    /// Number of lost records that no `Lost` record reports yet.
    lost: u64,
    lost_last: Moment,
    lost_ever: u64,
}

impl AuditQueue {
    /// A queue of at most `capacity` records of `events`.
    pub(crate) fn new(events: AuditEvents, capacity: usize) -> Self {
        let records = VecDeque::with_capacity(capacity);
        let lost_last = Moment(0);
        Self { enabled: Some(Bounded { events, records, capacity, lost: 0, lost_last, lost_ever: 0 }) }
    }

    /// A queue that takes nothing and costs one comparison.
    pub(crate) fn disabled() -> Self {
        Self { enabled: None }
    }

    /// Queues a record of `event`, completed by `add`, or counts it as lost. Does not call `add` if the queue is
    /// disabled or the event was not chosen.
    pub(crate) fn push(
        &mut self,
        at: Moment,
        event: AuditEvent,
        add: impl FnOnce(AuditRecord) -> AuditRecord,
    ) {
        let Some(queue) = &mut self.enabled else { return };
        if !queue.events.contains(event) {
            return;
        }
        let record = add(AuditRecord::new(at, event));
        // After a loss, the record that reports it takes a place too.
        let needed = if queue.lost > 0 { 2 } else { 1 };
        if queue.records.len() + needed > queue.capacity {
            queue.lost += 1;
            queue.lost_ever += 1;
            queue.lost_last = at;
            return;
        }
        let lost = queue.take_lost();
        queue.records.extend(lost);
        queue.records.push_back(record);
    }

    /// Takes out the oldest record. A `Lost` record stands where records are missing.
    pub(crate) fn pop(&mut self) -> Option<AuditRecord> {
        let queue = self.enabled.as_mut()?;
        queue.records.pop_front().or_else(|| queue.take_lost())
    }

    /// Number of records lost since the node started.
    pub(crate) fn lost(&self) -> u64 {
        self.enabled.as_ref().map_or(0, |queue| queue.lost_ever)
    }
}

impl Bounded {
    fn take_lost(&mut self) -> Option<AuditRecord> {
        let count = std::mem::take(&mut self.lost);
        let record = AuditRecord { count: Some(count), ..AuditRecord::new(self.lost_last, AuditEvent::Lost) };
        (count > 0).then_some(record)
    }
}

#[derive(Serialize)]
struct PermissionFields {
    #[serde(serialize_with = "hexadecimal")]
    header: RemoteAddress,
    start_us: u64,
}

fn permission_id<S: Serializer>(id: &PermissionId, serializer: S) -> Result<S::Ok, S::Error> {
    PermissionFields { header: id.header, start_us: id.start.0 }.serialize(serializer)
}

fn hexadecimal<S: Serializer>(address: &RemoteAddress, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(address)
}

fn key_hexadecimal<S: Serializer>(key: &Rkey, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{:#x}", key.0))
}

fn letters<S: Serializer>(rights: &Rights, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&rights.letters())
}

fn letters_if_any<S: Serializer>(rights: &Option<Rights>, serializer: S) -> Result<S::Ok, S::Error> {
    rights.map(Rights::letters).serialize(serializer)
}

fn text<S: Serializer>(text: &impl Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(text)
}

fn text_if_any<S: Serializer, T: Display>(text: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
    text.as_ref().map(ToString::to_string).serialize(serializer)
}

fn sharing_name<S: Serializer>(sharing: &Sharing, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(sharing.name())
}

fn moment_us<S: Serializer>(moment: &Moment, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(moment.0)
}

fn until_us<S: Serializer>(until: &Option<Moment>, serializer: S) -> Result<S::Ok, S::Error> {
    until.map(|moment| moment.0).serialize(serializer)
}

fn lifetime_us<S: Serializer>(lifetime: &Lifetime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(lifetime.0)
}

fn name<S: Serializer>(name: &Option<Arc<str>>, serializer: S) -> Result<S::Ok, S::Error> {
    name.as_deref().serialize(serializer)
}

fn client_number<S: Serializer>(client: &Option<ClientId>, serializer: S) -> Result<S::Ok, S::Error> {
    client.map(|client| client.0).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(record: &AuditRecord) -> String {
        serde_json::to_string(record).expect("a record has a text")
    }

    fn event(at: u64) -> AuditRecord {
        AuditRecord::new(Moment(at), AuditEvent::Violation)
    }

    #[test]
    fn the_text_of_a_record_is_one_line_that_says_all() {
        let record = AuditRecord {
            tenant: Some("a \"quoted\"\nname".into()),
            client: Some(ClientId(3)),
            process: Some(4242),
            permission: Some(AuditedPermission {
                id: PermissionId { header: RemoteAddress(0x1000), start: Moment(5) },
                address: RemoteAddress(0x1020),
                length: 64,
                rights: Rights::READ | Rights::ATOMIC,
                sharing: Sharing::Shared,
                lifetime: Lifetime::millis(2),
            }),
            reason: Some("asked for"),
            ..AuditRecord::new(Moment(7), AuditEvent::Grant)
        };
        let expected = concat!(
            r#"{"at_us":7,"event":"grant","tenant":"a \"quoted\"\nname","client":3,"process":4242,"#,
            r#""header":"0x1000","start_us":5,"address":"0x1020","length":64,"rights":"ra","sharing":"shared","#,
            r#""lifetime_us":2000,"reason":"asked for"}"#
        );
        assert_eq!(text(&record), expected);
    }

    #[test]
    fn a_violation_says_what_was_refused() {
        let refused = RefusedAccess {
            address: RemoteAddress(0x1040),
            length: 8,
            needs: Access::REMOTE_WRITE,
            rkey: Rkey(0x205),
            fault: portcullis_nic::AccessFault::StaleKey,
        };
        let record = AuditRecord { access: Some(refused.into()), reason: Some("late access"), ..event(9) };
        let expected = concat!(
            r#"{"at_us":9,"event":"violation","operation":"write","address":"0x1040","length":8,"rkey":"0x205","#,
            r#""fault":"stale key","reason":"late access"}"#
        );
        assert_eq!(text(&record), expected);
    }

    #[test]
    fn fields_that_say_nothing_are_left_out() {
        assert_eq!(text(&event(9)), "{\"at_us\":9,\"event\":\"violation\"}");
    }

    #[test]
    fn what_a_full_queue_loses_is_told_where_it_is_missing() {
        let mut queue = AuditQueue::new(AuditEvents::all(), 3);
        for at in 0..5 {
            queue.push(Moment(at), AuditEvent::Violation, |record| record);
        }
        assert_eq!([queue.pop(), queue.pop()], [Some(event(0)), Some(event(1))]);
        queue.push(Moment(5), AuditEvent::Violation, |record| record);
        let lost = AuditRecord { count: Some(2), ..AuditRecord::new(Moment(4), AuditEvent::Lost) };
        assert_eq!(queue.lost(), 2);
        let rest: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(rest, [event(2), lost.clone(), event(5)]);
        assert!(text(&lost).contains("\"event\":\"lost\",\"count\":2"));
    }

    #[test]
    fn records_lost_last_are_told_once_the_queue_is_empty() {
        let mut queue = AuditQueue::new(AuditEvents::all(), 1);
        queue.push(Moment(0), AuditEvent::Violation, |record| record);
        queue.push(Moment(1), AuditEvent::Violation, |record| record);
        assert_eq!(queue.pop(), Some(event(0)));
        assert_eq!(queue.pop().map(|record| (record.event, record.count)), Some((AuditEvent::Lost, Some(1))));
        assert_eq!(queue.pop(), None);
    }

    #[test]
    fn of_an_event_that_nobody_chose_no_record_is_made() {
        let mut queue = AuditQueue::new(AuditEvents::none().with(AuditEvent::Violation), 2);
        for _ in 0..9 {
            queue.push(Moment(0), AuditEvent::Grant, |_| panic!("nobody chose it"));
        }
        queue.push(Moment(1), AuditEvent::Violation, |record| record);
        assert_eq!([queue.pop(), queue.pop()], [Some(event(1)), None]);
        assert_eq!(queue.lost(), 0);
    }

    #[test]
    fn a_disabled_queue_makes_no_record() {
        let mut queue = AuditQueue::disabled();
        queue.push(Moment(0), AuditEvent::Violation, |_| panic!("nobody wants it"));
        assert_eq!(queue.pop(), None);
    }
}
