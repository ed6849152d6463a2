//! Numbers of permissions and of waiting requests. Only the accounts change them.

use portcullis_protocol::Sharing;

/// Number of permissions over an object: of all tenants, of one guest or of all guests.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct PermissionCounts {
    held: u32,
    exclusive: u32,
    exposed: u32,
}

impl PermissionCounts {
    /// Returns the number of permissions that have not ended.
    pub fn held(self) -> u32 {
        self.held
    }

    /// Returns the number of exclusive permissions that have not ended.
    pub fn exclusive(self) -> u32 {
        self.exclusive
    }

    /// Returns the number of permissions whose protection may still be up. Until it is down, the memory is not used
    /// again.
    pub fn exposed(self) -> u32 {
        self.exposed
    }

    /// Returns the number of permissions that have ended and whose protection may still be up.
    pub fn fading(self) -> u32 {
        self.exposed - self.held
    }

    /// Counts a permission that starts.
    pub(super) fn start(&mut self, sharing: Sharing) {
        self.held += 1;
        self.exposed += 1;
        self.exclusive += u32::from(sharing == Sharing::Exclusive);
    }

    /// Counts a permission that ends. Its protection may still be up.
    pub(super) fn end(&mut self, sharing: Sharing) {
        self.held -= 1;
        self.exclusive -= u32::from(sharing == Sharing::Exclusive);
    }

    /// Counts an ended permission whose protection is down.
    pub(super) fn withdraw(&mut self) {
        self.exposed -= 1;
    }
}

/// Number of permissions over an object and of requests that wait for it: of one guest or of all guests.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct GuestCounts {
    pub(super) permissions: PermissionCounts,
    pub(super) waits: u32,
}

impl GuestCounts {
    /// Returns the number of permissions.
    pub fn permissions(self) -> PermissionCounts {
        self.permissions
    }

    /// Returns the number of requests that wait for the object.
    pub fn waits(self) -> u32 {
        self.waits
    }
}
