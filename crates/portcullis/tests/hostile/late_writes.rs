//! Writes that a client goes on with after its permission has ended.

use portcullis::{Access, Acquire, Lifetime, ObjectRef, Session, Unchecked};
use std::sync::atomic::{AtomicBool, Ordering};

/// The byte that late writers write.
const LATE: u8 = 0xee;

/// Stops the late writers, also if the test fails.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writes all of an object's bytes with each permission on and on, also when the permission has ended, until the next one
/// is there.
pub fn write_late(
    mut session: Session,
    (object, bytes): (ObjectRef, u32),
    lifetime: Lifetime,
    stop: &AtomicBool,
) {
    while !stop.load(Ordering::Relaxed) {
        let ask = Acquire::object(object).lifetime(lifetime).wait(Lifetime::seconds(5));
        let Ok(permission) = session.acquire(ask) else { continue };
        let (address, credential) = (permission.address(), permission.credential());
        loop {
            let mut buffer = session.buffer(bytes).expect("room");
            buffer.write(0, &vec![LATE; bytes as usize]);
            let write = Access::write(Unchecked::new(address, credential), 0, buffer);
            let Ok(operation) = session.client().dangerous_access(write) else { break };
            if session.wait(operation).map_or(true, |outcome| outcome.result.is_err()) {
                break;
            }
        }
    }
}
