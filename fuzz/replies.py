"""The fuzzer: whatever a client sends, the server takes it or says what is wrong with it.

Run: python fuzz/replies.py [libFuzzer's flags] DIRECTORY...

A crash is any other exception, an address space that grows by more than ``GROWTH`` (the operating
system's limit: it sees numpy and torch, and memory that is asked for and never touched), or more
than ``cases.CAP`` bytes allocated while a reply is read, which tracemalloc counts for one input
in ``METERED`` here and for the whole kept corpus in ``tests/flower/test_bytes.py``.
"""

import os
import resource
import shlex
import sys
import zlib
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["cases", "fedlada", "flwr.app.message", "flwr.common"]):
    import cases

GROWTH = 256 * 2**20
"""Bytes of address space for libFuzzer's own tables and what Python keeps."""
METERED = 512
"""Of so many inputs one is metered: tracemalloc is slow."""

most = 0


def metered(case: cases.Case) -> int:
    """Meter a case in a process of its own, since tracemalloc leaks kilobytes each time."""
    here, there = os.pipe()
    if not (child := os.fork()):
        try:
            told = str(cases.metered(case))
        except BaseException as error:
            told = repr(error)
        os.write(there, told.encode())
        os._exit(0)
    os.close(there)
    with os.fdopen(here) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    if not told.isdecimal():
        raise MemoryError(told)
    return int(told)


def one(data: bytes) -> None:
    """Try one input; say so when it takes more memory than any before."""
    global most
    if (case := cases.case(data)) is None:
        return
    cases.run(case)
    if zlib.crc32(data) % METERED == 0 and (taken := metered(case)) > most:
        most = taken
        print(f"most allocated: {most}", file=sys.stderr, flush=True)


def main() -> None:
    """Hand over to libFuzzer."""
    for seed in cases.seeds().values():
        one(seed)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + GROWTH
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    # To merge, libFuzzer runs itself again through a shell.
    itself = shlex.join([sys.executable, __file__])
    atheris.Setup([itself, *sys.argv[1:]], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
