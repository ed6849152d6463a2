//! The usage of one tenant, against its quota.

use crate::config::Quota;
use portcullis_protocol::Refusal;

/// The usage of one tenant. A charge that its quota refuses changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Usage {
    bytes: u64,
    objects: u64,
    permissions: u64,
}

impl Usage {
    /// Returns the number of bytes held.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of permissions held.
    #[cfg(test)]
    pub(crate) fn permissions(&self) -> u64 {
        self.permissions
    }

    /// Counts an object that takes `bytes` bytes.
    ///
    /// # Errors
    /// [`Refusal::Quota`], in bytes or in objects: what is used without the object, and the limit.
    pub(crate) fn charge_object(&mut self, quota: &Quota, bytes: u64) -> Result<(), Refusal> {
        charge(&mut self.objects, 1, quota.objects_max)?;
        charge(&mut self.bytes, bytes, quota.bytes_max).inspect_err(|_| refund(&mut self.objects, 1))
    }

    /// Subtracts an object that took `bytes` bytes and was given up.
    pub(crate) fn refund_object(&mut self, bytes: u64) {
        refund(&mut self.objects, 1);
        refund(&mut self.bytes, bytes);
    }

    /// Counts a permission.
    ///
    /// # Errors
    /// [`Refusal::Quota`], in permissions.
    pub(crate) fn charge_permission(&mut self, quota: &Quota) -> Result<(), Refusal> {
        charge(&mut self.permissions, 1, quota.permissions_max)
    }

    /// Subtracts a permission that has ended.
    pub(crate) fn refund_permission(&mut self) {
        refund(&mut self.permissions, 1);
    }
}

fn charge(used: &mut u64, amount: u64, limit: u64) -> Result<(), Refusal> {
    match used.checked_add(amount) {
        Some(total) if total <= limit => {
            *used = total;
            Ok(())
        }
        _ => Err(Refusal::Quota { used: *used, limit }),
    }
}

fn refund(used: &mut u64, amount: u64) {
    debug_assert!(*used >= amount, "{amount} refunded of {used} charged");
    *used = used.saturating_sub(amount);
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUOTA: Quota = Quota {
        bytes_max: 100,
        objects_max: 3,
        permissions_max: 2,
        names_max: 2,
        shares_max: 2,
        chunks_max: 2,
    };

    #[test]
    fn the_quota_can_be_used_up_and_no_further() {
        let mut usage = Usage::default();
        assert_eq!(usage.charge_object(&QUOTA, 60), Ok(()));
        assert_eq!(usage.charge_object(&QUOTA, 41), Err(Refusal::Quota { used: 60, limit: 100 }));
        assert_eq!(usage.charge_object(&QUOTA, u64::MAX), Err(Refusal::Quota { used: 60, limit: 100 }));
        assert_eq!(usage.charge_object(&QUOTA, 40), Ok(()));
        assert_eq!((usage.bytes(), usage.permissions()), (100, 0));
    }

    #[test]
    fn what_is_given_back_can_be_used_again() {
        let mut usage = Usage::default();
        assert_eq!([usage.charge_permission(&QUOTA), usage.charge_permission(&QUOTA)], [Ok(()), Ok(())]);
        assert_eq!(usage.charge_permission(&QUOTA), Err(Refusal::Quota { used: 2, limit: 2 }));
        usage.refund_permission();
        assert_eq!(usage.charge_permission(&QUOTA), Ok(()));
        for _ in 0..3 {
            usage.charge_object(&QUOTA, 30).expect("they fit");
        }
        assert_eq!(usage.charge_object(&QUOTA, 1), Err(Refusal::Quota { used: 3, limit: 3 }), "objects");
        usage.refund_object(30);
        assert_eq!(usage.charge_object(&QUOTA, 41), Err(Refusal::Quota { used: 60, limit: 100 }), "bytes");
        assert_eq!(usage.charge_object(&QUOTA, 40), Ok(()), "what was refused is not counted");
    }
}
