// Adjusts the figures of the report by its assumptions, in this file alone: nothing is loaded or sent.
"use strict";
(() => {
  const form = document.getElementById("assumptions");
  const lives = JSON.parse(document.getElementById("lives").textContent);
  const number = (name) => {
    const field = form.elements[name];
    return field.value.trim() === "" || !field.validity.valid ? null : Number(field.value);
  };
  const text = (value) =>
    value.toLocaleString("en-US", value >= 100
      ? {maximumFractionDigits: 0} : {minimumFractionDigits: 1, maximumFractionDigits: 1});
  const show = (name, value) => {
    for (const each of document.querySelectorAll(`[data-figure="${name}"]`)) {
      each.textContent = value === null ? "–" : text(value);
    }
  };
  const compute = () => {
    const startUp = number("start_up_s") ?? 0, interval = number("checkpoint_h"), price = number("price");
    const sums = {lost: 0, waiting: 0, on_bad_nodes: 0};
    for (const [gpus, hours, waited, onBadNode] of lives) {
      const lost = gpus * (interval === null ? hours : Math.min(hours, interval / 2));
      sums[onBadNode ? "on_bad_nodes" : "lost"] += lost;
      if (waited !== null) sums.waiting += gpus * Math.max(0, waited - startUp) / 3600;
    }
    const saved = sums.waiting + sums.on_bad_nodes;
    for (const [name, value] of Object.entries(sums)) show(name, value);
    show("saved", saved);
    show("worth", price === null ? null : saved * price);
  };
  form.hidden = false;
  form.addEventListener("input", compute);
  form.addEventListener("submit", (event) => event.preventDefault());
})();
