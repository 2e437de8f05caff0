// Making elements. Everything from the node becomes text, never markup.

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes))
    if (value !== undefined && value !== null && value !== false)
      made.setAttribute(name, value === true ? "" : value);
  made.append(...children.filter(child => child !== null && child !== undefined));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function link(path, text) {
  return element("a", { href: "#/" + path.map(encodeURIComponent).join("/") }, text);
}

// columns: [title, kind], where kind is "number", "tight" (one line) or absent. rows: arrays of strings and nodes.
export function table(caption, columns, rows, empty) {
  if (!rows.length) return element("p", { class: "dim" }, empty);
  const head = columns.map(([title, kind]) => element("th", { class: kind || null, scope: "col" }, title));
  const body = rows.map(row => element("tr", {},
    ...row.map((cell, at) => element("td", { class: columns[at][1] || null }, cell))));
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    element("table", {}, element("caption", { class: "skip" }, caption),
      element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body)));
}

export function facts(pairs) {
  return element("dl", { class: "facts" }, ...pairs.map(([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}

export function ms(value) {
  if (value >= 10000) return (value / 1000).toFixed(1) + " s";
  return value >= 100 ? value.toFixed(0) + " ms" : value.toPrecision(3) + " ms";
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
  return `${at ? value.toFixed(1) : value} ${units[at]}`;
}

export function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString(undefined, { hour12: false });
}

export function outcome(text) {
  return element("span", { class: text === "ok" ? "good" : "bad" }, text);
}

// Which part of a duration was waiting and which was running.
export function split(queued, ran) {
  const whole = Math.max(queued + ran, 1e-9);
  const label = `waited ${ms(queued)}, ran ${ms(ran)}`;
  const at = 100 * queued / whole;
  return svg("svg", { class: "bar", viewBox: "0 0 100 4", preserveAspectRatio: "none", role: "img",
    "aria-label": label }, svg("title", {}, label),
    svg("rect", { class: "queue", width: at, height: 4 }),
    svg("rect", { class: "run", x: at, width: 100 - at, height: 4 }));
}
