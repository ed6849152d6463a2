//! Floods of records that a tenant can cause at no cost: the first of a second are written, the others are summed up.
//! This module knows nothing of files.

use portcullis_node::{AuditEvent, AuditRecord};
use portcullis_protocol::Moment;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How many records of one event of one tenant are written in a second.
const EACH_SECOND: u64 = 100;
const SECOND_US: u64 = 1_000_000;

/// What was written and what was left out in the present second.
#[derive(Debug, Default)]
pub(super) struct Floods {
    /// The present second of the node's time.
    second: u64,
    seen: BTreeMap<(Arc<str>, &'static str), Seen>,
}

#[derive(Debug)]
struct Seen {
    event: AuditEvent,
    count: u64,
}

impl Floods {
    /// Whether this record is to be written. [`Floods::settle`] has to be called for its time before.
    pub fn passes(&mut self, record: &AuditRecord) -> bool {
        let event = record.event;
        let costs_nothing = matches!(
            event,
            AuditEvent::Attach
                | AuditEvent::Detach
                | AuditEvent::Violation
                | AuditEvent::Pause
                | AuditEvent::Recovery
        );
        let Some(tenant) = record.tenant.as_ref().filter(|_| costs_nothing) else { return true };
        let seen = self.seen.entry((Arc::clone(tenant), event.name()));
        let seen = seen.or_insert(Seen { event, count: 0 });
        seen.count += 1;
        seen.count <= EACH_SECOND
    }

    /// It is `now`: what was left out of a second that has ended, a record for each tenant and event.
    pub fn settle(&mut self, now: Moment) -> Vec<AuditRecord> {
        let second = now.0 / SECOND_US;
        if second == self.second {
            return Vec::new();
        }
        self.second = second;
        self.end()
    }

    /// The same for the present second.
    pub fn end(&mut self) -> Vec<AuditRecord> {
        let at = Moment(self.second * SECOND_US);
        let left_out =
            std::mem::take(&mut self.seen).into_iter().filter(|(_, seen)| seen.count > EACH_SECOND);
        let summed = left_out.map(|((tenant, _), seen)| AuditRecord {
            tenant: Some(tenant),
            reason: Some("more of them within a second"),
            count: Some(seen.count - EACH_SECOND),
            ..AuditRecord::new(at, seen.event)
        });
        summed.collect()
    }

    /// How long until the sum of what was left out has to be written, if anything was.
    pub fn told_in(&self, now: Moment) -> Option<Duration> {
        let left_out = self.seen.values().any(|seen| seen.count > EACH_SECOND);
        left_out.then(|| Duration::from_micros(SECOND_US - now.0 % SECOND_US))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(at: u64, event: AuditEvent, tenant: &str) -> AuditRecord {
        AuditRecord { tenant: Some(tenant.into()), ..AuditRecord::new(Moment(at), event) }
    }

    #[test]
    fn a_flood_is_cut_and_counted_and_nobody_elses_records_with_it() {
        let mut floods = Floods::default();
        let mut passed = 0;
        for at in 0..1000 {
            assert!(floods.settle(Moment(at)).is_empty());
            passed += u64::from(floods.passes(&record(at, AuditEvent::Violation, "red")));
        }
        assert_eq!(passed, EACH_SECOND);
        assert!(floods.passes(&record(1000, AuditEvent::Violation, "blue")));
        assert!(floods.passes(&record(1000, AuditEvent::Attach, "red")));
        assert_eq!(floods.told_in(Moment(400_000)), Some(Duration::from_millis(600)));
        let told = floods.settle(Moment(SECOND_US + 5));
        let [summed] = &told[..] else { panic!("one flood: {told:?}") };
        assert_eq!((summed.event, summed.count), (AuditEvent::Violation, Some(900)));
        assert_eq!(summed.tenant.as_deref(), Some("red"));
        assert_eq!(floods.told_in(Moment(SECOND_US + 5)), None);
        assert!(floods.passes(&record(SECOND_US + 5, AuditEvent::Violation, "red")), "a new second");
    }

    #[test]
    fn what_tenants_are_granted_is_written_line_by_line() {
        let mut floods = Floods::default();
        for event in [AuditEvent::Grant, AuditEvent::Revoke, AuditEvent::Bar] {
            assert!((0..1000).all(|at| floods.passes(&record(at, event, "red"))));
        }
        assert!(floods.end().is_empty());
    }
}
