//! Figure 8a: clients load a hash table while it grows, and the client that resizes it crashes (§7.2.3).
//!
//! The table itself is only a count of entries and slots. A real exclusive permission on the real node keeps two
//! clients from resizing the table at once. It has a lease, or it outlives the run.

use super::bench::{Bench, LONG};
use super::ends::ModelClient;
use super::inputs::Inputs;
use super::rig::{Driver, Rig};
use super::script::ACCESS_BYTES;
use super::{Effort, Progress};
use crate::report::OutputRow;
use crate::time::{MICROSECOND, Nanos};
use portcullis_client::{
    Access, Acquire, Allocate, Answer, Call, ClientConfig, ControlRequest, Operation, Permission,
};
use portcullis_protocol::{Lifetime, Mechanism, Moment, ObjectRef};
use std::cell::RefCell;
use std::rc::Rc;

const FIGURE: &str = "Figure 8a";
/// The epochs after which progress resumes, from the slides.
const RESUMED: f64 = 80.0;
/// Clients that load the table.
const LOADERS: usize = 8;
/// Slots of a subtable. Each resizing adds one subtable.
const SLOTS: u64 = 256;
/// Subtables of the table when it is full.
const SUBTABLES_MAX: u64 = 160;
/// Accesses of an insertion (§6.1: a write, two reads, a CAS).
const ACCESSES: u32 = 4;
/// Accesses of a resizing: it moves half of the entries, with one read and one write for each eight of them.
const MOVES: u32 = 32;
/// The last epoch of a run that makes no progress.
const LAST_EPOCH: u64 = 800;

/// The table, with the facts about its crash.
#[derive(Debug, Default)]
struct Table {
    entries: u64,
    begun: u64,
    subtables: u64,
    crash_at: Nanos,
    crashed: Option<Nanos>,
    /// The objects that stand for the entries and for the metadata.
    objects: Vec<ObjectRef>,
}

impl Table {
    fn is_full(&self) -> bool {
        self.begun >= self.subtables * SLOTS
    }
}

#[derive(Debug)]
enum Doing {
    /// The first client creates the two objects.
    Making,
    Joining,
    Inserting(u32),
    Asking,
    Moving(u32),
    Releasing,
    Idle,
    Crashed,
}

/// A client that loads the table and resizes it when it is full.
#[derive(Debug)]
struct Loader {
    table: Rc<RefCell<Table>>,
    lease: Lifetime,
    doing: Doing,
    call: Option<Call>,
    operation: Option<Operation>,
    entries: Option<Permission>,
    metadata: Option<Permission>,
}

/// How long a client without work waits before it looks again.
const PAUSE: Nanos = 10 * MICROSECOND;

fn moment(now: Nanos) -> Moment {
    Moment(now / 1000)
}

impl Loader {
    fn access(&mut self, client: &mut ModelClient, now: Nanos) {
        let Some(permission) = &self.entries else { return };
        let Ok(buffer) = client.buffer(ACCESS_BYTES) else { return };
        self.operation = client.access(moment(now), Access::read(permission, 0, buffer)).ok();
    }

    fn ask(&mut self, client: &mut ModelClient, now: Nanos, object: usize) {
        let Some(&address) = self.table.borrow().objects.get(object) else { return };
        let ask = Acquire::object(address).wait(LONG);
        let ask = if object == 0 { ask.lifetime(LONG).shared() } else { ask.lifetime(self.lease) };
        self.call = client.call(moment(now), ask).ok();
    }

    /// Whether the pending call or operation is over.
    fn is_over(&mut self, client: &mut ModelClient) -> bool {
        if let Some(call) = self.call {
            let Some(answer) = client.take_call(call) else { return false };
            self.call = None;
            if let Ok(Answer::Granted(permission)) = answer {
                match self.doing {
                    Doing::Making => self.table.borrow_mut().objects.push(permission.object()),
                    Doing::Joining => self.entries = Some(permission),
                    _ => self.metadata = Some(permission),
                }
            }
        }
        if let Some(operation) = self.operation {
            if client.take(operation).is_none() {
                return false;
            }
            self.operation = None;
        }
        true
    }

    /// Executes the next step. Returns whether there is one.
    fn go_on(&mut self, client: &mut ModelClient, now: Nanos) -> bool {
        match self.doing {
            Doing::Making if self.table.borrow().objects.len() < 2 => {
                // The permission ends at once. The object stays.
                let ask = Allocate::bytes(64).lifetime(Lifetime(1)).keep();
                self.call = client.call(moment(now), ask).ok();
            }
            Doing::Making => self.doing = Doing::Joining,
            Doing::Joining if self.entries.is_none() => {
                if self.table.borrow().objects.len() < 2 {
                    return false;
                }
                self.ask(client, now, 0);
            }
            Doing::Joining | Doing::Idle => return self.choose(client, now),
            Doing::Inserting(0) => {
                self.table.borrow_mut().entries += 1;
                return self.choose(client, now);
            }
            Doing::Inserting(left) => {
                self.doing = Doing::Inserting(left - 1);
                self.access(client, now);
            }
            Doing::Asking => {
                // Another client may have resized the table meanwhile.
                let full = self.table.borrow().is_full();
                self.doing = if full { Doing::Moving(MOVES) } else { Doing::Releasing };
            }
            Doing::Moving(left) => self.go_on_moving(client, now, left),
            Doing::Releasing => {
                self.doing = Doing::Idle;
                if let Some(permission) = self.metadata.take() {
                    self.call = client.call(moment(now), ControlRequest::revoke(permission)).ok();
                }
            }
            Doing::Crashed => return false,
        }
        true
    }

