//! NICs on the model's network.

use crate::network::port_address;
use crate::nic::SimNic;
use portcullis_protocol::Lifetime;
use portcullis_softnic::SoftNic;
use portcullis_softnic::core::NetworkPort;

fn port(machine: usize) -> NetworkPort {
    NetworkPort { address: port_address(machine), first_packet: 0, patience: Lifetime::seconds(60) }
}

pub(super) fn soft_nic(machine: usize) -> SimNic {
    let mut nic = SoftNic::default();
    nic.core().join(port(machine));
    nic
}
