// A page stays live: an event makes it fetch itself and replace the regions that the event is about.
"use strict";
const wanted = new Set();
let timer = null, busy = false, looked = 0;
function about(region, name) {
  return (region.dataset.live || "").split(" ").some((word) => word === name || name === "all" || name.startsWith(word + ":") || word.startsWith(name + ":"));
}
function refresh(name) {
  wanted.add(name);
  document.dispatchEvent(new CustomEvent("healer:" + name.split(":")[0]));
  // At once, and in a storm of events once a second.
  if (!timer) timer = setTimeout(swap, Math.max(200, looked + 1000 - Date.now()));
}
async function swap() {
  timer = null;
  if (busy) { timer = setTimeout(swap, 300); return; }
  const names = [...wanted];
  wanted.clear();
  const regions = [...document.querySelectorAll("[data-live]")].filter((region) => names.some((name) => about(region, name)));
  if (!regions.length || document.hidden && (names.forEach((name) => wanted.add(name)), true)) return;
  busy = true;
  looked = Date.now();
  try {
    const answer = await fetch(location.href, { headers: { "X-Partial": "1", Accept: "text/html" } });
    mark({ reads: answer.status < 500 });
    if (answer.redirected && new URL(answer.url).pathname === "/sign-in") return typed() ? mark({ reads: false }) : location.assign(answer.url);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!page.getElementById("say")) return; // it is no page of ours
    setClock(page);
    for (const region of regions) exchange(region, page.getElementById(region.id));
    freshen();
  } catch { mark({ reads: false }); names.forEach((name) => wanted.add(name)); } finally { busy = false; }
}
const strip = (html) => html.replace(/(<time[^>]*data-ago[^>]*>)[^<]*/g, "$1");
// What scripts drew into a page is not news.
function asServed(region) {
  const copy = region.cloneNode(true);
  for (const one of copy.querySelectorAll("[data-draw]")) one.replaceChildren();
  return strip(copy.innerHTML);
}
function exchange(old, fresh) {
  if (!fresh || asServed(old) === asServed(fresh)) return;
  const drawn = new Map([...old.querySelectorAll("[data-draw]")].map((one) => [one.id, one]));
  const focus = old.contains(document.activeElement) ? addressOf(document.activeElement) : null;
  const at = old.querySelector("tr.at")?.dataset.row;
  for (const one of old.querySelectorAll("details[data-keep]")) {
    const twin = fresh.querySelector(`details[data-keep="${one.dataset.keep}"]`);
    if (twin) twin.open = one.open;
  }
  const known = new Set([...old.querySelectorAll("[data-row]")].map((row) => row.dataset.row));
  old.innerHTML = fresh.innerHTML;
  for (const one of old.querySelectorAll("[data-draw]")) {
    const before = drawn.get(one.id);
    if (before && before.dataset.draw === one.dataset.draw && before.dataset.chart === one.dataset.chart) one.replaceWith(before);
  }
  document.dispatchEvent(new CustomEvent("healer:swapped"));
  for (const row of old.querySelectorAll("[data-row]")) {
    if (known.size && !known.has(row.dataset.row)) row.classList.add("changed");
    if (row.dataset.row === at) row.classList.add("at");
  }
  if (focus) focusAgain(old, focus);
}
// A selector of an element that also finds its successor after the exchange. All attributes count: the buttons of
// two rows may share a title, and the focus must not move from one run to another.
const NAMES = ["data-act", "data-title", "data-png", "href", "name", "value", "aria-label"];
function addressOf(node) {
  if (node.id) return "#" + CSS.escape(node.id);
  if (node.tagName === "SUMMARY" && node.parentNode.dataset.keep) return `details[data-keep="${CSS.escape(node.parentNode.dataset.keep)}"] summary`;
  return NAMES.filter((key) => node.hasAttribute(key)).map((key) => `[${key}="${CSS.escape(node.getAttribute(key))}"]`).join("") || "#main";
}
// What is gone leaves the focus in the page's content, not at its top.
function focusAgain(within, address) {
  (within.querySelector(address) || $("main")).focus({ preventScroll: true });
}
// Live only while events come and the page can be read: while the database is away its events are silent, and
// what the page shows is old.
const link = { hears: null, reads: true };
function mark(part) {
  const was = link.hears;
  Object.assign(link, part);
  if (link.hears === null && link.reads) return; // it has only begun to connect
  const state = link.hears && link.reads ? "live" : "reconnecting";
  $("live").dataset.state = state;
  $("live").textContent = w(state);
  if (was === false && part.hears) refresh("all");
}
function listen() {
  const source = new EventSource("/api/v1/events/stream");
  source.onopen = () => mark({ hears: true });
  source.onerror = () => {
    mark({ hears: false });
    // A stream that was refused for good stays closed: try again by hand.
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 5000);
  };
  for (const name of ["incident", "run", "fleet", "breaker", "pause", "audit"]) {
    source.addEventListener(name, (event) => {
      let id = "";
      try { id = JSON.parse(event.data).id || ""; } catch { /* the name is enough */ }
      refresh(id && (name === "incident" || name === "run") ? `${name}:${id}` : name);
    });
  }
  source.addEventListener("reset", () => refresh("all"));
}
document.addEventListener("visibilitychange", () => { if (!document.hidden && wanted.size) swap(); });

// The age of Slurm's picture grows without an event; this also heals a page that missed one.
setInterval(() => refresh("all"), 20000);
listen();
