//! Sessions.

use crate::arena::ArenaBuffer;
use crate::arguments::{self, Cuda, KeptFor, Letters, Seconds, Size};
use crate::batch::{self, Batch};
use crate::core::{Core, Wanted, outcome};
use crate::failure::{OrRaise, lasting, panicked};
use crate::node::Node;
use crate::object::ObjectRef;
use portcullis::{
    Acquire, Allocate, ClientIdentity, ClientSecurity, ControlRequest, Entry, Error, Holders, NamedRequest,
    ProcessClock, RdmaOptions, Rights, SessionOptions, Sharing, UdpOptions,
};
use portcullis_foreign::{Attached, Ended, Entered, ExclusiveCell};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::Duration;

/// A session with a node. portcullis_memory.connect and Node.connect open it.
///
/// Only one thread at a time may use a session: give each thread its own. A child of fork must open a session of its
/// own.
#[pyclass(frozen, subclass, module = "portcullis_memory._native")]
pub(crate) struct Session {
    cell: ExclusiveCell<Core>,
    clock: ProcessClock,
    number: u64,
    /// Whether the arena is registered with CUDA.
    is_registered: bool,
}

/// Builds the request of an allocation.
pub(crate) fn allocate_ask(
    size: &Size,
    lifetime: Seconds,
    rights: &Letters,
    shared: bool,
    keep: &KeptFor,
    alignment: u64,
) -> Allocate {
    let sharing = if shared { Sharing::Shared } else { Sharing::Exclusive };
    Allocate { size: size.0, alignment, lifetime: lifetime.0, rights: rights.0, sharing, keep: keep.0 }
}

/// Builds the request of an acquisition. If `shared` is `None`, a permission that only reads is shared, and any other
/// one is exclusive.
pub(crate) fn acquire_ask(
    object: ObjectRef,
    lifetime: Seconds,
    rights: &Letters,
    shared: Option<bool>,
    wait: Seconds,
    part: Option<&(Size, Size)>,
) -> Acquire {
    let ask = Acquire::object(object.0).lifetime(lifetime.0).rights(rights.0).wait(wait.0);
    let ask = part.map_or(ask, |(offset, length)| ask.part(offset.0, length.0));
    if shared.unwrap_or(rights.0 == Rights::READ) { ask.shared() } else { ask }
}

/// Returns how this client proves its identity to nodes of other machines: by `tenant-NAME.pem` in a folder that
/// `portcullis certificates` has made.
pub(crate) fn security(py: Python<'_>, certificates: Option<(PathBuf, String)>) -> PyResult<ClientSecurity> {
    let Some((folder, tenant)) = certificates else { return Ok(ClientSecurity::Plain { anywhere: false }) };
    let certificate = folder.join(format!("tenant-{tenant}.pem"));
    let key = folder.join(format!("tenant-{tenant}-key.pem"));
    let identity = ClientIdentity::load(&folder.join("ca.pem"), &certificate, &key);
    identity.map(ClientSecurity::Tls).map_err(|error| lasting(py, &error))
}

impl Session {
    /// Enters the session's cell. No other thread can use the session until the returned value is dropped.
    #[inline]
    pub(crate) fn enter(&self, py: Python<'_>) -> PyResult<Entered<'_, Core>> {
        self.cell.enter().or_raise(py)
    }

    /// The clock of the session's leases.
    pub(crate) fn clock(&self) -> ProcessClock {
        self.clock
    }

    /// Opens another session of the same tenant with the same node.
    pub(crate) fn another(&self, py: Python<'_>) -> PyResult<portcullis::Session> {
        let mut core = self.enter(py)?;
        let session = &mut core.attached.session;
        py.detach(move || session.another()).or_raise(py)
    }

    fn call(&self, py: Python<'_>, request: impl Into<ControlRequest>) -> PyResult<Ended> {
        self.enter(py)?.call(py, request.into())
    }

    fn granted<'py>(slf: &Bound<'py, Self>, request: ControlRequest) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let mut core = slf.get().enter(py)?;
        let tag = core.tags(1).start;
        core.attached.operations.add(tag, request);
        core.attached.post();
        let completion = core.take(py, tag)?;
        drop(core);
        outcome(slf, &Wanted::Permission, completion)
    }
}

