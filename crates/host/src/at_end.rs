//! Actions that run when a node's thread ends, however it ends.

use std::fmt;

/// An action that runs once, when this value is dropped.
pub(crate) struct AtEnd(Option<Box<dyn FnOnce() + Send>>);

impl AtEnd {
    pub fn new(code: impl FnOnce() + Send + 'static) -> Self {
        Self(Some(Box::new(code)))
    }
}

impl Drop for AtEnd {
    fn drop(&mut self) {
        if let Some(code) = self.0.take() {
            code();
        }
    }
}

impl fmt::Debug for AtEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AtEnd")
    }
}
