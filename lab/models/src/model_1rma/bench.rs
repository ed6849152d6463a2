//! Shared parts of the runs: clusters with servers and clients, random arrivals, and statistics of measured times.

use super::inputs::OneShotInputs;
use crate::one_shot::World;
use crate::time::Nanos;
use portcullis_onerma::{Action, Command, Destination, ServiceClass, Signal, Transfer, TransferId};
use portcullis_sim::{Dice, LinkFaults};

/// Bytes of each server's region. Transfers of 4 MB fit.
pub(super) const REGION_BYTES: u64 = 4 << 20;

/// Creates a world in which each of the hosts `servers` has a responder.
pub(super) fn world_with_servers(
    inputs: &OneShotInputs,
    hosts: usize,
    servers: std::ops::Range<usize>,
    region: u64,
) -> World {
    let mut world = World::new(inputs.world(LinkFaults::default()), hosts);
    for server in servers {
        world.add_responder(server, region, inputs.responder_limits());
    }
    world
}

/// Returns a read of this many bytes from the start of a region.
pub(super) fn read(to: &Destination, bytes: usize, class: ServiceClass) -> Transfer {
    Transfer { action: Action::Read(bytes), to: to.clone(), address: 0, class, may_repeat: false }
}

/// Returns a command that reads this many bytes from the start of a region.
pub(super) fn read_command(to: &Destination, bytes: usize) -> Command {
    let action = Action::Read(bytes);
    Command { action, to: to.clone(), address: 0, class: ServiceClass::Latency }
}

/// Begins a transfer on a host's executor.
pub(super) fn begin(world: &mut World, host: usize, transfer: Transfer) -> TransferId {
    world.with_executor(host, |executor, now| executor.begin(transfer, now).expect("there is room"))
}

/// A cluster of servers, and of clients that may read from each of them.
pub(super) struct Cluster {
    pub world: World,
    /// The destinations from which clients read: by client, and by server.
    pub to: Vec<Vec<Option<Destination>>>,
}

impl Cluster {
    /// Creates hosts, of which those in `servers` have responders and those in `clients` have executors. A host may
    /// be both, but no host reads from itself.
    pub fn new(
        inputs: &OneShotInputs,
        servers: std::ops::Range<usize>,
        clients: std::ops::Range<usize>,
        region: u64,
    ) -> Self {
        let hosts = servers.end.max(clients.end);
        let mut world = world_with_servers(inputs, hosts, servers.clone(), region);
        let mut to = vec![vec![None; hosts]; hosts];
        for client in clients {
            world.add_executor(client, inputs.executor(Signal::Apart));
            for server in servers.clone().filter(|&server| server != client) {
                to[client][server] = Some(world.grant(server, client));
            }
        }
        Self { world, to }
    }

    /// Begins a read. A client of the cluster may read from every server but itself.
    pub fn read(&mut self, client: usize, server: usize, bytes: usize, class: ServiceClass) -> TransferId {
        let to = self.to[client][server].as_ref().expect("the client may read there");
        begin(&mut self.world, client, read(to, bytes, class))
    }
}

/// Draws a time between two arrivals of a Poisson process.
pub(super) fn exponential(dice: &mut Dice, mean: f64) -> Nanos {
    let uniform = (dice.of(0..1 << 53) as f64 + 1.0) / (1u64 << 53) as f64;
    rounded(-uniform.ln() * mean)
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to what a u64 holds")]
fn rounded(nanos: f64) -> Nanos {
    nanos.round().clamp(0.0, 1e18) as Nanos
}

/// Returns the value below which this share of the values lies.
pub(super) fn quantile(values: &mut [f64], share: f64) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    values.sort_unstable_by(f64::total_cmp);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to the values")]
    let at = (share.clamp(0.0, 1.0) * (values.len() - 1) as f64).round() as usize;
    values[at]
}

/// Returns the mean, or 0 without values.
pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_are_as_far_apart_as_they_should_be_in_the_mean() {
        let mut dice = Dice::new(1, 1);
        let times: Vec<f64> = (0..100_000).map(|_| exponential(&mut dice, 500.0) as f64).collect();
        assert!((mean(&times) - 500.0).abs() < 10.0, "{}", mean(&times));
        let beyond = times.iter().filter(|&&it| it > 1500.0).count() as f64 / times.len() as f64;
        assert!((beyond - (-3.0f64).exp()).abs() < 0.005, "{beyond}");
    }

    #[test]
    fn a_quantile_is_one_of_the_values() {
        let mut values: Vec<f64> = (0..101).rev().map(f64::from).collect();
        assert_eq!(
            [0.0, 0.5, 0.99, 1.0].map(|it| quantile(&mut values, it).to_bits()),
            [0.0f64.to_bits(), 50.0f64.to_bits(), 99.0f64.to_bits(), 100.0f64.to_bits()]
        );
    }
}
