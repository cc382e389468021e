// What the viewer of PyTorch does with a snapshot file, in its language and within its limits: the file as text, the
// same few pickle instructions, numbers that are doubles, and the steps of its pages. Written from the documented
// behaviour of that viewer; it shares nothing with the checker in Rust, whose sums it must find again.
//
// usage: node viewer.js FILE, prints one line of JSON or ends with an error.
'use strict';

const MARK = Symbol('mark');

function unpickle(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const decoder = new TextDecoder('utf-8', { fatal: true });
  const stack = [];
  const memo = new Map();
  let at = 0;
  const take = (length) => {
    if (at + length > bytes.length) throw new Error(`the file ends within byte ${at}`);
    at += length;
    return at - length;
  };
  const text = (length) => { const start = take(length); return decoder.decode(bytes.subarray(start, start + length)); };
  const aboveMark = () => stack.splice(stack.lastIndexOf(MARK)).slice(1);
  const tuple = (count) => stack.push(stack.splice(stack.length - count));
  const setItems = (items) => {
    const dict = stack[stack.length - 1];
    for (let i = 0; i < items.length; i += 2) dict[items[i]] = items[i + 1];
  };
  const long = (length) => {
    const start = take(length);
    let value = 0n;
    for (let i = length - 1; i >= 0; i--) value = value * 256n + BigInt(bytes[start + i]);
    if (length > 0 && bytes[start + length - 1] >= 128) value -= 1n << BigInt(8 * length);
    if (length > 8) return value;
    if (!Number.isSafeInteger(Number(value))) throw new Error(`an integer at byte ${start} is not exact`);
    return Number(value);
  };
  const instructions = {
    0x80: () => { const version = bytes[take(1)]; if (version < 2 || version > 4) throw new Error(`protocol ${version}`); },
    0x95: () => take(8), // FRAME
    0x94: () => memo.set(memo.size, stack[stack.length - 1]), // MEMOIZE
    0x71: () => memo.set(bytes[take(1)], stack[stack.length - 1]), // BINPUT
    0x72: () => memo.set(view.getUint32(take(4), true), stack[stack.length - 1]), // LONG_BINPUT
    0x68: () => stack.push(recall(bytes[take(1)])), // BINGET
    0x6a: () => stack.push(recall(view.getUint32(take(4), true))), // LONG_BINGET
    0x28: () => stack.push(MARK),
    0x7d: () => stack.push({}), // EMPTY_DICT
    0x5d: () => stack.push([]), // EMPTY_LIST
    0x29: () => stack.push([]), // EMPTY_TUPLE
    0x75: () => setItems(aboveMark()), // SETITEMS
    0x73: () => setItems(stack.splice(stack.length - 2)), // SETITEM
    // All items are the arguments of one call, which is what overflows the stack of browsers.
    0x65: () => { const items = aboveMark(); stack[stack.length - 1].push(...items); }, // APPENDS
    0x61: () => { const item = stack.pop(); stack[stack.length - 1].push(item); }, // APPEND
    0x74: () => stack.push(aboveMark()), // TUPLE
    0x85: () => tuple(1),
    0x86: () => tuple(2),
    0x87: () => tuple(3),
    0x4b: () => stack.push(bytes[take(1)]), // BININT1
    0x4d: () => stack.push(view.getUint16(take(2), true)), // BININT2
    0x4a: () => stack.push(view.getInt32(take(4), true)), // BININT
    0x8a: () => stack.push(long(bytes[take(1)])), // LONG1
    0x47: () => stack.push(view.getFloat64(take(8), false)), // BINFLOAT
    0x8c: () => stack.push(text(bytes[take(1)])), // SHORT_BINUNICODE
    0x58: () => stack.push(text(view.getUint32(take(4), true))), // BINUNICODE
    0x88: () => stack.push(true),
    0x89: () => stack.push(false),
    0x4e: () => stack.push(null),
  };
  const recall = (key) => { if (!memo.has(key)) throw new Error(`nothing is memo ${key}`); return memo.get(key); };
  for (;;) {
    const start = at;
    const code = bytes[take(1)];
    if (code === 0x2e) return stack.pop(); // STOP
    const step = instructions[code];
    if (step === undefined) throw new Error(`instruction ${code} at byte ${start} is not known`);
    step();
  }
}

const integer = (value, what) => {
  if (typeof value !== 'number' && typeof value !== 'bigint') throw new Error(`${what} is no number`);
  return value;
};

