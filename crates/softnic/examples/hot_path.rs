//! The hot path of the NIC, for counting its instructions: `hot_path N` reads 64 bytes N times through a window, posted
//! and polled 32 at a time. `scripts/instructions` runs it under callgrind, so that the machine's noise does not count.

use portcullis_nic::{
    Access, LocalSpan, Memory, Nic, Operation, QpAttributes, QpChange, RemoteAddress, RemoteSpan,
    WindowBinding, WindowKind, WorkRequest,
};
use portcullis_softnic::SoftNic;

const BASE: RemoteAddress = RemoteAddress(0x10_0000);
const BATCH: u64 = 32;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let reads: u64 = std::env::args().nth(1).unwrap_or_else(|| "32".to_owned()).parse()?;
    let mut nic = SoftNic::self_driven();
    let memory = nic.allocate_memory(1 << 20)?;
    memory.write(0, &[7; 4096]);
    let pd = nic.allocate_pd()?;
    let pool =
        nic.register_region(pd, &memory, 0..1 << 19, BASE, Access::LOCAL_WRITE | Access::WINDOW_BIND)?;
    let local = nic.register_region(pd, &memory, 1 << 19..1 << 20, RemoteAddress(0), Access::LOCAL_WRITE)?;
    let cq = nic.create_cq(256)?;
    let attributes = QpAttributes { send_cq: cq, receive_cq: cq, send_depth: 128, receive_depth: 0 };
    let (here, there) = (nic.create_qp(pd, attributes)?, nic.create_qp(pd, attributes)?);
    for (qp, peer) in [(here, there), (there, here)] {
        let peer = nic.qp_address(peer)?;
        nic.modify_qp(qp, QpChange::Init { access: Access::REMOTE })?;
        nic.modify_qp(qp, QpChange::ReadyToReceive { peer })?;
        nic.modify_qp(qp, QpChange::ReadyToSend { rnr_retries: 0 })?;
    }
    let window = nic.allocate_window(pd, WindowKind::One)?;
    let rkey = window.rkey.advanced();
    let (region, access) = (pool.id, Access::REMOTE_READ);
    let bind = WindowBinding { window: window.id, rkey, region, address: BASE, length: 64, access };
    let mut completions = Vec::new();
    nic.post_send(there, &[WorkRequest { id: 0, signalled: true, operation: Operation::BindWindow(bind) }])?;
    while completions.is_empty() {
        nic.poll(cq, 1, &mut completions)?;
    }
    let span = LocalSpan { address: 0, length: 64, lkey: local.lkey };
    let read = Operation::Read { local: span, remote: RemoteSpan { address: BASE, rkey } };
    let batch: Vec<WorkRequest> =
        (0..BATCH).map(|id| WorkRequest { id, signalled: id + 1 == BATCH, operation: read }).collect();
    for _ in 0..reads / BATCH {
        nic.post_send(here, &batch)?;
        completions.clear();
        while completions.is_empty() {
            nic.poll(cq, 1, &mut completions)?;
        }
        if completions[0].status != portcullis_nic::Status::Success {
            return Err(format!("a read ended with {}", completions[0].status).into());
        }
    }
    Ok(())
}
