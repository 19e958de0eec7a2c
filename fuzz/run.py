"""Fuzz for a number of inputs, from the kept corpus, and report.

Run: python fuzz/run.py --inputs 1000000 [--minimise] [--save fuzz/results.jsonl]

What is new goes to WORK, also when the run is interrupted, and the next run starts from there
too; with --minimise the kept corpus is then replaced by the smallest that covers the same.  The
last line is the figure beside the goal; the exit code is 0 only where the goal holds.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import flwr
import torch
from cases import CORPUS, corpus

HERE = Path(__file__).parent
WORK = Path(tempfile.gettempdir()) / "fedlada-fuzz"
KEPT = WORK / "kept"
"""The kept corpus, as the files that the fuzzer reads."""
ALWAYS = ("crash-", "extreme-", "honest-")
"""Inputs with these names stay in the corpus."""
LONGEST, RSS = 1024, 1024
"""Bytes of an input, and megabytes of the process, at most."""


def fuzzer(*arguments: str | Path) -> subprocess.Popen[str]:
    """The fuzzer as a process of its own."""
    limits = [f"-max_len={LONGEST}", f"-rss_limit_mb={RSS}", "-timeout=30", "-print_final_stats=1"]
    command = [sys.executable, HERE / "replies.py", *limits, f"-artifact_prefix={WORK}/"]
    return subprocess.Popen(
        [*command, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def fuzz(inputs: int) -> tuple[dict[str, int], list[str]]:
    """Run so many inputs: the last figures of each kind, and the last lines if it crashed."""
    figures = {"inputs": 0, "rss": 0, "start": 0, "allocated": 0}
    patterns = {
        "start": r"INITED.*rss: (\d+)Mb",
        "inputs": r"(?:#|number_of_executed_units: )(\d+)",
        "rss": r"peak_rss_mb: +(\d+)",
        "allocated": r"most allocated: (\d+)",
    }
    began, tail = time.monotonic(), []
    process = fuzzer(f"-runs={inputs}", "-print_pcs=0", WORK / "new", KEPT)
    assert process.stdout is not None
    for line in process.stdout:
        tail = [*tail[-40:], line.rstrip()]
        for name, pattern in patterns.items():
            if found := re.search(pattern, line):
                figures[name] = max(figures[name], int(found[1]))
        if re.search(r"\tpulse|INITED|DONE", line):
            print(line.rstrip(), flush=True)
    figures["seconds"] = round(time.monotonic() - began)
    return figures, tail if process.wait() else []


def minimise() -> None:
    """Replace the kept corpus by the smallest that covers as much; crashes stay in it."""
    small = WORK / "small"
    shutil.rmtree(small, ignore_errors=True)
    small.mkdir()
    merging = fuzzer("-merge=1", small, WORK / "new", KEPT)
    output, _ = merging.communicate()
    if merging.returncode or not any(small.iterdir()):
        raise RuntimeError(f"the corpus could not be minimised:\n{output[-2000:]}")
    named = {n: data for n, data in corpus().items() if n.startswith(ALWAYS)}
    kept = named | {path.name: path.read_bytes() for path in small.iterdir()}
    CORPUS.write_text("".join(f"{name} {kept[name].hex()}\n" for name in sorted(kept)))
    shutil.rmtree(WORK / "new")
    print(f"kept {len(kept)} inputs, {sum(map(len, kept.values())):,} bytes")


def machine() -> str:
    """What it ran on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in lines if "model name" in line), "?")
    return (
        f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()},"
        f" torch {torch.__version__}, flwr {flwr.__version__}"
    )


def main() -> None:
    """Fuzz, report, exit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--minimise", action="store_true", help="renew the kept corpus")
    parser.add_argument("--save", type=Path, metavar="FILE", help="append the result as JSON")
    options = parser.parse_args()
    (WORK / "new").mkdir(parents=True, exist_ok=True)
    shutil.rmtree(KEPT, ignore_errors=True)
    KEPT.mkdir()
    for name, data in corpus().items():
        (KEPT / name).write_bytes(data)
    before = set(WORK.glob("*-*"))
    figures, tail = fuzz(options.inputs)
    crashes = sorted(set(WORK.glob("*-*")) - before)
    if tail:
        print("\n".join(tail))
    for path in crashes:
        print(f"crashing input: {path}; fix it and add its bytes to {CORPUS}")
    held = figures["inputs"] >= options.inputs and not tail and not crashes
    if held and options.minimise:
        minimise()
    if options.save:
        row = {
            "command": " ".join(["python", "fuzz/run.py", *sys.argv[1:]]),
            "date": time.strftime("%Y-%m-%d"),
            "machine": machine(),
            "inputs": figures["inputs"],
            "crashes": max(len(crashes), bool(tail)),
            "seconds": figures["seconds"],
            "peak_rss_mb": figures["rss"],
            "rss_at_start_mb": figures["start"],
            "most_allocated_by_one_read_bytes": figures["allocated"],
        }
        with options.save.open("a") as file:
            file.write(json.dumps(row) + "\n")
    print(
        f"{figures['inputs']:,} inputs in {figures['seconds']:,} s,"
        f" {max(len(crashes), bool(tail))} crashes, peak RSS {figures['rss']} MB"
        f" ({figures['start']} at the start), at most {figures['allocated']:,} bytes to read one;"
        f" goal {options.inputs:,} inputs without a crash {'holds' if held else 'MISSED'}"
    )
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
