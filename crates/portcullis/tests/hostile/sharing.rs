//! A tenant with a share of an object that tries to get more: other rights, other bytes, more time, names of other
//! tenants.

use crate::attacker::{Attacker, DATA, key};
use crate::canary::Canary;
use crate::rig::{BLUE, RED, Rig, lenient};
use portcullis::{
    Acquire, Allocate, Error, Keep, Lifetime, NodeConfig, ObjectRef, Part, Permission, Quota, Refusal,
    RemoteAddress, Rights, Rkey, Session, SessionOptions, Sharing,
};
use portcullis_nic::{Endpoint, Memory, Operation, RemoteSpan, Status};
use portcullis_protocol::{GrantRequest, Granted, Holders, NamedRequest, ReplyBody, RequestBody};

/// Bytes of the shared object.
const SHARED: u64 = 4096;
const WORD: u64 = 0x5a5a_a5a5_0ff0_f00f;

/// A client of the tenant that shares an object with the attacker's tenant.
struct Owner {
    session: Session,
    block: Permission,
}

impl Owner {
    fn new(rig: &Rig, rights: Rights) -> Self {
        let mut session = rig.host.connect(BLUE, SessionOptions::default()).expect("an honest client");
        let ask = Allocate::bytes(SHARED).shared().keep().lifetime(Lifetime::seconds(60));
        let block = session.allocate(ask).expect("memory");
        session.write(&block, 0, &WORD.to_le_bytes().repeat(512)).expect("its own bytes");
        session.publish("shared", block.object()).expect("the name is free");
        session.share("shared", RED, rights).expect("it is published");
        Self { session, block }
    }

    fn object(&self) -> ObjectRef {
        self.block.object()
    }

    /// Panics if the shared bytes are not what the owner wrote.
    fn assert_untouched(&mut self) {
        let mut bytes = vec![0; 4096];
        self.session.read(&self.block, 0, &mut bytes).expect("its own bytes");
        assert!(bytes.chunks(8).all(|word| word == WORD.to_le_bytes()), "somebody else wrote there");
    }

    /// Frees the owner's object and ends the owner's session.
    fn leave(mut self) {
        self.session.free(self.block.object()).expect("it is there");
        drop(self.block);
    }
}

fn ask(object: ObjectRef, rights: Rights, sharing: Sharing, part: Part) -> RequestBody {
    let lifetime = Lifetime::seconds(60);
    RequestBody::Grant(GrantRequest::Acquire(Acquire {
        object: object.into(),
        part,
        lifetime,
        rights,
        sharing,
        wait: Lifetime(0),
    }))
}

fn granted(reply: ReplyBody) -> Granted {
    match reply {
        ReplyBody::Granted(granted) => granted,
        other => panic!("not granted: {other:?}"),
    }
}

/// Writes the attacker's own word. The NIC must refuse the write.
fn write_is_refused(attacker: &mut Attacker, address: u64, rkey: u32) {
    attacker.endpoint.arena().write(DATA, &[0xee; 8]);
    let remote = RemoteSpan { address: RemoteAddress(address), rkey: Rkey(rkey) };
    let operation = Operation::Write { local: attacker.local(DATA, 8), remote };
    assert_eq!(attacker.try_operation(0, operation), Status::RemoteAccessError, "a write to {address:#x}");
    attacker.recover(0).expect("it is slowed, and not barred");
}

fn read_is_refused(attacker: &mut Attacker, address: u64, rkey: u32) {
    assert_eq!(attacker.try_read(0, address, rkey, 8), Status::RemoteAccessError, "a read of {address:#x}");
    attacker.recover(0).expect("it is slowed, and not barred");
}

