//! An id that names nothing is an error, whether it was never assigned or its object was destroyed.

use portcullis_examination::bench::{Bench, MEMORY_BYTES, POOL_BASE};
use portcullis_examination::check::Check;
use portcullis_examination::ensure;
use portcullis_nic::{
    Access, CqId, Nic, Operation, PdId, QpAttributes, QpChange, QpId, ReceiveRequest, RegionId,
    RemoteAddress, VerbsError, WindowId, WindowKind,
};
use std::fmt::Debug;

/// An id that no device assigns.
const NOBODYS: u32 = u32::MAX - 7;

pub(super) fn that_nobody_gave_name_no_domain<N: Nic>(bench: &mut Bench<N>) -> Check {
    let pd = PdId(NOBODYS);
    let attributes = attributes(bench.nic.create_cq(32)?);
    no_such("deallocating a domain", &bench.nic.deallocate_pd(pd))?;
    no_such("a queue pair in no domain", &bench.nic.create_qp(pd, attributes))?;
    let (base, access) = (RemoteAddress(POOL_BASE), Access::LOCAL_WRITE);
    let said = bench.nic.register_region(pd, &bench.pool_memory, 0..MEMORY_BYTES, base, access);
    no_such("a region in no domain", &said)
}

pub(super) fn that_nobody_gave_name_no_domain_of_windows<N: Nic>(
    bench: &mut Bench<N>,
    kind: WindowKind,
) -> Check {
    bench.require_window(kind)?;
    no_such("a window in no domain", &bench.nic.allocate_window(PdId(NOBODYS), kind))
}

pub(super) fn that_nobody_gave_name_no_region_and_no_window<N: Nic>(bench: &mut Bench<N>) -> Check {
    no_such("deregistering a region", &bench.nic.deregister_region(RegionId(NOBODYS)))?;
    no_such("deallocating a window", &bench.nic.deallocate_window(WindowId(NOBODYS)))
}

pub(super) fn that_nobody_gave_name_no_completion_queue<N: Nic>(bench: &mut Bench<N>) -> Check {
    let cq = CqId(NOBODYS);
    no_such("destroying a completion queue", &bench.nic.destroy_cq(cq))?;
    no_such("polling a completion queue", &bench.nic.poll(cq, 1, &mut Vec::new()))?;
    let there = bench.nic.create_cq(32)?;
    for attributes in [
        QpAttributes { send_cq: cq, ..attributes(there) },
        QpAttributes { receive_cq: cq, ..attributes(there) },
    ] {
        no_such("a queue pair on no completion queue", &bench.nic.create_qp(bench.owner_pd, attributes))?;
    }
    Ok(())
}

pub(super) fn that_nobody_gave_name_no_queue_pair<N: Nic>(bench: &mut Bench<N>) -> Check {
    no_queue_pair(bench, QpId(NOBODYS))
}

pub(super) fn of_what_is_gone_name_nothing<N: Nic>(bench: &mut Bench<N>) -> Check {
    let pair = bench.pair()?;
    bench.nic.destroy_qp(pair.owner.qp)?;
    no_queue_pair(bench, pair.owner.qp)?;
    bench.nic.destroy_cq(pair.owner.send_cq)?;
    no_such("a completion queue twice", &bench.nic.destroy_cq(pair.owner.send_cq))?;
    bench.nic.deregister_region(bench.pool.id)?;
    no_such("a region twice", &bench.nic.deregister_region(bench.pool.id))?;
    bench.nic.deallocate_pd(bench.owner_pd)?;
    no_such("a domain twice", &bench.nic.deallocate_pd(bench.owner_pd))
}

pub(super) fn of_windows_that_are_gone_name_nothing<N: Nic>(bench: &mut Bench<N>, kind: WindowKind) -> Check {
    let window = bench.window(kind)?;
    bench.nic.deallocate_window(window.id)?;
    no_such("a window twice", &bench.nic.deallocate_window(window.id))
}

fn no_queue_pair<N: Nic>(bench: &mut Bench<N>, qp: QpId) -> Check {
    let local = bench.pool(0, 8);
    let request = bench.request(Operation::Send { local }, true);
    no_such("destroying a queue pair", &bench.nic.destroy_qp(qp))?;
    no_such("a queue pair's address", &bench.nic.qp_address(qp))?;
    no_such("a queue pair's state", &bench.nic.qp_state(qp))?;
    no_such("a queue pair's reset", &bench.nic.modify_qp(qp, QpChange::Reset))?;
    no_such("a send on no queue pair", &bench.nic.post_send(qp, &[request]))?;
    no_such("a receive on no queue pair", &bench.nic.post_receive(qp, &[ReceiveRequest { id: 1, local }]))
}

fn attributes(cq: CqId) -> QpAttributes {
    QpAttributes { send_cq: cq, receive_cq: cq, send_depth: 16, receive_depth: 16 }
}

fn no_such<T: Debug>(what: &str, said: &Result<T, VerbsError>) -> Check {
    ensure!(matches!(said, Err(VerbsError::NoSuch { .. })), "{what} gave {said:?}");
    Ok(())
}
