// The page: what is shown, what was chosen, and what keys and pointers do.

class View {
  constructor(facts, columns) {
    this.all = { facts, columns };
    this.chosen = null;
    this.chosenBlock = null;
    this.byTime = false;
    this.palette = new Palette();
    this.chart = new Chart(this);
    this.map = new MemoryMap(this);
    this.use(0);
  }

  // Shows a device.
  use(index) {
    this.device = new Device(this.all.facts.devices[index], this.all.columns[index]);
    this.streamsOff = new Set();
    this.poolsOff = new Set();
    this.moment = Math.min(this.device.facts.moment, this.device.end);
    this.chosen = null;
    this.chosenBlock = null;
    this.filter();
    this.setAxis(false);
    this.showFilters();
    showVerdict(document.getElementById("verdict"), this.device, (moment) => this.goTo(moment));
  }

  // Works out what the filters let through.
  filter() {
    const { device } = this;
    const placeShown = new Array(device.placeCount).fill(false);
    for (const lane of device.facts.lanes) {
      if (!this.streamsOff.has(lane.stream) && !this.poolsOff.has(lane.pool)) placeShown[lane.place] = true;
    }
    this.shown = placeShown;
    this.bands = bandsOf(device, placeShown);
    this.rankOf = new Map(this.bands.filter((band) => band.kind === "stack").map((band) => [band.stack, band.rank]));
    device.useOnly(placeShown);
    const seriesShown = device.facts.series.map(([place]) => placeShown[place]);
    this.most = 0;
    for (let point = 0, at = 0; point < device.pointMoment.length; point++) {
      let reserved = 0;
      for (let series = 0; series < seriesShown.length; series++, at++) {
        if (seriesShown[series]) reserved += device.pointValue[at];
      }
      this.most = Math.max(this.most, reserved);
    }
  }

  setAxis(byTime) {
    this.axis = axisOf(this.device, byTime);
    this.from = this.axis.from;
    this.to = this.axis.to;
    document.getElementById("by-event").setAttribute("aria-pressed", !this.axis.byTime);
    document.getElementById("by-time").setAttribute("aria-pressed", this.axis.byTime);
    document.getElementById("by-time").disabled = !this.device.time;
    this.changed(true);
  }

  stackColour(stack) {
    const rank = this.rankOf.get(stack);
    return rank === undefined ? this.palette.others : this.palette.stack(rank);
  }

  colour(band) {
    return band.kind === "stack" ? this.palette.stack(band.rank) : this.palette[band.kind];
  }

  othersAt() {
    const state = this.device.stateAt(this.moment);
    return this.bands.find((band) => band.kind === "others").series.reduce((sum, series) => sum + state[series], 0);
  }

  // Draws with the next frame; the panels only if they are about something else.
  changed(panels) {
    this.panelsDue = this.panelsDue || panels;
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => this.frame());
  }

  frame() {
    this.due = false;
    this.chart.draw();
    if (this.panelsDue) {
      this.panelsDue = false;
      showMoment(this);
      showDetail(this);
      this.map.draw();
    }
    document.documentElement.dataset.drawn = "yes";
  }

  choose(id, block = null) {
    this.chosen = id;
    this.chosenBlock = block;
    this.changed(true);
  }

  goTo(moment) {
    this.moment = Math.max(0, Math.min(this.device.end, moment));
    const place = this.axis.place(this.moment);
    const span = this.to - this.from;
    if (place < this.from || place > this.to - span / 100) this.look(place - span / 2, place + span / 2);
    this.changed(true);
  }

  // Shows a span; it stays within the trace.
  look(from, to) {
    const { axis } = this;
    const span = Math.min(axis.to - axis.from, Math.max(axis.least, to - from));
    const middle = (from + to) / 2;
    this.from = Math.max(axis.from, Math.min(axis.to - span, middle - span / 2));
    this.to = this.from + span;
    this.changed(false);
  }

  zoom(factor, around = (this.from + this.to) / 2) {
    const span = this.to - this.from;
    const least = this.axis.least / span;
    const by = Math.max(factor, least);
    this.look(around - (around - this.from) * by, around + (this.to - around) * by);
  }

  pan(part) {
    const by = (this.to - this.from) * part;
    this.look(this.from + by, this.to + by);
  }

  nextFailure() {
    const rows = this.device.facts.marks.filter(([, kind]) => kind === "oom").map(([row]) => row);
    if (rows.length) this.goTo(rows.find((row) => row > this.moment) ?? rows[0]);
  }

  showFilters() {
    const { lanes } = this.device.facts;
    const group = (title, names, off) => {
      if (names.length < 2) return null;
      const buttons = names.map((name) => {
        const button = make("button", "", name);
        button.type = "button";
        button.dataset.filter = name;
        button.setAttribute("aria-pressed", !off.has(name));
        button.addEventListener("click", () => {
          if (!off.delete(name)) off.add(name);
          this.filter();
          this.showFilters();
          this.changed(true);
        });
        return button;
      });
      return make("div", "", make("span", "faint", title), ...buttons);
    };
    const names = (key) => [...new Set(lanes.map((lane) => lane[key]))];
    const groups = [group("Streams", names("stream"), this.streamsOff), group("Pools", names("pool"), this.poolsOff)];
    document.getElementById("filters").replaceChildren(...groups.filter(Boolean));
  }

  setTheme(theme) {
    document.documentElement.dataset.theme = theme;
    document.getElementById("theme").textContent = theme === "dark" ? "Light" : "Dark";
    this.palette = new Palette();
    this.changed(true);
  }
}

