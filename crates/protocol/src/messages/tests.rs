//! Tests that messages survive encoding and decoding, and that meaningless bytes are an error.

use super::*;
use crate::{
    CREDENTIAL_BYTES, GROUP_QUEUE_PAIRS_MAX, HolderKey, Holders, Incarnation, Keep, KeyGroup, Moment,
    RegionName, Rkey, Sharing, TenantName, WordKeys,
};
use proptest::prelude::*;

fn permission() -> impl Strategy<Value = PermissionId> {
    (any::<u64>(), any::<u64>())
        .prop_map(|(header, start)| PermissionId { header: RemoteAddress(header), start: Moment(start) })
}

fn credential() -> impl Strategy<Value = Credential> {
    let word = prop_oneof![Just(WordKeys::None), Just(WordKeys::Same), Just(WordKeys::Own)];
    prop_oneof![
        Just(Credential::Node),
        (any::<u32>(), any::<u32>()).prop_map(|(buffer, lifetime)| Credential::Keys {
            buffer: Rkey(buffer),
            lifetime: Rkey(lifetime)
        }),
        (any::<[u32; GROUP_QUEUE_PAIRS_MAX]>(), word)
            .prop_map(|(keys, word)| Credential::Group(KeyGroup::from_parts(keys.map(Rkey), word))),
        any::<(u32, u32, [u8; CREDENTIAL_BYTES])>().prop_map(|(index, generation, key)| {
            Credential::RegionKey { region: RegionName { index, generation }, key: HolderKey(key) }
        }),
    ]
}

fn mechanism() -> impl Strategy<Value = Mechanism> {
    prop_oneof![prop::sample::select(&Mechanism::ALL[..]), Just(Mechanism::RegionKey)]
}

fn rights() -> impl Strategy<Value = Rights> {
    (0u8..8).prop_map(Rights::from_bits_truncate)
}

fn sharing() -> impl Strategy<Value = Sharing> {
    prop_oneof![Just(Sharing::Exclusive), Just(Sharing::Shared)]
}

fn reference() -> impl Strategy<Value = ObjectRef> {
    any::<(u64, u64, u64)>().prop_map(|(incarnation, address, birth)| ObjectRef {
        incarnation: Incarnation(incarnation),
        address: RemoteAddress(address),
        birth,
    })
}

fn object() -> impl Strategy<Value = ObjectName> {
    prop_oneof![
        reference().prop_map(ObjectName::Reference),
        any::<u64>().prop_map(|address| ObjectName::Address(RemoteAddress(address))),
    ]
}

fn keep() -> impl Strategy<Value = Keep> {
    prop_oneof![
        Just(Keep::No),
        Just(Keep::Attached),
        any::<u64>().prop_map(|time| Keep::For(Lifetime(time))),
        Just(Keep::Pinned),
    ]
}

fn name() -> impl Strategy<Value = DirectoryName> {
    "[^\\pC]{1,12}".prop_map(|text| DirectoryName::new(&text).expect("at most 48 bytes"))
}

fn tenant() -> impl Strategy<Value = TenantName> {
    "[^\\pC]{1,16}".prop_map(|text| TenantName::new(&text).expect("at most 64 bytes"))
}

fn about_a_name() -> impl Strategy<Value = RequestBody> {
    prop_oneof![
        (name(), reference())
            .prop_map(|(name, object)| RequestBody::Named(NamedRequest::Publish { name, object })),
        name().prop_map(|name| RequestBody::Named(NamedRequest::Unpublish { name })),
        (prop::option::of(tenant()), name())
            .prop_map(|(owner, name)| RequestBody::Named(NamedRequest::Lookup { owner, name })),
        (prop::option::of(tenant()), prop::option::of(name()))
            .prop_map(|(owner, after)| RequestBody::Named(NamedRequest::List { owner, after })),
        (name(), tenant(), rights()).prop_map(|(name, tenant, rights)| RequestBody::Named(
            NamedRequest::Share { name, tenant, rights }
        )),
        (name(), tenant())
            .prop_map(|(name, tenant)| RequestBody::Named(NamedRequest::Unshare { name, tenant })),
    ]
}

fn terms() -> impl Strategy<Value = ChunkTerms> {
    any::<(u64, u64, u64, u64, u64, bool)>().prop_map(|(base, chunks, chunk_bytes, quota, held, by_cpu)| {
        ChunkTerms {
            base: RemoteAddress(base),
            chunks,
            chunk_bytes,
            quota,
            held,
            by: if by_cpu { HandedOutBy::Cpu } else { HandedOutBy::Nic },
        }
    })
}

fn holders() -> impl Strategy<Value = Holders> {
    prop::sample::select(vec![Holders::Stay, Holders::End, Holders::Await])
}

fn request() -> impl Strategy<Value = RequestBody> {
    prop_oneof![4 => about_a_name(), 8 => about_an_object(), 1 => Just(RequestBody::QueuePair(QueuePairRequest::JoinChunks)), 1 => Just(RequestBody::Grant(GrantRequest::AllocateChunk))]
}

