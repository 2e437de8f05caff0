// What is registered, one of it, and a form to try it.

import { json } from "./api.js";
import { bytes, element, facts, link, table } from "./dom.js";
import { drawing } from "./graph.js";

const KINDS = ["compositions", "functions", "libraries"];

export async function showCatalogue(view) {
  const found = await Promise.all(KINDS.map(kind => json(`v1/${kind}`)));
  const rows = KINDS.flatMap((kind, at) => found[at][kind].map(one => [
    kind === "libraries" ? one.name : link(["catalogue", one.name], one.name), one.kind, String(one.version),
    (one.inputs || []).join(", "), (one.outputs || []).join(", "), (one.formats || []).join(", ")]));
  view.replaceChildren(element("h2", {}, "Catalogue"), table("registered names",
    [["Name"], ["Kind"], ["Version", "number"], ["Inputs"], ["Outputs"], ["Code"]], rows,
    "Nothing is registered."));
}

async function described(name) {
  const { compositions } = await json("v1/compositions");
  const kind = compositions.some(one => one.name === name) ? "compositions" : "functions";
  return json(`v1/${kind}/${encodeURIComponent(name)}`);
}

function typed(spec) {
  if (!spec.dtype) return spec.name;
  const shape = spec.shape ? `[${spec.shape.map(size => size < 0 ? "?" : size).join(", ")}]` : "";
  return `${spec.name}: ${spec.dtype}${shape}`;
}

export async function showEntry(view, name) {
  const found = { inputs: [], outputs: [], static: [], ...await described(name) };
  view.replaceChildren(element("h2", {}, name), facts([["Kind", found.kind],
    ["Version", `${found.version} of ${found.versions.length}`],
    ["Inputs", found.inputs.map(typed).join(", ") || "none"],
    ["Outputs", found.outputs.map(typed).join(", ") || "none"],
    ...(found.static.length ? [["Fixed", found.static.join(", ")]] : [])]));
  if (found.kind === "composition") {
    view.append(element("h3", {}, "Graph"), await drawing(name),
      element("h3", {}, "Text"), element("pre", {}, found.record.text));
  }
  view.append(element("h3", {}, "Try it"), form(name, found));
}

// A set that declares a type takes JSON numbers of this type; for another one the type is chosen.
function value(spec, text, dtype) {
  if (text === "") return null;
  return dtype ? [{ name: spec.name, numbers: JSON.parse(text), dtype }] : text;
}

function types(spec) {
  const given = spec.dtype ? [[spec.dtype, "JSON numbers"]]
    : [["", "text or JSON"], ["float32", "array float32"], ["float64", "array float64"], ["int64", "array int64"]];
  return element("select", { "aria-label": `type of ${spec.name}` },
    ...given.map(([type, text]) => element("option", { value: type }, text)));
}

function form(name, found) {
  const fields = found.inputs.map(spec => element("textarea", { id: `set-${spec.name}`, spellcheck: "false" }));
  const kinds = found.inputs.map(types);
  const answer = element("div", { role: "status" });
  const made = element("form", {}, ...found.inputs.map((spec, at) => element("p", {},
    element("label", { for: `set-${spec.name}` }, typed(spec)), kinds[at], fields[at])), element("button", {}, "Invoke"));
  made.addEventListener("submit", async event => {
    event.preventDefault();
    answer.replaceChildren(element("p", { class: "dim" }, "running"));
    try {
      const sets = Object.fromEntries(found.inputs.map((spec, at) => [spec.name, value(spec, fields[at].value, kinds[at].value)]));
      const result = await json(`v1/invoke/${encodeURIComponent(name)}`, { method: "POST",
        headers: { "Content-Type": "application/json", Accept: "application/json" },
        body: JSON.stringify({ sets }) });
      answer.replaceChildren(...shown(result));
    } catch (error) {
      answer.replaceChildren(element("p", { class: "bad" }, "It failed."), element("pre", {}, error.message));
    }
  });
  return element("div", {}, made, answer);
}

function shown(result) {
  const rows = Object.entries(result.sets).flatMap(([set, items]) => (items || []).map(item => {
    const json = item.numbers !== undefined ? item.numbers : item.value;  // null is a value, too
    const data = item.text ?? (json !== undefined ? JSON.stringify(json) : null);
    const text = data === null ? `${bytes(Math.floor((item.data || "").length * 3 / 4))} of data` : data;
    return [set, item.name, String(item.key || 0), element("pre", {}, text.slice(0, 5000))];
  }));
  return [element("p", {}, "Invocation ", link(["invocations", result.id], result.id)),
    table("result", [["Set"], ["Item"], ["Key", "number"], ["Data"]], rows, "All output sets are empty.")];
}
