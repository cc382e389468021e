// Memory over time: bands of bytes, drawn a column of pixels at a time.
//
// Each column names one moment, the one of its span at which the most is used, and shows the values of that moment. So
// what is drawn was there. Where a column spans many events, its moment comes from the levels; else the events are
// followed from the nearest point on.

const HUES = 6;
// How each further round of hues differs from the first: mixed with the surface, or with the ink.
const ROUNDS = [["surface", 0], ["surface", 0.42], ["ink", 0.34], ["surface", 0.66], ["ink", 0.58], ["surface", 0.22], ["ink", 0.18], ["surface", 0.55]];
const MARGIN = { left: 66, right: 10, top: 16, bottom: 22 };

class Palette {
  constructor() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => {
      const hex = style.getPropertyValue(`--${name}`).trim().slice(1);
      return [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
    };
    for (const name of ["surface", "sunken", "ink", "ink-2", "muted", "grid", "axis", "accent", "bad", "others", "rounding", "pending", "cached", "cached-line"]) {
      this[name.replace(/-(.)/, (_, letter) => letter.toUpperCase())] = read(name);
    }
    this.hues = Array.from({ length: HUES }, (_, hue) => read(`band-${hue}`));
  }

  // The colour of the stack that ranks so.
  stack(rank) {
    const [towards, part] = ROUNDS[Math.floor(rank / HUES) % ROUNDS.length];
    return mix(this.hues[rank % HUES], this[towards], part);
  }
}

function mix(a, b, part) {
  return a.map((value, i) => Math.round(value + (b[i] - value) * part));
}

function css([red, green, blue], alpha = 1) {
  return `rgb(${red} ${green} ${blue} / ${alpha})`;
}

function pixel([red, green, blue]) {
  return (255 << 24 | blue << 16 | green << 8 | red) >>> 0;
}

// The bands of a device from the bottom to the top: stacks by rank, then the rest.
function bandsOf(device, shown) {
  const bands = new Map();
  const rest = { others: "other stacks", rounding: "rounding", pending: "given back, waiting", cached: "cached" };
  device.facts.series.forEach(([place, kind, stack], series) => {
    const id = kind === "stack" ? stack : kind;
    if (!bands.has(id)) bands.set(id, { id, kind, stack, series: [], label: rest[kind] ?? device.site(stack) });
    if (shown[place]) bands.get(id).series.push(series);
  });
  const stacks = [...bands.values()].filter((band) => band.kind === "stack").sort((a, b) => a.stack - b.stack);
  stacks.forEach((band, rank) => (band.rank = rank));
  return [...stacks, ...Object.keys(rest).map((kind) => bands.get(kind))].filter(Boolean);
}

// Along the axis moments take one each, or as long as they lasted. `at` gives the moment in force at a place, `place`
// where a moment begins.
function axisOf(device, byTime) {
  const { time, end } = device;
  if (!byTime || !time) {
    return {
      byTime: false,
      from: 0,
      to: end + 1,
      least: 8,
      at: (x) => Math.max(0, Math.min(end, Math.floor(x))),
      place: (moment) => moment,
    };
  }
  const [first, last] = [time[0], time[time.length - 1]];
  const pad = Math.max(1, (last - first) / 100);
  return {
    byTime: true,
    from: first - pad,
    to: last + pad,
    least: 4,
    at: (x) => lastNotAbove(time, x) + 1,
    place: (moment) => (moment === 0 ? first - pad : time[moment - 1]),
  };
}

// For each of so many columns of a span its moment, the least that is used in it, and the tops of the bands.
function columnsOf(device, axis, from, to, width, bands, shown) {
  const found = { width, from, to, bands, moment: new Uint32Array(width), low: new Float64Array(width), top: new Float64Array(width * (bands.length + 1)) };
  const edge = (column) => from + ((to - from) * column) / width;
  const each = (to - from) / width;
  const level = device.levels.filter((level) => level.bucket <= each).pop();
  if (level && !axis.byTime && shown.every(Boolean)) fromLevel(device, level, found, edge);
  else fromEvents(device, axis, found, edge);
  return found;
}

function fromLevel(device, level, found, edge) {
  const series = device.facts.series.length;
  const used = (bucket) => device.used[device.pointMoment[level.point[bucket]]];
  for (let c = 0; c < found.width; c++) {
    const last = level.point.length - 1;
    const start = Math.min(last, Math.max(0, Math.ceil(edge(c) / level.bucket)));
    const end = Math.min(last, Math.max(start, Math.ceil(edge(c + 1) / level.bucket) - 1));
    let best = start;
    let low = level.low[start];
    for (let bucket = start + 1; bucket <= end; bucket++) {
      if (used(bucket) > used(best)) best = bucket;
      low = Math.min(low, level.low[bucket]);
    }
    const point = level.point[best];
    found.moment[c] = device.pointMoment[point];
    found.low[c] = low;
    stackUp(found, c, device.pointValue, point * series);
  }
}

