// What every page does: stay live, keys, and the one dialog through which anything is done.
"use strict";
const $ = (id) => document.getElementById(id);
const csrf = document.querySelector('meta[name="healer-csrf"]').content;
const say = (text) => { $("say").textContent = text; };
const el = (tag, text, name) => { const e = document.createElement(tag); if (text) e.textContent = text; if (name) e.className = name; return e; };

// --- times: the same steps as healer/console/words.py -----------------------------------------
const SPANS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
let skew = 0; // our clock against the server's, so that "ago" is right on a machine whose clock is not
function span(seconds) {
  for (let i = 0; i < 4; i++) {
    const [size, unit] = SPANS[i];
    if (seconds >= size) {
      const rest = Math.floor((seconds % size) / (SPANS[i + 1] || [1])[0]);
      return Math.floor(seconds / size) + " " + w(unit) + (i < 2 && rest ? ` ${rest} ${w(SPANS[i + 1][1])}` : "");
    }
  }
  return "0 " + w("s");
}
function ago(moment) {
  const seconds = (Date.now() + skew - moment) / 1000, far = Math.floor(Math.abs(seconds));
  return far < 1 ? w("just now") : w(seconds > 0 ? "{span} ago" : "in {span}", { span: span(far) });
}
function freshen() {
  for (const time of document.querySelectorAll("time[data-ago]")) {
    const text = ago(Date.parse(time.dateTime));
    if (time.textContent !== text) time.textContent = text;
  }
}
setInterval(freshen, 5000);

// --- live: an event makes the page fetch itself and swap the regions that are about it ---
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
  const focus = old.contains(document.activeElement) ? trace(document.activeElement) : null;
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
  if (focus) old.querySelector(focus)?.focus({ preventScroll: true });
}
// An address of the focused element that survives the exchange.
function trace(node) {
  if (node.id) return "#" + node.id;
  for (const key of ["data-title", "href"]) if (node.getAttribute(key)) return `[${key}="${CSS.escape(node.getAttribute(key))}"]`;
  return node.tagName === "SUMMARY" && node.parentNode.dataset.keep ? `details[data-keep="${node.parentNode.dataset.keep}"] summary` : "main";
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

// --- the dialog ---------------------------------------------------------------------------------
const newKey = () => crypto.randomUUID ? crypto.randomUUID() : String(Math.random()).slice(2) + Date.now();
let press = null; // the button's data while its dialog is open
const LABELS = { reason: w("Reason"), note: w("Note"), cause: w("Cause (optional)") };
async function send(method, url, body, key) {
  const headers = { "Content-Type": "application/json", "X-Healer-CSRF": csrf };
  if (key) headers["Idempotency-Key"] = key;
  const answer = await fetch(url, { method, headers, body: JSON.stringify(body) });
  const text = await answer.text();
  let data = {};
  try { data = JSON.parse(text); } catch { /* not ours: the status says enough */ }
  return { ok: answer.ok, status: answer.status, data };
}
function open(button) {
  const data = button.dataset;
  press = { data, key: newKey() };
  $("act-title").textContent = data.title;
  $("act-effect").textContent = data.effect;
  $("act-go").textContent = button.firstChild.textContent;
  $("act-go").disabled = false;
  $("act-text").value = data.field && sessionStorage.getItem(draft(data)) || "";
  $("act-text").hidden = $("act-label").hidden = !data.field;
  $("act-text").required = data.field === "reason" || data.field === "note";
  $("act-label").textContent = LABELS[data.field] || "";
  $("act-problem").hidden = true;
  $("act-preview").replaceChildren();
  $("act-inputs").replaceChildren(...(data.inputs ? JSON.parse(data.inputs).map(inputField) : []));
  $("act").showModal();
  ($("act-inputs").querySelector("select, input") || (data.field ? $("act-text") : $("act-go"))).focus();
  if (data.preview) preview(press);
}
async function preview(mine) {
  if (missing()) return $("act-preview").replaceChildren(el("p", w("Fill in first: {name}.", missing())));
  $("act-preview").textContent = w("Checking the guards…");
  let answer;
  try { answer = await send("POST", mine.data.preview + "?dry_run=true", { ...JSON.parse(mine.data.previewBody), ...given() }); } catch { answer = { ok: false, data: { detail: w("No answer.") } }; }
  if (press !== mine) return;
  $("act-preview").replaceChildren(...(answer.ok ? plan(answer.data) : [problem(answer)]));
}
function plan(data) {
  const parts = [], add = (title, part) => parts.push(el("h3", title), part);
  const steps = data.playbook?.steps || data.plan || [];
  if (steps.length) {
    const list = el("ol");
    const lacks = data.not_available || {};
    for (const step of steps) {
      const title = step.title || step.do || step.check || step.wait || step.id, why = lacks[step.id];
      list.append(why ? el("li", w("{title}: {why}", { title, why }), "problem") : el("li", title));
    }
    add(w("Planned steps"), list);
  }
  const jobs = (data.jobs_hit || []).map((job) => typeof job === "string" ? job : job.user ? w("{job} of {user}", { job: job.id, user: job.user }) : job.id);
  add(w("Affected jobs"), el("p", jobs.length ? jobs.join(w(", ")) : w("none")));
  if ((data.restarts || []).length) {
    const list = el("div");
    list.append(...data.restarts.map(restartField));
    add(w("Jobs it would wait for"), list);
  }
  const answers = data.answers || [], against = answers.filter((answer) => answer.kind !== "allow");
  if (answers.length) {
    const list = el("ul");
    for (const answer of against) list.append(el("li", w(answer.kind === "refuse" ? "{guard} refuses: {why}" : "{guard} blocks: {why}", answer), "problem"));
    if (!against.length) list.append(el("li", w("{count} guards checked, all allow.", { count: answers.length })));
    for (const answer of answers) if (answer.kind === "allow" && answer.limit != null) list.append(el("li", w("{guard}: {why}", answer)));
    add(w("Guards now"), list);
  } else if (data.why) add(w("Guards now"), el("p", data.why));
  return parts;
}
async function go(event) {
  event.preventDefault();
  const mine = press, text = $("act-text").value.trim();
  const fail = (node) => { $("act-problem").replaceChildren(node); $("act-problem").hidden = false; $("act-go").disabled = false; };
  if ($("act-text").required && !text) { $("act-text").focus(); return fail(el("span", w("{name} is required: it is recorded in the audit.", { name: LABELS[mine.data.field] }))); }
  if (missing()) { missing().field.focus(); return fail(el("span", w("{name} is required.", missing()))); }
  const body = { ...JSON.parse(mine.data.body), ...given() };
  if (mine.data.field && text) body[mine.data.field] = text;
  $("act-go").disabled = true;
  let answer;
  try { answer = await send(mine.data.method, mine.data.act, body, mine.key); } catch { return fail(el("span", w("No answer from healer. Try again: the same action never runs twice."))); }
  if (press !== mine) return;
  if (answer.status === 401) return location.assign("/sign-in?next=" + encodeURIComponent(location.pathname + location.search));
  if (isFinal(answer)) mine.key = newKey();
  if (!answer.ok) return fail(problem(answer));
  $("act").close();
  say(answer.data.state === "held" ? w("A guard blocks it for now; it continues automatically.") : w("Done."));
  refresh("all");
}
$("act-go").addEventListener("click", go);
$("act-close").addEventListener("click", () => $("act").close());
$("act-text").addEventListener("input", () => sessionStorage.setItem(draft(press.data), $("act-text").value));
$("act").addEventListener("close", () => { sessionStorage.removeItem(draft(press.data)); $("act-text").value = ""; press = null; });
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-act], [data-verify], [data-help]");
  if (!button) { for (const menu of document.querySelectorAll(".menu[open]")) if (!menu.contains(event.target)) menu.open = false; return; }
  if (button.dataset.act) return open(button);
  if ("help" in button.dataset) return $("help").showModal();
  $("verified").textContent = w("Verifying…");
  try {
    const data = await (await fetch(button.dataset.verify)).json();
    $("verified").textContent = data.ok ? w("The chain is intact.") : w("Broken: {what}", { what: (data.broken || []).slice(0, 3).map((one) => w("record {seq}: {what}", one)).join(w("; ")) || data.detail || w("no answer") });
  } catch { $("verified").textContent = w("No answer."); }
});
for (const field of document.querySelectorAll("[data-submit]")) field.addEventListener("change", () => field.form.submit());

