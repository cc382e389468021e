#!/usr/bin/env python3
"""The kernels beside PyTorch's, in one run on one GPU.

    tests/peers/kernels.py target/release/highwater

Runs `highwater bench kernels --json`, times the same operations in PyTorch (batches of ten launches between two events,
medians of fifteen), and prints a table. Needs PyTorch.
"""

import json
import subprocess
import sys

import torch
import torch.nn.functional as F

TOKENS, WIDTH, VOCABULARY, PARAMETERS = 8 * 1024, 1536, 50304, 64 << 20
BATCH, SAMPLES, WARM_UP = 10, 15, 3
torch.backends.cuda.matmul.allow_tf32 = False


def measure(launch):
    samples = []
    for _ in range(WARM_UP + SAMPLES):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(BATCH):
            launch()
        end.record()
        torch.cuda.synchronize()
        samples.append(start.elapsed_time(end) * 1e3 / BATCH)
    return sorted(samples[WARM_UP:])[SAMPLES // 2]


def random(*shape, dtype, grad=False):
    return torch.randn(*shape, device="cuda").to(dtype).requires_grad_(grad)


def products(dtype):
    for columns, inner in [(3 * WIDTH, WIDTH), (WIDTH, WIDTH), (4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH)]:
        x, w, y = (random(*s, dtype=dtype) for s in [(TOKENS, inner), (inner, columns), (TOKENS, columns)])
        yield "matmul", f"{TOKENS}x{inner}x{columns}", lambda: torch.matmul(x, w, out=y)
        yield "matmul of input", f"{TOKENS}x{columns}x{inner}", lambda: torch.matmul(y, w.t(), out=x)
        yield "matmul of weight", f"{inner}x{TOKENS}x{columns}", lambda: torch.matmul(x.t(), y, out=w)


def attention(dtype):
    for heads, width in [(12, 128), (24, 64)]:
        q, k, v = (random(8, heads, 1024, width, dtype=dtype, grad=True) for _ in range(3))
        shape, dout = f"8x1024 {heads}x{width} causal", random(8, heads, 1024, width, dtype=dtype)
        yield "attention", shape, lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        yield "attention backward", shape, lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)


def norm(dtype):
    x = random(TOKENS, WIDTH, dtype=dtype, grad=True)
    gamma, beta = (random(WIDTH, dtype=dtype, grad=True) for _ in range(2))
    dout, shape = random(TOKENS, WIDTH, dtype=dtype), f"{TOKENS}x{WIDTH}"
    with torch.no_grad():
        yield "layer norm", shape, lambda: F.layer_norm(x, (WIDTH,), gamma, beta)
    with torch.enable_grad():
        out = F.layer_norm(x, (WIDTH,), gamma, beta)
        inputs = (x, gamma, beta)
        yield "layer norm backward", shape, lambda: torch.autograd.grad(out, inputs, dout, retain_graph=True)


def loss(dtype):
    logits = random(TOKENS, VOCABULARY, dtype=dtype, grad=True)
    targets = torch.randint(VOCABULARY, (TOKENS,), device="cuda")
    both = lambda: torch.autograd.grad(F.cross_entropy(logits, targets), logits)
    yield "cross-entropy both", f"{TOKENS}x{VOCABULARY}", both


def optimizer():
    parameter = torch.zeros(PARAMETERS, device="cuda", requires_grad=True)
    parameter.grad = torch.randn_like(parameter)
    adamw = torch.optim.AdamW([parameter], fused=True)
    yield "adamw", str(PARAMETERS), adamw.step


def main():
    ours = subprocess.run([sys.argv[1], "bench", "kernels", "--json"], check=True, stdout=subprocess.PIPE, text=True)
    ours = [json.loads(line) for line in ours.stdout.splitlines()]
    theirs = {}
    for name, dtype in [("bf16", torch.bfloat16), ("f32", torch.float32)]:
        for group in (products, attention, norm, loss):
            for kernel, shape, launch in group(dtype):
                theirs[kernel, shape, name] = measure(launch)
            torch.cuda.empty_cache()
    for kernel, shape, launch in optimizer():
        theirs[kernel, shape, "f32"] = measure(launch)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}; µs a launch")
    print("| kernel | type | shape | ours | PyTorch | ours ÷ PyTorch |\n|---|---|---|---|---|---|")
    for timing in ours:
        peer = theirs[timing["kernel"], timing["shape"], timing["element"]]
        ratio = timing["us"] / peer
        print(f"| {timing['kernel']} | {timing['element']} | {timing['shape']} | {timing['us']:.1f} | {peer:.1f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
