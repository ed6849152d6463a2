//! NICs on the model's network, and the node's ends of a client's queue pairs.

use super::metered::MeteredNic;
use crate::endpoint::{EndpointSize, SimEndpoint, connect};
use crate::memory::SimMemory;
use crate::network::port_address;
use portcullis_nic::{Access, Nic, QpAddress, QpAttributes, VerbsError};
use portcullis_node::{Admission, ClientEnds};
use portcullis_protocol::Lifetime;
use portcullis_softnic::SoftNic;
use portcullis_softnic::core::NetworkPort;

fn port(machine: usize) -> NetworkPort {
    NetworkPort { address: port_address(machine), first_packet: 0, patience: Lifetime::seconds(60) }
}

/// A machine's NIC.
pub(super) fn soft_nic(machine: usize) -> SoftNic<SimMemory> {
    let mut nic = SoftNic::default();
    nic.core().join(port(machine));
    nic
}

/// The node's ends of a client's queue pairs, connected to the client's.
pub(super) fn make_ends(
    nic: &mut MeteredNic,
    admission: Admission,
    endpoint: &SimEndpoint,
    size: EndpointSize,
) -> Result<(ClientEnds, (QpAddress, Vec<QpAddress>)), VerbsError> {
    let (theirs, peers) = endpoint.addresses()?;
    let Admission { pd, cq, .. } = admission;
    let mut make = |peer: QpAddress, send_depth: u32, receive_depth: u32| {
        let attributes = QpAttributes { send_cq: cq, receive_cq: cq, send_depth, receive_depth };
        let qp = nic.create_qp(pd, attributes)?;
        connect(&mut nic.nic, qp, peer, Access::empty())?;
        Ok::<_, VerbsError>((qp, nic.qp_address(qp)?))
    };
    let control = make(theirs, size.control_depth, size.control_depth)?;
    let data = peers.iter().map(|&peer| make(peer, 1, 0)).collect::<Result<Vec<_>, _>>()?;
    let ends = ClientEnds {
        control: control.0,
        data: data.iter().map(|&(qp, _)| qp).collect(),
        peers,
        control_depth: size.control_depth,
        message_bytes: size.message_bytes,
    };
    Ok((ends, (control.1, data.into_iter().map(|(_, address)| address).collect())))
}