#[test]
fn who_may_read_a_shared_object_cannot_write_to_it_or_read_beside_it() {
    let rig = Rig::new();
    let mut owner = Owner::new(&rig, Rights::READ);
    let mut canary =
        Canary::new(rig.host.connect(BLUE, SessionOptions::default()).expect("an honest client"), 4096);
    let mut attacker = rig.attacker();
    for rights in [Rights::WRITE, Rights::ATOMIC, Rights::all()] {
        let reply = attacker.ask(ask(owner.object(), rights, Sharing::Shared, Part::WHOLE));
        assert_eq!(reply, ReplyBody::Refused(Refusal::BeyondShare { rights: Rights::READ }));
    }
    let part = Part { offset: 1024, length: 512 };
    let it = granted(attacker.ask(ask(owner.object(), Rights::READ, Sharing::Shared, part)));
    let (at, rkey) = (it.address().0, key(it.credential));
    assert_eq!(attacker.try_read(0, at, rkey, 512), Status::Success);
    write_is_refused(&mut attacker, at, rkey);
    // The addresses are beside the part, before the object (its header), behind the object, and in another object of
    // the owner.
    let start = owner.object().address.0;
    for address in
        [at - 8, at + 512, at + 508, start, start - 8, start - 32, start + SHARED, canary.address()]
    {
        read_is_refused(&mut attacker, address, rkey);
        write_is_refused(&mut attacker, address, rkey);
    }
    // The owner's own keys open nothing in the attacker's domain.
    for (address, rkey) in [(start, key(owner.block.credential())), (canary.address(), canary.key())] {
        read_is_refused(&mut attacker, address, rkey);
    }
    let reply = attacker.ask(ask(canary.object().object(), Rights::READ, Sharing::Shared, Part::WHOLE));
    assert_eq!(reply, ReplyBody::Refused(Refusal::Gone), "another object of the owner's");
    assert!(!Canary::is_in(&attacker.memory, 0, usize::try_from(attacker.memory.length()).expect("it fits")));
    owner.assert_untouched();
    canary.assert_untouched();
    drop(canary);
    owner.leave();
    drop(attacker);
    rig.clear();
}

/// The attacker holds a hundred permissions. From the answer to `unshare` on, none of its keys opens the object.
#[test]
fn no_key_opens_a_shared_object_after_its_share_has_ended() {
    let rig = Rig::new();
    let mut owner = Owner::new(&rig, Rights::READ | Rights::WRITE);
    let mut attacker = rig.attacker();
    let ask = ask(owner.object(), Rights::READ | Rights::WRITE, Sharing::Shared, Part::WHOLE);
    let held: Vec<Granted> = (0..100).map(|_| granted(attacker.ask(ask))).collect();
    assert_eq!(attacker.try_read(0, held[0].address().0, key(held[0].credential), 8), Status::Success);
    owner.session.unshare("shared", RED).expect("it was shared");
    for it in &held {
        read_is_refused(&mut attacker, it.address().0, key(it.credential));
        write_is_refused(&mut attacker, it.address().0, key(it.credential));
    }
    let extend = RequestBody::Grant(GrantRequest::Extend {
        permission: held[0].permission,
        lifetime: Lifetime::seconds(60),
    });
    assert_eq!(attacker.ask(extend), ReplyBody::Refused(Refusal::NotLive));
    assert_eq!(attacker.ask(ask), ReplyBody::Refused(Refusal::Gone));
    owner.assert_untouched();
    owner.leave();
    drop(attacker);
    rig.clear();
}