    fn go_on_moving(&mut self, client: &mut ModelClient, now: Nanos, left: u32) {
        let mut table = self.table.borrow_mut();
        if now >= table.crash_at && table.crashed.is_none() {
            table.crashed = Some(now);
            self.doing = Doing::Crashed;
            return;
        }
        if left == 0 {
            table.subtables += 1;
            self.doing = Doing::Releasing;
            return;
        }
        drop(table);
        self.doing = Doing::Moving(left - 1);
        self.access(client, now);
    }

    fn choose(&mut self, client: &mut ModelClient, now: Nanos) -> bool {
        let mut table = self.table.borrow_mut();
        if !table.is_full() {
            table.begun += 1;
            self.doing = Doing::Inserting(ACCESSES);
            return true;
        }
        if table.subtables == SUBTABLES_MAX {
            self.doing = Doing::Idle;
            return false;
        }
        drop(table);
        self.doing = Doing::Asking;
        self.ask(client, now, 1);
        true
    }
}

impl Driver for Loader {
    fn act(&mut self, client: &mut ModelClient, now: Nanos) -> Option<Nanos> {
        while self.is_over(client) {
            if !self.go_on(client, now) {
                return (!matches!(self.doing, Doing::Crashed)).then_some(now + PAUSE);
            }
        }
        None
    }
}

struct Loaded {
    factor: f64,
    /// Epochs from the crash to the next insertion, if there was one.
    resumed: Option<f64>,
    crashed: f64,
}

fn load(inputs: &Inputs, leases: bool) -> Loaded {
    let mechanism = if leases { Mechanism::MemoryWindow } else { Mechanism::None };
    let mut config = Bench::new(inputs, mechanism, 0).config;
    config.longest_wait = LONG;
    let lease = if leases { Lifetime(inputs.resize_lease_ns / MICROSECOND) } else { LONG };
    let crash_at = inputs.crash_epoch * inputs.epoch_ns;
    let table = Rc::new(RefCell::new(Table { subtables: 1, crash_at, ..Table::default() }));
    let mut rig = Rig::new(inputs, &config, None);
    let machines = usize::try_from(inputs.machines).unwrap_or(1).max(1);
    for loader in 0..LOADERS {
        let doing = if loader == 0 { Doing::Making } else { Doing::Joining };
        let driver = Loader {
            table: Rc::clone(&table),
            lease,
            doing,
            call: None,
            operation: None,
            entries: None,
            metadata: None,
        };
        // All use one core: the table is one object of it.
        rig.attach(loader % machines, 0, (2, ClientConfig::default()), Rc::new(RefCell::new(driver)));
    }
    rig.start();
    let mut resumed = None;
    let mut before = None;
    let whole = SLOTS * SUBTABLES_MAX;
    for epoch in 1..=LAST_EPOCH {
        rig.run(epoch * inputs.epoch_ns, || false);
        let table = table.borrow();
        if let (Some(crashed), None) = (table.crashed, resumed) {
            // Insertions that had begun may still end in the epoch of the crash.
            match before {
                Some(entries) if table.entries > entries => resumed = Some(rig.now - crashed),
                _ => before = Some(table.entries),
            }
        }
        if table.entries == whole {
            break;
        }
    }
    let epochs = |time: Nanos| time as f64 / inputs.epoch_ns as f64;
    let table = table.borrow();
    Loaded {
        factor: 100.0 * table.entries as f64 / whole as f64,
        resumed: resumed.map(epochs),
        crashed: epochs(table.crashed.unwrap_or(0)),
    }
}

pub(super) fn figure_8a(inputs: &Inputs, _effort: Effort, progress: &mut Progress<'_>) -> Vec<OutputRow> {
    progress.step(&format!("{FIGURE}: vanilla"));
    let vanilla = load(inputs, false);
    progress.step(&format!("{FIGURE}: leases"));
    let leases = load(inputs, true);
    let lease = inputs.resize_lease_ns as f64 / inputs.epoch_ns as f64;
    vec![
        OutputRow::new(FIGURE, "vanilla: load factor at the end", "%", vanilla.factor)
            .said("§7.2.3: the orphaned lock is a deadlock, no insertion follows")
            .reading(if vanilla.resumed.is_none() { "holds: no insertion follows" } else { "does NOT hold" }),
        OutputRow::new(FIGURE, "leases: load factor at the end", "%", leases.factor)
            .paper(100.0, "§7.2.3: the other clients load the table full"),
        OutputRow::new(
            FIGURE,
            "leases: without an insertion",
            "epochs",
            leases.resumed.unwrap_or(f64::INFINITY),
        )
        .paper(RESUMED, "slides: resumes progress after 80 epochs")
        .reading(format!(
            "the lease of {lease:.0} epochs, less what of it had passed at the crash in epoch {:.0}: nearly an input. \
             For the paper's number its client must have held it for {:.0} epochs already",
            leases.crashed,
            lease - RESUMED
        )),
    ]
}
