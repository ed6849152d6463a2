//! Memory that clients are lent, and the limit of it for each user.
//!
//! A page of a connection's heap or ring is charged to the process that touches it first. That is the server if it
//! reads a page that its client never touched, or writes results. The page stays for as long as any process has the
//! file. A client that kept the files and connected again and again could charge the server without limit. So the
//! memory that a user was lent is counted until no process but the server has it any more ([`Loan`]), however long ago
//! its connection has ended.
//!
//! No memory is taken from a client that still has it: an answer can be read after its connection has ended.

use super::ends::RING_BYTES;
use crate::heap::{Heap, HeapUse};
use portcullis_attach::Reason;
use portcullis_attach::unix::User;
use portcullis_memory::{Loan, Mapping};
use rustix::fd::OwnedFd;
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Pauses between two checks whether the memory of ended connections is back: no event reports that a process has
/// closed a file. Mostly the memory is back soon after a connection has ended.
const LOOK_FIRST: Duration = Duration::from_millis(2);
const LOOK_LAST: Duration = Duration::from_secs(1);

/// The memory that a server has lent.
#[derive(Debug)]
pub(super) struct Lending {
    bytes_each: u64,
    loans_max: u64,
    accounts: Accounts,
    ended: Sender<Held>,
}

type Accounts = Arc<Mutex<HashMap<User, Account>>>;

/// The amount of memory that a user was lent.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    bytes: u64,
    loans: u64,
}

/// A connection's heap and ring, which were lent. When this is dropped, the connection has ended, and a thread checks
/// them until they are back.
#[derive(Debug)]
pub(super) struct Lent {
    held: Option<Held>,
    ended: Sender<Held>,
}

#[derive(Debug)]
struct Held {
    heap: HeapUse,
    loans: [Loan; 2],
    /// The deposit is given back when this is dropped.
    _deposit: Deposit,
}

#[derive(Debug)]
struct Deposit {
    accounts: Accounts,
    user: User,
    bytes: u64,
}

impl Lending {
    /// Starts the thread, with at most `bytes_each` bytes for each user, and at most `loans_max` loans for all users
    /// together.
    ///
    /// # Errors
    /// The machine refuses a thread.
    pub fn start(bytes_each: u64, loans_max: u64) -> std::io::Result<Self> {
        let (ended, receiver) = channel();
        // The thread is not joined: it ends with the last connection.
        std::thread::Builder::new()
            .name("portcullis-loans".to_owned())
            .spawn(move || look_after(&receiver))?;
        Ok(Self { bytes_each, loans_max, accounts: Accounts::default(), ended })
    }

    /// Lends a user a heap and a ring. Also returns their descriptors, the ring's first.
    ///
    /// # Errors
    /// The user has as much as it may have, or the machine refuses.
    pub fn lend(&self, user: User, heap: &Heap, ring: &Mapping) -> Result<(Lent, [OwnedFd; 2]), Reason> {
        let deposit = self.deposit(user, heap.place().length + RING_BYTES)?;
        let ((ring, ring_file), (memory, heap_file)) = (Loan::of(ring)?, Loan::of(heap.memory())?);
        let held = Held { heap: heap.used(), loans: [ring, memory], _deposit: deposit };
        Ok((Lent { held: Some(held), ended: self.ended.clone() }, [ring_file, heap_file]))
    }

    fn deposit(&self, user: User, bytes: u64) -> Result<Deposit, Reason> {
        let mut accounts = locked(&self.accounts);
        let all: u64 = accounts.values().map(|it| it.loans).sum();
        let account = accounts.entry(user).or_default();
        let most = self.bytes_each;
        if account.bytes.saturating_add(bytes) > most {
            let has = account.bytes;
            return Err(format!(
                "a heap of {bytes} bytes beside {has} of {most} that the user's connections have \
                 (ServerOptions::user_bytes), those included that have ended, while any process has their heaps"
            )
            .into());
        }
        // However many loans one user has, as many stay free for others.
        if account.loans + 1 > self.loans_max.saturating_sub(all) {
            return Err(
                "processes of this user have too many heaps, also of connections that have ended".into()
            );
        }
        (account.bytes, account.loans) = (account.bytes + bytes, account.loans + 1);
        Ok(Deposit { accounts: Arc::clone(&self.accounts), user, bytes })
    }
}

impl Drop for Deposit {
    fn drop(&mut self) {
        let mut accounts = locked(&self.accounts);
        let Some(account) = accounts.get_mut(&self.user) else { return };
        (account.bytes, account.loans) = (account.bytes - self.bytes, account.loans - 1);
        if account.loans == 0 {
            accounts.remove(&self.user);
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // If sending fails, the thread has ended, and so has the server.
        let _ = self.held.take().map(|held| self.ended.send(held));
    }
}

impl Held {
    /// Whether no process has the memory any more, this one included.
    fn is_back(&self) -> bool {
        // If the machine cannot report it, no user can be made to wait for it.
        !self.heap.is_used() && self.loans.iter().all(|loan| loan.take_back().unwrap_or(true))
    }
}

/// Checks the memory of ended connections, until all connections have ended.
fn look_after(ended: &Receiver<Held>) {
    let mut kept: Vec<Held> = Vec::new();
    let (mut pause, mut next) = (LOOK_FIRST, Instant::now());
    loop {
        let came = if kept.is_empty() {
            ended.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            ended.recv_timeout(next.saturating_duration_since(Instant::now()))
        };
        match came {
            Ok(held) => {
                kept.push(held);
                pause = LOOK_FIRST;
                next = next.min(Instant::now() + pause);
            }
            Err(RecvTimeoutError::Timeout) => {
                kept.retain(|held| !held.is_back());
                next = Instant::now() + pause;
                pause = LOOK_LAST.min(2 * pause);
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
