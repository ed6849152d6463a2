//! The faults of a run and their times, drawn before the run: leaving one out does not change the others.

use crate::clock::{MICROSECOND, MILLISECOND, Nanos};
use crate::dice::Dice;
use crate::network::{Cut, MachineId};
use crate::nic::NicFaults;
use crate::over_udp::{Habits, Narrow};
use crate::plan::{FaultKind, Plan};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InjectedFault {
    /// A client stops. The node learns of that after `heard` ns. The client returns after `back`, if it returns.
    ClientStop {
        client: usize,
        heard: Nanos,
        back: Option<Nanos>,
    },
    ClientPause {
        client: usize,
        time: Nanos,
    },
    LateCompletions {
        client: usize,
        time: Nanos,
    },
    ClientClock {
        client: usize,
        ahead: Nanos,
        drift: i32,
    },
    NodeStop {
        node: usize,
        back: Nanos,
    },
    NodePause {
        node: usize,
        time: Nanos,
    },
    NodeClock {
        node: usize,
        ahead: Nanos,
        drift: i32,
    },
    Cut {
        from: MachineId,
        to: MachineId,
        time: Nanos,
        cut: Cut,
    },
    Path {
        client: usize,
        time: Nanos,
        habits: Habits,
    },
    Nic {
        node: usize,
        time: Nanos,
        faults: NicFaults,
    },
    Mtu {
        client: usize,
        time: Nanos,
        narrow: Narrow,
    },
    NodeFreeze {
        node: usize,
        time: Nanos,
    },
}

impl InjectedFault {
    /// Returns the kind of the fault.
    pub fn kind(&self) -> FaultKind {
        match self {
            Self::ClientStop { .. } => FaultKind::ClientStop,
            Self::ClientPause { .. } => FaultKind::ClientPause,
            Self::LateCompletions { .. } => FaultKind::LateCompletions,
            Self::ClientClock { .. } => FaultKind::ClientClock,
            Self::NodeStop { .. } => FaultKind::NodeStop,
            Self::NodePause { .. } => FaultKind::NodePause,
            Self::NodeClock { .. } => FaultKind::NodeClock,
            Self::Cut { .. } => FaultKind::Cut,
            Self::Nic { .. } => FaultKind::Nic,
            Self::Path { .. } => FaultKind::Path,
            Self::Mtu { .. } => FaultKind::Mtu,
            Self::NodeFreeze { .. } => FaultKind::NodeFreeze,
        }
    }
}

/// The rough time that a NIC waits for an answer.
const PATIENCE: std::ops::Range<Nanos> = 300 * MICROSECOND..3 * MILLISECOND;

/// The least time that a frozen node stands still, as a multiple of the limit of sessions. `FROZEN_MAX` is the
/// longest.
const FROZEN_MIN: u64 = 4;
const FROZEN_MAX: u64 = 8;

/// Draws the length of a pause, mostly short, now and then longer than any lease.
fn pause(dice: &mut Dice) -> Nanos {
    dice.magnitude(MICROSECOND..8 * MILLISECOND)
}

/// Draws the rate of a wrong clock: within the bound for sound clocks, or far beyond it.
fn drift(dice: &mut Dice) -> i32 {
    let bound = if dice.per_mille(500) { 1_000 } else { 400_000 };
    i32::try_from(dice.of(0..2 * bound)).unwrap_or(0) - i32::try_from(bound).unwrap_or(0)
}

fn ahead(dice: &mut Dice) -> Nanos {
    if dice.per_mille(500) { dice.magnitude(MICROSECOND..20 * MILLISECOND) } else { 0 }
}

/// Draws the faults of a run, in order. Each kind is drawn apart from the others and from the length of the run: a
/// shorter run has the beginning of the list.
pub(crate) fn draw(plan: &Plan) -> Vec<(Nanos, InjectedFault)> {
    let mut list = Vec::new();
    for (number, kind) in (0u64..).zip(FaultKind::ALL) {
        let mut dice = Dice::new(plan.seed, 100 + number);
        let rarely = matches!(kind, FaultKind::NodeStop | FaultKind::Nic);
        let apart = match (kind, plan.within) {
            // Between two freezes there must be time for work.
            (FaultKind::NodeFreeze, Some(within)) => (FROZEN_MAX + 8) * within.0 * MICROSECOND,
            _ if rarely => 12 * MILLISECOND,
            _ => 3 * MILLISECOND,
        };
        let mut at = dice.of(0..apart);
        while at < plan.duration_ns && plan.faults.contains(&kind) {
            list.push((at, draw_one(kind, plan, &mut dice)));
            at += 1 + dice.of(0..apart);
        }
    }
    list.sort_by_key(|&(at, _)| at);
    list
}

fn draw_one(kind: FaultKind, plan: &Plan, dice: &mut Dice) -> InjectedFault {
    let client = dice.index(plan.clients);
    let node = dice.index(plan.nodes);
    match kind {
        FaultKind::ClientStop => {
            let heard = dice.magnitude(MICROSECOND..10 * MILLISECOND);
            let back = dice.per_mille(800).then(|| dice.magnitude(MICROSECOND..4 * MILLISECOND));
            InjectedFault::ClientStop { client, heard, back }
        }
        FaultKind::ClientPause => InjectedFault::ClientPause { client, time: pause(dice) },
        FaultKind::LateCompletions => InjectedFault::LateCompletions { client, time: pause(dice) },
        FaultKind::ClientClock => {
            InjectedFault::ClientClock { client, ahead: ahead(dice), drift: drift(dice) }
        }
        FaultKind::NodeStop => {
            InjectedFault::NodeStop { node, back: dice.magnitude(MICROSECOND..2 * MILLISECOND) }
        }
        FaultKind::NodePause => InjectedFault::NodePause { node, time: pause(dice) },
        FaultKind::NodeClock => InjectedFault::NodeClock { node, ahead: ahead(dice), drift: drift(dice) },
        FaultKind::Cut => {
            let machine = plan.nodes + client;
            let (from, to) = if dice.per_mille(500) { (machine, node) } else { (node, machine) };
            // Half of the cuts last as long as NICs wait: a packet may arrive although its sender has given up.
            let trying = dice.per_mille(500);
            let slow = if trying { dice.of(PATIENCE) } else { dice.magnitude(MICROSECOND..MILLISECOND) };
            let cut = match dice.of(0..3) {
                0 => Cut::Lost,
                1 => Cut::Held,
                _ => Cut::Slow(slow),
            };
            let time = if trying { dice.of(PATIENCE) } else { pause(dice) };
            InjectedFault::Cut { from, to, time, cut }
        }
        FaultKind::Path => InjectedFault::Path { client, time: pause(dice), habits: Habits::draw(dice) },
        FaultKind::Mtu => InjectedFault::Mtu { client, time: pause(dice), narrow: Narrow::draw(dice) },
        FaultKind::NodeFreeze => {
            let within = plan.within.map_or(MILLISECOND, |within| within.0 * MICROSECOND);
            InjectedFault::NodeFreeze { node, time: dice.of(FROZEN_MIN * within..FROZEN_MAX * within) }
        }
        FaultKind::Nic => {
            let mut rate = || if dice.per_mille(400) { dice.magnitude(1..300) } else { 0 };
            let faults =
                NicFaults { bind: rate(), modify: rate(), register: rate(), window: rate(), poll: rate() };
            InjectedFault::Nic { node, time: pause(dice), faults }
        }
    }
}
