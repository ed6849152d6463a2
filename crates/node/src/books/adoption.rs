//! Permissions that something other than a request made, such as a chain of work requests on the NIC.

use super::Books;
use super::permissions::{Claim, Extent, Origin, PermissionKind, PermissionSlot};
use super::requests::{RequestOrigin, Wish};
use portcullis_nic::Memory;
use portcullis_protocol::{
    ClientId, Credential, Lifetime, Moment, ObjectName, Part, Refusal, Rights, Sharing,
};

/// A permission that is set up on the NIC already, and that its holder already knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Adopted {
    pub client: ClientId,
    pub object: ObjectName,
    pub part: Part,
    pub rights: Rights,
    pub sharing: Sharing,
    pub lifetime: Lifetime,
    pub credential: Credential,
}

impl<M: Memory> Books<M> {
    /// Enters a permission that exists already. It ends like every other permission, with a
    /// [`Withdraw`](super::Effect::Withdraw), but no client gets a reply that it has started.
    ///
    /// # Errors
    /// The books refuse the permission as they would refuse a request for it that does not wait. The caller must then
    /// take its protection down.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "chains on the NIC, which make such permissions, are to come")
    )]
    pub fn adopt(&mut self, adopted: &Adopted, now: Moment) -> Result<PermissionSlot, Refusal> {
        let client = adopted.client;
        let tenant = self.tenant_of(client).ok_or(Refusal::NotLive)?;
        let object = self.pool.object_named(tenant, adopted.object)?;
        let part = Extent { offset: adopted.part.offset, length: adopted.part.length };
        let claim = Claim { extent: self.part_of(object, part)?, sharing: adopted.sharing };
        let from = RequestOrigin { client, tenant, sequence: 0 };
        let &Adopted { rights, lifetime, .. } = adopted;
        let kind = PermissionKind::Object;
        let wish = Wish { from, rights, claim, kind, lifetime, guest: None, asked: now };
        self.check_wish(&wish, now)?;
        if self.is_awaited(object, claim) || !self.admits(object, claim, tenant) {
            return Err(Refusal::Conflict);
        }
        let slot = self.start(&wish, object, Origin::Adopted, now)?;
        self.handle_exposed(slot, adopted.credential, now);
        Ok(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::books::{Effect, Residue};
    use crate::config::NodeConfig;
    use portcullis_nic::Nic;
    use portcullis_protocol::{Allocate, GrantRequest, Incarnation, Keep, ReplyBody, Rkey, TenantId};
    use portcullis_softnic::SoftNic;

    const NOW: Moment = Moment(1_000_000);
    const CLIENT: ClientId = ClientId(1);
    const FROM: RequestOrigin = RequestOrigin { client: CLIENT, tenant: TenantId(0), sequence: 1 };
    const KEYS: Credential = Credential::Keys { buffer: Rkey(0x100), lifetime: Rkey(0x200) };

    /// Books with one client, which keeps one object that has no holder.
    fn books() -> (Books<<SoftNic as Nic>::Memory>, ObjectName) {
        let config = NodeConfig { pool_bytes: 1 << 20, headers: 64, ..NodeConfig::default() };
        let memory = SoftNic::default().allocate_memory(config.memory_bytes()).expect("a megabyte");
        let mut books = Books::new(memory, config, Incarnation(7));
        books.enter_tenant("a", None);
        books.hold_tenant(TenantId(0));
        books.handle_attached(CLIENT, TenantId(0), None, NOW);
        books.begin_turn();
        let allocate = GrantRequest::Allocate(Allocate {
            size: 64,
            alignment: 0,
            lifetime: Lifetime::seconds(1),
            rights: Rights::all(),
            sharing: Sharing::Exclusive,
            keep: Keep::Attached,
        });
        books.handle_request(FROM, allocate, NOW);
        let Some(Effect::Expose(exposure)) = books.poll_effect() else { panic!("it is set up") };
        books.handle_exposed(exposure.permission, KEYS, NOW);
        let Some(Effect::Reply(CLIENT, reply)) = books.poll_effect() else { panic!("it is granted") };
        let ReplyBody::Granted(granted) = reply.body else { panic!("{reply:?}") };
        let revoke = GrantRequest::Revoke { permission: granted.permission, free: false };
        books.handle_request(FROM, revoke, NOW);
        let Some(Effect::Withdraw(withdrawal)) = books.poll_effect() else { panic!("it ends") };
        books.handle_withdrawn(withdrawal.residue(), NOW);
        (books, granted.object.into())
    }

    fn adopted(object: ObjectName) -> Adopted {
        Adopted {
            client: CLIENT,
            object,
            part: Part::WHOLE,
            rights: Rights::READ,
            sharing: Sharing::Exclusive,
            lifetime: Lifetime::millis(5),
            credential: KEYS,
        }
    }

    #[test]
    fn an_adopted_permission_ends_with_its_time_and_is_withdrawn() {
        let (mut books, object) = books();
        let slot = books.adopt(&adopted(object), NOW).expect("nobody holds the object");
        assert!(books.poll_effect().is_none(), "its holder knows of it, and the NIC has it");
        assert_eq!(books.adopt(&adopted(object), NOW), Err(Refusal::Conflict));
        let over = NOW.after(Lifetime::millis(5));
        books.begin_turn();
        books.handle_timeout(over);
        let Some(Effect::Withdraw(withdrawal)) = books.poll_effect() else { panic!("its time is over") };
        assert_eq!((withdrawal.permission, withdrawal.last), (slot, false));
        assert_ne!(withdrawal.residue(), Residue::default());
        books.handle_withdrawn(withdrawal.residue(), over);
        assert!(books.adopt(&adopted(object), over).is_ok());
    }

    #[test]
    fn what_the_books_would_refuse_a_client_is_not_adopted() {
        let (mut books, object) = books();
        let beyond = Part { offset: 60, length: 8 };
        let refused = [
            (Adopted { client: ClientId(9), ..adopted(object) }, Refusal::NotLive),
            (Adopted { part: beyond, ..adopted(object) }, Refusal::OutsideObject { size: 64 }),
            (Adopted { rights: Rights::empty(), ..adopted(object) }, Refusal::Nothing),
        ];
        for (wrong, refusal) in refused {
            assert_eq!(books.adopt(&wrong, NOW), Err(refusal));
        }
        assert_eq!(books.counters().permissions, 0);
    }
}
