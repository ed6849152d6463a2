//! The rules for pausing and barring: a client for its own refused accesses, its siblings only for guesses of keys.

use super::permission::Wanted;
use super::{Oracle, Promise, Session, SessionId};
use crate::clock::Nanos;
use portcullis_protocol::{Moment, QueuePairRequest, Refusal, RequestBody};

/// A tenant's last bar.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bar {
    pub since: Moment,
    pub until: Moment,
}

impl Oracle {
    /// Classifies a refused access, by the keys that the network has shown. Doubtful ones count against the session, so
    /// that the node is never accused falsely.
    pub(super) fn note_refusal(&mut self, session: SessionId, node: usize, wanted: &Wanted) {
        let Some(model) = &self.nodes[node] else { return };
        let known = model.by_key(wanted.key).filter(|known| known.session == session);
        let covered =
            known.map(|known| known.covers(wanted).is_ok() && known.works_on(wanted.key, wanted.queue_pair));
        let it = &mut self.sessions[session];
        it.guesses += u64::from(covered.is_none());
        it.strays += u64::from(covered == Some(false));
    }

    /// Returns the refused accesses of a tenant's sessions with a node, and how many of them were guesses.
    fn charged(&self, node: usize, tenant: usize) -> (u64, u64) {
        let own = self.sessions.iter().filter(|it| it.node == node && it.tenant == tenant);
        own.fold((0, 0), |(refusals, guesses), it| (refusals + it.refusals, guesses + it.guesses))
    }

    /// Whether a session may have to wait, for its own refused accesses or for guesses of its tenant.
    pub fn has_offended(&self, session: SessionId) -> bool {
        let Session { node, tenant, refusals, .. } = self.sessions[session];
        !self.forgiving && (refusals > 0 || self.charged(node, tenant).1 > 0)
    }

    /// Whether a session, or its tenant, has ever been barred.
    pub fn was_barred(&self, session: SessionId) -> bool {
        let Session { node, tenant, barred, .. } = self.sessions[session];
        barred || self.barred.contains_key(&(node, tenant)) || self.were_barred.contains(&session)
    }

    /// Whether a session, or its tenant, was barred after `start`. If so, what began at `start` is over.
    pub(super) fn was_barred_since(&self, session: SessionId, start: Moment) -> bool {
        let Session { node, tenant, barred, .. } = self.sessions[session];
        barred || self.barred.get(&(node, tenant)).is_some_and(|bar| bar.since >= start)
    }

    /// Checks that a node refuses a request only for offences of the session or its tenant.
    pub(super) fn refused_for_standing(
        &mut self,
        session: SessionId,
        asked: RequestBody,
        refusal: Refusal,
        now: Nanos,
    ) {
        let Session { node, tenant, refusals, strays, .. } = self.sessions[session];
        let own = match (asked, refusal) {
            // A client's own pause delays its rebuilds and its workers only.
            (
                RequestBody::QueuePair(QueuePairRequest::Recover { .. })
                | RequestBody::QueuePair(QueuePairRequest::JoinChunks),
                Refusal::Paused { .. },
            ) => refusals > 0,
            (_, Refusal::Paused { .. }) => false,
            // Late accesses never bar a client.
            _ => strays > 0,
        };
        if !own {
            self.check_tenant(node, tenant, now, || format!("session {session} was refused: {refusal}"));
        }
    }

    /// Checks that a node rejects a client only for its tenant's own offences.
    pub fn turned_away(&mut self, node: usize, tenant: usize, refusal: Refusal, now: Nanos) {
        if matches!(refusal, Refusal::Paused { .. } | Refusal::Barred) {
            self.check_tenant(node, tenant, now, || {
                format!("a client of tenant {tenant} was refused: {refusal}")
            });
        }
    }

    /// Checks that a tenant that is not served has guessed a key.
    fn check_tenant(&mut self, node: usize, tenant: usize, now: Nanos, what: impl FnOnce() -> String) {
        match self.charged(node, tenant) {
            _ if self.forgiving => self.fail(Promise::Isolation, now, what()),
            (0, _) => self.fail(Promise::Isolation, now, what()),
            (late, 0) => {
                let what =
                    format!("{}, for {late} accesses, none with a key that was not its client's own", what());
                self.fail(Promise::Lateness, now, what);
            }
            _ => {}
        }
    }

    /// Records that a tenant is barred: checks why, and ends its permissions.
    pub fn tenant_barred(
        &mut self,
        node: usize,
        tenant: usize,
        (node_now, until): (Moment, Moment),
        now: Nanos,
    ) {
        let guesses = self.charged(node, tenant).1;
        if guesses < self.bar_after.into() {
            let what = format!("tenant {tenant} was barred for {guesses} guesses of keys");
            self.fail(Promise::Lateness, now, what);
        }
        self.barred.insert((node, tenant), Bar { since: node_now, until });
        if let Some(model) = &mut self.nodes[node] {
            model.of_tenant(tenant).for_each(|known| known.is_over(node_now));
        }
    }

    /// Records that a client is barred: checks why, and ends its permissions.
    pub fn client_barred(&mut self, session: SessionId, node_now: Moment, now: Nanos) {
        let Session { node, strays, .. } = self.sessions[session];
        if strays < self.bar_after.into() {
            let what = format!("session {session} was barred for {strays} accesses beyond what it held");
            self.fail(Promise::Lateness, now, what);
        }
        self.sessions[session].barred = true;
        if let Some(model) = &mut self.nodes[node] {
            model.for_session(session, |known| known.is_over(node_now));
        }
    }
}
