# SPDX-License-Identifier: Apache-2.0
"""Sees to it that memory which PyTorch frees goes back to the system, where a job is to take less of it.

PyTorch gets its tensors by posix_memalign. The glibc of Debian 12 (2.36) hardly finds what was freed again for a request
of the same size and alignment, and once it has freed something large it keeps all that is smaller: the process then
grows by what it has freed. mallopt(3), M_MMAP_THRESHOLD: what is as large is mapped by itself, and unmapped when it is
freed. It costs the zeroing of fresh pages.

What it does not find is a hole that is too small by what posix_memalign() may take to align: the two ends that it gave
back at first are in the thread's cache, so that they do not join the hole again. That cache can be kept from them before
the process starts alone (docs/guides/pytorch.md); then the environment has set how to allocate, and says, too, that what is
free at the heap's end is kept for the next step, and that nothing below 32 MiB, glibc's most, is mapped by itself.
"""

import ctypes
import functools
import os
import platform

_library = ctypes.CDLL(None)
MAPPED_BYTES_MIN = 256 << 10
TRIMMED_BYTES_MIN = 8 << 20
FINDS_WHAT_WAS_FREED = ("GLIBC_TUNABLES=glibc.malloc.tcache_max=24:glibc.malloc.mxfast=0:"  # with glibc 2.36
                        "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=17179869184")
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


@functools.cache
def give_back_freed_memory() -> bool:
    """From now on, in all of this process. Whether it does: not where the C library has no mallopt, nor where the
    environment has set how it allocates (MALLOC_*, GLIBC_TUNABLES)."""
    if any(name.startswith("MALLOC_") for name in os.environ) or "malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    mallopt = getattr(_library, "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
                                        and mallopt(_M_TRIM_THRESHOLD, TRIMMED_BYTES_MIN))


def price() -> str:
    """For people: what it takes that this process gives freed memory back, and how it takes less; "" if it does not."""
    if not (give_back_freed_memory.cache_info().currsize and give_back_freed_memory()):
        return ""
    said = "memory that PyTorch frees goes back to the system at once, and fresh pages take the kernel's time"
    if platform.libc_ver() == ("glibc", "2.36"):
        said += f"; start Python with {FINDS_WHAT_WAS_FREED} in its environment, and it is used again"
    return said


def give_back_free_pages() -> None:
    """Gives the whole pages of what is free in the heap back to the system, however the environment has it allocate
    (malloc_trim(3); another C library than glibc has none). What small things that last have come to lie in, is no hole
    any more that a tensor of the size before fits: where tensors of several sizes come and go, the heap grows by them.
    """
    trim = getattr(_library, "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
