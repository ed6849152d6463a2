//! Permissions to write blocks that have served: their blocks are in slots, or were freed. They are ended some at a time,
//! so that their ends share a message.
//!
//! This is for permissions that are in no client's way. An exclusive permission is ended at once.

use crate::Pipeline;
use crate::pipeline::Beside;
use portcullis::{BarePermission, Clock, Lifetime, VerbsEndpoint};
use std::cell::RefCell;
use std::rc::Rc;

/// Number of permissions that are ended together.
const ENDED_TOGETHER: usize = 16;

/// Permissions that have served and have not ended.
pub(super) struct Spent<E: VerbsEndpoint, C: Clock> {
    list: Rc<List<E, C>>,
    /// The wait for more permissions.
    wait: Beside<E, C>,
    /// Longest time for which a permission waits for others.
    within: Lifetime,
}

struct List<E: VerbsEndpoint, C: Clock> {
    pipeline: Rc<Pipeline<E, C>>,
    permissions: RefCell<Vec<Rc<BarePermission>>>,
}

impl<E: VerbsEndpoint, C: Clock> List<E, C> {
    fn end_all(&self) {
        let permissions = std::mem::take(&mut *self.permissions.borrow_mut());
        permissions.into_iter().for_each(|permission| self.pipeline.end(permission));
    }
}

impl<E: VerbsEndpoint, C: Clock> Spent<E, C> {
    /// `within`: the longest time for which a permission waits for others.
    pub fn new(pipeline: &Rc<Pipeline<E, C>>, within: Lifetime) -> Self {
        let list = List { pipeline: Rc::clone(pipeline), permissions: RefCell::default() };
        Self { list: Rc::new(list), wait: Beside::new(pipeline), within }
    }

    /// Ends a permission, together with others.
    pub fn end(&self, permission: Rc<BarePermission>) {
        let count = {
            let mut permissions = self.list.permissions.borrow_mut();
            permissions.push(permission);
            permissions.len()
        };
        if count >= ENDED_TOGETHER {
            self.end_all();
        } else if self.wait.is_idle() {
            let (list, within) = (Rc::clone(&self.list), self.within);
            self.wait.begin(async move {
                // If the session is over, its permissions have ended.
                if list.pipeline.sleep(within).await.is_ok() {
                    list.end_all();
                }
            });
        }
    }

    /// Ends all permissions that wait for others.
    pub fn end_all(&self) {
        self.list.end_all();
    }
}

impl<E: VerbsEndpoint, C: Clock> Drop for Spent<E, C> {
    fn drop(&mut self) {
        self.end_all();
    }
}
