// Views by the fragment of the address, and the stream of activity.

import { events, Problem } from "./api.js";
import { showCatalogue, showEntry } from "./catalogue.js";
import { Cluster } from "./cluster.js";
import { element } from "./dom.js";
import { Engines, Functions } from "./functions.js";
import { Invocations, showInvocation } from "./invocations.js";

const view = document.getElementById("view");
const status = document.getElementById("status");
const invocations = new Invocations(), functions = new Functions(), engines = new Engines();
const cluster = new Cluster();
const live = [invocations, functions, engines];
let latest = null, turn = 0;

function fail(error) {
  if (error.name === "AbortError") return;
  view.replaceChildren(element("h2", {}, "It cannot be shown"), element("pre", {}, error.message));
  if (!(error instanceof Problem)) throw error;
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

async function route() {
  const mine = turn += 1;
  const [kind = "invocations", name] = location.hash.replace(/^#\/?/, "").split("/").map(decoded);
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.getAttribute("href") === `#/${kind || "invocations"}`;
    here ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  }
  const place = element("div");
  view.replaceChildren(place);
  document.title = `${name || kind || "invocations"} - Dandelion`;
  try {
    if (kind === "functions") functions.show(place);
    else if (kind === "engines") await engines.show(place);
    else if (kind === "cluster") await cluster.show(place);
    else if (kind === "catalogue" && name) await showEntry(place, name);
    else if (kind === "catalogue") await showCatalogue(place);
    else if (name) await showInvocation(place, name, invocations.list);
    else await invocations.show(place);
    if (latest && mine === turn) functions.update(latest);
  } catch (error) {
    if (mine === turn) fail(error);
  }
}

// Browsers open six connections to a host at most, so a page that is not seen gives its own back.
let stream = new AbortController();
const seen = () => document.visibilityState === "visible";

addEventListener("pagehide", () => stream.abort());
document.addEventListener("visibilitychange", () => { if (!seen()) stream.abort(); });

function becomesVisible() {
  return seen() ? Promise.resolve() : new Promise(resolve =>
    document.addEventListener("visibilitychange", resolve, { once: true }));
}

async function follow() {
  let pause = 1000, lost = false;
  for (;;) {
    await becomesVisible();
    stream = new AbortController();
    try {
      const after = latest ? latest.cursor : Number.MAX_SAFE_INTEGER;
      await events(`v1/activity/events?after=${after}`, stream.signal, activity => {
        latest = activity;
        pause = 1000;
        status.textContent = `${activity.running_count} running, ${activity.cursor} ended`;
        if (lost) invocations.refresh().catch(fail);  // the node may have started anew, and counts from 1
        lost = false;
        for (const one of live) one.update(activity);
      });
      lost = true;
    } catch (error) {
      lost = lost || error.name !== "AbortError";
      status.textContent = error instanceof Problem ? error.message
        : error.name === "AbortError" ? "paused" : "no connection to the node";
    }
    await new Promise(resolve => setTimeout(resolve, pause));
    pause = Math.min(2 * pause, 30000);
  }
}

addEventListener("hashchange", async () => {
  await route();
  view.focus({ preventScroll: true });
  scrollTo(0, 0);
});
route();
follow();