/// A tenant learns nothing of names that are not shared with it, and cannot remove names or shares of another tenant.
#[test]
fn guessed_names_say_nothing() {
    let rig = Rig::new();
    let mut owner = Owner::new(&rig, Rights::READ);
    let secret = owner.session.allocate(Allocate::bytes(64)).expect("memory");
    owner.session.publish("secret", secret.object()).expect("the name is free");
    let mut attacker = rig.attacker();
    let name = |text: &str| text.parse().expect("a name");
    for (tenant, text) in [(BLUE, "secret"), (BLUE, "nothing"), ("nobody", "secret")] {
        let lookup = RequestBody::Named(NamedRequest::Lookup {
            owner: Some(tenant.parse().expect("a name")),
            name: name(text),
        });
        assert_eq!(attacker.ask(lookup), ReplyBody::Refused(Refusal::NoSuchName));
        let after = Some(name("shared"));
        let list =
            RequestBody::Named(NamedRequest::List { owner: Some(tenant.parse().expect("a name")), after });
        assert_eq!(attacker.ask(list), ReplyBody::EndOfList);
    }
    let tenant = RED.parse().expect("a name");
    for request in [
        RequestBody::Named(NamedRequest::Unpublish { name: name("shared") }),
        RequestBody::Named(NamedRequest::Share {
            name: name("secret"),
            tenant: "green".parse().expect("a name"),
            rights: Rights::READ,
        }),
        RequestBody::Named(NamedRequest::Unshare { name: name("shared"), tenant }),
    ] {
        assert_eq!(attacker.ask(request), ReplyBody::Refused(Refusal::NoSuchName), "{request:?}");
    }
    let object = owner.object();
    for request in [
        RequestBody::Grant(GrantRequest::Free { object: object.into(), holders: Holders::Stay }),
        RequestBody::Grant(GrantRequest::Keep { object: object.into(), keep: Keep::No }),
        RequestBody::Named(NamedRequest::Publish { name: name("mine"), object }),
        RequestBody::Named(NamedRequest::Publish { name: name("mine"), object: secret.object() }),
    ] {
        assert_eq!(attacker.ask(request), ReplyBody::Refused(Refusal::Gone), "{request:?}");
    }
    assert_eq!(
        owner.session.share("secret", BLUE, Rights::READ),
        Err(Error::Refused(Refusal::SharedWithOwner))
    );
    drop(secret);
    owner.leave();
    drop(attacker);
    rig.clear();
}

#[test]
fn a_tenant_that_fills_its_directory_takes_no_names_from_others() {
    let quota = Quota { names_max: 50, ..lenient().quota };
    let rig = Rig::with(NodeConfig { quota, ..lenient() }, &[RED, BLUE]);
    let mut attacker = rig.attacker();
    let mut objects = Vec::new();
    for number in 0..60u32 {
        let object = attacker.allocate(64, Sharing::Exclusive);
        let publish = RequestBody::Named(NamedRequest::Publish {
            name: format!("name {number}").parse().expect("a name"),
            object: object.object,
        });
        let full = ReplyBody::Refused(Refusal::Quota { used: 50, limit: 50 });
        assert_eq!(attacker.ask(publish), if number < 50 { ReplyBody::Done } else { full });
        objects.push(object);
    }
    let mut owner = Owner::new(&rig, Rights::READ);
    for number in 0..31 {
        owner.session.share("shared", &format!("tenant {number}"), Rights::READ).expect("there is room");
    }
    let full = owner.session.share("shared", "one more", Rights::READ);
    assert_eq!(full, Err(Error::Quota { used: 32, limit: 32 }));
    owner.leave();
    drop(attacker);
    rig.clear();
}

/// A tenant that may only read cannot lock the owner out: it gets no exclusive permission, and its shared permissions
/// end when the owner stops sharing.
#[test]
fn who_may_only_read_cannot_lock_the_owner_out() {
    let rig = Rig::new();
    let mut owner = Owner::new(&rig, Rights::READ);
    let mut attacker = rig.attacker();
    let reply = attacker.ask(ask(owner.object(), Rights::READ, Sharing::Exclusive, Part::WHOLE));
    assert_eq!(reply, ReplyBody::Refused(Refusal::BeyondShare { rights: Rights::READ }));
    for _ in 0..20 {
        granted(attacker.ask(ask(owner.object(), Rights::READ, Sharing::Shared, Part::WHOLE)));
    }
    let object = owner.object();
    owner.session.unshare("shared", RED).expect("it was shared");
    let Owner { mut session, block } = owner;
    session.revoke(block).expect("it was live");
    let block = session.acquire(Acquire::object(object).wait(Lifetime(0))).expect("nobody is in the way");
    Owner { session, block }.leave();
    drop(attacker);
    rig.clear();
}
