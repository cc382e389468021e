// What is there at the chosen moment: sums, the stacks that hold the most, and all about what was chosen.

const MOST_ROWS = 12;

// The sums of a state by kind, in the places that are shown.
function sumsOf(device, state, shown) {
  const sums = { held: 0, rounding: 0, pending: 0, cached: 0 };
  device.facts.series.forEach(([place, kind], series) => {
    if (shown[place]) sums[kind === "stack" || kind === "others" ? "held" : kind] += state[series];
  });
  sums.cached = Math.max(0, sums.cached);
  sums.reserved = sums.held + sums.rounding + sums.pending + sums.cached;
  return sums;
}

// What each stack holds at a moment, most bytes first.
function stacksAt(device, moment, shown) {
  const held = new Map();
  for (const block of device.blocksAt(moment, shown)) {
    if (device.isPendingAt(block, moment)) continue;
    const stack = device.stackOf(block);
    const sum = held.get(stack) ?? { stack, bytes: 0, blocks: 0 };
    sum.bytes += device.blocks.requested[block];
    sum.blocks += 1;
    held.set(stack, sum);
  }
  return [...held.values()].sort((a, b) => b.bytes - a.bytes || a.stack - b.stack);
}

function showMoment(view) {
  const { device, moment, shown } = view;
  const at = device.time ? `, ${duration(device.time[Math.max(0, moment - 1)] - device.time[0])} in` : "";
  document.getElementById("moment-name").textContent = `${count(moment)} of ${count(device.end)}${at}`;
  document.getElementById("last-event").textContent = `Last event: ${device.told(moment)}`;
  const sums = sumsOf(device, device.stateAt(moment), shown);
  const tile = (id, name, swatch, bytes) => {
    const box = make("div", "", make("small", "", swatch, name), make("b", "", size(bytes)));
    box.dataset.sum = id;
    box.title = `${count(bytes)} B`;
    return box;
  };
  document.getElementById("tiles").replaceChildren(
    tile("held", "held", colourSwatch(view.palette.accent), sums.held),
    tile("rounding", "rounding", colourSwatch(view.palette.rounding), sums.rounding),
    tile("pending", "waiting", make("i", "swatch pending"), sums.pending),
    tile("cached", "cached", make("i", "swatch cached"), sums.cached),
    tile("reserved", "reserved", make("i", "swatch line"), sums.reserved),
  );
  showStacks(view, sums.held);
}

function colourSwatch(colour) {
  const swatch = make("i", "swatch");
  swatch.style.background = css(colour);
  return swatch;
}

function showStacks(view, held) {
  const { device, moment, shown } = view;
  const all = stacksAt(device, moment, shown);
  const rows = all.slice(0, MOST_ROWS).map(({ stack, bytes, blocks }) => {
    const colour = view.stackColour(stack);
    const share = make("span", "share");
    share.style.width = `${(100 * bytes) / Math.max(1, held)}%`;
    share.style.background = css(colour);
    const row = make("tr", view.chosen === stack ? "chosen" : "",
      make("td", "", colourSwatch(colour)), make("td", "", device.site(stack), share),
      make("td", "number", size(bytes)), make("td", "number", count(blocks)));
    row.dataset.stack = stack;
    row.addEventListener("click", () => view.choose(view.chosen === stack ? null : stack));
    return row;
  });
  document.querySelector("#stacks tbody").replaceChildren(...rows);
  const rest = all.slice(MOST_ROWS);
  const bytes = rest.reduce((sum, stack) => sum + stack.bytes, 0);
  document.getElementById("more-stacks").textContent = rest.length ? `${count(rest.length)} more stacks hold ${size(bytes)}` : "";
}

function showDetail(view) {
  const room = document.getElementById("detail");
  if (view.chosenBlock !== null) showBlock(view, room, view.chosenBlock);
  else if (typeof view.chosen === "number") showStack(view, room, view.chosen);
  else if (view.chosen !== null) showKind(view, room, view.chosen);
  else showLargest(view, room);
}

// Where nothing was chosen, what holds the most.
function showLargest(view, room) {
  const { device, moment, shown } = view;
  const [largest] = stacksAt(device, moment, shown);
  const { pending } = sumsOf(device, device.stateAt(moment), shown);
  const hint = "Click a band of the timeline, a line of the list, or a block of the map.";
  if (pending > (largest ? largest.bytes : 0)) showKind(view, room, "pending");
  else if (largest) showStack(view, room, largest.stack);
  else room.replaceChildren();
  room.append(make("p", "faint", pending || largest ? `This holds the most now. ${hint}` : hint));
}

function pairs(entries) {
  const list = make("dl");
  for (const [name, value] of entries) list.append(make("dt", "", name), make("dd", "", value));
  return list;
}

// The frames of a stack under a title; nothing where none were recorded.
function stackLines(device, stack, title) {
  const lines = device.frames(stack);
  if (!lines.length) return [];
  const own = device.stackOwn[stack];
  const items = lines.map((line, place) => make("li", place === own ? "own" : "", line));
  return [make("h3", "", title), make("ol", "stack", ...items)];
}

