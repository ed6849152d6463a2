//! The thread that a node and its RDMA device live on.
//!
//! The device does its work by itself; the thread polls for what concerns the node, spins while there is work, then
//! yields, then sleeps until the device, the clock or somebody in this process has something.

use crate::outlet::Outlet;
use crate::{HostError, Run, machine};
use portcullis_attach::Server;
use portcullis_ibverbs::IbNic;
use portcullis_node::{ClientEnds, Node};
use portcullis_protocol::{ClientId, Moment};
use portcullis_softnic::engine::{Idle, ThreadTime, TurnCounts, TurnTimes, pin};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest sleep: a bound on what a device that does not ring could cost.
const SLEEP_MAX: Duration = Duration::from_millis(500);

type Command = Box<dyn FnOnce(&mut Life) + Send>;

/// The node's thread has ended.
#[derive(Debug, thiserror::Error, Clone, Copy, PartialEq, Eq)]
#[error("the node has ended")]
pub(super) struct Gone;

/// A handle to the thread. It ends with this.
#[derive(Debug)]
pub(super) struct Engine {
    commands: Mutex<Sender<Command>>,
    bell: Arc<OwnedFd>,
    stop: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
    turn_times: Arc<TurnTimes>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Engine {
    pub fn start(
        nic: IbNic,
        run: Run,
        records: Option<Outlet>,
        server: Arc<Mutex<Option<Server>>>,
        processor: Option<usize>,
    ) -> Result<Self, HostError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell =
            eventfd(0, flags).map_err(|error| machine("no event for the node".to_owned())(error.into()))?;
        let bell = Arc::new(bell);
        let (commands, receiver) = channel();
        let (stop, over) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let mut nic = nic;
        let Run { config, incarnation, secret, zero } = run;
        let node = Node::new(&mut nic, config, incarnation, secret)?;
        let (clients, farewells) = (HashMap::new(), HashMap::new());
        let life = Life { node, nic, clients, farewells, evicted: Vec::new(), records, server, zero };
        let turn_times = Arc::<TurnTimes>::default();
        let driver = Driver {
            life,
            turn_times: Arc::clone(&turn_times),
            commands: receiver,
            bell: Arc::clone(&bell),
            stop: Arc::clone(&stop),
            over: Over(Arc::clone(&over)),
        };
        let thread = std::thread::Builder::new().name("portcullis-node".to_owned()).spawn(move || {
            if let Some(processor) = processor {
                pin(processor);
            }
            driver.run();
        });
        let thread = thread.map_err(machine("cannot start the node's thread".to_owned()))?;
        let (commands, thread) = (Mutex::new(commands), Mutex::new(Some(thread)));
        Ok(Self { commands, bell, stop, over, turn_times, thread })
    }

    /// Has the thread do `work` between two turns, and returns what it returned.
    pub fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Life) -> T + Send + 'static,
    ) -> Result<T, Gone> {
        let (answer, result) = sync_channel(1);
        let command: Command = Box::new(move |life| {
            // The caller waits for the answer; if its thread died meanwhile, nobody misses it.
            let _ = answer.send(work(life));
        });
        let sent = self.commands.lock().unwrap_or_else(PoisonError::into_inner).send(command);
        sent.map_err(|_| Gone)?;
        self.ring();
        result.recv().map_err(|_| Gone)
    }

    /// Set once the thread has ended.
    pub fn over(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.over)
    }

    /// How long its turns took in which there was something to do.
    pub fn turn_times(&self) -> TurnCounts {
        self.turn_times.counts()
    }

    fn ring(&self) {
        // A full counter means that it has been rung often enough.
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
    }

    /// Ends the thread and waits until it has.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.ring();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            // Its panic, if it had one, is printed already; here it only means that it has ended.
            let _ = thread.join();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A node, its device and its clients.
