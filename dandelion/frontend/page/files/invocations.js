// Recent invocations, and one of them.

import { json, Problem } from "./api.js";
import { clock, element, facts, link, ms, outcome, split, table } from "./dom.js";
import { drawing, timeline } from "./graph.js";

const COLUMNS = [["Started", "tight"], ["Invocation", "tight"], ["Name", "name"], ["Outcome", "name"], ["Duration", "number"],
  ["Calls", "number"], ["Waiting, running"], ["Error"]];
const PAGE = 100;

function row(one) {
  return [clock(one.started_s), link(["invocations", one.id], one.id), link(["catalogue", one.name], one.name),
    outcome(one.outcome), ms(one.duration_ms), String(one.calls), split(one.queued_ms, one.run_ms), one.message.split("\n", 1)[0]];
}

function matches(one, filter) {
  return (!filter.name || one.name === filter.name) && (!filter.failed || one.outcome !== "ok");
}

export class Invocations {
  constructor() {
    this.filter = { name: "", failed: false };
    this.list = [];
    this.more = false;
    this.pending = null;  // what ended while the list is loaded
  }

  async show(view) {
    const name = element("input", { id: "filter-name", value: this.filter.name, autocomplete: "off" });
    const failed = element("input", { id: "filter-failed", type: "checkbox", checked: this.filter.failed });
    const tools = element("form", { class: "tools" },
      element("label", { for: "filter-name" }, "Name "), name,
      element("label", {}, failed, " only failed"), element("button", {}, "Filter"));
    tools.addEventListener("submit", async event => {
      event.preventDefault();
      this.filter = { name: name.value.trim(), failed: failed.checked };
      await this.load();
      this.draw();
    });
    this.place = element("div");
    view.replaceChildren(element("h2", {}, "Invocations"), tools, this.place);
    await this.refresh();
  }

  async refresh() {
    if (!this.place || !this.place.isConnected) return;
    const ended = this.pending = [];
    try {
      await this.load();
    } finally {
      if (this.pending === ended) this.pending = null;  // else it is being loaded again
      this.add(ended);
    }
    this.draw();
  }

  async load(before = 0) {
    const query = new URLSearchParams({ limit: PAGE, failed: this.filter.failed });
    if (this.filter.name) query.set("name", this.filter.name);
    if (before) query.set("before", before);
    const found = await json(`v1/activity?${query}`);
    this.list = before ? [...this.list, ...found.invocations] : found.invocations;
    this.more = found.more;
    this.running = found.running;
  }

  update(activity) {
    if (!this.place || !this.place.isConnected) return;
    if (this.pending) {
      this.pending.unshift(...activity.invocations);
      return;
    }
    this.running = activity.running;
    this.add(activity.invocations);
    if (!this.place.contains(document.activeElement)) this.draw();  // do not take the focus away
  }

  add(ended) {
    const newest = this.list.length ? this.list[0].number : 0;
    const fresh = ended.filter(one => one.number > newest && matches(one, this.filter));
    this.list = [...fresh, ...this.list].slice(0, Math.max(PAGE, this.list.length));
  }

  draw() {
    const running = (this.running || []).map(one => [clock(one.started_s), one.id, one.name, String(one.calls)]);
    const older = element("button", {}, "Show older ones");
    older.addEventListener("click", async () => {
      await this.load(this.list[this.list.length - 1].number);
      this.draw();
    });
    this.place.replaceChildren(
      ...(running.length ? [element("h3", {}, "Running"),
        table("running invocations", [["Started", "tight"], ["Invocation", "tight"], ["Name", "name"], ["Open calls", "number"]], running, "")] : []),
      element("h3", {}, "Ended"),
      table("invocations that ended", COLUMNS, this.list.map(row), "None yet. Invoke something, and it appears here."),
      ...(this.more ? [older] : []));
  }
}

export async function showInvocation(view, id, known) {
  const one = known.find(summary => summary.id === id) || await found(id);
  const title = element("h2", {}, "Invocation ", element("code", {}, id));
  const parts = [title];
  if (one) {
    parts.push(facts([["Name", link(["catalogue", one.name], one.name)], ["Outcome", outcome(one.outcome)],
      ["Started", clock(one.started_s)], ["Duration", ms(one.duration_ms)], ["Calls", String(one.calls)],
      ["Waited", ms(one.queued_ms)], ["Ran", ms(one.run_ms)]]));
    if (one.message) parts.push(element("h3", {}, "Error"), element("pre", {}, one.message));
  }
  view.replaceChildren(...parts);
  await Promise.all([showCalls(place(view), id, one), showLogs(place(view), id)]);
}

function place(view) {
  const made = element("div");
  view.append(made);
  return made;
}

async function showLogs(view, id) {
  try {
    const { lines } = await json(`v1/logs?invocation=${encodeURIComponent(id)}`, { headers: { Accept: "application/json" } });
    if (!lines.length) return;
    const rows = lines.map(line => [`${line.application}[${line.instance}]`, line.level || line.stream, element("code", {}, line.text)]);
    view.append(element("h3", {}, "Logs"), table("lines that functions wrote", [["Instance", "tight"], ["Stream", "tight"], ["Text"]], rows, ""));
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    view.append(element("h3", {}, "Logs"), element("p", { class: "dim" }, error.message));
  }
}

async function showCalls(view, id, one) {
  let trace;
  try {
    trace = await json(`v1/traces/${encodeURIComponent(id)}`);
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    view.append(element("p", { class: "dim" }, error.status === 404
      ? "Its trace is no longer kept (setting keep_traces)." : error.message));
    return;
  }
  view.append(element("h3", {}, "Timeline"), timeline(trace));
  const states = new Map();
  for (const event of trace.traceEvents) if (event.ph === "X") states.set(event.name, "ran");
  if (one && one.outcome !== "ok") {
    const failed = /^[^.]+\.(\S+) \(instance/.exec(one.message);
    if (failed) states.set(failed[1], "failed");
  }
  const name = one ? one.name : trace.traceEvents.find(event => event.cat === "invocation").name;
  const { compositions } = await json("v1/compositions");
  if (compositions.some(known => known.name === name))
    view.append(element("h3", {}, "Graph"), await drawing(name, states));
}

async function found(id) {
  const activity = await json("v1/activity?limit=1000");
  return activity.invocations.find(summary => summary.id === id);
}