// Bytes and blocks by lane, most first.
function byLane(device, blocks, bytesOf) {
  const lanes = new Map();
  for (const block of blocks) {
    const lane = device.laneOf(block);
    const sum = lanes.get(lane) ?? { lane, bytes: 0, blocks: 0 };
    sum.bytes += bytesOf(block);
    sum.blocks += 1;
    lanes.set(lane, sum);
  }
  return [...lanes.values()].sort((a, b) => b.bytes - a.bytes);
}

function showStack(view, room, stack) {
  const { device, moment, shown } = view;
  const own = device.blocksAt(moment, shown).filter((block) => device.stackOf(block) === stack);
  const held = own.filter((block) => !device.isPendingAt(block, moment));
  const waiting = own.filter((block) => device.isPendingAt(block, moment));
  const sum = (blocks, of) => blocks.reduce((total, block) => total + of[block], 0);
  const requested = sum(held, device.blocks.requested);
  const entries = [["held", exactly(requested)], ["blocks", count(held.length)]];
  for (const lane of byLane(device, held, (block) => device.blocks.requested[block])) {
    entries.push([device.lane(lane.lane), `${size(lane.bytes)} in ${count(lane.blocks)} ${lane.blocks === 1 ? "block" : "blocks"}`]);
  }
  entries.push(["rounding", size(sum(held, device.blocks.bytes) - requested)]);
  if (waiting.length) entries.push(["waiting", `${size(sum(waiting, device.blocks.bytes))} in ${count(waiting.length)} blocks`]);
  room.replaceChildren(
    make("div", "bar", colourSwatch(view.stackColour(stack)), make("h2", "", device.site(stack))),
    pairs(entries),
    ...stackLines(device, stack, "Stack, innermost first"),
  );
  room.dataset.stack = stack;
  room.dataset.bytes = requested;
  room.dataset.blocks = held.length;
}

function showKind(view, room, kind) {
  const { device, moment, shown } = view;
  const told = {
    others: "Stacks that never hold much, together. The list names those that hold the most now.",
    rounding: "What blocks take beyond what was asked for.",
    pending: "Given back by the program, and not free yet: work on other streams may still use it.",
    cached: "Mapped, and in no block: free for the requests of its stream and pool.",
  };
  const entries = [["bytes", exactly(kind === "others" ? view.othersAt() : sumsOf(device, device.stateAt(moment), shown)[kind])]];
  if (kind === "pending") {
    const waiting = device.blocksAt(moment, shown).filter((block) => device.isPendingAt(block, moment));
    for (const lane of byLane(device, waiting, (block) => device.blocks.bytes[block])) {
      entries.push([device.lane(lane.lane), `${size(lane.bytes)} in ${count(lane.blocks)} blocks`]);
    }
  }
  if (kind === "cached") {
    const lanes = new Map();
    for (const segment of device.segmentsAt(moment, shown)) {
      const free = segment.bytes - segment.blocks.reduce((sum, block) => sum + block.bytes, 0);
      const sum = lanes.get(segment.lane) ?? { free: 0, run: 0 };
      lanes.set(segment.lane, { free: sum.free + free, run: Math.max(sum.run, largestRun(segment)) });
    }
    for (const [lane, { free, run }] of lanes) entries.push([device.lane(lane), `${size(free)}, the largest run ${size(run)}`]);
  }
  const swatch = kind === "pending" || kind === "cached" ? make("i", `swatch ${kind}`) : colourSwatch(view.palette[kind]);
  const titles = { others: "Other stacks", rounding: "Rounding", pending: "Given back, waiting", cached: "Cached" };
  room.replaceChildren(make("div", "bar", swatch, make("h2", "", titles[kind])), make("p", "faint", told[kind]), pairs(entries));
}

function showBlock(view, room, block) {
  const { device, moment } = view;
  const { first, freed, gone, requested, bytes, position } = device.blocks;
  const stack = device.stackOf(block);
  const when = (at) => {
    const time = device.time ? `, ${duration(device.time[at - 1] - device.time[0])} in` : "";
    return `event ${count(at - 1)}${time}`;
  };
  const state = !device.isAt(block, moment) ? "not there now" : device.isPendingAt(block, moment) ? "given back, waiting" : "held";
  const entries = [
    ["address", device.address(position[block])],
    ["asked for", exactly(requested[block])],
    ["takes", exactly(bytes[block])],
    ["state", state],
    ["of", device.lane(device.laneOf(block))],
    ["allocated", first[block] === 0 ? "before the trace" : when(first[block])],
  ];
  if (freed[block] > device.end) entries.push(["given back", "not in this trace"]);
  else entries.push(["given back", freed[block] === 0 ? "before the trace" : when(freed[block])]);
  if (freed[block] < gone[block]) entries.push(["free", gone[block] > device.end ? "not in this trace" : when(gone[block])]);
  room.replaceChildren(
    make("div", "bar", colourSwatch(view.stackColour(stack)), make("h2", "", `Block of ${size(bytes[block])}`)),
    pairs(entries),
    ...stackLines(device, stack, "Allocated by, innermost first"),
  );
}
