// One device: its blocks and mapped ranges with their moments, and what is there at any of them.
//
// Moment m is right before event m; the last one is the end. A state is the values of all series at a moment; each one
// that is worked out begins at a point of the levels, whose values the program has worked out, and follows the changes
// from there on.

const MAPPED = 0;
const UNMAPPED = 1;
const BORN = 2;
const FREED = 3;
const GONE = 4;

class Device {
  constructor(facts, text) {
    const bytes = bytesOf(text);
    const read = (name, Kind) => column(bytes, facts.columns[name], Kind);
    this.facts = facts;
    this.end = facts.events;
    this.time = facts.timed && facts.events > 0 ? read("time") : null;
    this.readBlocks(read);
    this.readStacks(read);
    this.readLevels(read);
    this.sortChanges();
  }

  readBlocks(read) {
    const first = read("first", Uint32Array);
    const freed = read("held", Uint32Array);
    const gone = read("waited", Uint32Array);
    const requested = read("requested");
    const blockBytes = read("rounding");
    for (let i = 0; i < first.length; i++) {
      freed[i] += first[i];
      gone[i] += freed[i];
      blockBytes[i] += requested[i];
    }
    const source = read("source", Uint32Array);
    this.blocks = { count: first.length, first, freed, gone, source, requested, bytes: blockBytes, position: read("position") };
    const mappedFirst = read("mappedFirst", Uint32Array);
    const mappedGone = read("mappedLength", Uint32Array);
    for (let i = 0; i < mappedFirst.length; i++) mappedGone[i] += mappedFirst[i];
    this.mapped = {
      count: mappedFirst.length,
      first: mappedFirst,
      gone: mappedGone,
      position: read("mappedPosition"),
      bytes: read("mappedBytes"),
      lane: read("mappedLane", Uint32Array),
      kind: read("mappedKind", Uint8Array),
    };
    this.sourceStack = read("sourceStack", Uint32Array);
    this.sourceLane = read("sourceLane", Uint32Array);
  }

  readStacks(read) {
    const length = read("stackLength", Uint32Array);
    this.stackFrame = read("stackFrame", Uint32Array);
    this.stackOwn = read("stackOwn", Uint8Array);
    this.stackBytes = read("stackBytes");
    this.stackStart = new Uint32Array(length.length + 1);
    for (let i = 0; i < length.length; i++) this.stackStart[i + 1] = this.stackStart[i] + length[i];
    this.stackCount = length.length;
  }

  readLevels(read) {
    const { facts } = this;
    this.pointMoment = read("pointMoment", Uint32Array);
    this.pointLow = read("pointLow");
    this.pointValue = turned(read("pointValue"), this.pointMoment.length);
    this.levels = [{ bucket: facts.bucket, point: Uint32Array.from(this.pointMoment.keys()), low: this.pointLow }];
    for (let i = 0; i < facts.coarser; i++) {
      this.levels.push({ bucket: facts.bucket * 2 ** (i + 1), point: read(`levelPoint${i}`, Uint32Array), low: read(`levelLow${i}`) });
    }
    // Which series a source, and the rest of a place, count to.
    const index = new Map(facts.series.map(([place, kind, stack], series) => [`${place} ${kind} ${stack}`, series]));
    this.placeCount = facts.lanes.reduce((most, lane) => Math.max(most, lane.place + 1), 0);
    const ofPlace = (kind) => Uint32Array.from({ length: this.placeCount }, (_, place) => index.get(`${place} ${kind} null`));
    this.roundingOf = ofPlace("rounding");
    this.pendingOf = ofPlace("pending");
    this.cachedOf = ofPlace("cached");
    const othersOf = ofPlace("others");
    this.placeOfLane = Uint32Array.from(facts.lanes, (lane) => lane.place);
    this.seriesOf = Uint32Array.from(this.sourceStack, (stack, source) => {
      const place = this.placeOfLane[this.sourceLane[source]];
      return index.get(`${place} stack ${stack}`) ?? othersOf[place];
    });
  }

