//! A cell lets one thread in, until it is closed.

use portcullis_errors::{Coded, ErrorCode};
use portcullis_foreign::{ExclusiveCell, Failure, Misuse};
use std::panic::{AssertUnwindSafe, catch_unwind};

#[test]
fn a_second_thread_is_told_and_does_not_wait() {
    let cell = ExclusiveCell::new("the session", 1);
    let inside = cell.enter().expect("nobody is in");
    let refused = std::thread::scope(|scope| scope.spawn(|| cell.enter().err()).join().expect("no panic"));
    assert_eq!(refused, Some(Misuse::InUse { what: "the session" }));
    assert!(!cell.is_closed());
    drop(inside);
    *cell.enter().expect("the other has left") += 1;
    assert_eq!(cell.close(), Ok(Some(2)));
}

#[test]
fn what_is_closed_stays_closed_until_it_is_opened_to_something_else() {
    let cell = ExclusiveCell::closed("the session");
    assert_eq!(cell.enter().err(), Some(Misuse::Closed { what: "the session" }));
    assert_eq!(cell.open(1), Ok(()));
    assert_eq!(cell.open(2), Err(2));
    assert_eq!(cell.close_if(|value| *value == 2), Ok(None));
    assert_eq!(cell.close_if(|value| *value == 1), Ok(Some(1)));
    assert!(cell.is_closed());
    assert_eq!(cell.close(), Ok(None));
}

#[test]
fn after_a_panic_inside_nobody_gets_in_any_more() {
    let cell = ExclusiveCell::new("the session", ());
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _inside = cell.enter().expect("nobody is in");
        panic!("inside");
    }));
    assert!(panicked.is_err());
    assert_eq!(cell.enter().err(), Some(Misuse::Panicked));
    assert!(cell.is_closed());
    assert_eq!(cell.open(()), Err(()));
}

#[test]
fn a_failure_says_whose_fault_it_is_and_whether_to_try_again() {
    let in_use = Failure::from(Misuse::InUse { what: "the session" });
    assert!(in_use.is_retryable());
    assert_eq!((in_use.code(), in_use.fault().name()), (ErrorCode::InUse, "caller"));
    let expired = Failure::from(portcullis::Error::Expired);
    assert!(expired.is_retryable());
    assert_eq!(expired.fault().name(), "ended");
    assert!(expired.text().contains("acquire it again"));
}
