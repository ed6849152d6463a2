//! Errors have the numbers that docs/errors.md promises, also when the failure lies many layers below the call.

use portcullis::host::{Host, HostConfig};
use portcullis::{
    Acquire, Allocate, Coded, ConnectError, Error, ErrorCode, NodeConfig, Quota, SessionOptions, connect,
};

fn numbered(error: &impl Coded) -> (u16, &'static str) {
    (error.code().number(), error.code().name())
}

#[test]
fn a_call_that_fails_says_the_number_of_what_failed() {
    let quota = Quota { bytes_max: 8192, ..Quota::default() };
    let node = NodeConfig { quota, ..NodeConfig::default() };
    let host = Host::start(HostConfig { node, ..HostConfig::default() }).expect("a node");
    let mut session = host.connect("blue", SessionOptions::default()).expect("a session");
    let block = session.allocate(Allocate::bytes(4096).keep()).expect("within the quota");
    let error = session.write(&block, 4090, &[0; 8]).expect_err("outside");
    assert_eq!(numbered(&error), (104, "outside-range"));
    let error = session.allocate(Allocate::bytes(1 << 20)).expect_err("beyond the quota");
    assert_eq!(numbered(&error), (208, "quota"));
    let object = block.object();
    session.revoke(block).expect("it is live");
    session.free(object).expect("it is there");
    let error = session.acquire(Acquire::object(object)).expect_err("freed");
    assert_eq!(numbered(&error), (216, "object-gone"));
}

#[test]
fn where_there_is_no_session_the_number_says_why() {
    let error = connect("nowhere").expect_err("no address");
    assert_eq!(numbered(&error), (301, "unknown-address"));
    assert!(error.to_string().contains("name:NAME"), "{error}");
    let error = connect("shm:/no/such/folder/none.sock").expect_err("no node");
    assert_eq!(numbered(&error), (304, "no-node"));
    let too_small = SessionOptions { arena_bytes: 1, ..SessionOptions::default() };
    let host = Host::start(HostConfig::default()).expect("a node");
    let error = host.connect("blue", too_small).expect_err("no room");
    assert!(matches!(error, ConnectError::Client(Error::ArenaFull { .. })), "{error}");
    assert_eq!(error.code(), ErrorCode::ArenaFull);
}
