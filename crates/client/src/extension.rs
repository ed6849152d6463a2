//! Extensions of permissions: one CAS on the lifetime word (Patronus §5.3), or an RPC if the client cannot reach the
//! word.

use crate::access::AddressedAccess;
use crate::calls::{Asked, Awaited, Extending};
use crate::carrier::{Link, Posting};
use crate::control::Purpose;
use crate::data_path::DataPath;
use crate::operations::{Extended, Owner};
use crate::requests::Requests;
use crate::{Answer, Call, Error, Lease};
use portcullis_nic::VerbsEndpoint;
use portcullis_planted::planted;
use portcullis_protocol::{GrantRequest, Lifetime, Moment, Refusal, RequestBody};
use std::sync::Arc;

impl Requests {
    /// Extends a lease by its lifetime word if this client can reach the word, and by a message otherwise.
    pub(crate) fn extend<E: VerbsEndpoint>(
        &mut self,
        data: &mut DataPath<E>,
        posting: Posting,
        now: Moment,
        lease: &Arc<Lease>,
        deadline: Moment,
    ) -> Result<Call, Error> {
        if lease.has_word_for(&self.mark) {
            self.swap_lifetime(data, posting, now, lease, deadline)
        } else {
            self.extend_by_message(data, posting, now, lease, deadline)
        }
    }

    /// Extends a lease by a compare and swap on the lifetime word.
    fn swap_lifetime<E: VerbsEndpoint>(
        &mut self,
        data: &mut DataPath<E>,
        posting: Posting,
        now: Moment,
        lease: &Arc<Lease>,
        deadline: Moment,
    ) -> Result<Call, Error> {
        let extending = extending(now, lease, deadline)?;
        let last_step = data.link.limit.last_step(Lifetime(0));
        let id = self.calls.begin(Awaited::Extension(extending.clone()), Asked::EXTENSION, last_step)?;
        swap(data, posting, id, &extending).inspect_err(|_| self.calls.cancel(id))?;
        Ok(self.begun(posting, id))
    }

    /// Extends a lease by a message to the node.
    pub(crate) fn extend_by_message<E: VerbsEndpoint>(
        &mut self,
        data: &mut DataPath<E>,
        posting: Posting,
        now: Moment,
        lease: &Arc<Lease>,
        deadline: Moment,
    ) -> Result<Call, Error> {
        let extending = extending(now, lease, deadline)?;
        let (permission, lifetime) = (lease.permission, extending.asked);
        let body = GrantRequest::Extend { permission, lifetime }.into();
        self.send(data, posting, Awaited::Extension(extending), body)
    }

    /// Handles the end of a CAS on a lifetime word. The result counts only well before the old deadline. Later the node
    /// may have begun to unbind before it could see the new value, and the node's clock may be ahead.
    pub(crate) fn lifetime_swapped<E: VerbsEndpoint>(
        &mut self,
        data: &mut DataPath<E>,
        now: Moment,
        Extended { call, result }: Extended,
    ) {
        let Some(Awaited::Extension(extending)) = self.calls.awaited(call) else { return };
        let in_time = extending.lease.surely_lives(now) || planted!(LateExtensionBelieved);
        match result {
            Ok(0) => self.calls.finish(call, Err(Error::Refused(Refusal::NotExtendable))),
            Ok(found) if in_time && found == extending.believed.0 => {
                extending.lease.set_lifetime(extending.asked);
                self.calls.finish(call, Ok(Answer::Extended(extending.asked)));
            }
            Ok(found) if in_time && found != extending.believed.0 => {
                self.adopt(data, call, extending, Lifetime(found));
            }
            Ok(_) | Err(Error::Interrupted) => self.confirmations.push_back(call),
            Err(error) => self.calls.finish(call, Err(error)),
        }
    }

    /// Adopts the lifetime that the word held instead of the expected one: another session of this tenant extended the
    /// permission.
    fn adopt<E: VerbsEndpoint>(
        &mut self,
        data: &mut DataPath<E>,
        call: u64,
        extending: Extending,
        found: Lifetime,
    ) {
        // Whatever the word holds, the node lets no permission live longer than its longest.
        let found = found.min(extending.lease.longest);
        extending.lease.set_lifetime(found);
        if found >= extending.asked {
            self.calls.finish(call, Ok(Answer::Extended(found)));
            return;
        }
        let again = Extending { believed: found, retry: false, ..extending };
        if extending.retry && swap(data, Posting::AtOnce, call, &again).is_ok() {
            self.calls.now_awaits(call, Awaited::Extension(again));
        } else {
            self.confirmations.push_back(call);
        }
    }

    /// Requests the node's confirmation of extensions that the word alone leaves open.
    pub(crate) fn ask_for_confirmations<E: VerbsEndpoint>(&mut self, link: &mut Link<E>) {
        while let Some(&call) = self.confirmations.front() {
            if let Some(Awaited::Extension(Extending { lease, asked, .. })) = self.calls.awaited(call) {
                let permission = lease.permission;
                let body = RequestBody::Grant(GrantRequest::Extend { permission, lifetime: asked });
                if !link.control.ask(&mut link.endpoint, body, &[], Purpose::Call(call)) {
                    return;
                }
            }
            self.confirmations.pop_front();
        }
    }
}

/// Checks an extension that begins at `now`.
fn extending(now: Moment, lease: &Arc<Lease>, deadline: Moment) -> Result<Extending, Error> {
    let (believed, ends) = (lease.lifetime(), lease.deadline());
    if now >= ends {
        return Err(Error::Expired);
    }
    if deadline < ends {
        return Err(Error::LivesLonger { left: ends.since(now) });
    }
    // The lifetime word counts from the permission's start, which is `started_after` or later: the node does not end
    // the permission before `deadline`.
    let asked = deadline.since(lease.started_after());
    if asked > lease.longest {
        return Err(Error::Refused(Refusal::LifetimeTooLong { longest: lease.longest }));
    }
    Ok(Extending { lease: Arc::clone(lease), asked, believed, retry: true })
}

/// Begins the compare and swap of an extension.
fn swap<E: VerbsEndpoint>(
    data: &mut DataPath<E>,
    posting: Posting,
    call: u64,
    extending: &Extending,
) -> Result<(), Error> {
    let lease = &extending.lease;
    let access = AddressedAccess::of_lifetime(lease, extending.believed, extending.asked)?;
    let owner = Owner::Extension { call, deadline: lease.deadline() };
    data.begin_checked(posting, (owner, access), None).map(drop).map_err(|(_, error)| error)
}
