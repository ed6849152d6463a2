//! The usage of one tenant, against its quota.

use crate::config::Quota;
use portcullis_protocol::Refusal;

/// The usage of one tenant. Its caller checks the quota before it adds something.
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

    /// Checks whether the quota allows one more object, which takes `bytes` bytes.
    ///
    /// # Errors
    /// [`Refusal::Quota`], in objects or in bytes: what is used without the object, and the limit.
    pub(super) fn check_object(&self, quota: &Quota, bytes: u64) -> Result<(), Refusal> {
        check(self.objects, 1, quota.objects_max)?;
        check(self.bytes, bytes, quota.bytes_max)
    }

    /// Counts an object that takes `bytes` bytes.
    pub(super) fn add_object(&mut self, bytes: u64) {
        self.objects += 1;
        self.bytes += bytes;
    }

    /// Subtracts an object that took `bytes` bytes and was given up.
    pub(super) fn remove_object(&mut self, bytes: u64) {
        subtract(&mut self.objects, 1);
        subtract(&mut self.bytes, bytes);
    }

    /// Checks whether the quota allows one more permission.
    ///
    /// # Errors
    /// [`Refusal::Quota`], in permissions.
    pub(super) fn check_permission(&self, quota: &Quota) -> Result<(), Refusal> {
        check(self.permissions, 1, quota.permissions_max)
    }

    /// Counts a permission.
    pub(super) fn add_permission(&mut self) {
        self.permissions += 1;
    }

    /// Subtracts a permission that has ended.
    pub(super) fn remove_permission(&mut self) {
        subtract(&mut self.permissions, 1);
    }
}

fn check(used: u64, more: u64, limit: u64) -> Result<(), Refusal> {
    match used.checked_add(more) {
        Some(total) if total <= limit => Ok(()),
        _ => Err(Refusal::Quota { used, limit }),
    }
}

fn subtract(used: &mut u64, amount: u64) {
    debug_assert!(*used >= amount, "{amount} subtracted of {used}");
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
        assert_eq!(usage.check_object(&QUOTA, 60), Ok(()));
        usage.add_object(60);
        assert_eq!(usage.check_object(&QUOTA, 41), Err(Refusal::Quota { used: 60, limit: 100 }));
        assert_eq!(usage.check_object(&QUOTA, u64::MAX), Err(Refusal::Quota { used: 60, limit: 100 }));
        assert_eq!(usage.check_object(&QUOTA, 40), Ok(()));
        usage.add_object(40);
        assert_eq!((usage.bytes(), usage.permissions()), (100, 0));
    }

    #[test]
    fn what_is_given_back_can_be_used_again() {
        let mut usage = Usage::default();
        for _ in 0..2 {
            assert_eq!(usage.check_permission(&QUOTA), Ok(()));
            usage.add_permission();
        }
        assert_eq!(usage.check_permission(&QUOTA), Err(Refusal::Quota { used: 2, limit: 2 }));
        usage.remove_permission();
        assert_eq!(usage.check_permission(&QUOTA), Ok(()));
        for _ in 0..3 {
            assert_eq!(usage.check_object(&QUOTA, 30), Ok(()));
            usage.add_object(30);
        }
        assert_eq!(usage.check_object(&QUOTA, 1), Err(Refusal::Quota { used: 3, limit: 3 }), "objects");
        usage.remove_object(30);
        assert_eq!(usage.check_object(&QUOTA, 41), Err(Refusal::Quota { used: 60, limit: 100 }), "bytes");
        assert_eq!(usage.check_object(&QUOTA, 40), Ok(()));
    }
}
