//! The tenants whose bytes may lie in free memory, so that it is scrubbed before another tenant gets it.

use crate::config::PAGE_BYTES;
use portcullis_protocol::RemoteAddress;

/// The tenants that have used a page since the pool was all zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trace {
    /// No tenant.
    Clean,
    /// One tenant.
    Of(u64),
    /// Several tenants.
    Mixed,
}

/// The tenants whose bytes each page of the pool may still hold. This is coarse on purpose: a page that two tenants
/// share costs each a scrub, but never leaks.
#[derive(Debug)]
pub(crate) struct Taint {
    base: u64,
    pages: Vec<Trace>,
}

impl Taint {
    /// Creates the marks of a pool of zeros.
    pub fn new(base: RemoteAddress, bytes: u64) -> Self {
        let pages = usize::try_from(bytes.div_ceil(PAGE_BYTES) + 1).unwrap_or(usize::MAX);
        Self { base: base.0, pages: vec![Trace::Clean; pages] }
    }

    /// Gives these bytes to `tenant`. Returns whether they must be scrubbed first, because other tenants' bytes may lie
    /// there.
    pub fn take(&mut self, tenant: u64, address: RemoteAddress, bytes: u64) -> bool {
        let mut foreign = false;
        for trace in self.pages_of(address, bytes) {
            *trace = match *trace {
                Trace::Clean => Trace::Of(tenant),
                Trace::Of(owner) if owner == tenant => Trace::Of(owner),
                Trace::Of(_) | Trace::Mixed => {
                    foreign = true;
                    Trace::Mixed
                }
            };
        }
        foreign
    }

    /// Notes that several tenants may have written these bytes.
    pub fn mix(&mut self, address: RemoteAddress, bytes: u64) {
        self.pages_of(address, bytes).fill(Trace::Mixed);
    }

    fn pages_of(&mut self, address: RemoteAddress, bytes: u64) -> &mut [Trace] {
        let page =
            |at: u64| usize::try_from(at.saturating_sub(self.base) / PAGE_BYTES).unwrap_or(usize::MAX - 1);
        let (first, last) = (page(address.0), page(address.0 + bytes.max(1) - 1));
        let end = self.pages.len();
        &mut self.pages[first.min(end)..(last + 1).min(end)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: RemoteAddress = RemoteAddress(1 << 20);

    #[test]
    fn only_the_first_owner_of_a_page_goes_without_a_scrub() {
        let mut taint = Taint::new(BASE, 4 * PAGE_BYTES);
        assert!(!taint.take(1, BASE, 64));
        assert!(!taint.take(1, BASE, PAGE_BYTES));
        assert!(taint.take(2, RemoteAddress(BASE.0 + 128), 64));
        assert!(taint.take(1, BASE, 64), "tenant 2 may have left bytes anywhere in the page");
        assert!(!taint.take(2, RemoteAddress(BASE.0 + PAGE_BYTES), 64));
    }

    #[test]
    fn what_several_tenants_wrote_is_scrubbed_for_each_of_them() {
        let mut taint = Taint::new(BASE, 4 * PAGE_BYTES);
        assert!(!taint.take(1, BASE, 64));
        taint.mix(RemoteAddress(BASE.0 + PAGE_BYTES - 32), 64);
        assert!(taint.take(1, BASE, 64) && taint.take(1, RemoteAddress(BASE.0 + PAGE_BYTES), 64));
        assert!(!taint.take(2, RemoteAddress(BASE.0 + 2 * PAGE_BYTES), 64));
    }

    #[test]
    fn an_object_over_a_page_boundary_takes_both_pages() {
        let mut taint = Taint::new(BASE, 4 * PAGE_BYTES);
        assert!(!taint.take(1, RemoteAddress(BASE.0 + PAGE_BYTES - 32), 64));
        assert!(taint.take(2, RemoteAddress(BASE.0 + PAGE_BYTES + 512), 64));
        assert!(taint.take(2, BASE, 64));
    }
}
