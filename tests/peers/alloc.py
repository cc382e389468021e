#!/usr/bin/env python3
"""The allocator beside others, in one run on one GPU.

    tests/peers/alloc.py target/release/highwater --torch BENCH_TORCH --record BENCH_RECORD --raw BENCH_RAW --rmm BENCH_RMM
        --driver BENCH_DRIVER

Runs `highwater bench alloc --device cuda --json`, with the recorder and without, then the programs that are given, each of
which does the same work with another allocator, and prints a table. The programs are not part of this project. A program
that fails or takes too long counts with what it printed until then; what is missing is a dash.

Behind a peer's figure stands how many times better ours is, with the recorder on. Of the hot pair a peer's best batch
counts, of ours the median.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys

# Seconds that a program may take.
LONGEST = 300
# By the name that a program gives itself, what its column is called.
COLUMNS = {
    "torch-native": "PyTorch native",
    "torch-expand": "PyTorch expandable",
    "mallocAsync": "cudaMallocAsync",
    "rmm-pool": "RMM pool",
    "rmm-arena": "RMM arena",
}
LINES = [
    (r"(\S+) +hot_pair +(\d+) B: min ([\d.]+)", lambda m: [(m[1], ("hot_pair_ns", m[2]), m[3])]),
    (
        r"(\S+) +churn slots=(\d+) streams=(\d+) \S+: ([\d.]+) ns.* util ([\d.]+)",
        lambda m: [
            (m[1], ("churn_ns", f"{m[2]}x{m[3]}"), m[4]),
            (m[1], ("churn_utilization", f"{m[2]}x{m[3]}"), m[5]),
        ],
    ),
    (r"(\S+) +threads T=(\d+): ([\d.]+) Mops", lambda m: [(m[1], ("threads_mops", m[2]), m[3])]),
    (r"torch record_stream 1 MiB (\d) uses?: ([\d.]+) ns", lambda m: [("torch-native", ("record_stream_ns", m[1]), m[2])]),
    (r"(\S+) +record_stream alloc\+record\+free: ([\d.]+) ns", lambda m: [(m[1], ("record_stream_ns", "1"), m[2])]),
]


def parse(text):
    """What a program printed: by allocator and figure all values, in order."""
    found = {}
    for line in text.splitlines():
        for pattern, figures in LINES:
            if match := re.match(pattern, line):
                for name, figure, value in figures(match):
                    found.setdefault((name, figure), []).append(float(value))
    # A program that does not know what it reserved says 0.
    return {key: values for key, values in found.items() if key[1][0] != "churn_utilization" or any(values)}


def run(command, **environment):
    """What a program prints until it ends, or fails, or has to be stopped."""
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, timeout=LONGEST, env={**os.environ, **environment},
        )
        output, trouble = done.stdout, f"ended with {done.returncode}" if done.returncode else None
    except subprocess.TimeoutExpired as stopped:
        output, trouble = stopped.stdout or b"", f"was stopped after {LONGEST} s"
    except OSError as error:
        output, trouble = b"", f"could not be run: {error.strerror}"
    if trouble:
        print(f"{' '.join(command)} {trouble}; what it printed before counts", file=sys.stderr)
    return output.decode()


def ours(highwater, recorder):
    command = [highwater, "bench", "alloc", "--device", "cuda", "--recorder", recorder, "--json"]
    try:
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"{error}; build it with cargo build --release, and see highwater doctor")


def peers(options):
    """By column and figure, the median of what the peers' programs printed; and the lines on memory held."""
    printed = ""
    if options.torch:
        printed += run([options.torch, "torch-native"])
        printed += run([options.torch, "torch-expand"], PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
    for program in (options.record, options.raw, options.rmm):
        printed += run([program]) if program else ""
    values = parse(printed).items()
    medians = {(COLUMNS[name], figure): statistics.median(all) for (name, figure), all in values if name in COLUMNS}
    return medians, re.findall(r"^peak reserved ([\d.]+ MiB)$", printed, re.MULTILINE)


def figures(ours):
    """Each figure of ours that peers have too: what it is called, and its key."""
    for bytes in ours["hot_pair_ns"]:
        yield f"hot pair of {int(bytes):,} B, ns", ("hot_pair_ns", bytes)
    for name in ours["churn_ns"]:
        yield f"churn {name}, ns", ("churn_ns", name)
    for name in ours["churn_utilization"]:
        yield f"churn {name}, utilization", ("churn_utilization", name)
    for threads in ours["threads_mops"]:
        yield f"threads with a stream each: {threads}, Mops/s", ("threads_mops", threads)
    for users in ours["record_stream_ns"]:
        yield f"1 MiB that other streams use: {users}, ns", ("record_stream_ns", users)


def told(key, value):
    digits = {"churn_utilization": 4, "threads_mops": 2}.get(key, 0 if value >= 1000 else 1)
    return f"{value:.{digits}f}"


def beside(key, ours, peer):
    """A peer's value, and how many times better ours is."""
    if peer is None:
        return "–"
    ratio = ours / peer if key in ("threads_mops", "churn_utilization") else peer / ours
    return f"{told(key, peer)} ({ratio:.2f} ×)"


def table(on, off, peers):
    columns = list(COLUMNS.values())
    yield "| | ours | recorder off | " + " | ".join(columns) + " |"
    yield "|---" * (len(columns) + 3) + "|"
    for name, (key, what) in figures(on):
        mine, without = on[key][what], off[key][what]
        cells = [beside(key, mine, peers.get((column, (key, what)))) for column in columns]
        yield f"| {name} | {told(key, mine)} | {told(key, without)} | " + " | ".join(cells) + " |"
    for key, name in [("cross_thread_free_ns", "one thread allocates, another frees, ns"), ("malloc_pair_ns", "malloc and free of 64 B, ns")]:
        yield f"| {name} | {told(key, on[key])} | {told(key, off[key])} |" + " – |" * len(columns)


def processor():
    names = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("highwater", help="the command, built with --release")
    parser.add_argument("--torch", help="prints PyTorch's figures; run with its native allocator and with expandable segments")
    parser.add_argument("--record", help="prints PyTorch's figures of record_stream")
    parser.add_argument("--raw", help="prints those of cudaMalloc and cudaMallocAsync")
    parser.add_argument("--rmm", help="prints those of RMM's pool and arena")
    parser.add_argument("--driver", help="prints what the driver's calls cost; told below the table as it is")
    options = parser.parse_args()
    on, off = (ours(options.highwater, recorder) for recorder in ("on", "off"))
    print(f"{on['device']}, {on['cores']} × {processor()}; × is how many times better ours is, with the recorder on\n")
    medians, held = peers(options)
    print("\n".join(table(on, off, medians)))
    alloc, events = on["alloc_ns"], on["events_recorded"]
    print(
        f"\nA single allocation of ours in churn 4096x1: {alloc['p50']} ns, 99 % {alloc['p99']}, 99.9 % {alloc['p999']}, "
        f"longest {alloc['max']}; the clock is {on['clock_ns']:.0f} of them. {events} events were recorded for "
        f"{on['frees_recorded']} frees of blocks that other streams use; most memory held for them: "
        + ", ".join(f"{bytes / 2**20:.0f} MiB ({users})" for users, bytes in on["record_stream_reserved_bytes"].items())
        + "".join(f"; PyTorch's: {size}" for size in held) + "."
    )
    if options.driver:
        print(f"\n```text\n{run([options.driver])}```")


if __name__ == "__main__":
    main()