  // All changes by moment, in three arrays; those of moment m begin at changeStart[m].
  sortChanges() {
    const { blocks, mapped, end } = this;
    const start = new Uint32Array(end + 2);
    const each = (visit) => {
      const at = (moment, kind, item) => moment <= end && visit(moment, kind, item);
      for (let i = 0; i < mapped.count; i++) {
        at(mapped.first[i], MAPPED, i);
        at(mapped.gone[i], UNMAPPED, i);
      }
      for (let i = 0; i < blocks.count; i++) {
        at(blocks.first[i], BORN, i);
        at(blocks.freed[i], FREED, i);
        at(blocks.gone[i], GONE, i);
      }
    };
    each((moment) => start[moment + 1]++);
    for (let m = 0; m <= end; m++) start[m + 1] += start[m];
    const next = start.slice();
    this.changeKind = new Uint8Array(start[end + 1]);
    this.changeItem = new Uint32Array(start[end + 1]);
    each((moment, kind, item) => {
      const place = next[moment]++;
      this.changeKind[place] = kind;
      this.changeItem[place] = item;
    });
    this.changeStart = start;
  }

  laneOf(block) {
    return this.sourceLane[this.blocks.source[block]];
  }

  stackOf(block) {
    return this.sourceStack[this.blocks.source[block]];
  }

  isAt(block, moment) {
    return this.blocks.first[block] <= moment && moment < this.blocks.gone[block];
  }

  isPendingAt(block, moment) {
    return this.blocks.freed[block] <= moment && moment < this.blocks.gone[block];
  }

  // The state at a moment: a fresh array of the values of all series.
  stateAt(moment) {
    const point = lastNotAbove(this.pointMoment, moment);
    const series = this.facts.series.length;
    const state = point < 0 ? new Float64Array(series) : this.pointValue.slice(point * series, (point + 1) * series);
    for (let m = point < 0 ? 0 : this.pointMoment[point] + 1; m <= moment; m++) this.step(state, m);
    return state;
  }

  // Turns the state of the moment before into that of a moment.
  step(state, moment) {
    const { blocks, mapped } = this;
    for (let c = this.changeStart[moment]; c < this.changeStart[moment + 1]; c++) {
      const item = this.changeItem[c];
      const kind = this.changeKind[c];
      if (kind <= UNMAPPED) {
        state[this.cachedOf[this.placeOfLane[mapped.lane[item]]]] += kind === MAPPED ? mapped.bytes[item] : -mapped.bytes[item];
        continue;
      }
      const source = blocks.source[item];
      const place = this.placeOfLane[this.sourceLane[source]];
      const bytes = blocks.bytes[item];
      if (kind !== GONE) {
        const sign = kind === BORN ? 1 : -1;
        state[this.seriesOf[source]] += sign * blocks.requested[item];
        state[this.roundingOf[place]] += sign * (bytes - blocks.requested[item]);
      }
      if (kind !== BORN) state[this.pendingOf[place]] += kind === FREED ? bytes : -bytes;
      if (kind !== FREED) state[this.cachedOf[place]] += kind === BORN ? -bytes : bytes;
    }
  }

  // Works out what is used at each moment, in the places that are shown.
  useOnly(shown) {
    const { blocks } = this;
    const used = new Float64Array(this.end + 2);
    for (let i = 0; i < blocks.count; i++) {
      if (!shown[this.placeOfLane[this.laneOf(i)]]) continue;
      used[blocks.first[i]] += blocks.bytes[i];
      used[blocks.gone[i]] -= blocks.bytes[i];
    }
    for (let m = 1; m <= this.end; m++) used[m] += used[m - 1];
    this.used = used;
  }

  // The blocks that are there at a moment, in the places that are shown.
  blocksAt(moment, shown) {
    const found = [];
    for (let i = 0; i < this.blocks.count; i++) {
      if (this.isAt(i, moment) && shown[this.placeOfLane[this.laneOf(i)]]) found.push(i);
    }
    return found;
  }