/// Events with numbered streams, and segments by device.
function annotate(snapshot) {
  const streams = new Map([[0, 0]]);
  const numbered = (stream) => {
    if (!streams.has(stream)) streams.set(stream, streams.size);
    return streams.get(stream);
  };
  let ignored = 0;
  const devices = [];
  for (const trace of snapshot.device_traces) {
    const events = [];
    for (const raw of trace) {
      const event = { action: raw.action, size: raw.size, stream: numbered(raw.stream ?? 0) };
      if (raw.action !== 'oom' && raw.action !== 'snapshot') {
        event.addr = integer(raw.addr, 'addr');
        integer(raw.size, 'size');
      }
      for (const frame of raw.frames ?? []) `${frame.filename}:${frame.line}:${frame.name}`.toString();
      const last = events[events.length - 1];
      if (event.action === 'free_completed' && last?.action === 'free_requested' && last.addr === event.addr) {
        last.action = 'free';
      } else {
        events.push(event);
      }
    }
    devices.push({ events, segments: [] });
  }
  if (streams.size === 1) devices.forEach((device) => device.events.forEach((event) => { event.stream = -1; }));
  for (const raw of snapshot.segments) {
    let at = integer(raw.address, 'address');
    const blocks = [];
    for (const block of raw.blocks) {
      const address = block.address ?? at;
      at = address + block.size;
      if (block.state !== 'inactive') {
        const pending = block.state === 'active_pending_free';
        blocks.push({ address, size: block.size, requested: block.requested_size ?? block.size, pending });
      }
    }
    const device = devices[raw.device];
    if (device === undefined) ignored += 1;
    else device.segments.push({ address: raw.address, size: raw.total_size, stream: numbered(raw.stream), blocks });
  }
  return { devices, ignored };
}

/// The height of the timeline of active memory: where it ends, and its peak.
function timeline({ events, segments }) {
  const gone = (event) => event.action === 'free' || event.action === 'free_completed';
  const live = new Map();
  let initial = 0;
  for (const event of events) {
    if (event.action === 'alloc') live.set(event.addr, event.size);
    else if (gone(event) && !live.delete(event.addr)) initial += event.size;
  }
  for (const block of segments.flatMap((segment) => segment.blocks)) {
    if (!block.pending && !live.has(block.address)) initial += block.requested;
  }
  live.clear();
  let now = initial;
  let peak = initial;
  for (const event of events) {
    if (event.action === 'alloc') {
      live.set(event.addr, event.size);
      now += event.size;
      peak = Math.max(peak, now);
    } else if (gone(event)) {
      now -= live.get(event.addr) ?? event.size;
      live.delete(event.addr);
    }
  }
  return { end: now, peak };
}

/// Goes back through the states of the allocator; whatever has no place to be drawn in is an error.
function states({ events, segments }) {
  let mapped = segments.map(({ address, size, stream }) => ({ start: address, end: address + size, stream }));
  const blocks = new Map();
  const within = (start, end) => mapped.find((run) => run.start <= start && end <= run.end);
  const put = (address, size) => {
    if (!within(address, address + size)) throw new Error(`a block at ${address} has no segment`);
    blocks.set(address, size);
  };
  const cut = (start, end) => {
    const run = within(start, end);
    if (!run) throw new Error(`nothing is mapped at ${start}`);
    mapped = mapped.filter((other) => other !== run);
    if (run.start < start) mapped.push({ ...run, end: start });
    if (end < run.end) mapped.push({ ...run, start: end });
  };
  const join = (start, end, stream) => {
    for (const other of mapped.filter((run) => run.stream === stream && (run.end === start || run.start === end))) {
      mapped = mapped.filter((run) => run !== other);
      start = Math.min(start, other.start);
      end = Math.max(end, other.end);
    }
    mapped.push({ start, end, stream });
  };
  segments.flatMap((segment) => segment.blocks).forEach((block) => put(block.address, block.size));
  for (const { action, addr, size, stream } of events.toReversed()) {
    if (action === 'alloc') blocks.delete(addr);
    else if (action === 'free' || action === 'free_completed') put(addr, size);
    else if (action === 'free_requested' && !blocks.has(addr)) throw new Error(`nothing waits at ${addr}`);
    else if (action === 'segment_map' || action === 'segment_alloc') cut(addr, addr + size);
    else if (action === 'segment_unmap') join(addr, addr + size, stream);
    else if (action === 'segment_free') mapped.push({ start: addr, end: addr + size, stream });
  }
}

function load(file) {
  try {
    return JSON.parse(new TextDecoder().decode(file));
  } catch {
    return unpickle(file);
  }
}

const { devices, ignored } = annotate(load(require('fs').readFileSync(process.argv[2])));
devices.forEach(states);
const lines = devices.map(timeline);
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
console.log(JSON.stringify({
  devices: devices.filter((device) => device.events.length + device.segments.length > 0).length,
  segments: sum(devices.map((device) => device.segments.length)),
  ignored_segments: ignored,
  blocks: sum(devices.flatMap((device) => device.segments.map((segment) => segment.blocks.length))),
  events: sum(devices.map((device) => device.events.length)),
  live_bytes: sum(lines.map((line) => line.end)),
  peak_bytes: sum(lines.map((line) => line.peak)),
}));
