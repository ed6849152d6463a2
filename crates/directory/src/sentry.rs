//! A thread that watches a registered name between two turns of its keeper. So a name that is deleted is registered again at once,
//! and not only when the next turn is due. It changes nothing itself.

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
    /// For how long.
    pub(crate) at_most: Duration,
}

/// The thread. It ends when this is dropped, after the watch that is under way: nobody waits for that.
#[derive(Debug)]
pub(crate) struct Sentry {
    orders: Sender<Order>,
}

impl Sentry {
    /// Starts the thread. `notice` is called when a watched name is not as it was registered, and when that cannot be seen.
    pub(crate) fn start(notice: impl Fn() + Send + 'static) -> io::Result<Self> {
        let (orders, receiver) = channel();
        let thread = std::thread::Builder::new().name("portcullis-watch".to_owned());
        thread.spawn(move || carry_out(&receiver, notice))?;
        Ok(Self { orders })
    }

    /// Has a name watched once the watch that is under way has ended. Does not wait.
    pub(crate) fn order(&self, order: Order) {
        // The thread ends before this only by a panic, and the keeper's turns go on without it.
        let _ = self.orders.send(order);
    }
}

fn carry_out(orders: &Receiver<Order>, notice: impl Fn()) {
    while let Ok(mut order) = orders.recv() {
        // What was ordered meanwhile is out of date but for the last.
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
