//! A full quota of a tenant: the oldest items are evicted.

use crate::rig::{Client, Node, counter, until};
use portcullis::Quota;
use portcullis_memcached::Gateway;

/// Quota of the tenant. The table's head takes about 2 MiB of it.
const QUOTA_BYTES: u64 = 6 << 20;

fn small() -> Node {
    Node::with_quota(Quota { bytes_max: QUOTA_BYTES, ..Quota::default() })
}

#[test]
fn new_items_go_in_the_oldest_go_and_those_in_use_stay() {
    let node = small();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    let value = vec![b'v'; 4000];
    client.set("used", &value);
    client.set("unused", &value);
    let items = QUOTA_BYTES * 3 / 2 / 4096;
    for number in 0..items {
        client.set(&format!("k{number}"), &value);
        if number % 16 == 0 {
            client.expect_value("used", &value);
        }
    }
    assert!(counter(&gateway, "evictions") > 0);
    assert_eq!(counter(&gateway, "limit_maxbytes"), QUOTA_BYTES, "the node has named it");
    client.expect_value("used", &value);
    client.expect_value(&format!("k{}", items - 1), &value);
    assert!(!client.has("unused"), "it is the oldest");
    assert!(!client.has("k0"), "it is among the oldest");
    let left = (0..items).filter(|number| client.has(&format!("k{number}"))).count() as u64;
    assert!(left * 4096 > QUOTA_BYTES / 3, "{left} of {items} items are left in a quota of {QUOTA_BYTES}");
    assert!(left * 4096 < QUOTA_BYTES);
}

#[test]
fn a_full_tenant_takes_nothing_of_another() {
    let node = small();
    let (full, free) = (node.gateway(), Gateway::start(node.options("green")).expect("a gateway"));
    let (mut client, mut other) = (Client::new(&full), Client::new(&free));
    let value = vec![b'v'; 10_000];
    other.set("mine", &value);
    for number in 0..2 * QUOTA_BYTES / 10_000 {
        client.set(&format!("k{number}"), &value);
    }
    assert!(counter(&full, "evictions") > 0);
    other.expect_value("mine", &value);
    assert!(!other.has("k1"), "a tenant sees its own items only");
    assert_eq!(counter(&free, "evictions"), 0);
}

#[test]
fn many_small_items_never_meet_a_full_cache() {
    let node = small();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    let mut failed = 0;
    for some in 0..180 {
        let (mut sent, mut expected) = (String::new(), 0);
        for number in 0..100 {
            sent += &format!("set key:{some}:{number} 0 0 300\r\n{number:0300}\r\n");
            expected += 1;
        }
        client.send(sent);
        failed += (0..expected).filter(|_| client.line() != "STORED").count();
    }
    assert!(counter(&gateway, "evictions") > 0, "{}", counter(&gateway, "curr_items"));
    assert_eq!(failed, 0);
}

#[test]
fn items_of_another_size_find_room_when_all_is_taken() {
    let node = small();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    let value = vec![b'v'; 4000];
    for number in 0..QUOTA_BYTES / 3000 {
        client.set(&format!("k{number}"), &value);
    }
    assert!(counter(&gateway, "evictions") > 0);
    for number in 0..50 {
        client.set(&format!("s{number}"), &[b's'; 2000]);
    }
    client.expect_value("s49", &[b's'; 2000]);
    for length in [100_000, 10, 700_000, 30_000] {
        let value = vec![b'l'; length];
        for number in 0..10 {
            client.set(&format!("l{number}"), &value);
        }
        client.expect_value("l9", &value);
    }
}

#[test]
fn items_of_any_size_find_room_beside_other_gateways_when_all_is_taken() {
    let node = small();
    let (one, two) = (node.gateway(), node.gateway());
    let (mut client, mut other) = (Client::new(&one), Client::new(&two));
    for number in 0..QUOTA_BYTES / 700 {
        client.set(&format!("k{number}"), &[b'v'; 1000]);
    }
    // This gateway has stored none of those items. It learns of them once it needs room.
    let value = vec![b'l'; 200_000];
    until("the other gateway finds room", || {
        other.store("large", &value);
        other.line() == "STORED"
    });
    client.expect_value("large", &value);
}