function fromEvents(device, axis, found, edge) {
  const { width, moment, low } = found;
  const { used } = device;
  let at = axis.at(edge(0));
  for (let c = 0; c < width; c++) {
    // The moments of a column: the one in force as it begins, up to the one before the next column's.
    const next = axis.at(edge(c + 1));
    let best = at;
    let least = used[at];
    for (let m = at + 1; m < next; m++) {
      if (used[m] > used[best]) best = m;
      if (used[m] < least) least = used[m];
    }
    moment[c] = best;
    low[c] = least;
    at = Math.max(at, next);
  }
  let state = null;
  for (let c = 0; c < width; c++) {
    if (c > 0 && moment[c] === moment[c - 1]) {
      const bands = found.bands.length + 1;
      found.top.copyWithin(c * bands, (c - 1) * bands, c * bands);
      continue;
    }
    // Where a point is nearer than the column before, the way begins there.
    if (!state || moment[c] - at > 2 * device.facts.bucket) state = device.stateAt(moment[c]);
    else while (at < moment[c]) device.step(state, ++at);
    at = moment[c];
    stackUp(found, c, state, 0);
  }
}

// The tops of the bands of a column, one on the other. Its values begin at a place of an array.
function stackUp(found, c, values, start) {
  const { bands, top } = found;
  let at = c * (bands.length + 1);
  let sum = 0;
  for (const band of bands) {
    let value = 0;
    for (const series of band.series) value += values[start + series];
    sum += Math.max(0, value);
    top[++at] = sum;
  }
}

class Chart {
  constructor(view) {
    this.view = view;
    this.bandCanvas = document.getElementById("bands");
    this.overlay = document.getElementById("overlay");
    this.overview = document.getElementById("overview");
  }

  // Takes the size of its place; true if that is new.
  measure() {
    const box = this.bandCanvas.parentElement.getBoundingClientRect();
    const scale = window.devicePixelRatio || 1;
    const now = [box.width, box.height, scale].join();
    if (now === this.measured) return false;
    this.measured = now;
    this.left = box.width < 560 ? 52 : MARGIN.left;
    Object.assign(this, { scale, width: box.width, height: box.height });
    this.plot = { width: Math.max(10, box.width - this.left - MARGIN.right), height: Math.max(10, box.height - MARGIN.top - MARGIN.bottom) };
    this.pixels = { width: Math.round(this.plot.width * scale), height: Math.round(this.plot.height * scale) };
    for (const canvas of [this.bandCanvas, this.overlay]) {
      canvas.width = Math.round(box.width * scale);
      canvas.height = Math.round(box.height * scale);
    }
    this.overview.width = Math.round(box.width * scale);
    this.overview.height = Math.round(46 * scale);
    this.image = this.bandCanvas.getContext("2d").createImageData(this.pixels.width, this.pixels.height);
    this.words = new Uint32Array(this.image.data.buffer);
    return true;
  }

  // The most that the bytes' axis shows.
  top() {
    const { device, shown } = this.view;
    const { capacity, limit } = device.facts;
    let most = this.view.most;
    for (let c = 0, last = this.columns.bands.length; c < this.columns.width; c++) {
      most = Math.max(most, this.columns.top[c * (last + 1) + last]);
    }
    for (const line of [limit, capacity]) if (line && shown.every(Boolean) && line < most * 1.6) most = Math.max(most, line);
    return Math.max(1, most) * 1.04;
  }

  draw() {
    const { device, axis, bands, shown } = this.view;
    const fresh = this.measure();
    const key = [this.view.from, this.view.to, axis.byTime, shown.join(""), this.pixels.width, device.facts.index].join();
    if (fresh || key !== this.key) {
      this.columns = columnsOf(device, axis, this.view.from, this.view.to, this.pixels.width, bands, shown);
      this.key = key;
    }
    this.most = this.top();
    this.paintBands();
    this.drawOverlay();
    this.drawOverview();
  }

