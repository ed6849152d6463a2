"""Types for annotations."""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

if sys.version_info >= (3, 12):
    from collections.abc import Buffer

    #: What can be read from: bytes, bytearray, memoryview, array.array, mmap, numpy arrays.
    Bytes: TypeAlias = Buffer
    #: What can be written into. The type does not tell whether it can: what is read-only is a CallerError.
    WritableBytes: TypeAlias = Buffer
else:
    # Before Python 3.12 no type says that something is a buffer.
    Bytes: TypeAlias = Any
    WritableBytes: TypeAlias = Any

#: A number of bytes, or a text such as "64MiB".
Size: TypeAlias = int | str

__all__ = ["Bytes", "Size", "WritableBytes"]
