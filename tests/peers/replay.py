#!/usr/bin/env python3
"""Traces of PyTorch's allocator, replayed against this project's allocator and against PyTorch's, in one run on one GPU.

    tests/peers/replay.py target/release/highwater TRACE.pickle[.xz] ... [--behind US]

Ours is `highwater replay --device cuda`. PyTorch plays the same requests and frees at the same times in a process of its own,
once with its native allocator and once with expandable segments. Where the free of a block completed late, a stream beside
the owner is kept busy for that long and is recorded as a user of the block, as our replay has it. Prints a table: peaks in
bytes, and how much of the peak that was held was in use.
"""

import argparse
import json
import lzma
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

# What PyTorch is run with.
MODES = {"PyTorch native": "expandable_segments:False", "PyTorch expandable": "expandable_segments:True"}
# A free that does not complete directly behind its request, or this much later, waits for another stream's use; microseconds.
LATE_US = 1000
# Cycles a microsecond that a stream is made to sleep; the clock of an H200 under load is near.
CYCLES = 1900
# Seconds that one replay may take.
LONGEST = 240


def load(path):
    """The events of the device that has most, and the blocks that its snapshot ends with: (address, bytes, stream)."""
    opened = lzma.open(path) if path.suffix == ".xz" else open(path, "rb")
    with opened as file:
        snapshot = pickle.load(file)
    device = max(range(len(snapshot["device_traces"])), key=lambda index: len(snapshot["device_traces"][index]))
    blocks = []
    for segment in snapshot["segments"]:
        if segment.get("device", 0) != device:
            continue
        at = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                blocks.append((at, block.get("requested_size", block["size"]), segment["stream"]))
            at += block["size"]
    return snapshot["device_traces"][device], blocks


def program(events, at_end):
    """(microseconds, what, name, bytes, stream, microseconds for which another stream uses it), in order."""
    completed, seen, steps, late = {}, set(), [], {}
    for number in range(len(events) - 1, -1, -1):
        event = events[number]
        if event["action"] == "free_completed":
            completed[event["addr"]] = number
        elif event["action"] == "free_requested":
            end = completed.pop(event["addr"], number)
            after_us = events[end]["time_us"] - event["time_us"]
            late[number] = after_us if end > number + 1 or after_us > LATE_US else 0
    first = events[0]["time_us"]
    live, count, before = {}, 0, []
    for number, event in enumerate(events):
        action, address = event["action"], event["addr"] if "addr" in event else 0
        if action == "alloc":
            live[address], count = count, count + 1
            seen.add(address)
            steps.append((event["time_us"] - first, "alloc", live[address], event["size"], event["stream"], 0))
        elif action == "free_requested":
            if address not in live:
                live[address], count = count, count + 1
                before.append((0, "alloc", live[address], event["size"], event["stream"], 0))
            steps.append((event["time_us"] - first, "free", live.pop(address), 0, event["stream"], late[number]))
            seen.add(address)
    for address, bytes, stream in at_end:
        if address not in seen:
            before.append((0, "alloc", count, bytes, stream, 0))
            count += 1
    return before + steps


def play(path, behind_us):
    """In the process of one mode: plays a trace with PyTorch's allocator, and prints an object."""
    import torch

    steps = program(*load(path))
    streams = {number: torch.cuda.Stream() for number in sorted({step[4] for step in steps})}
    beside = torch.cuda.Stream()
    for stream in [*streams.values(), beside]:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(max(1, behind_us * CYCLES))
    torch.cuda.reset_peak_memory_stats()
    live, bytes_live, peak = {}, 0, 0
    start = time.perf_counter()
    for at_us, what, name, bytes, stream, late_us in steps:
        while (time.perf_counter() - start) * 1e6 < at_us:
            pass
        if what == "alloc":
            with torch.cuda.stream(streams[stream]):
                live[name] = torch.empty(bytes, dtype=torch.uint8, device="cuda")
            bytes_live += bytes
            peak = max(peak, bytes_live)
        else:
            block = live.pop(name)
            bytes_live -= block.numel()
            if late_us:
                with torch.cuda.stream(beside):
                    torch.cuda._sleep(int(late_us * CYCLES))
                block.record_stream(beside)
            del block
    seconds = time.perf_counter() - start
    held = torch.cuda.memory_stats()["reserved_bytes.all.peak"]
    print(json.dumps({"peak_live_bytes": peak, "peak_reserved_bytes": held, "seconds": seconds}))


def result(command, **environment):
    """The last line that a program prints, an object; `None`, said on stderr, when it fails."""
    try:
        done = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, timeout=LONGEST, env={**os.environ, **environment}
        )
        return json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        print(f"{' '.join(map(str, command))}: {error}", file=sys.stderr)
        return None


def cell(figures):
    if figures is None:
        return "–"
    held = figures["peak_reserved_bytes"]
    return f"{figures['peak_live_bytes'] / held:.3f} of {held:,}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("highwater", help="the command, built with --release")
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE", help="a snapshot with a trace, plain or .xz")
    parser.add_argument("--behind", type=int, default=5000, metavar="US", help="how far the device is behind, microseconds")
    parser.add_argument("--play", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play:
        return play(options.traces[0], options.behind)
    print("| trace | ours | " + " | ".join(MODES) + " |")
    print("|---" * (len(MODES) + 2) + "|")
    for trace in options.traces:
        behind = str(options.behind)
        ours = [options.highwater, "replay", str(trace), "--device", "cuda", "--behind", behind, "--json"]
        cells = [cell(result(ours))]
        for mode in MODES.values():
            theirs = [sys.executable, __file__, options.highwater, str(trace), "--behind", behind, "--play"]
            cells.append(cell(result(theirs, PYTORCH_CUDA_ALLOC_CONF=mode, PYTORCH_ALLOC_CONF=mode)))
        print(f"| {trace.name.split('.')[0]} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
