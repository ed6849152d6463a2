//! What tenants answer for, by their names: it outlasts their clients.

use super::violations::{Standing, TenantRecord};
use crate::config::ViolationLimits;
use portcullis_protocol::Moment;
use std::collections::HashMap;
use std::sync::Arc;

/// Tenants that broke a rule and are remembered for it.
const STANDINGS_MAX: usize = 1 << 16;

/// The tenants that have broken a rule on this node.
#[derive(Debug)]
pub(crate) struct Standings {
    limits: ViolationLimits,
    records: HashMap<Arc<str>, TenantRecord>,
    /// When the first bar ends.
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

    /// How a tenant stands.
    pub fn of(&self, name: &str, now: Moment) -> Standing {
        self.records.get(name).map_or(Standing::Good, |record| record.guesses.standing(now))
    }

    /// What a tenant answers for.
    pub fn record(&mut self, name: &Arc<str>, now: Moment) -> &mut TenantRecord {
        if self.records.len() >= STANDINGS_MAX && !self.records.contains_key(name) {
            // Whoever stands well needs no memory of it.
            self.records.retain(|_, record| record.guesses.standing(now) != Standing::Good);
        }
        let limits = self.limits;
        self.records.entry(Arc::clone(name)).or_insert_with(|| TenantRecord::new(limits))
    }

    /// A bar begins that ends then.
    pub fn note_bar(&mut self, until: Moment) {
        self.next_bar_end = Some(self.next_bar_end.map_or(until, |end| end.min(until)));
    }

    /// When the first bar ends.
    pub fn next_bar_end(&self) -> Option<Moment> {
        self.next_bar_end
    }

    /// Takes out the tenants whose bars are over. `None`: none could be.
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

    /// Forgets what a tenant answers for, if the tenant is barred or paused.
    pub fn forgive(&mut self, name: &str, now: Moment) -> Option<Arc<str>> {
        let is_served = self.of(name, now) == Standing::Good;
        if is_served { None } else { self.records.remove_entry(name).map(|(name, _)| name) }
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &TenantRecord)> {
        self.records.iter()
    }
}
