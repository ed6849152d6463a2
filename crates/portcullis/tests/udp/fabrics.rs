//! One node, two fabrics: clients of one tenant share objects whichever fabric they use.

use crate::rig::{RED, Rig};
use portcullis::{Access, Acquire, Allocate, Lifetime, Mechanism, Session, Unchecked};

#[test]
fn an_object_goes_to_and_fro_between_fabrics_and_its_old_holder_is_refused() {
    let rig = Rig::new();
    let over_memory = rig.local_session(RED);
    let mut sessions: [Session; 2] = [over_memory, rig.session(RED)];
    let ask = Allocate::bytes(4096).keep().lifetime(Lifetime::seconds(9));
    let first = sessions[0].allocate(ask).expect("memory");
    let object = first.object();
    sessions[0].write(&first, 0, &[0; 4096]).expect("written");
    let mut held = first;
    for round in 1..=100u8 {
        let (from, to) = (usize::from(round + 1) % 2, usize::from(round) % 2);
        let (address, credential) = (held.address(), held.credential());
        sessions[from].revoke(held).expect("it has not ended");
        let ask = || Acquire::object(object).lifetime(Lifetime::seconds(9)).wait(Lifetime::seconds(5));
        held = sessions[to].acquire(ask()).expect("it is free");
        let expected = if to == 1 { Mechanism::RegionKey } else { rig.host.mechanism() };
        assert_eq!(held.mechanism(), expected);
        let mut bytes = [0; 4096];
        sessions[to].read(&held, 0, &mut bytes).expect("read");
        assert_eq!(bytes, [round - 1; 4096]);
        sessions[to].write(&held, 0, &[round; 4096]).expect("written");
        if round % 10 < 2 {
            // The former holder uses its old credential once more.
            let former = &mut sessions[from];
            let mut buffer = former.buffer(64).expect("room");
            buffer.write(0, &[0xee; 64]);
            let write = Access::write(Unchecked::new(address, credential), 0, buffer);
            let operation = former.client().dangerous_access(write).expect("it begins");
            assert!(former.wait(operation).expect("it ends").result.is_err(), "the old holder is refused");
            sessions[to].read(&held, 0, &mut bytes).expect("read");
            assert_eq!(bytes, [round; 4096]);
        }
    }
    sessions[0].revoke_and_free(held).expect("it has not ended");
    drop(sessions);
    rig.assert_empty();
}