function showKinds(view) {
  const key = (className, text) => make("span", "", make("i", `swatch ${className}`), text);
  const { limit, capacity } = view.device.facts;
  document.getElementById("kinds").replaceChildren(
    key("others", "other stacks"),
    key("rounding", "rounding"),
    key("pending", "given back, waiting"),
    key("cached", "cached"),
    key("line", "reserved"),
    key("line low", "least in a column"),
    ...(limit ? [key("line limit", "limit")] : []),
    ...(capacity ? [key("line capacity", "capacity")] : []),
  );
}

// Pointers over the chart: hover tells, click chooses, drag and wheel move, two fingers zoom.
function listenToChart(view) {
  const room = document.getElementById("chart");
  const tip = document.getElementById("tip");
  const fingers = new Map();
  let start = null;
  const place = (event) => {
    const box = room.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const along = (x) => view.from + ((x - view.chart.left) / view.chart.plot.width) * (view.to - view.from);
  room.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, place(event));
    room.setPointerCapture(event.pointerId);
    start = { ...place(event), from: view.from, to: view.to, moved: fingers.size > 1 };
  });
  room.addEventListener("pointermove", (event) => {
    const now = place(event);
    if (!fingers.has(event.pointerId)) return hover(now);
    const before = fingers.get(event.pointerId);
    if (fingers.size === 2) {
      const [other] = [...fingers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
      const factor = Math.max(20, Math.abs(before.x - other.x)) / Math.max(20, Math.abs(now.x - other.x));
      view.zoom(factor, along(other.x));
    } else if (start.moved || Math.abs(now.x - start.x) > 4) {
      start.moved = true;
      tip.hidden = true;
      const by = ((start.x - now.x) / view.chart.plot.width) * (start.to - start.from);
      view.look(start.from + by, start.to + by);
    }
    fingers.set(event.pointerId, now);
  });
  const lift = (event) => {
    const click = fingers.delete(event.pointerId) && event.type === "pointerup" && !start.moved;
    if (!click) return;
    const hit = view.chart.hit(place(event).x, place(event).y);
    if (!hit) return;
    view.moment = hit.moment;
    view.choose(hit.band ? hit.band.id : null);
  };
  room.addEventListener("pointerup", lift);
  room.addEventListener("pointercancel", lift);
  room.addEventListener("pointerleave", () => (tip.hidden = true));
  room.addEventListener("wheel", (event) => {
    event.preventDefault();
    const unit = event.deltaMode === 1 ? 16 : 1;
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) view.pan((sideways * unit) / view.chart.plot.width);
    else view.zoom(Math.exp(event.deltaY * unit * 0.002), along(place(event).x));
  }, { passive: false });
  function hover({ x, y }) {
    const hit = view.chart.hit(x, y);
    tip.hidden = !hit;
    if (!hit) return;
    const what = hit.band ? `${size(hit.bytes)} ` : "";
    tip.replaceChildren(make("b", "", what), hit.band ? hit.band.label : "nothing", make("div", "", `moment ${count(hit.moment)}`));
    const right = x > view.chart.width * 0.6;
    tip.style.left = right ? "auto" : `${x + 14}px`;
    tip.style.right = right ? `${view.chart.width - x + 14}px` : "auto";
    tip.style.top = `${Math.min(y + 10, view.chart.height - 60)}px`;
  }
}

