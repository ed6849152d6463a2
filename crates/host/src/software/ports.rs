//! The limit on the memory of clients' ports. The node fills and locks all of it, so each port takes physical memory of
//! the machine.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The memory that all ports share.
#[derive(Debug)]
pub(super) struct PortMemory {
    bytes_max: u64,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    bytes: u64,
    by_tenant: HashMap<String, u64>,
}

/// There is not enough memory for a port.
#[derive(Debug, thiserror::Error)]
#[error(
    "a port of {bytes} bytes is more than the node has left for {tenant}: of {bytes_max} bytes for ports \
     {taken} are taken, {its} of them by {tenant}, which gets no more than it leaves to others: request a \
     smaller arena, or start the node with a greater --ports-memory"
)]
pub(super) struct NoMemory {
    bytes: u64,
    bytes_max: u64,
    taken: u64,
    its: u64,
    tenant: String,
}

/// The memory of one port. It is free again when this value is dropped.
#[derive(Debug)]
pub(super) struct PortShare {
    memory: Arc<PortMemory>,
    tenant: String,
    bytes: u64,
}

impl PortMemory {
    pub fn new(bytes_max: u64) -> Arc<Self> {
        Arc::new(Self { bytes_max, taken: Mutex::default() })
    }

    /// Takes `bytes` for a port of `tenant`. However much a tenant has, as much stays free for others.
    ///
    /// # Errors
    /// The memory is not available. The error gives the reason, for the person who runs the client.
    pub fn take(self: &Arc<Self>, tenant: &str, bytes: u64) -> Result<PortShare, NoMemory> {
        let mut taken = self.taken();
        let its = taken.by_tenant.get(tenant).copied().unwrap_or(0);
        let free = self.bytes_max - taken.bytes;
        if bytes > free || its.saturating_add(bytes) > free {
            let (bytes_max, taken, tenant) = (self.bytes_max, taken.bytes, tenant.to_owned());
            return Err(NoMemory { bytes, bytes_max, taken, its, tenant });
        }
        taken.bytes += bytes;
        *taken.by_tenant.entry(tenant.to_owned()).or_default() += bytes;
        Ok(PortShare { memory: Arc::clone(self), tenant: tenant.to_owned(), bytes })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PortShare {
    fn drop(&mut self) {
        let mut taken = self.memory.taken();
        taken.bytes -= self.bytes;
        let Entry::Occupied(mut its) = taken.by_tenant.entry(std::mem::take(&mut self.tenant)) else {
            unreachable!("a tenant is known as long as it has a port")
        };
        *its.get_mut() -= self.bytes;
        if *its.get() == 0 {
            its.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_leaves_as_much_to_others_as_it_takes() {
        let memory = PortMemory::new(1000);
        let first = memory.take("red", 300).expect("there is room");
        let second = memory.take("red", 200).expect("half of all is free");
        let told = memory.take("red", 1).expect_err("half of all is taken").to_string();
        assert!(told.contains("1000 bytes") && told.contains("500"), "{told}");
        let other = memory.take("blue", 250).expect("as much as it leaves free");
        assert!(memory.take("blue", 1).is_err());
        drop(first);
        drop(memory.take("blue", 50).expect("there is room again"));
        drop((second, other));
        assert_eq!(memory.taken().bytes, 0);
        assert!(memory.taken().by_tenant.is_empty());
        assert!(memory.take("green", 1001).is_err() && memory.take("green", u64::MAX).is_err());
    }
}