  paintBands() {
    const { words } = this;
    const { width, height } = this.pixels;
    const { palette, chosen } = this.view;
    const nothing = { fill: pixel(palette.surface), stripes: 0 };
    const paints = [...this.columns.bands.map((band) => this.paint(band, palette, chosen)), nothing];
    const count = paints.length - 1;
    const tops = this.topRows(count);
    const unit = Math.max(1, Math.round(this.scale));
    const [masks, period] = stripeMasks(unit);
    // Row by row from the bottom, as memory lies; each column knows the band that it is in, and where that ends.
    const inside = new Int16Array(width).fill(-1);
    const top = new Int32Array(width).fill(height);
    const [fill, line, mask] = [new Uint32Array(width), new Uint32Array(width), new Uint32Array(width)];
    for (let y = height - 1; y >= 0; y--) {
      let at = y * width;
      let stripe = y % period;
      for (let c = 0; c < width; c++) {
        if (y < top[c]) {
          let b = inside[c] + 1;
          while (b < count && tops[c * count + b] > y) b++;
          inside[c] = b;
          top[c] = b < count ? tops[c * count + b] : -1;
          fill[c] = paints[b].fill;
          line[c] = paints[b].line;
          mask[c] = paints[b].stripes * period;
        }
        words[at++] = masks[mask[c] + stripe] ? line[c] : fill[c];
        stripe = stripe + 1 === period ? 0 : stripe + 1;
      }
    }
    for (let c = 0; c < width; c++) {
      let bottom = height;
      for (let b = 0; b < count; b++) {
        const row = tops[c * count + b];
        if (row >= bottom) continue;
        if (bottom - row > 3 * unit && paints[b].edge !== undefined) words[row * width + c] = paints[b].edge;
        bottom = row;
      }
    }
    const context = this.bandCanvas.getContext("2d");
    context.putImageData(this.image, Math.round(this.left * this.scale), Math.round(MARGIN.top * this.scale));
  }

  // The row at which each band of each column ends.
  topRows(count) {
    const { width, height } = this.pixels;
    const perByte = height / this.most;
    const rows = new Int32Array(width * count);
    for (let c = 0, row = 0; c < width; c++) {
      for (let b = 0, from = c * (count + 1) + 1; b < count; b++) {
        rows[row++] = Math.max(0, Math.round(height - this.columns.top[from + b] * perByte));
      }
    }
    return rows;
  }

  // How a band is filled: a colour, its upper edge, or stripes of a second colour.
  paint(band, palette, chosen) {
    const plain = this.view.colour(band);
    const dim = chosen !== null && chosen !== band.id ? (colour) => mix(colour, palette.surface, 0.72) : (colour) => colour;
    const fill = pixel(dim(plain));
    if (band.kind === "pending") return { fill, line: pixel(dim(palette.surface)), stripes: 1 };
    if (band.kind === "cached") return { fill, line: pixel(palette.cachedLine), stripes: 2 };
    return { fill, edge: pixel(dim(mix(plain, palette.surface, 0.55))), stripes: 0 };
  }

  x(place) {
    return this.left + ((place - this.view.from) / (this.view.to - this.view.from)) * this.plot.width;
  }

  y(bytes) {
    return MARGIN.top + this.plot.height * (1 - bytes / this.most);
  }

  drawOverlay() {
    const context = this.overlay.getContext("2d");
    const { palette, device, axis, moment, shown } = this.view;
    context.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    context.font = "11.5px system-ui, sans-serif";
    this.drawAxes(context, palette);
    context.save();
    context.beginPath();
    context.rect(this.left, 0, this.plot.width, this.height);
    context.clip();
    const stride = this.columns.bands.length + 1;
    this.stepLine(context, (c) => this.columns.top[c * stride + stride - 1], css(palette.ink), 1.5, []);
    if ((this.view.to - this.view.from) / this.pixels.width > 2 && !axis.byTime) {
      this.stepLine(context, (c) => this.columns.low[c], css(palette.ink, 0.5), 1, [1.5, 2.5]);
    }
    if (shown.every(Boolean)) {
      this.level(context, device.facts.limit, "limit", palette.bad);
      this.level(context, device.facts.capacity, "capacity", palette.ink2);
    }
    this.drawMarks(context, palette);
    const at = Math.round(this.x(axis.place(moment)) + (axis.byTime ? 0 : Math.min(0.5 * this.perMoment(), 20))) + 0.5;
    context.strokeStyle = css(palette.ink);
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(at, 4);
    context.lineTo(at, this.height - MARGIN.bottom + 4);
    context.stroke();
    context.fillStyle = css(palette.ink);
    context.beginPath();
    context.moveTo(at - 5, 1);
    context.lineTo(at + 5, 1);
    context.lineTo(at, 8);
    context.fill();
    context.restore();
  }

  perMoment() {
    return this.plot.width / (this.view.to - this.view.from);
  }

