//! The violations of tenants, by name. This record outlasts the tenants' clients.

use super::violations::{Standing, TenantRecord};
use crate::config::ViolationLimits;
use portcullis_protocol::Moment;
use std::collections::HashMap;
use std::sync::Arc;

/// The most tenants whose violations are remembered.
const STANDINGS_MAX: usize = 1 << 16;

/// The tenants that have broken a rule on this node.
#[derive(Debug)]
pub(crate) struct Standings {
    limits: ViolationLimits,
    records: HashMap<Arc<str>, TenantRecord>,
    /// End of the first bar.
    next_bar_end: Option<Moment>,
}

impl Standings {
    pub fn new(limits: ViolationLimits) -> Self {
        Self { limits, records: HashMap::new(), next_bar_end: None }
    }

    /// Whether this tenant has broken a rule that is remembered.
    pub fn knows(&self, name: &str) -> bool {
        self.records.contains_key(name)
    }

    /// Returns the standing of a tenant.
    pub fn of(&self, name: &str, now: Moment) -> Standing {
        self.records.get(name).map_or(Standing::Good, |record| record.guesses.standing(now))
    }

    /// Returns a tenant's record of violations.
    pub fn record(&mut self, name: &Arc<str>, now: Moment) -> &mut TenantRecord {
        if self.records.len() >= STANDINGS_MAX && !self.records.contains_key(name) {
            // A tenant in good standing needs no record.
            self.records.retain(|_, record| record.guesses.standing(now) != Standing::Good);
        }
        let limits = self.limits;
        self.records.entry(Arc::clone(name)).or_insert_with(|| TenantRecord::new(limits))
    }

    /// Notes a bar that ends at `until`.
    pub fn note_bar(&mut self, until: Moment) {
        self.next_bar_end = Some(self.next_bar_end.map_or(until, |end| end.min(until)));
    }

    /// Returns the end of the first bar.
    pub fn next_bar_end(&self) -> Option<Moment> {
        self.next_bar_end
    }

    /// Takes out the tenants whose bars are over. `None`: no bar can be over yet.
    pub fn take_served(&mut self, now: Moment) -> Option<Vec<Arc<str>>> {
        self.next_bar_end.filter(|&end| now >= end)?;
        let served = self.records.extract_if(|_, record| record.guesses.has_served_bar(now));
        let served = served.map(|(name, _)| name).collect();
        let barred = self.records.values().map(|record| record.guesses.standing(now));
        let ends = barred.filter_map(|standing| match standing {
            Standing::Barred { until } => Some(until),
            Standing::Paused { .. } | Standing::Good => None,
        });
        self.next_bar_end = ends.min();
        Some(served)
    }

    /// Forgets the violations of a tenant that is barred or paused.
    pub fn forgive(&mut self, name: &str, now: Moment) -> Option<Arc<str>> {
        let is_served = self.of(name, now) == Standing::Good;
        if is_served { None } else { self.records.remove_entry(name).map(|(name, _)| name) }
    }

    /// Iterates over all records, by tenant name.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &TenantRecord)> {
        self.records.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_that_stand_well_are_forgotten_before_there_are_too_many() {
        let mut standings = Standings::new(ViolationLimits::default());
        let now = Moment(1);
        for number in 0..STANDINGS_MAX {
            standings.record(&format!("tenant {number}").into(), now);
        }
        assert_eq!(standings.records.len(), STANDINGS_MAX);
        standings.record(&"tenant 7".into(), now);
        assert_eq!(standings.records.len(), STANDINGS_MAX, "it was there");
        standings.record(&"one more".into(), now);
        assert_eq!(standings.records.len(), 1, "all others stand well");
    }
}
