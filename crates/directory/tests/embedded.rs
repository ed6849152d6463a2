//! The embedded directory keeps the promises of every directory.

#[macro_use]
mod promises;

use portcullis_directory::Embedded;
use promises::Promise;

fn with_embedded(_: &str, promise: Promise) {
    promise(&Embedded::new(promises::space()));
}

keeps_all_promises!(with_embedded);