/// A name, its object, the object's size, and the rights that the requesting tenant can have. `Session.lookup` turns it
/// into an `Entry`.
type Named = (String, ObjectRef, u64, String);

fn named(entry: &Entry) -> Named {
    (entry.name.to_string(), ObjectRef(entry.object), entry.size, entry.rights.letters())
}

#[pymethods]
impl Session {
    #[new]
    #[pyo3(
        signature = (
            place, *, arena = Size(4 << 20), tenant = None, certificates = None, within = None, cuda = Cuda::no()
        ),
        text_signature = "(place, *, arena='4MiB', tenant=None, certificates=None, within=5.0, cuda=False)"
    )]
    fn new(
        py: Python<'_>,
        place: &Bound<'_, PyAny>,
        arena: Size,
        tenant: Option<String>,
        certificates: Option<PathBuf>,
        within: Option<Seconds>,
        cuda: Cuda,
    ) -> PyResult<Self> {
        let plain = SessionOptions::default();
        let within = within.map_or(plain.within, |time| time.0);
        let plain = SessionOptions { arena_bytes: arena.0, within, ..plain };
        let mut attached = match place.cast::<Node>() {
            Ok(node) => node.get().attach(py, tenant.as_deref().unwrap_or("local"), plain)?,
            Err(_) => {
                let address: String = place.extract()?;
                let security = security(py, certificates.zip(tenant))?;
                let udp = UdpOptions { security: security.clone(), ..UdpOptions::default() };
                let rdma = RdmaOptions { security, ..RdmaOptions::default() };
                let options = SessionOptions { udp, rdma, ..plain };
                py.detach(|| Attached::connect(&address, options)).or_raise(py)?
            }
        };
        let registered = py.detach(|| attached.register_with_cuda(cuda.wanted, &cuda.library));
        let is_registered = registered.or_raise(py)?;
        let (clock, number) = (*attached.session.clock(), attached.session.number());
        let cell = ExclusiveCell::new("the session", Core::new(attached));
        Ok(Self { cell, clock, number, is_registered })
    }

    /// Takes a buffer of this many bytes from the session's arena: see ArenaBuffer.
    fn buffer(slf: &Bound<'_, Self>, length: Size) -> PyResult<ArenaBuffer> {
        ArenaBuffer::take(slf, length.0)
    }

    /// Whether the session's arena is registered with CUDA.
    #[getter]
    fn cuda(&self) -> bool {
        self.is_registered
    }

    /// Closes the session, and ends its permissions. If the session is closed already, this does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let core = self.cell.close().or_raise(py)?;
        py.detach(|| drop(core));
        Ok(())
    }

    /// Whether the session was closed, or belongs to the process that this one was forked from.
    #[getter]
    fn closed(&self) -> bool {
        self.is_closed()
    }

    /// The client's number on its node. The node's audit log names the client by this number.
    #[getter]
    fn number(&self) -> u64 {
        self.number
    }

    /// Allocates memory and returns a permission over it.
    ///
    /// - size: number of bytes, or a text such as "64MiB".
    /// - lifetime: lifetime of the permission, in seconds.
    /// - rights: letters of "rwa" (read, write, atomic).
    /// - shared: whether other clients may hold permissions over the memory at the same time.
    /// - keep: for how long the memory stays. False: it is freed with its last permission. True: it stays until it is
    ///   freed, or until the tenant's last client has left. Seconds: as True, and this long after the last client has
    ///   left. math.inf: it stays until it is freed, or until the node ends.
    /// - alignment: alignment of the first byte, a power of two.
    #[pyo3(
        signature = (
            size, lifetime = Seconds::ONE, rights = Letters::READ_WRITE, shared = false,
            keep = KeptFor::NO, alignment = 1
        ),
        text_signature = "($self, size, lifetime=1.0, rights='rw', shared=False, keep=False, alignment=1)"
    )]
    fn allocate<'py>(
        slf: &Bound<'py, Self>,
        size: Size,
        lifetime: Seconds,
        rights: Letters,
        shared: bool,
        keep: KeptFor,
        alignment: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let ask = allocate_ask(&size, lifetime, &rights, shared, &keep, alignment);
        Self::granted(slf, ask.into())
    }

    /// Acquires a permission over an object that exists.
    ///
    /// - shared: whether other clients may hold the same bytes at the same time. If it is None, a permission that only
    ///   reads is shared, and any other permission is exclusive.
    /// - wait: seconds to wait for other clients that hold the object.
    /// - part: (offset, length) of the wanted bytes. Without it, the permission covers the whole object.
    #[pyo3(
        signature = (
            object, lifetime = Seconds::ONE, rights = Letters::READ, shared = None,
            wait = Seconds::ONE, part = None
        ),
        text_signature = "($self, object, lifetime=1.0, rights='r', shared=None, wait=1.0, part=None)"
    )]
    fn acquire<'py>(
        slf: &Bound<'py, Self>,
        object: PyRef<'py, ObjectRef>,
        lifetime: Seconds,
        rights: Letters,
        shared: Option<bool>,
        wait: Seconds,
        part: Option<(Size, Size)>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let ask = acquire_ask(*object, lifetime, &rights, shared, wait, part.as_ref());
        Self::granted(slf, ask.into())
    }

    /// Frees an object and its members, whether the object was kept or not.
    ///
    /// When this returns, the node grants no permission over them, no name and no share of them any more. By default,
    /// permissions that exist stay, and the memory is freed with the last one.
    ///
    /// - now=True: the node ends the permissions. When this returns, no access reaches the memory any more.
    /// - wait=True: this returns when the last permission has ended, or raises the NodeError named "timed-out".
    #[pyo3(signature = (object, *, now = false, wait = false))]
    fn free(&self, py: Python<'_>, object: PyRef<'_, ObjectRef>, now: bool, wait: bool) -> PyResult<()> {
        let holders = match (now, wait) {
            (false, false) => Holders::Stay,
            (true, false) => Holders::End,
            (false, true) => Holders::Await,
            (true, true) => {
                return Err(PyValueError::new_err(
                    "now=True ends the permissions over the object and wait=True waits for their end: give one of them",
                ));
            }
        };
        let object = object.0;
        self.call(py, ControlRequest::Free { object: object.into(), holders }).map(|_| ())
    }

    /// Changes for how long the node keeps an object, from now on: see allocate. False: it is freed with its last
    /// permission.
    #[pyo3(signature = (object, keep = KeptFor::ATTACHED), text_signature = "($self, object, keep=True)")]
    fn keep(&self, py: Python<'_>, object: PyRef<'_, ObjectRef>, keep: KeptFor) -> PyResult<()> {
        let object = object.0.into();
        self.call(py, ControlRequest::Keep { object, keep: keep.0 }).map(|_| ())
    }

    /// Gives an object of this tenant a name of 1 to 48 bytes. If several clients publish one name at once, one of them
    /// succeeds.
    fn publish(&self, py: Python<'_>, name: &str, object: PyRef<'_, ObjectRef>) -> PyResult<()> {
        let (name, object) = (arguments::name(py, name)?, object.0);
        self.call(py, NamedRequest::Publish { name, object }).map(|_| ())
    }

    /// Removes a name. The object stays; other tenants' permissions over it end.
    fn unpublish(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let name = arguments::name(py, name)?;
        self.call(py, NamedRequest::Unpublish { name }).map(|_| ())
    }

    #[pyo3(signature = (name, tenant = None))]
    fn _lookup(&self, py: Python<'_>, name: &str, tenant: Option<&str>) -> PyResult<Named> {
        let name = arguments::name(py, name)?;
        let owner = tenant.map(|tenant| arguments::tenant(py, tenant)).transpose()?;
        match self.call(py, NamedRequest::Lookup { owner, name })? {
            Ended::Entry(entry) => Ok(named(&entry)),
            _ => Err(panicked(py)),
        }
    }

    #[pyo3(signature = (tenant = None))]
    fn _names(&self, py: Python<'_>, tenant: Option<&str>) -> PyResult<Vec<Named>> {
        let owner = tenant.map(|tenant| arguments::tenant(py, tenant)).transpose()?;
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            match self.call(py, NamedRequest::List { owner, after })? {
                // A node that returned an earlier name again would make this list endless.
                Ended::Entry(entry) if after.is_none_or(|after| entry.name > after) => {
                    all.push(named(&entry));
                    after = Some(entry.name);
                }
                Ended::EndOfList => return Ok(all),
                _ => return Err(Error::SessionLost).or_raise(py),
            }
        }
    }

    /// Lets another tenant acquire permissions over a named object, with at most these rights.
    #[pyo3(
        signature = (name, tenant, rights = Letters::READ),
        text_signature = "($self, name, tenant, rights='r')"
    )]
    fn share(&self, py: Python<'_>, name: &str, tenant: &str, rights: Letters) -> PyResult<()> {
        let (name, tenant) = (arguments::name(py, name)?, arguments::tenant(py, tenant)?);
        self.call(py, NamedRequest::Share { name, tenant, rights: rights.0 }).map(|_| ())
    }

    /// Stops sharing a named object with another tenant. When this returns, no access of that tenant to it can succeed
    /// any more.
    fn unshare(&self, py: Python<'_>, name: &str, tenant: &str) -> PyResult<()> {
        let (name, tenant) = (arguments::name(py, name)?, arguments::tenant(py, tenant)?);
        self.call(py, NamedRequest::Unshare { name, tenant }).map(|_| ())
    }

    /// Makes an object a member of another one, its head. Tenants with which the head is shared have the same rights
    /// over the member.
    fn include(
        &self,
        py: Python<'_>,
        member: PyRef<'_, ObjectRef>,
        head: PyRef<'_, ObjectRef>,
    ) -> PyResult<()> {
        let (member, head) = (member.0, head.0);
        self.call(py, ControlRequest::Include { member, head }).map(|_| ())
    }

    /// Returns an empty batch.
    fn batch(slf: &Bound<'_, Self>) -> Batch {
        Batch::new(slf.clone().unbind())
    }

    /// Reads many pieces of memory at once. `reads` is a list of tuples (permission, offset, buffer).
    ///
    /// When all reads have ended, raises the exception of the first one in the list that failed. This is the quickest
    /// way to read many small pieces.
    ///
    /// >>> with session.allocate(64) as permission:
    /// ...     permission.write(b"abcdefgh")
    /// ...     parts = [bytearray(2) for _ in range(4)]
    /// ...     session.read_many([(permission, 2 * n, part) for n, part in enumerate(parts)])
    /// >>> [bytes(part) for part in parts]
    /// [b'ab', b'cd', b'ef', b'gh']
    fn read_many(slf: &Bound<'_, Self>, reads: &Bound<'_, PyAny>) -> PyResult<()> {
        batch::read_many(slf, reads)
    }

    /// Returns the descriptor that arm prepares. Only the session reads from it.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        Ok(self.enter(py)?.attached.session.descriptor().as_raw_fd())
    }

    /// Returns the submitted operations that have ended, as a list of (number, result). The result is the operation's,
    /// or an exception. Does not wait.
    fn poll<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyList>> {
        let py = slf.py();
        let landed = slf.get().enter(py)?.landed();
        let mut results = Vec::with_capacity(landed.len());
        for (tag, wanted, completion) in landed {
            let result = outcome(slf, &wanted, completion)
                .unwrap_or_else(|error| error.into_value(py).into_bound(py).into_any());
            results.push(PyTuple::new(py, [tag.into_pyobject(py)?.into_any(), result])?);
        }
        PyList::new(py, results)
    }

    /// Prepares the descriptor of fileno, which then becomes readable when something arrives.
    ///
    /// Returns how many seconds an event loop may wait for that before it calls poll: 0 if something has arrived
    /// already, None if the wait needs no time limit. Any other call on the session undoes this.
    fn arm(&self, py: Python<'_>) -> PyResult<Option<f64>> {
        let mut core = self.enter(py)?;
        if core.has_landed() {
            return Ok(Some(0.0));
        }
        let within = core.attached.session.arm();
        Ok((within != Duration::MAX).then_some(within.as_secs_f64()))
    }

    /// Forgets a submitted operation. The node may still carry it out; a permission that it brings is revoked.
    fn forget(&self, py: Python<'_>, number: u64) -> PyResult<()> {
        self.enter(py)?.forget(number);
        Ok(())
    }

    fn __repr__(&self) -> String {
        let state = if self.is_closed() { ", closed" } else { "" };
        format!("<portcullis_memory.Session number {}{state}>", self.number)
    }
}

impl Session {
    /// Whether the session was closed, or belongs to the process that this one was forked from.
    pub(crate) fn is_closed(&self) -> bool {
        self.cell.is_closed()
    }
}
