//! Table 5: the cost of a refused access for its client, with and without spare queue pairs (§7.2.5).

use super::Progress;
use super::bench::{Bench, LONG};
use super::ends::ModelClient;
use super::inputs::{Inputs, micro};
use super::rig::{Driver, Rig};
use super::script::ACCESS_BYTES;
use crate::report::OutputRow;
use crate::time::{MILLISECOND, Nanos};
use portcullis_client::{Access, Allocate, Answer, Call, ClientConfig, Operation, Permission, Unchecked};
use portcullis_node::ViolationLimits;
use portcullis_protocol::{Credential, Mechanism, Moment};
use std::cell::RefCell;
use std::rc::Rc;

const TABLE: &str = "Table 5";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Allocating,
    /// A valid access, to measure the time of an access.
    Probing,
    Trespassing,
    /// The client puts a spare queue pair in the place of the broken one.
    Promoting,
    /// The first access after the promotion.
    Resuming,
    Finished,
}

/// A client that writes where it must not.
#[derive(Debug)]
struct Trespasser {
    promote_ns: Nanos,
    doing: Doing,
    call: Option<Call>,
    operation: Option<Operation>,
    permission: Option<Permission>,
    begun: Nanos,
    /// Time of a valid access. `reported` is the time until the error, and `held_up` is the delay beyond that.
    access: Nanos,
    reported: Nanos,
    error_at: Nanos,
    held_up: Nanos,
}

fn moment(now: Nanos) -> Moment {
    Moment(now / 1000)
}

impl Trespasser {
    fn read(&mut self, client: &mut ModelClient, now: Nanos) {
        let Some(permission) = &self.permission else { return };
        let Ok(buffer) = client.buffer(ACCESS_BYTES) else { return };
        self.begun = now;
        self.operation = client.access(moment(now), Access::read(permission, 0, buffer)).ok();
    }

    fn trespass(&mut self, client: &mut ModelClient, now: Nanos) {
        let Some(permission) = &self.permission else { return };
        let Credential::Keys { buffer: key, .. } = permission.credential() else { return };
        let beyond = portcullis_protocol::RemoteAddress(permission.address().0 + permission.length());
        let Ok(buffer) = client.buffer(ACCESS_BYTES) else { return };
        self.begun = now;
        self.operation = client.dangerous_access(Access::write(Unchecked::new(beyond, key), 0, buffer)).ok();
    }

    fn is_over(&mut self, client: &mut ModelClient) -> bool {
        if let Some(call) = self.call {
            let Some(answer) = client.take_call(call) else { return false };
            self.call = None;
            if let Ok(Answer::Granted(permission)) = answer {
                self.permission = Some(permission);
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
}

impl Driver for Trespasser {
    fn act(&mut self, client: &mut ModelClient, now: Nanos) -> Option<Nanos> {
        if !self.is_over(client) {
            return None;
        }
        match self.doing {
            Doing::Allocating if self.permission.is_none() => {
                self.call = client.call(moment(now), Allocate::bytes(64).lifetime(LONG)).ok();
            }
            Doing::Allocating => {
                self.doing = Doing::Probing;
                self.read(client, now);
            }
            Doing::Probing => {
                self.access = now - self.begun;
                self.doing = Doing::Trespassing;
                self.trespass(client, now);
            }
            Doing::Trespassing => {
                (self.reported, self.error_at) = (now - self.begun, now);
                if client.counters().switches > 0 {
                    self.doing = Doing::Promoting;
                    return Some(now + self.promote_ns);
                }
                self.doing = Doing::Resuming;
                self.read(client, now);
            }
            Doing::Promoting if now < self.error_at + self.promote_ns => {
                return Some(self.error_at + self.promote_ns);
            }
            Doing::Promoting => {
                self.doing = Doing::Resuming;
                self.read(client, now);
            }
            Doing::Resuming => {
                self.held_up = (now - self.error_at).saturating_sub(self.access);
                self.doing = Doing::Finished;
            }
            Doing::Finished => {}
        }
        None
    }
}

/// Returns how long the error took, and how long the client was held up after it.
fn trespass(inputs: &Inputs, use_spares: bool) -> (Nanos, Nanos) {
    // A random spread would hide these times.
    let inputs = Inputs { spread_ns: 0, ..*inputs };
    let mut config = Bench::new(&inputs, Mechanism::MemoryWindow, 0).config;
    config.violations = ViolationLimits { free_max: 1 << 20, ..ViolationLimits::default() };
    let mut rig = Rig::new(&inputs, &config, None);
    let driver = Rc::new(RefCell::new(Trespasser {
        promote_ns: inputs.promote_ns,
        doing: Doing::Allocating,
        call: None,
        operation: None,
        permission: None,
        begun: 0,
        access: 0,
        reported: 0,
        error_at: 0,
        held_up: 0,
    }));
    let client = ClientConfig { use_spares, ..ClientConfig::default() };
    rig.attach(0, 0, (2, client), Rc::clone(&driver) as Rc<RefCell<dyn Driver>>);
    rig.start();
    let finished = rig.run(1_000 * MILLISECOND, || driver.borrow().doing == Doing::Finished);
    let it = driver.borrow();
    assert!(finished, "a client that was refused goes on: {it:?}");
    (it.reported, it.held_up)
}

pub(super) fn table_5(inputs: &Inputs, progress: &mut Progress<'_>) -> Vec<OutputRow> {
    progress.step(&format!("{TABLE}: without spare queue pairs"));
    let (_, without) = trespass(inputs, false);
    progress.step(&format!("{TABLE}: with spare queue pairs"));
    let (_, with) = trespass(inputs, true);
    let notify = without.saturating_sub(inputs.recover_ns);
    vec![
        OutputRow::new(TABLE, "notifying the manager", "µs", micro(notify))
            .paper(8.0, "Table 5: Notify QP Failure")
            .reading("one message on an idle network and an idle core; the paper's goes another way"),
        OutputRow::new(TABLE, "held up without spares", "µs", micro(without))
            .paper(1_012.0, "Table 5: Summary")
            .reading("the rebuild, an input, and the message for it, through the real client and node"),
        OutputRow::new(TABLE, "held up with spares", "µs", micro(with))
            .paper(78.0, "Table 5: Summary")
            .reading("an input, the promotion, and nothing else: the real client sends no message for it"),
        OutputRow::new(TABLE, "with spares, of without", "%", 100.0 * with as f64 / without.max(1) as f64)
            .paper(8.0, "Table 5: 8 %")
            .reading("nearly an input: both parts are, but for the message"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_takes_as_long_as_the_inputs_say() {
        let inputs = Inputs::default();
        for use_spares in [false, true] {
            let (reported, _) = trespass(&inputs, use_spares);
            assert!(reported.abs_diff(inputs.report_ns) < 100, "{reported}");
        }
    }
}
