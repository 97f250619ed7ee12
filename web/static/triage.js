// The queue of incidents: select rows, then acknowledge or merge them. console.js has the keys that move, and `send`.
"use strict";
(() => {
  const chosen = new Set(); // ids: they outlive an exchange of the rows
  const boxes = () => [...document.querySelectorAll("#list td.pick input")];
  const VERBS = {
    acknowledge: { title: w("Acknowledge"), effect: w("Shows that you are working on these incidents. It stops nothing."), done: w("acknowledged") },
    merge: { title: w("Merge"), effect: w("The others close as parts of one incident. You can split them again."), done: w("merged") },
  };
  document.body.classList.add("picks");

  function show() {
    const open = new Set(boxes().map((box) => box.value));
    for (const id of chosen) if (!open.has(id)) chosen.delete(id); // it is over, or on another page
    for (const box of boxes()) box.checked = chosen.has(box.value);
    const all = $("pick-all");
    if (all) { all.checked = open.size > 0 && chosen.size === open.size; all.indeterminate = chosen.size > 0 && !all.checked; }
    $("bulk").hidden = !chosen.size;
    $("bulk-count").textContent = w("{count} selected", { count: chosen.size });
    $("bulk").querySelector("[data-bulk=merge]").disabled = chosen.size < 2;
  }
  const pick = (box, on) => on ? chosen.add(box.value) : chosen.delete(box.value);
  const here = () => document.querySelector("#list tr.at td.pick input");

  // --- the dialog: what will be done to which, and then what healer confirmed of each ---------------------
  let press = null; // { verb, ids: id -> title, keys: id -> that of its request, answers: id -> that of healer }
  function begin(verb) {
    const picked = chosen.size ? boxes().filter((box) => chosen.has(box.value)) : [here()].filter(Boolean);
    const ids = new Map(picked.map((box) => [box.value, box.dataset.title])); // the most urgent first
    if (!ids.size || verb === "merge" && ids.size < 2) return say(verb === "merge" ? w("Select two or more to merge.") : w("No row selected."));
    press = { verb, ids, keys: new Map(), answers: new Map() };
    const merge = verb === "merge", words = VERBS[verb];
    $("triage-title").textContent = w(ids.size === 1 ? "{title} {count} incident" : "{title} {count} incidents", { title: words.title, count: ids.size });
    $("triage-effect").textContent = words.effect;
    $("triage-go").textContent = words.title;
    $("triage-go").disabled = $("triage-into").disabled = false;
    $("triage-problem").hidden = true;
    for (const name of ["into", "into-label", "reason", "reason-label"]) $("triage-" + name).hidden = !merge;
    $("triage-reason").value = "";
    $("triage-into").replaceChildren(...(merge ? [...ids].map(([id, title]) => new Option(`${id.slice(0, 8)} ${title}`, id)) : []));
    list();
    $("triage").showModal();
    $(merge ? "triage-into" : "triage-go").focus();
  }
  const targets = () => [...press.ids.keys()].filter((id) => press.verb !== "merge" || id !== $("triage-into").value);
  function list() {
    $("triage-list").replaceChildren(...targets().map((id) => {
      const row = el("li", press.ids.get(id)), answer = press.answers.get(id);
      if (answer) row.append(" ", answer.ok ? el("b", answer.text, "good") : answer.node);
      return row;
    }));
  }
  async function tell(mine, id, body) {
    if (!mine.keys.has(id)) mine.keys.set(id, newKey());
    try {
      const answer = await send("POST", `/api/v1/incidents/${id}/${mine.verb}`, body, mine.keys.get(id));
      if (isFinal(answer)) mine.keys.delete(id);
      if (!answer.ok) return { ok: false, node: problem(answer) };
      // 202: stored, and the detector has not taken it yet.
      return { ok: true, later: answer.status === 202, text: answer.status === 202 ? w("stored, will be applied shortly") : VERBS[mine.verb].done };
    } catch { return { ok: false, node: el("span", w("No answer. Try again: the same action never runs twice."), "problem") }; }
  }
  async function go(event) {
    event.preventDefault();
    const mine = press, reason = $("triage-reason").value.trim();
    if (mine.verb === "merge" && !reason) {
      $("triage-problem").textContent = w("{name} is required: it is recorded in the audit.", { name: w("Reason") });
      $("triage-problem").hidden = false;
      return $("triage-reason").focus();
    }
    $("triage-problem").hidden = true;
    $("triage-go").disabled = $("triage-into").disabled = true;
    const body = mine.verb === "merge" ? { into: $("triage-into").value, reason } : {};
    const ids = targets();
    for (const id of ids) {
      if (press !== mine) break; // the dialog was closed: no further request
      if (mine.answers.get(id)?.ok) continue;
      mine.answers.set(id, await tell(mine, id, body));
      if (press === mine) list();
    }
    const answers = [...mine.answers.values()], good = answers.filter((one) => one.ok).length;
    const parts = { good, count: ids.length, done: VERBS[mine.verb].done };
    const text = w(answers.some((one) => one.later) ? "{good} of {count} {done}; some take effect when the detector picks them up." : "{good} of {count} {done}.", parts);
    const stopped = press !== mine && answers.length < ids.length;
    $("bulk-said").textContent = stopped ? w("Stopped: {text}", { text }) : text;
    refresh("all");
    if (press === mine) {
      $("triage-go").disabled = $("triage-into").disabled = false;
      if (good < ids.length) return;
      chosen.clear();
      $("triage").close();
    }
    for (const [id, answer] of mine.answers) if (answer.ok) chosen.delete(id);
    show();
  }
  $("triage-go").addEventListener("click", go);
  $("triage-close").addEventListener("click", () => $("triage").close());
  $("triage").addEventListener("close", () => { press = null; $("triage-reason").value = ""; });
  $("triage-into").addEventListener("change", list);

  document.addEventListener("change", (event) => {
    if (event.target.id === "pick-all") for (const box of boxes()) pick(box, event.target.checked);
    else if (event.target.closest("td.pick")) pick(event.target, event.target.checked);
    else return;
    show();
  });
  document.addEventListener("click", (event) => {
    const verb = event.target.closest("[data-bulk]")?.dataset.bulk;
    if (verb === "clear") { chosen.clear(); show(); } else if (verb) begin(verb);
  });
  document.addEventListener("keydown", (event) => {
    if (pending || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]") || event.target.closest("textarea, select, input:not([type=checkbox])")) return;
    if (event.key === "x" && here()) pick(here(), !here().checked);
    else if (event.key === "X") { const on = chosen.size < boxes().length; for (const box of boxes()) pick(box, on); }
    else if (event.key === "Escape" && chosen.size) chosen.clear();
    else if (event.key === "a") begin("acknowledge");
    else if (event.key === "m") begin("merge");
    else return;
    event.preventDefault();
    event.stopImmediatePropagation();
    show();
  }, true);
  document.addEventListener("healer:swapped", show);
  show();
})();
