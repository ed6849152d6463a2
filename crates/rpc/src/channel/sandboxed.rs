//! Methods that run in a sandbox (RPCool §5.2).
//!
//! Their arguments are copied, as those of [`Copied`] methods are, and pointers are checked before they are followed,
//! since a method's own code can access all of this process. A sandbox adds a stack of its own, whose overflow is an
//! error of the call; a temporary heap; copies of the server's values for the method; and traps for foreign code.
//!
//! If the machine has protection keys ([`Protection`](portcullis_memory::sandbox::Protection)), a server with such
//! methods withholds from trapped code the memory that its connections share, and the stacks of its threads. A program
//! can withhold its heap too ([`WithheldHeap`](portcullis_memory::sandbox::WithheldHeap)).

use super::method::{Copied, Failure, Method, Reply};
use super::server::Channel;
use crate::View;
use crate::plain::Plain;
use portcullis_memory::sandbox::{Arena, Inside, Sandbox, SandboxError, SandboxOptions};
use std::ops::Deref;
use std::panic::{RefUnwindSafe, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};

/// Copied arguments for a method that runs in a sandbox. The type has the methods of [`Copied`], and gives access to
/// the sandbox.
#[derive(Debug)]
pub struct Sandboxed<'a, T, V = ()> {
    arguments: Copied<'a, T>,
    inside: &'a Inside<'a>,
    values: &'a V,
}

impl<'a, T, V> Sandboxed<'a, T, V> {
    /// The sandbox's temporary heap. Its values are freed when the method has ended.
    #[must_use]
    pub fn arena(&self) -> Arena<'a> {
        self.inside.arena()
    }

    /// The server's values, as they were when the call was received. They are a copy: the method cannot change the
    /// server's.
    #[must_use]
    pub fn values(&self) -> &'a V {
        self.values
    }

    /// The sandbox, for traps ([`Inside::trap`]).
    #[must_use]
    pub fn inside(&self) -> &'a Inside<'a> {
        self.inside
    }
}

impl<'a, T, V> Deref for Sandboxed<'a, T, V> {
    type Target = Copied<'a, T>;

    fn deref(&self) -> &Copied<'a, T> {
        &self.arguments
    }
}

/// The sandboxes of one method. Each is used again: their number is that of the calls of the method that have ever run
/// at once.
#[derive(Debug)]
pub(super) struct Sandboxes {
    options: SandboxOptions,
    free: Mutex<Vec<Sandbox>>,
}

impl Sandboxes {
    fn new(options: SandboxOptions) -> Self {
        Self { options, free: Mutex::new(Vec::new()) }
    }

    /// Makes the first sandbox, so that a machine that refuses sandboxes does so when the server starts.
    pub fn prepare(&self) -> Result<(), SandboxError> {
        let sandbox = self.take()?;
        self.put(sandbox);
        Ok(())
    }

    fn take(&self) -> Result<Sandbox, SandboxError> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        free.map_or_else(|| Sandbox::new(self.options), Ok)
    }

    fn put(&self, sandbox: Sandbox) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(sandbox);
    }

    /// Runs code in one of the sandboxes. If the code panics, the panic continues after the sandbox is free again.
    fn run(&self, code: impl FnOnce(&Inside<'_>) -> Result<(), Failure>) -> Result<(), Failure> {
        let mut sandbox = self.take().map_err(|error| Failure::NoSandbox(error.to_string()))?;
        let ended = sandbox.run(code);
        self.put(sandbox);
        ended.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl Channel {
    /// Adds a method whose arguments are copied, and which runs in a sandbox
    /// ([`ServerOptions::sandbox`](super::ServerOptions::sandbox)).
    ///
    /// ```
    /// use portcullis_rpc::channel::{CallError, Connection, Failure, Sandboxed, serve};
    /// use portcullis_rpc::{Boxed, Scope};
    /// use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};
    ///
    /// #[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout)]
    /// #[repr(C)]
    /// struct Node {
    ///     next: Boxed<Node>,
    /// }
    ///
    /// fn depth(at: Boxed<Node>, list: &Sandboxed<'_, Node>) -> Result<u64, Failure> {
    ///     if at.is_null() { Ok(0) } else { Ok(depth(at.get(list.view())?.next, list)? + 1) }
    /// }
    ///
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("depth.sock");
    /// let server = serve(&path)
    ///     .sandboxed(1, |list: Sandboxed<'_, Node>, reply| {
    ///         reply.set_word(depth(list.get()?.next, &list)? + 1);
    ///         Ok(())
    ///     })
    ///     .start()?;
    /// let mut connection = Connection::open(&path)?;
    /// let nodes = |count: u64, scope: &Scope| {
    ///     (0..count).try_fold(Boxed::NULL, |next, _| Boxed::new(scope, Node { next }))
    /// };
    /// let scope = connection.scope(8 << 20)?;
    /// let short = nodes(10, &scope)?;
    /// assert_eq!(connection.call(1, &scope, short)?.word(), 10);
    /// let long = nodes(1_000_000, &scope)?;
    /// assert_eq!(connection.call(1, &scope, long).unwrap_err(), CallError::StackOverflow);
    /// assert_eq!(connection.call(1, &scope, short)?.word(), 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn sandboxed<T, F>(self, number: u32, code: F) -> Self
    where
        T: Plain,
        F: Fn(Sandboxed<'_, T>, &mut Reply<'_>) -> Result<(), Failure>
            + Send
            + Sync
            + RefUnwindSafe
            + 'static,
    {
        self.sandboxed_with(number, || (), code)
    }

    /// Adds a method like [`sandboxed`](Self::sandboxed), which also gets values of the server: `values` is called
    /// before each call, outside the sandbox, and its result is copied into the sandbox's temporary heap (RPCool §5.2,
    /// «accessing data outside the sandbox»).
    #[must_use]
    pub fn sandboxed_with<T, V, N, F>(mut self, number: u32, values: N, code: F) -> Self
    where
        T: Plain,
        V: Copy + 'static,
        N: Fn() -> V + Send + Sync + RefUnwindSafe + 'static,
        F: Fn(Sandboxed<'_, T, V>, &mut Reply<'_>) -> Result<(), Failure>
            + Send
            + Sync
            + RefUnwindSafe
            + 'static,
    {
        let most = self.options.arguments_max;
        let sandboxes = Arc::new(Sandboxes::new(self.options.sandbox));
        self.sandboxes.push(Arc::clone(&sandboxes));
        let code = move |view: View<'_>, root, word, reply: &mut Reply<'_>| {
            let values = values();
            sandboxes.run(|inside| {
                let values = inside.arena().put(values)?;
                code(Sandboxed { arguments: Copied::new(view, root, word), inside, values }, reply)
            })
        };
        self.with_method(number, Method::Copied { most, code: Box::new(code) })
    }
}
