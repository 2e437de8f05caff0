// The drawing of a composition, and the timeline of a trace.

import { request } from "./api.js";
import { element, ms, svg } from "./dom.js";

const ALLOWED = new Set(["svg", "title", "g", "rect", "path", "text"]);

// The drawing is made by the node. Still only known elements are taken from it, without its styles
// (they are in graph.css) and without attributes that could run anything.
function adopted(node) {
  if (node.nodeType === Node.TEXT_NODE) return document.createTextNode(node.data);
  if (node.nodeType !== Node.ELEMENT_NODE || !ALLOWED.has(node.localName)) return null;
  const made = document.createElementNS("http://www.w3.org/2000/svg", node.localName);
  for (const { name, value } of node.attributes)
    if (!name.startsWith("on") && !name.includes(":") && name !== "style" && name !== "href")
      made.setAttribute(name, value);
  for (const child of node.childNodes) {
    const copy = adopted(child);
    if (copy) made.append(copy);
  }
  return made;
}

// states: by application, "ran" or "failed".
export async function drawing(name, states = new Map()) {
  const text = await (await request(`v1/compositions/${encodeURIComponent(name)}/graph`)).text();
  const bare = text.replace(/<style>[^<]*<\/style>/, "");  // the policy of the page forbids it
  const parsed = new DOMParser().parseFromString(bare, "image/svg+xml");
  const made = adopted(parsed.documentElement);
  if (!made) return element("p", { class: "dim" }, "The drawing cannot be shown.");
  for (const part of made.querySelectorAll("[data-application]")) {
    const state = states.get(part.getAttribute("data-application"));
    if (state) part.classList.add(state);
  }
  return element("div", { class: "graph", tabindex: "0", role: "region", "aria-label": `graph of ${name}` }, made);
}

const ROW = 18, LEFT = 150, WIDTH = 1000, SHOWN = 400;

// The spans of a trace in the Chrome format, a row for each track and instance that overlaps.
export function timeline(trace) {
  const names = new Map();
  for (const event of trace.traceEvents)
    if (event.ph === "M") names.set(event.tid, event.args.name);
  const spans = trace.traceEvents.filter(event => event.ph === "X");
  const end = Math.max(1, ...spans.slice(0, SHOWN).map(span => span.ts + span.dur));
  const rows = [];
  for (const span of spans.slice(0, SHOWN)) {
    const track = names.get(span.tid) || "";
    let row = rows.find(one => one.track === track && one.end <= span.ts);
    if (!row) rows.push(row = { track, end: 0, spans: [] });
    row.end = span.ts + span.dur;
    row.spans.push(span);
  }
  rows.sort((a, b) => a.spans[0].tid - b.spans[0].tid);
  const scale = (WIDTH - LEFT) / end;
  const drawn = rows.flatMap((row, at) => [
    svg("text", { x: 0, y: at * ROW + 13 }, row.track.slice(0, 24)),
    ...row.spans.map(span => {
      const label = `${span.name}[${span.args.instance}] ${row.track}: ${ms(span.dur / 1000)}`;
      const kind = row.track === "queue" ? " waits" : row.track.endsWith(" stages") ? " stage" : "";
      return svg("rect", { class: "span" + kind, x: LEFT + span.ts * scale, y: at * ROW + 3,
        width: Math.max(1, span.dur * scale), height: ROW - 5, rx: 2, "aria-label": label },
        svg("title", {}, label));
    }),
  ]);
  const height = rows.length * ROW + 20;
  const picture = svg("svg", { class: "timeline", viewBox: `0 0 ${WIDTH} ${height}`, role: "img",
    "aria-label": `timeline of ${spans.length} spans over ${ms(end / 1000)}` }, ...drawn,
    svg("text", { x: LEFT, y: height - 4 }, "0"),
    svg("text", { x: WIDTH, y: height - 4, "text-anchor": "end" }, ms(end / 1000)));
  const left = spans.length - SHOWN + (trace.otherData.left_out || 0);
  const note = left > 0 ? element("p", { class: "dim" }, `${left} more spans are not shown.`) : null;
  return element("div", {}, picture, note);
}