function listenToOverview(view) {
  const { overview } = view.chart;
  const move = (event) => {
    const box = overview.getBoundingClientRect();
    const part = (event.clientX - box.left - view.chart.left) / view.chart.plot.width;
    const middle = view.axis.from + part * (view.axis.to - view.axis.from);
    const half = (view.to - view.from) / 2;
    view.look(middle - half, middle + half);
  };
  overview.addEventListener("pointerdown", (event) => {
    overview.setPointerCapture(event.pointerId);
    move(event);
  });
  overview.addEventListener("pointermove", (event) => event.buttons && move(event));
}

function listenToMap(view) {
  view.map.canvas.addEventListener("click", (event) => {
    const box = view.map.canvas.getBoundingClientRect();
    const hit = view.map.hit(event.clientX - box.left, event.clientY - box.top);
    if (hit && hit.block) view.choose(null, hit.block.block);
    else view.choose(hit ? "cached" : null);
  });
}

function listenToKeys(view) {
  const keys = {
    ArrowLeft: (shift) => view.goTo(shift ? view.axis.at(view.axis.place(view.moment) - (view.to - view.from) / 50) : view.moment - 1),
    ArrowRight: (shift) => view.goTo(shift ? view.axis.at(view.axis.place(view.moment) + (view.to - view.from) / 50) : view.moment + 1),
    "+": () => view.zoom(0.5, view.axis.place(view.moment)),
    "=": () => view.zoom(0.5, view.axis.place(view.moment)),
    "-": () => view.zoom(2, view.axis.place(view.moment)),
    0: () => view.look(view.axis.from, view.axis.to),
    a: () => view.pan(-0.2),
    d: () => view.pan(0.2),
    v: () => view.goTo(view.device.facts.moment),
    p: () => view.goTo(view.device.facts.peak),
    e: () => view.goTo(view.device.end),
    o: () => view.nextFailure(),
    t: () => view.setAxis(!view.axis.byTime),
    Escape: () => view.choose(null),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target instanceof HTMLSelectElement) return;
    const act = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act) return;
    event.preventDefault();
    act(event.shiftKey);
  });
}

function listenToButtons(view) {
  const on = (id, act) => document.getElementById(id).addEventListener("click", act);
  on("by-event", () => view.setAxis(false));
  on("by-time", () => view.setAxis(true));
  on("zoom-in", () => view.zoom(0.5));
  on("zoom-out", () => view.zoom(2));
  on("zoom-all", () => view.look(view.axis.from, view.axis.to));
  on("step-back", () => view.goTo(view.moment - 1));
  on("step-on", () => view.goTo(view.moment + 1));
  on("to-verdict", () => view.goTo(view.device.facts.moment));
  on("to-peak", () => view.goTo(view.device.facts.peak));
  on("to-end", () => view.goTo(view.device.end));
  on("theme", () => view.setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  on("help-button", (event) => {
    const help = document.getElementById("help");
    help.hidden = !help.hidden;
    event.currentTarget.setAttribute("aria-expanded", !help.hidden);
  });
}

function showDevices(view, devices) {
  const choice = document.getElementById("device");
  choice.replaceChildren(...devices.map((device, index) => new Option(`${device.index}${device.name ? `, ${device.name}` : ""}`, index)));
  document.getElementById("device-choice").hidden = devices.length < 2;
  choice.addEventListener("change", () => {
    view.use(Number(choice.value));
    showKinds(view);
    showFooter(view);
  });
}

function showFooter(view) {
  const { facts } = view.device;
  const said = [`${count(facts.events)} events, ${count(view.device.blocks.count)} blocks`, `highwater ${view.all.facts.version}`];
  if (facts.faults) said.push(`${count(facts.faults)} events fit nothing that was there, and were left out`);
  if (facts.unlisted) said.push(`${count(facts.unlisted)} stacks are not listed`);
  document.getElementById("footer").textContent = said.join(" · ");
}

function main() {
  const facts = JSON.parse(document.getElementById("facts").textContent);
  const columns = document.getElementById("columns").textContent.split(" ");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  document.documentElement.dataset.theme = dark.matches ? "dark" : "light";
  document.title = `${facts.place}: highwater view`;
  document.getElementById("place").textContent = facts.place;
  const view = new View(facts, columns);
  view.setTheme(document.documentElement.dataset.theme);
  dark.addEventListener("change", () => view.setTheme(dark.matches ? "dark" : "light"));
  showDevices(view, facts.devices);
  showKinds(view);
  showFooter(view);
  listenToChart(view);
  listenToOverview(view);
  listenToMap(view);
  listenToKeys(view);
  listenToButtons(view);
  new ResizeObserver(() => view.changed(true)).observe(document.getElementById("chart"));
}

main();