  stepLine(context, valueOf, style, width, dash) {
    context.strokeStyle = style;
    context.lineWidth = width;
    context.setLineDash(dash);
    context.beginPath();
    let before = null;
    for (let c = 0; c < this.columns.width; c++) {
      const y = this.y(valueOf(c));
      if (y === before && c + 1 < this.columns.width) continue;
      const x = this.left + c / this.scale;
      if (before !== null) context.lineTo(x, before);
      context.lineTo(x, y);
      before = y;
    }
    context.lineTo(this.left + this.plot.width, before);
    context.stroke();
    context.setLineDash([]);
  }

  level(context, bytes, name, colour) {
    if (!bytes) return;
    const above = bytes > this.most;
    const y = above ? MARGIN.top + 1 : this.y(bytes);
    context.fillStyle = css(colour);
    const text = `${name} ${size(bytes)}${above ? ", above" : ""}`;
    const x = this.left + this.plot.width - context.measureText(text).width - 6;
    context.fillText(text, name === "limit" ? this.left + 6 : x, above ? MARGIN.top - 4 : y - 4);
    if (above) return;
    context.strokeStyle = css(colour);
    context.lineWidth = 1.5;
    context.setLineDash([6, 4]);
    context.beginPath();
    context.moveTo(this.left, y);
    context.lineTo(this.left + this.plot.width, y);
    context.stroke();
    context.setLineDash([]);
  }

  drawMarks(context, palette) {
    let lastText = -Infinity;
    let lastTick = -Infinity;
    for (const [row, kind, text] of this.view.device.facts.marks) {
      const x = this.x(this.view.axis.place(row + 1));
      if (x < this.left - 1 || x > this.left + this.plot.width + 1) continue;
      // Ticks that would be one dark strip say nothing.
      if (kind !== "oom" && x - lastTick < 6) continue;
      if (kind !== "oom") lastTick = x;
      context.fillStyle = css(kind === "oom" ? palette.bad : palette.muted);
      if (kind === "oom") {
        context.fillRect(x - 1, MARGIN.top, 2, this.plot.height);
        const label = `refused: ${text.split(" refused")[0]}`;
        const width = context.measureText(label).width;
        if (x - lastText > width + 14) {
          context.fillText(label, x + width + 8 > this.left + this.plot.width ? x - width - 5 : x + 5, MARGIN.top + 26);
          lastText = x;
        }
      } else {
        context.fillRect(x - 0.5, MARGIN.top + this.plot.height - (kind === "scope" ? 5 : 9), 1, kind === "scope" ? 5 : 9);
      }
    }
  }

  drawAxes(context, palette) {
    context.lineWidth = 1;
    context.textBaseline = "alphabetic";
    const step = byteStep(this.most, Math.max(3, Math.floor(this.plot.height / 56)));
    for (let bytes = 0; bytes <= this.most; bytes += step) {
      const y = Math.round(this.y(bytes)) + 0.5;
      context.strokeStyle = css(palette.ink, bytes === 0 ? 0.5 : 0.09);
      context.beginPath();
      context.moveTo(this.left, y);
      context.lineTo(this.left + this.plot.width, y);
      context.stroke();
      context.fillStyle = css(palette.muted);
      const text = bytes === 0 ? "0" : tickSize(bytes, step, this.most);
      context.fillText(text, this.left - 6 - context.measureText(text).width, y + 4);
    }
    const { axis, from, to, device } = this.view;
    const zero = axis.byTime ? device.time[0] : 0;
    const along = decimalStep(to - from, Math.max(2, Math.floor(this.plot.width / 110)));
    for (let place = Math.ceil((from - zero) / along) * along; place <= to - zero; place += along) {
      const x = this.x(place + zero);
      if (x < this.left - 1 || place < 0) continue;
      const text = axis.byTime ? tickTime(place, along) : count(place);
      const width = context.measureText(text).width;
      if (x + width / 2 > this.width) continue;
      context.fillStyle = css(palette.muted);
      context.fillText(text, Math.max(this.left, x - width / 2), this.height - 5);
      context.fillRect(Math.round(x), this.height - MARGIN.bottom, 1, 4);
    }
  }