// --- keys ---------------------------------------------------------------------------------------
let pending = "";
const PAGES = { f: "/", i: "/incidents", r: "/runs", u: "/rules", a: "/audit", p: "/pauses", s: "/signals", h: "/health", o: "/reports", b: "/playbooks", w: "/approvals" };
function move(step) {
  const rows = [...document.querySelectorAll("[data-rows] tbody tr")];
  if (!rows.length) return;
  const now = rows.findIndex((row) => row.classList.contains("at"));
  rows[now]?.classList.remove("at");
  const row = rows[Math.min(Math.max(now + step, 0), rows.length - 1)];
  row.classList.add("at");
  row.scrollIntoView({ block: "nearest" });
  row.querySelector("a")?.focus({ preventScroll: true });
}
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.closest("input, textarea, select")) { if (event.key === "Escape") event.target.blur(); return; }
  const key = event.key, first = pending;
  pending = "";
  if (first === "g" && PAGES[key]) { location.assign(PAGES[key] + document.querySelector("#nav a").search); }
  else if (key === "g") { pending = "g"; setTimeout(() => { pending = ""; }, 1200); }
  else if (key === "j") move(1);
  else if (key === "k") move(-1);
  else if (key === "/") $("q")?.focus();
  else if (key === "?") $("help").showModal();
  else if (key === "Escape") { const menu = document.querySelector(".menu[open]"); if (menu) menu.open = false; }
  else {
    const button = /^[a-z]$/.test(key) && document.querySelector(`main [data-key="${key}"]`);
    if (!button) return;
    open(button);
  }
  event.preventDefault();
});

const served = document.querySelector("meta[name=healer-now]");
if (served) skew = Date.parse(served.content) - Date.now();
// The age of Slurm's picture grows without an event; this also heals a page that missed one.
setInterval(() => refresh("all"), 20000);
listen();
