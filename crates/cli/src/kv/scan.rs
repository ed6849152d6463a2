//! Looking at a whole table for as long as somebody wants to see it.

use portcullis_structures::table::{Table, TableError};
use std::cell::Cell;
use std::pin::pin;
use std::task::Poll;

/// Hands each key and its value to `each`, until it returns `false`.
pub async fn scan(table: &Table, mut each: impl FnMut(&[u8], &[u8]) -> bool) -> Result<(), TableError> {
    let is_over = Cell::new(false);
    let mut looking = pin!(table.for_each(|key, value| {
        if !is_over.get() && !each(key, value) {
            is_over.set(true);
        }
    }));
    std::future::poll_fn(|context| {
        let looked = looking.as_mut().poll(context);
        if is_over.get() { Poll::Ready(Ok(())) } else { looked }
    })
    .await
}
