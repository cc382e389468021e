// The verdict: the cause first, then what it rests on. Texts are set as texts, never as HTML.

// An element with a class, and children that are elements or texts.
function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children.filter((child) => child !== null));
  return element;
}

const MOMENTS = {
  out_of_memory: "Memory ran out at ",
  stall: "No request failed, but the host waited for memory; shown is the wait at ",
  peak: "No request failed; shown is the peak, at ",
  end: "Shown is the end, at ",
};

function showVerdict(room, device, goTo) {
  const { verdict, ledger } = device.facts;
  const unsure = verdict.cause === "X";
  room.replaceChildren(
    make("div", "headline",
      make("span", unsure ? "cause unsure" : "cause", verdict.cause),
      make("strong", "", verdict.title || "nothing is known"),
      make("span", "faint", unsure ? "" : explains(verdict))),
    make("p", "", ...asked(verdict, goTo)),
  );
  const [first, ...others] = verdict.findings;
  if (first) room.append(...finding(first));
  room.append(ledgerBar(ledger, verdict.ledger));
  const more = make("details", "", make("summary", "", "More: other causes, what would have helped, growth"));
  for (const other of others) {
    more.append(make("h3", "", other.cause === "X" ? "What the evidence lacks" : `${other.cause}  ${other.title} ${explains(other)}`), ...finding(other));
  }
  const told = verdict.counterfactuals.filter((one) => one.fits !== null);
  if (told.length) more.append(make("h3", "", "Would it have fitted if"), counterfactuals(told));
  if (verdict.growth && verdict.growth.gained_bytes > 0) more.append(...growth(verdict.growth));
  for (const warning of verdict.warnings) more.append(make("p", "faint", `note: ${warning}`));
  if (more.childElementCount > 1) room.append(more);
}

function explains(one) {
  return `${one.sufficient ? "sufficient, " : ""}explains ${size(one.explained_bytes)}, confidence ${Math.round(100 * one.confidence)} %`;
}

function asked(verdict, goTo) {
  const parts = [];
  if (verdict.request_bytes !== null && verdict.deficit_bytes !== null) {
    const site = verdict.request_site && verdict.request_site.stack.length ? ` at ${verdict.request_site.site}` : "";
    parts.push(`${size(verdict.request_bytes)} were asked for${site}; ${size(verdict.deficit_bytes)} were missing. `);
  }
  if (verdict.event !== null) {
    const button = make("button", "", `event ${count(verdict.event)}`);
    button.type = "button";
    button.addEventListener("click", () => goTo(verdict.event));
    parts.push(MOMENTS[verdict.moment], button);
  }
  return parts;
}

function finding(one) {
  const parts = [make("ul", "", ...one.evidence.map((line) => make("li", "", line)))];
  if (one.cause !== "X") parts.push(make("p", "faint", `not it if: ${one.refuted_by}`));
  for (const advice of one.advice) parts.push(make("p", "advice", `${size(advice.bytes)}: ${advice.text}`));
  return parts;
}

// Where each byte is, as one bar.
function ledgerBar(ledger, sums) {
  const colours = {
    "live": "var(--accent)",
    "rounding": "var(--rounding)",
    "pending": "var(--pending)",
    "outside of the allocator": "var(--bad)",
    "free in its segments": "var(--others)",
    "free on the device": "var(--grid)",
  };
  const bar = make("div", "ledger");
  const keys = make("div", "keys");
  for (const [name, bytes] of ledger) {
    const part = make("i");
    part.style.flexGrow = bytes / Math.max(1, sums.total_bytes);
    part.style.background = colours[name] ?? "var(--cached-line)";
    part.title = `${name}: ${exactly(bytes)}`;
    bar.append(part);
    const swatch = make("i", "swatch");
    swatch.style.background = colours[name] ?? "var(--cached-line)";
    keys.append(make("span", "", swatch, `${name} ${size(bytes)}`));
  }
  return make("div", "", bar, keys);
}

function counterfactuals(told) {
  const table = make("table");
  for (const one of told) {
    const fits = make("td", one.fits ? "yes" : "no", one.fits ? "yes" : "no");
    table.append(make("tr", "", fits, make("td", "number", size(one.gained_bytes)), make("td", "", one.if)));
  }
  return table;
}

function growth(one) {
  const line = `${size(Math.abs(one.bytes_per_iteration))} an iteration over ${count(one.iterations)} iterations (${one.iteration}), ${size(one.gained_bytes)} in all`;
  const sites = one.sites.map((site) => make("li", "", `${size(site.bytes)} in ${count(site.blocks)} blocks, ${site.site}`));
  return [make("h3", "", "Growth"), make("p", "", line), make("ul", "", ...sites)];
}
