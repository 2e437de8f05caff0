// The nodes of a cluster, as the asked one sees them.

import { json } from "./api.js";
import { bytes, element, facts, ms, table } from "./dom.js";

const PAUSE_MS = 1000;
const GOOD = ["self", "alive"];

function engines(member) {
  return Object.entries(member.engines)
    .map(([backend, count]) => `${backend} ${member.free[backend] || 0} of ${count}`).join(", ");
}

// Which part of its engines a node uses, of the backend that is used most.
function load(member) {
  const parts = Object.entries(member.engines).filter(([, count]) => count)
    .map(([backend, count]) => (count - (member.free[backend] || 0)) / count);
  return parts.length ? (100 * Math.max(...parts)).toFixed(0) + " %" : "";
}

function nodes(found) {
  const rows = found.members.map(one => [
    one.name,
    element("span", { class: GOOD.includes(one.state) ? "good" : "bad" },
      one.state === "self" ? "this node" : one.state),
    one.voter ? "yes" : "no", engines(one), load(one), String(one.waiting), String(one.sent),
    String(one.served), one.round_trip_s ? ms(1000 * one.round_trip_s) : ""]);
  return table("nodes", [["Node"], ["State"], ["Voter"], ["Free engines"], ["Load", "number"],
    ["Waiting", "number"], ["Sent there", "number"], ["Served for it", "number"],
    ["Round trip", "number"]], rows, "No nodes.");
}

function tenants(found) {
  const names = [...new Set(found.members.flatMap(one => Object.keys(one.used_s)))].sort();
  const rows = names.map(name => {
    const used = found.members.map(one => one.used_s[name] || 0);
    const sum = used.reduce((all, one) => all + one, 0);
    return [name, ...used.map(one => one.toFixed(1) + " s"), sum.toFixed(1) + " s"];
  });
  return table("tenants", [["Tenant"], ...found.members.map(one => [one.name, "number"]),
    ["All", "number"]], rows, "No tenant has used an engine yet.");
}

export class Cluster {
  async show(view) {
    const place = element("div");
    view.replaceChildren(element("h2", {}, "Cluster"), place);
    await this.load(place);
    this.follow(place);
  }

  // Nodes come and go also while this one runs nothing.
  async follow(place) {
    for (;;) {
      await new Promise(resolve => setTimeout(resolve, PAUSE_MS));
      if (!place.isConnected) return;
      if (document.visibilityState !== "visible" || place.contains(document.activeElement)) continue;
      try {
        await this.load(place);
      } catch (error) {
        place.replaceChildren(element("p", { class: "bad" }, error.message));
      }
    }
  }

  async load(place) {
    const found = await json("v1/cluster");
    if (!found) {
      place.replaceChildren(element("p", { class: "dim" }, "This node is in no cluster."));
      return;
    }
    place.replaceChildren(...[
      !found.majority && found.members.some(one => one.voter) ? element("p", { class: "bad" },
        "This node sees a minority of the voters only: changes are not acknowledged.") : null,
      found.problem ? element("p", { class: "bad" }, found.problem) : null,
      found.full_voters.length ? element("p", { class: "bad" },
        "No room for all copies of asynchronous invocations of this node: "
        + `${found.full_voters.join(", ")}.`) : null,
      nodes(found),
      element("h3", {}, "Engine time of tenants, since the start of each node"),
      tenants(found),
      element("h3", {}, "This node"),
      facts([["Calls sent", `${found.sent_calls}, ${found.lost_calls} lost`],
        ["Calls served", String(found.served_calls)],
        ["Changes of the catalogue", String(found.registered)],
        ["Copies of asynchronous invocations",
          `${found.kept_copies}, ${bytes(found.kept_copies_bytes)}`],
        ["Taken over", String(found.taken_over)],
        ["Sent", bytes(found.sent_bytes)], ["Received", bytes(found.received_bytes)]]),
    ].filter(Boolean));
  }
}