  // The segments of a moment by address, each with its blocks.
  segmentsAt(moment, shown) {
    const { mapped, blocks } = this;
    const ranges = [];
    for (let i = 0; i < mapped.count; i++) {
      if (mapped.first[i] <= moment && moment < mapped.gone[i] && shown[this.placeOfLane[mapped.lane[i]]]) ranges.push(i);
    }
    ranges.sort((a, b) => mapped.position[a] - mapped.position[b]);
    const segments = [];
    for (const i of ranges) {
      const last = segments[segments.length - 1];
      const [position, bytes, lane, kind] = [mapped.position[i], mapped.bytes[i], mapped.lane[i], mapped.kind[i]];
      if (last && kind & 2 && last.kind === kind && last.lane === lane && last.position + last.bytes === position) last.bytes += bytes;
      else segments.push({ position, bytes, lane, kind, blocks: [] });
    }
    const inside = this.blocksAt(moment, shown).sort((a, b) => blocks.position[a] - blocks.position[b]);
    let at = 0;
    inside.forEach((block, index) => {
      const position = blocks.position[block];
      while (at < segments.length && segments[at].position + segments[at].bytes <= position) at++;
      const segment = segments[at];
      if (!segment || segment.position > position) return;
      const next = index + 1 < inside.length ? blocks.position[inside[index + 1]] : Infinity;
      const end = Math.min(position + blocks.bytes[block], next, segment.position + segment.bytes);
      segment.blocks.push({ block, position, bytes: end - position, pending: this.isPendingAt(block, moment) });
    });
    return segments;
  }

  // An address as the file has it.
  address(position) {
    const { regions } = this.facts;
    const [base, start] = regions[lastNotAbove(regions.map((region) => region[1]), position)];
    return `0x${(BigInt(base) + BigInt(position - start)).toString(16)}`;
  }

  // The frames of a stack, innermost first, as lines.
  frames(stack) {
    if (stack >= this.stackCount) return [];
    const frames = this.stackFrame.subarray(this.stackStart[stack], this.stackStart[stack + 1]);
    return Array.from(frames, (frame) => this.line(frame));
  }

  line(frame) {
    const [nameText, fileText, line] = this.facts.frames[frame];
    const name = this.facts.texts[nameText];
    const file = this.facts.texts[fileText];
    if (file === "" || file === "??") return name;
    return name === "" || name === "rust" ? `${file}:${line}` : `${file}:${line} in ${name}`;
  }

  // The line that a stack is told by; without one its blocks' size.
  site(stack) {
    if (stack >= this.stackCount) return `${count(this.facts.unlisted)} more stacks, not listed`;
    const start = this.stackStart[stack];
    if (start === this.stackStart[stack + 1]) return `blocks of ${size(this.stackBytes[stack])}, no stack recorded`;
    return this.line(this.stackFrame[start + this.stackOwn[stack]]);
  }

  lane(lane) {
    const { stream, pool } = this.facts.lanes[lane];
    return `${stream}, ${pool}`;
  }

  // What happened right before a moment, as a sentence.
  told(moment) {
    if (moment === 0) return "the trace begins";
    const said = [];
    for (let c = this.changeStart[moment]; c < this.changeStart[moment + 1]; c++) {
      const item = this.changeItem[c];
      const kind = this.changeKind[c];
      if (kind <= UNMAPPED) {
        said.push(`${size(this.mapped.bytes[item])} ${kind === MAPPED ? "mapped" : "unmapped"}, ${this.lane(this.mapped.lane[item])}`);
        continue;
      }
      const { first, freed, gone, requested } = this.blocks;
      // What never waits comes free as it is given back.
      const atOnce = freed[item] === gone[item];
      if (kind === FREED && (atOnce || freed[item] === first[item])) continue;
      const verb = kind === BORN ? "allocated" : kind === FREED ? "given back" : atOnce ? "freed" : "came free";
      said.push(`${size(requested[item])} ${verb}, ${this.site(this.stackOf(item))}`);
    }
    for (const [row, , text] of this.facts.marks) if (row === moment - 1) said.push(text);
    return said.length ? said.join("; ") : "an event that changes nothing";
  }
}

// Values by point, from those by series: what is looked at together lies together.
function turned(values, points) {
  const turned = new Float64Array(values.length);
  const series = values.length / points;
  for (let s = 0, from = 0; s < series; s++) {
    for (let point = 0, to = s; point < points; point++, to += series) turned[to] = values[from++];
  }
  return turned;
}
