//! A table that is shared with another tenant: that tenant can read it with all that is added to it, and no other
//! memory.

use crate::rig::{User, node, pipeline, run};
use portcullis::host::Host;
use portcullis::{Error, Mechanism, Refusal, TenantName};
use portcullis_structures::Pipeline;
use portcullis_structures::table::{Access, Grain, Table, TableError, TableOptions};
use std::rc::Rc;

const OWNER: &str = "red";
const READER: &str = "blue";
const NAME: &str = "cities";

fn options(grain: Grain) -> TableOptions {
    TableOptions { grain, groups: 2, ..TableOptions::default() }
}

fn tenant(name: &str) -> TenantName {
    name.parse().expect("a tenant's name")
}

/// Makes a table with this name, in the owner's tenant.
fn named(node: &Host, grain: Grain) -> User {
    let owner = User::create(node, OWNER, &options(grain));
    owner.run(owner.table.publish(NAME.parse().expect("a name")));
    owner
}

fn share(owner: &User) {
    owner.run(owner.table.share(NAME.parse().expect("a name"), tenant(READER)));
}

fn unshare(owner: &User) {
    owner.run(owner.table.unshare(NAME.parse().expect("a name"), tenant(READER)));
}

fn opened(pipeline: &Rc<Pipeline>) -> Result<Table, TableError> {
    run(pipeline, Table::open_shared(pipeline, tenant(OWNER), NAME.parse().expect("a name")))
}

fn reader(node: &Host) -> User {
    let pipeline = pipeline(node, READER);
    let table = opened(&pipeline).expect("the table is shared");
    User { pipeline, table }
}

fn key(number: u32) -> Vec<u8> {
    number.to_le_bytes().to_vec()
}

fn insert(owner: &User, numbers: std::ops::Range<u32>) {
    numbers.for_each(|number| {
        owner.run(owner.table.insert(&key(number), format!("value {number}").as_bytes()));
    });
}

#[test]
fn another_tenant_reads_a_shared_table_and_what_is_added_to_it() {
    for (mechanism, grain) in
        Mechanism::ALL.into_iter().flat_map(|it| [(it, Grain::Extent), (it, Grain::Block)])
    {
        let node = node(mechanism);
        let owner = named(&node, grain);
        insert(&owner, 0..50);
        share(&owner);
        let reader = reader(&node);
        for numbers in [0..50, 50..300] {
            if numbers.start > 0 {
                insert(&owner, numbers.clone());
            }
            for number in numbers {
                let value = format!("value {number}").into_bytes();
                assert_eq!(reader.get(&key(number)), Some(value), "{mechanism} {grain:?}");
            }
        }
        assert_eq!(reader.all().len(), 300, "{mechanism} {grain:?}");
        assert!(owner.run(owner.table.statistics()).subtables > 1, "the table has grown");
    }
}

#[test]
fn a_tenant_that_only_reads_cannot_change_a_shared_table_by_any_call() {
    let node = node(Mechanism::MemoryWindow);
    let owner = named(&node, Grain::Extent);
    insert(&owner, 0..20);
    share(&owner);
    let polite = reader(&node);
    let insert = run(&polite.pipeline, polite.table.insert(b"new", b"value"));
    assert_eq!(insert, Err(TableError::ReadOnly));
    // A hostile client requests what it must not get.
    let beyond = |error: &TableError| {
        matches!(error, TableError::Session(Error::Refused(Refusal::BeyondShare { .. } | Refusal::Gone)))
    };
    let hostile = pipeline(&node, READER);
    match run(&hostile, Table::open(&hostile, owner.table.head(), Access::Write)) {
        Err(error) => assert!(beyond(&error), "{error}"),
        Ok(table) => {
            for refused in [
                run(&hostile, table.insert(b"new", b"value")).map(drop),
                run(&hostile, table.upsert(&key(1), b"other")).map(drop),
                run(&hostile, table.remove(&key(1))).map(drop),
                run(&hostile, table.sweep()).map(drop),
                run(&hostile, table.destroy(None)),
            ] {
                assert!(refused.as_ref().is_err_and(beyond), "{refused:?}");
            }
        }
    }
    assert_eq!(owner.all().len(), 20);
    assert_eq!(owner.get(&key(1)), Some(b"value 1".to_vec()));
}

#[test]
fn a_table_is_nobodys_business_that_it_is_not_shared_with() {
    let node = node(Mechanism::MemoryWindow);
    let owner = named(&node, Grain::Extent);
    insert(&owner, 0..20);
    share(&owner);
    let other = pipeline(&node, "green");
    let opened_there = opened(&other);
    assert!(matches!(opened_there, Err(TableError::Session(Error::Refused(Refusal::NoSuchName)))));
    let by_reference = run(&other, Table::open(&other, owner.table.head(), Access::Read));
    assert!(matches!(by_reference, Err(TableError::Session(Error::Refused(Refusal::Gone)))));
}

#[test]
fn after_unshare_nothing_of_the_table_can_be_read_and_its_owner_goes_on() {
    for grain in [Grain::Extent, Grain::Block] {
        let node = node(Mechanism::MemoryWindow);
        let owner = named(&node, grain);
        insert(&owner, 0..100);
        share(&owner);
        let reader = reader(&node);
        for number in 0..100 {
            assert!(reader.get(&key(number)).is_some(), "{grain:?}");
        }
        unshare(&owner);
        // The permissions of the reader's handle do not work any more, and it gets no new ones.
        for number in 0..100 {
            let read = run(&reader.pipeline, reader.table.get(&key(number)));
            let refused = matches!(read, Err(TableError::Session(Error::Refused(Refusal::Gone))));
            assert!(refused, "{grain:?}: {read:?}");
        }
        assert!(opened(&reader.pipeline).is_err());
        insert(&owner, 100..300);
        assert_eq!(owner.all().len(), 300);
        share(&owner);
        assert_eq!(self::reader(&node).all().len(), 300, "it can be shared again");
    }
}