fn about_an_object() -> impl Strategy<Value = RequestBody> {
    let word = any::<u64>;
    prop_oneof![
        (word(), word(), word(), rights(), sharing(), keep()).prop_map(
            |(size, alignment, lifetime, rights, sharing, keep)| RequestBody::Grant(GrantRequest::Allocate(
                Allocate { size, alignment, lifetime: Lifetime(lifetime), rights, sharing, keep }
            ))
        ),
        (object(), word(), word(), word(), rights(), sharing(), word()).prop_map(
            |(object, offset, length, lifetime, rights, sharing, wait)| RequestBody::Grant(
                GrantRequest::Acquire(Acquire {
                    object,
                    part: Part { offset, length },
                    lifetime: Lifetime(lifetime),
                    rights,
                    sharing,
                    wait: Lifetime(wait)
                })
            )
        ),
        (permission(), word()).prop_map(|(permission, lifetime)| RequestBody::Grant(GrantRequest::Extend {
            permission,
            lifetime: Lifetime(lifetime)
        })),
        (permission(), any::<bool>())
            .prop_map(|(permission, free)| RequestBody::Grant(GrantRequest::Revoke { permission, free })),
        (object(), holders())
            .prop_map(|(object, holders)| RequestBody::Grant(GrantRequest::Free { object, holders })),
        (object(), keep()).prop_map(|(object, keep)| RequestBody::Grant(GrantRequest::Keep { object, keep })),
        (reference(), reference())
            .prop_map(|(member, head)| RequestBody::Grant(GrantRequest::Include { member, head })),
        any::<u32>().prop_map(|queue_pair| RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair })),
        (permission(), word(), word()).prop_map(|(permission, offset, length)| RequestBody::Copy(
            CopyRequest::Read { permission, offset, length }
        )),
        (permission(), word(), word()).prop_map(|(permission, offset, length)| RequestBody::Copy(
            CopyRequest::Write { permission, offset, length }
        )),
        (permission(), word(), word(), word()).prop_map(|(permission, offset, compare, swap)| {
            RequestBody::Copy(CopyRequest::CompareAndSwap { permission, offset, compare, swap })
        }),
        (permission(), word(), word()).prop_map(|(permission, offset, add)| RequestBody::Copy(
            CopyRequest::FetchAndAdd { permission, offset, add }
        )),
    ]
}

proptest! {
    #[test]
    fn a_request_survives_the_wire(sequence: u32, body in request()) {
        let request = Request { sequence, body };
        prop_assert_eq!(Request::decode(request.encode()), Ok(request));
    }

    #[test]
    fn any_bytes_become_a_message_or_an_error(words: [[u8; 32]; MESSAGE_BYTES / 32]) {
        let mut message = [0; MESSAGE_BYTES];
        message.copy_from_slice(words.as_flattened());
        if let Ok(request) = Request::decode(message) {
            prop_assert_eq!(Request::decode(request.encode()), Ok(request));
        }
        if let Ok(reply) = Reply::decode(message) {
            prop_assert_eq!(Reply::decode(reply.encode()), Ok(reply));
        }
    }

    #[test]
    fn a_grant_survives_the_wire(
        permission in permission(), object in reference(), part: (u64, u64), times: (u64, u32, u32),
        credential in credential(), mechanism in mechanism(),
    ) {
        let granted = Granted {
            permission, object, offset: part.0, length: part.1, lifetime: Lifetime(times.0),
            waited: Lifetime(times.1.into()), longest: Lifetime(times.2.into()), credential,
            mechanism,
        };
        let reply = Reply { sequence: 7, body: ReplyBody::Granted(granted) };
        prop_assert_eq!(Reply::decode(reply.encode()), Ok(reply));
    }

    #[test]
    fn an_entry_survives_the_wire(
        name in name(), object in reference(), size: u64, rights in rights(), at: u32,
    ) {
        for body in [ReplyBody::Entry(Entry { name, object, size, rights }), ReplyBody::EndOfList] {
            let reply = Reply { sequence: at, body };
            prop_assert_eq!(Reply::decode(reply.encode()), Ok(reply));
        }
    }

    #[test]
    fn the_terms_of_chunks_survive_the_wire(terms in terms(), at: u32) {
        let reply = Reply { sequence: at, body: ReplyBody::Chunks(terms) };
        prop_assert_eq!(Reply::decode(reply.encode()), Ok(reply));
    }

    #[test]
    fn every_refusal_number_reads_back(number: u8, a: u64, b: u64) {
        if let Some(refusal) = Refusal::from_wire((number, a, b)) {
            let reply = Reply { sequence: 1, body: ReplyBody::Refused(refusal) };
            prop_assert_eq!(Reply::decode(reply.encode()), Ok(reply));
        }
    }
}

/// Decodes the bytes of a request to share, with one byte changed.
fn spoilt(at: usize, byte: u8) -> Result<Request, MalformedMessage> {
    let (name, tenant) = ("table".parse().expect("a name"), "blue".parse().expect("a name"));
    let body = RequestBody::Named(NamedRequest::Share { name, tenant, rights: Rights::READ });
    let mut bytes = Request { sequence: 1, body }.encode();
    bytes[at] = byte;
    Request::decode(bytes)
}

#[test]
fn a_name_on_the_wire_is_checked_and_the_error_says_where_it_is_wrong() {
    assert!(spoilt(0, 16).is_ok(), "nothing is changed");
    for (at, byte) in [(1, 8), (2, 1), (3, 0), (3, 49), (8, 0), (8, 65), (16, b'\n'), (18, 0xff), (64, 0)] {
        assert_eq!(spoilt(at, byte), Err(MalformedMessage { what: byte, at }));
    }
}
