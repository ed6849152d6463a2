"""Types for annotations."""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

if sys.version_info >= (3, 12):
    from collections.abc import Buffer

    #: Bytes to read: bytes, bytearray, memoryview, array.array, mmap, numpy arrays.
    Bytes: TypeAlias = Buffer
    #: Bytes to write into. The type does not show whether they can be written: a read-only buffer is a CallerError.
    WritableBytes: TypeAlias = Buffer
else:
    # Before Python 3.12 there is no type for buffers.
    Bytes: TypeAlias = Any
    WritableBytes: TypeAlias = Any

#: A number of bytes, or a text such as "64MiB".
Size: TypeAlias = int | str

__all__ = ["Bytes", "Size", "WritableBytes"]
