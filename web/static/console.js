// What every page does: times, keys, and the one dialog through which anything is done.
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
function setClock(page) { // either clock may step while the page is open
  const served = page.querySelector("meta[name=healer-now]");
  if (served) skew = Date.parse(served.content) - Date.now();
}
setClock(document);
setInterval(freshen, 5000);

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
  press = { data, key: newKey(), button };
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
  const turn = mine.turn = (mine.turn || 0) + 1; // the answer about an earlier choice may come late
  if (missing()) return $("act-preview").replaceChildren(el("p", w("Fill in first: {name}.", missing())));
  $("act-preview").textContent = w("Checking the guards…");
  let answer;
  try { answer = await send("POST", mine.data.preview + "?dry_run=true", { ...JSON.parse(mine.data.previewBody), ...given() }); } catch { answer = { ok: false, data: { detail: w("No answer.") } }; }
  if (press !== mine || mine.turn !== turn) return;
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
  let answer = null;
  try { answer = await send(mine.data.method, mine.data.act, body, mine.key); } catch { /* said below, while the dialog is this one */ }
  if (press !== mine) return;
  if (!answer) return fail(el("span", w("No answer from healer. Try again: the same action never runs twice.")));
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
$("act").addEventListener("close", () => {
  sessionStorage.removeItem(draft(press.data));
  $("act-text").value = "";
  // The browser returns the focus to the button, unless an event replaced it meanwhile.
  if (!press.button.isConnected) focusAgain(document, addressOf(press.button));
  press = null;
});
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
// Back brings what was selected as the page was left: another cluster than the one that it shows.
addEventListener("pageshow", () => { for (const one of document.querySelectorAll("[data-submit] option")) one.selected = one.defaultSelected; });

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
