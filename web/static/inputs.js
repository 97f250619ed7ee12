// Parts of the dialog: fields for what a playbook may be given, what was typed, and what healer answered.
// console.js opens the dialog and sends it.
"use strict";
function inputField(one) {
  const label = el("label", one.help), field = document.createElement(one.choices.length ? "select" : "input");
  if (one.choices.length) {
    if (!one.default) field.append(new Option(w("choose…"), ""));
    one.choices.forEach((choice, i) => field.append(new Option((one.labels || [])[i] || choice, choice, choice === one.default, choice === one.default)));
  } else { field.value = one.default; field.maxLength = 256; field.autocomplete = "off"; }
  field.name = one.name;
  field.required = one.required;
  field.addEventListener("change", () => { if (press && press.data.preview) preview(press); });
  label.append(field);
  return label;
}
const inputFields = () => [...$("act-inputs").querySelectorAll("select, input")];
// A job that the run would wait for: only a tick agrees to its restart.
function restartField(one) {
  const job = w(one.user ? "job {job} of {user}" : "job {job}", one);
  if (!one.possible) return el("p", w("{job} cannot be restarted: {why}", { job, why: one.why }));
  const label = el("label", "", "check"), box = document.createElement("input");
  box.type = "checkbox";
  box.name = "restart";
  box.value = `${one.job}:${one.restarts}`; // this life of it, however old the page
  label.append(box, " " + w(one.nodes === 1 ? "Restart {job} (1 node): it stops here and starts elsewhere" : "Restart {job} ({nodes} nodes): it stops here and starts elsewhere", { job, nodes: one.nodes }));
  return label;
}
function given() { // what was chosen; what is left empty has its default
  const fields = inputFields().filter((field) => field.value.trim());
  const restart = [...$("act-preview").querySelectorAll("input[name=restart]:checked")].map((box) => box.value);
  const found = restart.length ? { restart } : {};
  const named = Object.fromEntries(fields.map((field) => [field.name, field.value.trim()]));
  if (press && "flat" in press.data) return { ...found, ...named };
  return fields.length ? { ...found, inputs: named } : found;
}
function missing() { // the first that has to be given and is not, with its words
  const field = inputFields().find((one) => one.required && !one.value.trim());
  return field ? { field, name: field.parentNode.firstChild.textContent } : null;
}
function problem(answer) {
  const data = answer.data, box = el("div");
  if (data.code === "guard_refused") {
    box.append(el("b", w("Guard {guard} refuses.", data) + " "), el("span", data.detail || data.title || ""));
    const figures = [];
    if (data.used != null) figures.push(w("used {used} of {limit}", data));
    if (data.frees_at) figures.push(w("frees {when}", { when: ago(Date.parse(data.frees_at)) }));
    if (figures.length) box.append(el("br"), el("small", figures.join(w("; "))));
  } else if (data.code === "csrf") {
    box.append(el("span", w("This page is from an earlier session. Reload it, then try again.")));
  } else if (data.code === "idempotency_key_reused") {
    box.append(el("span", w("healer received an earlier press with other words and may have acted on it. Look at the page before you press again.")));
  } else {
    box.append(el("b", data.title && data.detail ? w("{title}. ", data) : ""), el("span", data.detail || data.title || w("The server answered {status}.", { status: answer.status || w("nothing") })));
    for (const error of data.errors || []) box.append(el("br"), el("small", [error.field, error.detail || error.why].filter(Boolean).join(w(": "))));
  }
  return box;
}
// A finished answer ends a press: the next one is another request. What passes, or is still under way, may have
// been done all the same: the same press again has the same key, and is never done twice.
const isFinal = (answer) => answer.status < 500 && ![401, 429].includes(answer.status) && answer.data.code !== "in_flight";
// What was typed outlives the session: the page waits until it is sent or given up, and after the next sign-in of
// the same person in this tab the same button has it still.
const typed = () => [...document.querySelectorAll("textarea")].some((one) => one.value !== one.defaultValue);
const draft = (data) => `${document.querySelector(".who summary").textContent} ${data.method} ${data.act} ${data.title}`;
