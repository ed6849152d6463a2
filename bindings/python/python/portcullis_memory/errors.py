"""The exceptions of Portcullis, as a tree by the side that is at fault.

Every exception has the number and the name of its kind, which never change (``docs/errors.md`` lists them), the side
that is at fault, and whether the same call may succeed later although the caller changes nothing.

>>> import portcullis_memory
>>> try:
...     portcullis_memory.connect("nowhere")
... except portcullis_memory.CallerError as error:
...     error.number, error.name, error.fault, error.is_retryable
(301, 'unknown-address', 'caller', False)
"""

from __future__ import annotations

__all__ = [
    "BarredError",
    "CallerError",
    "ConflictError",
    "EndedError",
    "Error",
    "ExpiredError",
    "LibraryError",
    "MachineError",
    "NodeError",
    "NodeGoneError",
    "ObjectGoneError",
    "PausedError",
    "PeerError",
    "QuotaError",
    "RevokedError",
    "TenantError",
]


class Error(Exception):
    """A failure of Portcullis: the base class of all its exceptions."""

    #: The number of the kind of error. It never changes.
    number: int
    #: The name of the kind of error. It never changes.
    name: str
    #: The side that is at fault: "caller", "ended", "tenant", "node", "machine", "peer" or "library".
    fault: str
    #: Whether the same call may succeed later although the caller changes nothing.
    is_retryable: bool

    def __init__(self, text: str, number: int, name: str, fault: str, is_retryable: bool = False) -> None:
        super().__init__(text, number, name, fault, is_retryable)
        self.number = number
        self.name = name
        self.fault = fault
        self.is_retryable = is_retryable

    def __str__(self) -> str:
        return str(self.args[0])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.args[0]!r}, {self.number}, {self.name!r})"


class CallerError(Error, ValueError):
    """The call, its arguments or its configuration make no sense, or request something that the caller may not have.

    It is a ValueError, too, so that a wrong value is caught where Python programs expect it. An argument of a wrong
    type is a TypeError, and not an Error.
    """


class EndedError(Error):
    """The permission, the object or the name has ended, as it may at any time. This is no side's fault.

    Acquire it again, or do without it.
    """


class ExpiredError(EndedError):
    """The permission's deadline has passed."""


class RevokedError(EndedError):
    """The permission was ended before its deadline."""


class ObjectGoneError(EndedError):
    """The object or the name does not exist.

    The object was freed, or its reference is from another node or from before the node's last start, or no object has
    the name.
    """


class TenantError(Error):
    """The tenant's quota is used up, the tenant is paused or barred, or its programs hold the requested object."""


class QuotaError(TenantError):
    """The tenant's quota is used up."""


class PausedError(TenantError):
    """The tenant must wait, after too many violations."""


class BarredError(TenantError):
    """The node does not serve the tenant any more, after too many violations."""


class ConflictError(TenantError):
    """Other clients held the object for longer than the request may wait."""


class NodeError(Error):
    """The node or the directory is gone, full or silent, or refuses all clients."""


class NodeGoneError(NodeError):
    """The node is gone, with everything on it, or the session with it is over."""


class MachineError(Error):
    """A fault of the machine on which the program runs: memory, devices, limits."""


class PeerError(Error):
    """Another program has broken the rules, or has overwritten memory that was shared with it."""


class LibraryError(Error):
    """A bug in Portcullis itself: please report it."""


_BY_FAULT: dict[str, type[Error]] = {
    "caller": CallerError,
    "ended": EndedError,
    "tenant": TenantError,
    "node": NodeError,
    "machine": MachineError,
    "peer": PeerError,
    "library": LibraryError,
}

_BY_NAME: dict[str, type[Error]] = {
    "expired": ExpiredError,
    "revoked": RevokedError,
    "not-live": RevokedError,
    "violation": RevokedError,
    "object-gone": ObjectGoneError,
    "no-such-object": ObjectGoneError,
    "another-node": ObjectGoneError,
    "no-such-name": ObjectGoneError,
    "quota": QuotaError,
    "directory-quota": QuotaError,
    "paused": PausedError,
    "barred": BarredError,
    "conflict": ConflictError,
    "node-gone": NodeGoneError,
    "session-lost": NodeGoneError,
}


def class_of(name: str, fault: str) -> type[Error]:
    """Returns the class of the errors with this name and this side at fault."""
    return _BY_NAME.get(name) or _BY_FAULT.get(fault, Error)


def error_of(number: int, name: str, fault: str, is_retryable: bool, text: str) -> Error:
    """Makes an exception. The native part calls this function."""
    return class_of(name, fault)(text, number, name, fault, is_retryable)
