//! A server's methods, by their numbers.

use crate::View;
use crate::channel::method::{Copied, Failure, Method, Reply, Trusted};
use crate::heap::Heap;
use crate::plain::Plain;
use std::collections::BTreeMap;
use std::panic::RefUnwindSafe;

/// Methods, found by their numbers.
#[derive(Debug, Default)]
pub struct Methods {
    by_number: BTreeMap<u32, Method>,
    /// A number that two methods have.
    same: Option<u32>,
}

impl Methods {
    /// Adds a method whose arguments, at most `most` bytes, are copied before it begins
    /// ([`Channel::copied`](crate::channel::Channel::copied)).
    #[must_use]
    pub fn copied<T, F>(self, number: u32, most: u64, code: F) -> Self
    where
        T: Plain,
        F: Fn(Copied<'_, T>, &mut Reply<'_>) -> Result<(), Failure> + Send + Sync + RefUnwindSafe + 'static,
    {
        let code = move |view: View<'_>, root, word, reply: &mut Reply<'_>| {
            code(Copied::<T>::new(view, root, word), reply)
        };
        self.with(number, Method::Copied { most, code: Box::new(code) })
    }

    /// Adds a method that reads its arguments in the sender's memory
    /// ([`Channel::trusted`](crate::channel::Channel::trusted)).
    #[must_use]
    pub fn trusted<T, F>(self, number: u32, code: F) -> Self
    where
        T: Plain,
        F: Fn(Trusted<'_, T>, &mut Reply<'_>) -> Result<(), Failure> + Send + Sync + RefUnwindSafe + 'static,
    {
        let code = move |heap: &Heap, root, scope, word, reply: &mut Reply<'_>| {
            code(Trusted::<T>::new(heap, root, scope, word), reply)
        };
        self.with(number, Method::Trusted(Box::new(code)))
    }

    pub(in crate::channel) fn with(mut self, number: u32, method: Method) -> Self {
        if self.by_number.insert(number, method).is_some() {
            self.same = Some(number);
        }
        self
    }

    /// A number that two methods have, so that a caller could not choose between them.
    #[must_use]
    pub fn same_number(&self) -> Option<u32> {
        self.same
    }

    /// Whether one of the methods reads one-shot scopes.
    pub(in crate::channel) fn read_one_shots(&self) -> bool {
        self.by_number.values().any(|method| matches!(method, Method::OneShot(_)))
    }

    pub(super) fn get(&self, number: u32) -> Option<&Method> {
        self.by_number.get(&number)
    }
}
