"""The C extension: made from the rooms' public headers by native/build_ffi.py."""

from typing import Any

from cffi import FFI

ffi: FFI
lib: Any  # the functions and constants between the cdef marks of the headers

def __getattr__(name: str) -> Any: ...  # the functions that C adds to the module by itself
