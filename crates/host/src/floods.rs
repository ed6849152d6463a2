//! Limits for floods of records that a tenant, or a peer that is no client, can cause at no cost: the first records of
//! a period are written, the others are summed up. This module knows nothing of files.

use portcullis_node::{AuditEvent, AuditRecord};
use portcullis_protocol::Moment;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Limits on the number of records that are written in a period.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FloodLimits {
    /// The period.
    pub period: Duration,
    /// The reason in the record that sums up the records that were left out.
    pub reason: &'static str,
    /// The most records of an event of one tenant that are written in a period. `None`: all of them.
    pub most: fn(AuditEvent) -> Option<u64>,
}

/// The records that were written and left out in the present period.
#[derive(Debug)]
pub(crate) struct Floods {
    limits: FloodLimits,
    /// The number of the present period, counted in the node's time.
    period: u64,
    seen: BTreeMap<(Option<Arc<str>>, &'static str), Seen>,
}

#[derive(Debug)]
struct Seen {
    event: AuditEvent,
    left_out: u64,
    passed: u64,
}

impl Floods {
    pub fn new(limits: FloodLimits) -> Self {
        Self { limits, period: 0, seen: BTreeMap::new() }
    }

    /// Whether this record is to be written. The caller must call [`Floods::settle`] for the record's time before.
    pub fn passes(&mut self, record: &AuditRecord) -> bool {
        // A record without a tenant is the node's own, unless a peer that is no client has caused it.
        let is_foreign = record.tenant.is_some() || record.event == AuditEvent::Refuse;
        let Some(most) = (self.limits.most)(record.event).filter(|_| is_foreign) else { return true };
        let seen = self.seen.entry((record.tenant.clone(), record.event.name()));
        let seen = seen.or_insert(Seen { event: record.event, left_out: 0, passed: 0 });
        if seen.passed < most {
            seen.passed += 1;
            return true;
        }
        // A record that stands for others counts them too.
        seen.left_out += 1 + record.count.unwrap_or(0);
        false
    }

    /// Closes a period that has ended by the moment `now`. Returns one record for each tenant and event of which
    /// records were left out.
    pub fn settle(&mut self, now: Moment) -> Vec<AuditRecord> {
        let period = now.0 / self.period_us();
        if period == self.period {
            return Vec::new();
        }
        self.period = period;
        self.end()
    }

    /// Closes the present period in the same way as [`Floods::settle`] closes one that has ended.
    pub fn end(&mut self) -> Vec<AuditRecord> {
        let at = Moment(self.period * self.period_us());
        let left_out = std::mem::take(&mut self.seen).into_iter().filter(|(_, seen)| seen.left_out > 0);
        let summed = left_out.map(|((tenant, _), seen)| AuditRecord {
            tenant,
            reason: Some(self.limits.reason),
            count: Some(seen.left_out),
            ..AuditRecord::new(at, seen.event)
        });
        summed.collect()
    }

    /// Time until the sum of the records left out has to be written, if any were.
    pub fn told_in(&self, now: Moment) -> Option<Duration> {
        let left_out = self.seen.values().any(|seen| seen.left_out > 0);
        left_out.then(|| Duration::from_micros(self.period_us() - now.0 % self.period_us()))
    }

    fn period_us(&self) -> u64 {
        u64::try_from(self.limits.period.as_micros()).expect("a period is short")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_US: u64 = 1_000_000;
    const LIMITS: FloodLimits = FloodLimits {
        period: Duration::from_secs(1),
        reason: "more",
        most: |event| matches!(event, AuditEvent::Violation | AuditEvent::Refuse).then_some(100),
    };

    fn record(at: u64, event: AuditEvent, tenant: &str) -> AuditRecord {
        AuditRecord { tenant: Some(tenant.into()), ..AuditRecord::new(Moment(at), event) }
    }

    #[test]
    fn a_flood_is_cut_and_counted_and_nobody_elses_records_with_it() {
        let mut floods = Floods::new(LIMITS);
        let mut passed = 0;
        for at in 0..1000 {
            assert!(floods.settle(Moment(at)).is_empty());
            passed += u64::from(floods.passes(&record(at, AuditEvent::Violation, "red")));
        }
        assert_eq!(passed, 100);
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
    fn peers_without_a_tenant_are_one_flood() {
        let mut floods = Floods::new(LIMITS);
        let refused = |at| AuditRecord::new(Moment(at), AuditEvent::Refuse);
        assert_eq!((0..120).filter(|&at| floods.passes(&refused(at))).count(), 100);
        let of_ten = AuditRecord { count: Some(9), ..refused(120) };
        assert!(!floods.passes(&of_ten));
        let told = floods.settle(Moment(SECOND_US));
        let [summed] = &told[..] else { panic!("one flood: {told:?}") };
        assert_eq!(
            (summed.event, summed.tenant.as_deref(), summed.count),
            (AuditEvent::Refuse, None, Some(30))
        );
    }

    #[test]
    fn what_tenants_are_granted_is_written_line_by_line() {
        let mut floods = Floods::new(LIMITS);
        for event in [AuditEvent::Grant, AuditEvent::Revoke, AuditEvent::Bar] {
            assert!((0..1000).all(|at| floods.passes(&record(at, event, "red"))));
        }
        assert!(floods.end().is_empty());
    }
}
