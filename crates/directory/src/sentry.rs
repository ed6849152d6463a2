//! A thread that watches a registered name between two turns of its keeper. So a deleted name is registered again at
//! once, and not only when the next turn is due. The thread changes nothing itself.

use crate::directory::Directory;
use crate::lease::Lease;
use crate::name::Name;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// A name to be watched.
pub(crate) struct Order {
    pub(crate) directory: Arc<dyn Directory>,
    /// The lease that has registered the name.
    pub(crate) lease: Lease,
    pub(crate) name: Name,
    /// Maximum duration of the watch.
    pub(crate) at_most: Duration,
}

/// The thread. It ends when this is dropped, after the watch in progress: dropping does not wait for that.
#[derive(Debug)]
pub(crate) struct Sentry {
    orders: Sender<Order>,
}

impl Sentry {
    /// Starts the thread. It calls `notice` when a watched name differs from its registration, and when it cannot look.
    pub(crate) fn start(notice: impl Fn() + Send + 'static) -> io::Result<Self> {
        let (orders, receiver) = channel();
        let thread = std::thread::Builder::new().name("portcullis-watch".to_owned());
        thread.spawn(move || carry_out(&receiver, notice))?;
        Ok(Self { orders })
    }

    /// Orders a watch of a name, to begin when the watch in progress has ended. Does not wait.
    pub(crate) fn order(&self, order: Order) {
        // The thread ends earlier only by a panic, and the keeper's turns go on without it.
        let _ = self.orders.send(order);
    }
}

fn carry_out(orders: &Receiver<Order>, notice: impl Fn()) {
    while let Ok(mut order) = orders.recv() {
        // Of the orders that arrived meanwhile, all but the last are out of date.
        while let Ok(newer) = orders.try_recv() {
            order = newer;
        }
        if has_changed(order) {
            notice();
        }
    }
}

fn has_changed(order: Order) -> bool {
    let Order { directory, lease, name, at_most } = order;
    let Ok(mut watch) = directory.watch(lease.tenant(), &name) else { return true };
    let is_there = watch.seen().as_ref().is_some_and(|found| found.lease == lease.id());
    !is_there || !matches!(watch.next(at_most), Ok(None))
}
