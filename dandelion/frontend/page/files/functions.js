// Functions and engines.

import { json, Problem } from "./api.js";
import { bytes, element, facts, link, ms, table } from "./dom.js";

export class Functions {
  show(view) {
    this.place = element("div");
    view.replaceChildren(element("h2", {}, "Functions"),
      element("p", { class: "dim" }, "Calls on engines since the node was started."), this.place);
  }

  update(activity) {
    if (!this.place || !this.place.isConnected || this.place.contains(document.activeElement)) return;
    const rows = activity.functions.map(one => [link(["catalogue", one.name], one.name), String(one.calls),
      one.failures ? element("span", { class: "bad" }, String(one.failures)) : "0", String(one.waiting),
      ms(one.p50_ms), ms(one.p99_ms), one.run_s.toFixed(2) + " s", one.queued_s.toFixed(2) + " s"]);
    this.place.replaceChildren(table("functions", [["Function"], ["Calls", "number"], ["Failed", "number"],
      ["Waiting", "number"], ["p50", "number"], ["p99", "number"], ["Ran", "number"], ["Waited", "number"]],
      rows, "No function was called yet."));
  }
}

async function part(place, work) {
  try {
    place.replaceChildren(...await work());
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    place.replaceChildren(element("p", { class: "dim" }, error.message));
  }
}

async function capacity() {
  const found = await json("v1/capacity");
  const [tenant] = found.tenants;
  const limit = (used, most, show = String) => most === null || most === undefined
    ? show(used) : `${show(used)} of ${show(most)}`;
  const engines = found.engines.map(one => [one.name || one.backend, String(one.engines), one.state,
    String(one.running), String(one.waiting), (100 * one.busy).toFixed(0) + " %",
    one.constants_bytes ? `${bytes(one.constants_used_bytes)} of ${bytes(one.constants_bytes)}` : ""]);
  return [
    element("h3", {}, `Tenant ${tenant.name}`),
    facts([["Share", (100 * tenant.share).toFixed(0) + " %"],
      ["Invocations", limit(tenant.invocations, tenant.quota.invocations)],
      ["Calls", limit(tenant.calls, tenant.quota.calls)],
      ["Waiting", limit(tenant.waiting, tenant.quota.queue_length)],
      ["Arena", limit(tenant.arena_bytes, tenant.quota.arena_bytes, bytes)],
      ["Device memory", limit(tenant.device_bytes, tenant.quota.device_bytes, bytes)]]),
    element("h3", {}, "Capacity"),
    facts([["Arena in use", `${bytes(found.arena.used_bytes)} of ${bytes(found.arena.total_bytes)}`],
      ["Invocations", `${found.invocations} of ${found.invocations_limit}`]]),
    table("engines by backend", [["Backend"], ["Engines", "number"], ["State"], ["Running", "number"],
      ["Waiting", "number"], ["Busy", "number"], ["Constants"]], engines, "No engines."),
  ];
}

async function engines() {
  const found = await json("v1/engines");
  const rows = found.engines.map(one => [one.name || one.backend, one.description,
    element("span", { class: one.state === "ready" ? "good" : "dim" }, one.state), String(one.busy), String(one.calls),
    String(one.failures), one.reason]);
  return [element("h3", {}, "Engines"), table("engines", [["Engine"], ["Device"], ["State"],
    ["Busy", "number"], ["Calls", "number"], ["Failed", "number"], ["Reason"]], rows, "No engines.")];
}

export class Engines {
  show(view) {
    this.places = [element("div"), element("div")];
    view.replaceChildren(element("h2", {}, "Engines and tenant"), ...this.places);
    return this.load();
  }

  async load() {
    await Promise.all([part(this.places[0], capacity), part(this.places[1], engines)]);
  }

  update() {
    if (this.places && this.places[0].isConnected) return this.load();
  }
}
