// The address space at a moment: segments as strips in the order of their addresses, wrapped like text, blocks in them.

const LINE = 16;
const GAP = 4;
const LINES = 14;

class MemoryMap {
  constructor(view) {
    this.view = view;
    this.canvas = document.getElementById("map-canvas");
  }

  draw() {
    const { device, moment, shown } = this.view;
    const scale = window.devicePixelRatio || 1;
    const width = this.canvas.parentElement.clientWidth;
    const segments = device.segmentsAt(moment, shown);
    const groups = this.layOut(segments, width);
    const height = groups.reduce((sum, group) => sum + group.height, 0) || LINE;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    this.canvas.style.height = `${height}px`;
    const context = this.canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.font = "12px system-ui, sans-serif";
    this.boxes = [];
    this.stripes = stripes(context, this.view.palette.pending, this.view.palette.surface, scale);
    for (const group of groups) this.drawGroup(context, group, width);
    this.tellSum(segments);
  }

  // Groups of segments by lane, each with its lines; segments get the offset at which they begin, in pixels along one
  // endless line.
  layOut(segments, width) {
    const total = segments.reduce((sum, segment) => sum + segment.bytes, 0);
    this.bytesPerPixel = Math.max(1, total / (LINES * width));
    const byLane = new Map();
    for (const segment of segments) {
      if (!byLane.has(segment.lane)) byLane.set(segment.lane, []);
      byLane.get(segment.lane).push(segment);
    }
    let top = 0;
    return [...byLane].sort(([a], [b]) => a - b).map(([lane, own]) => {
      let offset = 0;
      for (const segment of own) {
        segment.width = Math.max(2, segment.bytes / this.bytesPerPixel);
        const left = width - (offset % width);
        if (segment.width > left && (segment.width < width / 2 || left < 8)) offset += left;
        segment.offset = offset;
        offset += segment.width + 2;
      }
      const lines = Math.max(1, Math.ceil(offset / width));
      const group = { lane, segments: own, top, height: 20 + lines * (LINE + GAP) + 6 };
      top += group.height;
      return group;
    });
  }

  drawGroup(context, { lane, segments, top }, width) {
    const { palette, device } = this.view;
    const bytes = segments.reduce((sum, segment) => sum + segment.bytes, 0);
    context.fillStyle = css(palette.ink2);
    context.fillText(`${device.lane(lane)}: ${size(bytes)} in ${count(segments.length)} ${segments.length === 1 ? "segment" : "segments"}`, 0, top + 13, width);
    for (const segment of segments) {
      const perByte = segment.width / segment.bytes;
      const place = (offset, length) => this.lines(segment.offset + offset, length, width, top + 20);
      for (const [x, y, w] of place(0, segment.width)) {
        context.fillStyle = css(palette.cached);
        context.fillRect(x, y, w, LINE);
        context.strokeStyle = css(palette.axis);
        context.lineWidth = 1;
        if (w > 3) context.strokeRect(x + 0.5, y + 0.5, w - 1, LINE - 1);
        this.boxes.push({ x, y, w, segment });
      }
      for (const block of segment.blocks) {
        const from = (block.position - segment.position) * perByte;
        for (const [x, y, w] of place(from, block.bytes * perByte)) this.drawBlock(context, block, x, y, w, segment);
      }
    }
  }

  drawBlock(context, block, x, y, w, segment) {
    const { palette, device, chosen, chosenBlock } = this.view;
    const stack = device.stackOf(block.block);
    const mine = chosenBlock === block.block || (chosenBlock === null && (chosen === stack || (chosen === "pending" && block.pending)));
    const dim = (chosen !== null || chosenBlock !== null) && !mine;
    context.globalAlpha = dim ? 0.28 : 1;
    context.fillStyle = block.pending ? this.stripes : css(this.view.stackColour(stack));
    context.fillRect(x, y, Math.max(w, 0.6), LINE);
    context.globalAlpha = 1;
    if (w > 4) {
      context.fillStyle = css(palette.surface, 0.8);
      context.fillRect(x + w - 1, y, 1, LINE);
    }
    if (mine && w > 2) {
      context.strokeStyle = css(palette.ink);
      context.strokeRect(x + 0.5, y + 0.5, w - 1, LINE - 1);
    }
    this.boxes.push({ x, y, w: Math.max(w, 1), segment, block });
  }

  // The pieces of a strip on the lines that it covers.
  lines(offset, length, width, top) {
    const pieces = [];
    const end = offset + length;
    for (let at = offset; at < end - 1e-9; ) {
      const line = Math.floor(at / width);
      const stop = Math.min(end, (line + 1) * width);
      pieces.push([at - line * width, top + line * (LINE + GAP), stop - at]);
      at = stop > at ? stop : end;
    }
    return pieces;
  }

  tellSum(segments) {
    const blocks = segments.reduce((sum, segment) => sum + segment.blocks.length, 0);
    const free = segments.map((segment) => largestRun(segment));
    const run = Math.max(0, ...free.slice(0, 100000));
    document.getElementById("map-sum").textContent =
      `${count(segments.length)} segments, ${count(blocks)} blocks; the largest free run is ${size(run)}`;
  }

  // The box under a point: a block if there is one, else its segment.
  hit(x, y) {
    for (let i = this.boxes.length - 1; i >= 0; i--) {
      const box = this.boxes[i];
      if (box.x <= x && x < box.x + box.w && box.y <= y && y < box.y + LINE) return box;
    }
    return null;
  }
}

function largestRun(segment) {
  let at = segment.position;
  let most = 0;
  for (const block of segment.blocks) {
    most = Math.max(most, block.position - at);
    at = block.position + block.bytes;
  }
  return Math.max(most, segment.position + segment.bytes - at);
}

function stripes(context, colour, between, scale) {
  const tile = document.createElement("canvas");
  const side = Math.round(7 * scale);
  tile.width = side;
  tile.height = side;
  const paint = tile.getContext("2d");
  const image = paint.createImageData(side, side);
  const words = new Uint32Array(image.data.buffer);
  for (let y = 0; y < side; y++) for (let x = 0; x < side; x++) words[y * side + x] = pixel((x + y) % side < side * 0.3 ? between : colour);
  paint.putImageData(image, 0, 0);
  const pattern = context.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix([1 / scale, 0, 0, 1 / scale, 0, 0]));
  return pattern;
}