  // The whole trace, small, with the part that is shown.
  drawOverview() {
    const { device, axis, shown, palette } = this.view;
    const context = this.overview.getContext("2d");
    const [width, height] = [this.pixels.width, this.overview.height];
    const left = Math.round(this.left * this.scale);
    const key = [this.measured, axis.byTime, shown.join(""), device.facts.index, palette.surface].join();
    if (key !== this.overviewKey) {
      this.outline = this.outlineOf(width, height);
      this.overviewKey = key;
    }
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.overview.width, height);
    context.drawImage(this.outline, left, 0);
    const x = (place) => left + ((place - axis.from) / (axis.to - axis.from)) * width;
    const [start, end] = [x(this.view.from), x(this.view.to)];
    context.fillStyle = css(palette.surface, 0.62);
    context.fillRect(left, 0, start - left, height);
    context.fillRect(end, 0, left + width - end, height);
    context.strokeStyle = css(palette.ink2);
    context.lineWidth = this.scale;
    context.strokeRect(start + 0.5, 0.5, Math.max(2, end - start - 1), height - 1);
    context.fillStyle = css(palette.ink);
    context.fillRect(x(axis.place(this.view.moment)) - this.scale / 2, 0, this.scale, height);
  }

  // A picture of what is mapped, used and held over the whole trace.
  outlineOf(width, height) {
    const { device, axis, bands, shown, palette } = this.view;
    const { top } = columnsOf(device, axis, axis.from, axis.to, width, bands, shown);
    const stride = bands.length + 1;
    const last = (offset) => (c) => top[c * stride + stride - 1 - offset];
    let most = 1;
    for (let c = 0; c < width; c++) most = Math.max(most, last(0)(c));
    const outline = document.createElement("canvas");
    [outline.width, outline.height] = [width, height];
    const context = outline.getContext("2d");
    context.fillStyle = css(palette.sunken);
    context.fillRect(0, 0, width, height);
    const colours = [mix(palette.cachedLine, palette.sunken, 0.45), palette.pending, mix(palette.accent, palette.sunken, 0.25)];
    colours.forEach((colour, offset) => {
      context.fillStyle = css(colour);
      context.beginPath();
      context.moveTo(0, height);
      for (let c = 0; c < width; c++) {
        const y = height - (last(offset)(c) / most) * (height - 4 * this.scale);
        context.lineTo(c, y);
        context.lineTo(c + 1, y);
      }
      context.lineTo(width, height);
      context.fill();
    });
    return outline;
  }

  // What is under a point of the chart: the column, its moment, and the band.
  hit(x, y) {
    const column = Math.floor(((x - this.left) / this.plot.width) * this.columns.width);
    if (column < 0 || column >= this.columns.width) return null;
    const { bands, top } = this.columns;
    const bytes = ((MARGIN.top + this.plot.height - y) / this.plot.height) * this.most;
    const at = column * (bands.length + 1);
    const band = bands.findIndex((_, b) => top[at + b] <= bytes && bytes < top[at + b + 1]);
    const value = band < 0 ? 0 : top[at + band + 1] - top[at + band];
    return { moment: this.columns.moment[column], band: band < 0 ? null : bands[band], bytes: value };
  }
}

// Which pixels of a diagonal are lines: none, those of wide stripes, those of thin ones.
function stripeMasks(unit) {
  const period = 7 * unit;
  const masks = new Uint8Array(3 * period);
  masks.fill(1, period, period + Math.round(2.5 * unit));
  masks.fill(1, 2 * period, 2 * period + unit);
  return [masks, period];
}

// A step of bytes that gives about so many ticks: a power of two, in the unit that the most has.
function byteStep(most, ticks) {
  let step = 2 ** Math.floor(Math.log2(most / ticks));
  while (most / step > ticks * 1.5) step *= 2;
  return Math.max(1, step);
}

// All ticks have the unit of the most.
function tickSize(bytes, step, most) {
  const power = Math.max(0, Math.min(UNITS.length, Math.floor(Math.log2(most) / 10)));
  if (power === 0) return `${bytes} B`;
  const unit = 1024 ** power;
  return `${(bytes / unit).toFixed(Math.max(0, Math.min(2, Math.ceil(-Math.log2(step / unit)))))} ${UNITS[power - 1]}`;
}

function decimalStep(span, ticks) {
  const rough = span / ticks;
  const power = 10 ** Math.max(0, Math.floor(Math.log10(Math.max(1, rough))));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough) ?? 10 * power;
}

function tickTime(us, step) {
  if (step >= 1e6) return `${(us / 1e6).toFixed(0)} s`;
  if (step >= 1e3) return us >= 1e6 ? `${(us / 1e6).toFixed(step >= 1e5 ? 1 : step >= 1e4 ? 2 : 3)} s` : `${(us / 1e3).toFixed(0)} ms`;
  return us >= 1e6 ? `${(us / 1e6).toFixed(6)} s` : us >= 1e3 ? `${(us / 1e3).toFixed(step >= 100 ? 1 : 3)} ms` : `${us.toFixed(0)} µs`;
}
