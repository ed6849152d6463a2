//! Tests that a reused queue pair number brings back no completion of its earlier queue pair.

use portcullis_nic::{
    Access, CqId, LocalSpan, Nic, Operation, PdId, QpAttributes, QpId, ReceiveRequest, RemoteAddress,
    WorkRequest, connect_qp,
};
use portcullis_softnic::SoftNic;

/// Number of messages to the queue pair that is destroyed.
const MESSAGES: u64 = 4;
/// The most new queue pairs that are made until the number is used again.
const COME_AND_GO: u32 = 1000;

fn queue_pair(nic: &mut SoftNic, pd: PdId, cq: CqId) -> QpId {
    let attributes = QpAttributes { send_cq: cq, receive_cq: cq, send_depth: 8, receive_depth: 8 };
    nic.create_qp(pd, attributes).expect("a queue pair")
}

fn connect(nic: &mut SoftNic, qp: QpId, peer: QpId) {
    let peer = nic.qp_address(peer).expect("it is there");
    connect_qp(nic, qp, peer).expect("each step");
}

#[test]
fn completions_of_a_queue_pair_that_is_gone_are_never_those_of_the_next_with_its_number() {
    let mut nic = SoftNic::new();
    let pd = nic.allocate_pd().expect("a domain");
    let cqs = [(); 2].map(|()| nic.create_cq(64).expect("a queue"));
    let memory = nic.allocate_memory(4096).expect("memory");
    let region =
        nic.register_region(pd, &memory, 0..4096, RemoteAddress(0), Access::LOCAL_WRITE).expect("a region");
    let local = LocalSpan { address: 0, length: 64, lkey: region.lkey };
    let [sender, gone] = cqs.map(|cq| queue_pair(&mut nic, pd, cq));
    connect(&mut nic, sender, gone);
    connect(&mut nic, gone, sender);
    for id in 0..MESSAGES {
        nic.post_receive(gone, &[ReceiveRequest { id, local }]).expect("a receive");
        let request = WorkRequest { id, signalled: true, operation: Operation::Send { local } };
        nic.post_send(sender, &[request]).expect("a message");
    }
    while nic.turn() {}
    // The messages have arrived, and are not polled yet.
    nic.destroy_qp(gone).expect("in any state");
    let next = (0..COME_AND_GO).find_map(|_| {
        let next = queue_pair(&mut nic, pd, cqs[1]);
        (next == gone).then_some(next).or_else(|| {
            nic.destroy_qp(next).expect("in any state");
            None
        })
    });
    assert_eq!(next, Some(gone), "the number comes back");
    let mut completions = Vec::new();
    nic.poll(cqs[1], 64, &mut completions).expect("the queue is there");
    assert_eq!(completions, [], "of a queue pair that nothing was ever posted to");
    // The completions of the other end are still valid.
    nic.poll(cqs[0], 64, &mut completions).expect("the queue is there");
    assert_eq!(completions.len() as u64, MESSAGES);
}
