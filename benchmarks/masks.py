"""Cost of secure aggregation: one group of 50 clients with 11 million numbers, of which 5 are lost.

All clients give shares; a tenth is lost before its reply arrives.  One client masks a vector in
full; the server adds 45 vectors, gets the shares and opens the sum, which must be the plain one.
Seconds are of CPU time in one thread; bytes are those a client sends beside its vector.

Run: python benchmarks/masks.py --check
"""

import time

import torch

import measure
from fedlada.privacy.masking import Group, Masker, checked_keys
from fedlada.processes import keep_memory

KEYS, MASK, SERVER, BYTES = (
    "keys and shares, a client, s",
    "masking, a client, s",
    "checks, sum and unmasking, the server, s",
    "bytes beside the vector, kB",
)
GOAL = {MASK: 1.5, SERVER: 10.0, BYTES: 16.0}
CLIENTS, LOST, NUMBERS = 50, 5, 11_000_000
CONTEXT = "benchmark"


class Watch:
    """Adds up CPU seconds by name."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys((KEYS, MASK, SERVER), 0.0)

    def of(self, name: str, call, *args):
        began = time.process_time()
        result = call(*args)
        self.seconds[name] += time.process_time() - began
        return result


def main() -> None:
    options = measure.arguments(__doc__.splitlines()[0])
    torch.set_num_threads(1)
    keep_memory()
    print(measure.machine())
    watch, sent = Watch(), 0
    maskers = {c: watch.of(KEYS, Masker, CONTEXT) for c in range(CLIENTS)}
    keys, seen = {}, set()
    for client, masker in maskers.items():
        told = watch.of(KEYS, masker.answer, "keys", b"")
        keys[client] = watch.of(SERVER, checked_keys, told, seen)
    group = Group(CONTEXT, keys)
    for client, masker in maskers.items():
        shares = watch.of(KEYS, masker.answer, "shares", group.ask_shares(client))
        watch.of(SERVER, group.take_shares, client, shares)
    sent += len(keys[0]) + len(shares)
    generator, plain = torch.Generator().manual_seed(0), torch.zeros(NUMBERS, dtype=torch.int64)
    for client in range(CLIENTS - LOST):
        whole = torch.randint(-999, 999, (NUMBERS,), generator=generator, dtype=torch.int32)
        plain += whole
        masked = watch.of(MASK, maskers[client].mask, whole, group.sealed(client))
        watch.of(SERVER, group.add, client, masked)
    for client in group.arrived:
        shares = maskers[client].answer("unmask", group.ask_unmask())
        watch.of(SERVER, group.take_unmask, client, shares)
    sent += len(shares)
    total = watch.of(SERVER, group.opened)
    assert torch.equal(total.long(), plain)
    figures = {
        KEYS: watch.seconds[KEYS] / CLIENTS,
        MASK: watch.seconds[MASK] / len(group.arrived),
        SERVER: watch.seconds[SERVER],
        BYTES: sent / 1000,
    }
    what = f"secure aggregation of {CLIENTS} clients, {LOST} lost, {NUMBERS:,} numbers"
    measure.finish(options, figures, goal=GOAL, what=what)


if __name__ == "__main__":
    main()
