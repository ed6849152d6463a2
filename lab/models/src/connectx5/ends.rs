//! NICs and clients on the model's network.

use portcullis_client::Client;
use portcullis_protocol::Lifetime;
use portcullis_sim::{SimEndpoint, SimMemory};
use portcullis_softnic::SoftNic;
use portcullis_softnic::core::NetworkPort;

/// The software NIC of a machine of the model.
pub(super) type ModelNic = SoftNic<SimMemory>;

/// The client library on a machine of the model.
pub(super) type ModelClient = Client<SimEndpoint>;

fn port(machine: usize) -> NetworkPort {
    let address = (machine as u128 + 1).to_le_bytes();
    NetworkPort { address, first_packet: 0, patience: Lifetime::seconds(60) }
}

/// Returns the machine whose port has this address.
pub(super) fn machine_at(address: [u8; 16]) -> Option<usize> {
    usize::try_from(u128::from_le_bytes(address).checked_sub(1)?).ok()
}

pub(super) fn soft_nic(machine: usize) -> ModelNic {
    let mut nic = SoftNic::default();
    nic.core().join(port(machine));
    nic
}