#[derive(Debug)]
pub(super) struct Life {
    pub node: Node<IbNic>,
    /// Behind the node: its objects are taken off before it goes.
    pub nic: IbNic,
    pub clients: HashMap<ClientId, ClientEnds>,
    /// Told to clients of this process that are shown out: they have no connection that could be closed.
    farewells: HashMap<ClientId, Arc<AtomicBool>>,
    /// Shown out by the node, and still connected.
    evicted: Vec<ClientId>,
    records: Option<Outlet>,
    server: Arc<Mutex<Option<Server>>>,
    zero: Instant,
}

impl Life {
    pub fn now(&self) -> Moment {
        Moment(u64::try_from(self.zero.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// Shows a client out.
    pub fn depart(&mut self, client: ClientId) {
        let now = self.now();
        self.node.detach(&mut self.nic, client, now);
        if let Some(ends) = self.clients.remove(&client) {
            ends.destroy(&mut self.nic);
        }
        if let Some(shown_out) = self.farewells.remove(&client) {
            shown_out.store(true, Ordering::Release);
        }
    }

    /// `shown_out` is to be set when the client is shown out, or is gone already.
    pub fn on_farewell(&mut self, client: ClientId, shown_out: Arc<AtomicBool>) {
        if self.clients.contains_key(&client) {
            self.farewells.insert(client, shown_out);
        } else {
            shown_out.store(true, Ordering::Release);
        }
    }

    fn turn(&mut self, now: Moment) -> bool {
        let mut worked = self.node.turn(&mut self.nic, now);
        while let Some(client) = self.node.poll_evicted() {
            self.depart(client);
            self.evicted.push(client);
        }
        // Never waits: the lock is held for a moment only, and who holds it may be waiting for us. The next turn tries
        // again.
        if !self.evicted.is_empty()
            && let Ok(server) = self.server.try_lock()
        {
            for client in self.evicted.drain(..) {
                if let Some(server) = server.as_ref() {
                    server.evict(client.0);
                }
            }
        }
        if let Some(records) = &mut self.records {
            worked |= records.fill(|| self.node.poll_audit());
        }
        worked
    }

    fn end(&mut self) {
        let now = self.now();
        self.node.end(&mut self.nic, now);
        for (_, ends) in self.clients.drain() {
            ends.destroy(&mut self.nic);
        }
        if let Some(records) = self.records.take() {
            records.drain(|| self.node.poll_audit());
        }
    }
}

/// Says that the thread is over, however it ends.
struct Over(Arc<AtomicBool>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

struct Driver {
    life: Life,
    turn_times: Arc<TurnTimes>,
    commands: Receiver<Command>,
    bell: Arc<OwnedFd>,
    stop: Arc<AtomicBool>,
    // Last: when it is told, nothing of the node is on the device any more.
    over: Over,
}

impl Driver {
    fn run(mut self) {
        let mut idle = Idle::default();
        let mut thread = ThreadTime::default();
        while !self.stop.load(Ordering::Acquire) {
            let now = self.life.now();
            if self.life.turn(now) | self.run_commands() {
                self.turn_times.record(self.life.now().since(now), &mut thread);
                idle.reset();
            } else if idle.spin_or_yield(now) {
                self.sleep(now);
                idle.reset();
            }
        }
        self.life.end();
        let Self { life, over, .. } = self;
        drop(life);
        drop(over);
    }

    fn run_commands(&mut self) -> bool {
        let mut ran = false;
        while let Ok(command) = self.commands.try_recv() {
            command(&mut self.life);
            ran = true;
        }
        ran
    }

    fn sleep(&mut self, now: Moment) {
        let wake = self.life.node.next_wake().map(|wake| Duration::from(wake.since(now)));
        let at_most = wake.map_or(SLEEP_MAX, |wake| wake.min(SLEEP_MAX));
        self.life.nic.sleep(at_most, Some(self.bell.as_fd()));
        // Read after every sleep: a bell that stays rung would end each of them at once.
        let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
    }
}
