//! Requests carry the caller's parameters. Also tests their results, and which errors may be retried.

use crate::fake::{Fake, Handle, fake};
use portcullis_client::{Acquire, Allocate, Answer, Client, ClientConfig, ControlRequest, Error, Permission};
use portcullis_nic::Status;
use portcullis_protocol::{
    GrantRequest, Incarnation, Keep, Lifetime, Moment, ObjectName, ObjectRef, Part, Refusal, RemoteAddress,
    RequestBody, Rights, Sharing,
};

const NOW: Moment = Moment(100);
const SECOND: Lifetime = Lifetime::seconds(1);
const OBJECT: ObjectRef = ObjectRef { incarnation: Incarnation(1), address: RemoteAddress(4096), birth: 7 };

fn client() -> (Client<Fake>, Handle) {
    let (endpoint, handle) = fake(2, 16);
    (Client::new(endpoint, ClientConfig::default()).unwrap(), handle)
}

fn granted(client: &mut Client<Fake>, ask: Allocate) -> Permission {
    let call = client.call(NOW, ask).unwrap();
    client.poll(NOW);
    let Some(Ok(Answer::Granted(permission))) = client.take_call(call) else { panic!("granted") };
    permission
}

fn asked(handle: &Handle) -> RequestBody {
    handle.look().node.asked.last().expect("the node was asked").body
}

#[test]
fn an_allocation_asks_for_all_that_was_said_and_for_nothing_else() {
    let plain = Allocate {
        size: 100,
        alignment: 1,
        lifetime: SECOND,
        rights: Rights::all(),
        sharing: Sharing::Exclusive,
        keep: Keep::No,
    };
    let requests = |change: fn(Allocate) -> Allocate, expected: Allocate| {
        let (mut client, handle) = client();
        granted(&mut client, change(Allocate::bytes(100)));
        assert_eq!(asked(&handle), RequestBody::Grant(GrantRequest::Allocate(expected)));
    };
    let time = Lifetime::micros(77);
    requests(|ask| ask, plain);
    requests(|ask| ask.lifetime(Lifetime::micros(77)), Allocate { lifetime: time, ..plain });
    requests(|ask| ask.rights(Rights::READ), Allocate { rights: Rights::READ, ..plain });
    requests(Allocate::shared, Allocate { sharing: Sharing::Shared, ..plain });
    requests(|ask| ask.aligned(4096), Allocate { alignment: 4096, ..plain });
    requests(Allocate::keep, Allocate { keep: Keep::Attached, ..plain });
    requests(|ask| ask.keep_for(Lifetime::micros(77)), Allocate { keep: Keep::For(time), ..plain });
    requests(Allocate::pinned, Allocate { keep: Keep::Pinned, ..plain });
}

#[test]
fn an_acquisition_asks_for_all_that_was_said_and_for_nothing_else() {
    let with = |ask: Acquire| {
        let (mut client, handle) = client();
        client.call(NOW, ask).unwrap();
        asked(&handle)
    };
    let body = |object, part, lifetime, rights, sharing, wait| {
        RequestBody::Grant(GrantRequest::Acquire(Acquire { object, part, lifetime, rights, sharing, wait }))
    };
    let (object, whole, all) = (ObjectName::Reference(OBJECT), Part::WHOLE, Rights::all());
    let (alone, shared, time) = (Sharing::Exclusive, Sharing::Shared, Lifetime::micros(77));
    let plain = Acquire::object(OBJECT);
    assert_eq!(with(plain), body(object, whole, SECOND, all, alone, SECOND));
    let address = ObjectName::Address(OBJECT.address);
    assert_eq!(with(Acquire::dangerous_at(OBJECT.address)), body(address, whole, SECOND, all, alone, SECOND));
    assert_eq!(with(plain.lifetime(time)), body(object, whole, time, all, alone, SECOND));
    assert_eq!(with(plain.rights(Rights::WRITE)), body(object, whole, SECOND, Rights::WRITE, alone, SECOND));
    assert_eq!(with(plain.read_only()), body(object, whole, SECOND, Rights::READ, alone, SECOND));
    assert_eq!(with(plain.shared()), body(object, whole, SECOND, all, shared, SECOND));
    let part = Part { offset: 8, length: 16 };
    assert_eq!(with(plain.part(8, 16)), body(object, part, SECOND, all, alone, SECOND));
    assert_eq!(with(plain.wait(time)), body(object, whole, SECOND, all, alone, time));
}

#[test]
fn a_permission_says_what_it_is_over() {
    let (mut client, _handle) = client();
    let permission = granted(&mut client, Allocate::bytes(100).rights(Rights::READ).shared());
    assert_eq!((permission.length(), permission.offset()), (100, 0));
    assert_eq!(permission.address(), permission.object().address);
    assert_eq!((permission.rights(), permission.sharing()), (Rights::READ, Sharing::Shared));
}

#[test]
fn an_extension_to_the_very_deadline_is_none_too_short() {
    let (mut client, handle) = client();
    let permission = granted(&mut client, Allocate::bytes(64));
    let lease = permission.lease().clone();
    let call = client.call(NOW, ControlRequest::extend_to(&lease, lease.deadline())).unwrap();
    handle.run_all();
    client.poll(NOW);
    assert!(matches!(client.take_call(call), Some(Ok(Answer::Extended(lifetime))) if lifetime == SECOND));
    let sooner = Moment(lease.deadline().0 - 1);
    let left = lease.deadline().since(NOW);
    assert_eq!(
        client.call(NOW, ControlRequest::extend_to(&lease, sooner)).unwrap_err().error,
        Error::LivesLonger { left }
    );
}

#[test]
fn an_error_says_whether_trying_again_may_help() {
    let time = Lifetime::micros(1);
    for again in [
        Error::Expired,
        Error::Revoked,
        Error::Interrupted,
        Error::QueueFull { limit: 1 },
        Error::ArenaFull { asked: 1, needed: 2, arena: 2 },
        Error::Paused { wait: time },
        Error::Quota { used: 1, limit: 1 },
        Error::Refused(Refusal::Conflict),
    ] {
        assert!(again.is_retryable(), "{again}");
    }
    for never in [
        Error::LivesLonger { left: time },
        Error::OutsideRange { offset: 1, length: 1, size: 1 },
        Error::WrongRight { needed: Rights::READ },
        Error::Misaligned,
        Error::Violation,
        Error::LocalFault(Status::LocalProtectionError),
        Error::Barred,
        Error::SessionLost,
        Error::NodeGone,
        Error::Refused(Refusal::Malformed),
    ] {
        assert!(!never.is_retryable(), "{never}");
    }
}
