// The fleet map: one canvas, one cell per node, grouped pod -> rack. The table below it says the same.
"use strict";
(() => {
  const canvas = document.getElementById("map");
  if (!canvas) return;
  const tip = document.getElementById("tip"), search = document.getElementById("q"), say = document.getElementById("say");
  const LETTERS = { bad_in_service: "!", out_healer: "H", out_slurm: "S", out_person: "P", unknown: "?", planned: "M" };
  const WORDS = { bad_in_service: "known bad, in service", out_healer: "out, by healer", out_slurm: "out, by Slurm", out_person: "out, by a person", unknown: "unknown", planned: "planned work", busy: "in service, busy", idle: "in service, idle" };
  // Cell sizes, largest first: [width, height, gap]; the first that fits the height is taken.
  const SIZES = [[134, 50, 6], [106, 48, 6], [82, 46, 6], [60, 36, 5], [26, 26, 3], [20, 20, 2], [18, 18, 2], [16, 16, 2], [14, 14, 2], [12, 12, 2], [10, 10, 1], [8, 8, 1], [5, 5, 1]];
  const LABEL = 16, POD = 22, GUTTER = 48;
  let fleet = null, tag = "", cells = [], at = -1, labels = [];

  // Places one block per rack, blocks in rows, pods under each other. Without places: one plain grid.
  function layout(width, [w, h, gap], named) {
    const found = [], texts = [], pods = new Map();
    fleet.nodes.forEach((node, index) => {
      const [pod, rack] = fleet.groups[node[1]];
      if (!pods.has(pod)) pods.set(pod, new Map());
      const racks = pods.get(pod);
      if (!racks.has(rack)) racks.set(rack, []);
      racks.get(rack).push(index);
    });
    let y = 0;
    // Small cells have no names: then a pod's name stands in a gutter, beside its racks.
    const beside = !named && pods.size > 1, left = beside ? GUTTER : 0;
    for (const [pod, racks] of pods) {
      if (pod && beside) texts.push([0, y + 11, pod, true]);
      else if (pod && (pods.size > 1 || named)) { texts.push([0, y + 13, pod, true]); y += POD; }
      let x = left, tallest = 0;
      const top = named && [...racks.keys()].some(Boolean) ? LABEL : 0;
      for (const [rack, members] of racks) {
        const fit = Math.max(1, Math.floor((width - left + gap) / (w + gap)));
        const columns = racks.size === 1 ? fit : Math.min(members.length, fit, members.length > 8 ? Math.ceil(members.length / 2) : 8);
        const blockW = columns * (w + gap) - gap, blockH = Math.ceil(members.length / columns) * (h + gap) - gap;
        if (x > left && x + blockW > width) { x = left; y += tallest + top + (top ? gap * 2.5 : gap + 2); tallest = 0; }
        if (top) texts.push([x, y + 11, rack, false]);
        members.forEach((index, place) => found.push({ index, x: x + place % columns * (w + gap), y: y + top + Math.floor(place / columns) * (h + gap), w, h }));
        x += blockW + Math.max(gap * 2.5, 5);
        tallest = Math.max(tallest, blockH);
      }
      y += tallest + top + Math.max(gap * 3, 8);
    }
    return { found, texts, height: y };
  }
  function draw() {
    if (!fleet) return;
    const width = canvas.parentNode.clientWidth, ratio = devicePixelRatio || 1, style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue("--" + name).trim();
    let plan = null, size = null;
    for (const candidate of SIZES) {
      size = candidate;
      plan = layout(width, size, size[0] >= 26);
      if (plan.height <= (width < 600 ? 720 : 580)) break;
    }
    cells = plan.found.sort((a, b) => a.index - b.index);
    labels = plan.texts;
    const height = Math.max(40, Math.ceil(plan.height));
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = height + "px";
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const mono = colour("mono"), fills = { busy: colour("c-busy"), idle: colour("c-idle"), out_healer: colour("c-healer"), out_person: colour("c-person"), out_slurm: colour("c-slurm"), bad_in_service: colour("c-bad"), planned: colour("c-planned"), unknown: colour("c-unknown") };
    for (const [x, y, text, pod] of labels) {
      pen.font = `${pod ? "600 12px" : "11px"} ${mono}`;
      pen.fillStyle = colour(pod ? "ink" : "c-label");
      pen.fillText(text, x, y);
    }
    const words = (search?.value || "").toLowerCase().split(/\s+/).filter(Boolean);
    for (const cell of cells) paint(pen, cell, fleet.nodes[cell.index], fills, colour, mono, words);
    if (at >= 0 && cells[at]) {
      const cell = cells[at];
      pen.strokeStyle = colour("focus");
      pen.lineWidth = 2.5;
      pen.strokeRect(cell.x - 2, cell.y - 2, cell.w + 4, cell.h + 4);
    }
  }
  function paint(pen, cell, node, fills, colour, mono, words) {
    const [name, group, kind, verdict, state, gpus, bad] = node, { x, y, w, h } = cell;
    const text = [name, ...fleet.groups[group], state, WORDS[kind], verdict].join(" ").toLowerCase();
    pen.globalAlpha = words.every((word) => text.includes(word)) ? 1 : .18;
    pen.fillStyle = fills[kind];
    pen.beginPath();
    pen.roundRect(x, y, w, h, Math.min(4, w / 5));
    pen.fill();
    if (kind === "idle" || kind === "unknown") { pen.strokeStyle = colour(kind === "idle" ? "c-idle-line" : "ink"); pen.lineWidth = 1; pen.stroke(); }
    const on = kind === "out_person" ? colour("c-on-light") : kind in LETTERS && kind !== "unknown" ? colour("c-on") : colour("ink");
    pen.fillStyle = on;
    if (w >= 50) {
      pen.font = `12px ${mono}`;
      pen.fillText(name.length * 7.3 > w - 22 ? "…" + name.slice(-Math.floor((w - 26) / 7.3)) : name, x + 6, y + 15);
      if (LETTERS[kind]) { pen.font = `700 13px ${mono}`; pen.fillText(LETTERS[kind], x + w - 14, y + 15); }
      const tick = Math.min(13, (w - 12) / Math.max(gpus, 1) - 1);
      for (let gpu = 0; gpu < gpus && h >= 30; gpu++) {
        const tx = x + 6 + gpu * (tick + 1.4), ty = y + h - 12, broken = bad.includes(gpu);
        pen.globalAlpha *= broken ? 1 : .35;
        pen.fillStyle = on;
        if (broken) { pen.fillRect(tx, ty - 5, tick, 12); } else { pen.fillRect(tx, ty, tick, 6); }
        pen.globalAlpha /= broken ? 1 : .35;
      }
    } else if (LETTERS[kind] && w >= 9) {
      pen.font = `700 ${Math.round(w * .72)}px ${mono}`;
      pen.textAlign = "center";
      pen.fillText(LETTERS[kind], x + w / 2, y + h / 2 + w * .26);
      pen.textAlign = "start";
    }
    // A verdict on a node that still serves: a corner, so that it is seen on any colour.
    if (verdict !== "healthy" && !LETTERS[kind]) {
      const side = Math.max(5, Math.min(12, w / 2)) + (verdict === "isolate" ? 3 : 0);
      pen.fillStyle = colour(verdict === "isolate" ? "c-bad" : "c-suspect");
      pen.beginPath();
      pen.moveTo(x + w - side, y + h); pen.lineTo(x + w, y + h); pen.lineTo(x + w, y + h - side);
      if (verdict !== "watch") pen.fill(); else { pen.strokeStyle = colour("c-suspect"); pen.lineWidth = 1.5; pen.stroke(); }
    }
    pen.globalAlpha = 1;
  }
  function describe(node) {
    const [name, group, kind, verdict, state, gpus, bad, worst] = node;
    return [name, [WORDS[kind], verdict === "healthy" ? "" : verdict, state, fleet.groups[group].filter(Boolean).join(" "), `${gpus} GPUs`, bad.length ? `bad GPU ${bad.join(", ")}` : "", worst].filter(Boolean).join(" · ")];
  }
  function show(index, aloud) {
    at = index;
    draw();
    const cell = cells[index];
    tip.hidden = !cell;
    if (!cell) return;
    const [name, rest] = describe(fleet.nodes[cell.index]), bold = document.createElement("b");
    bold.textContent = name;
    tip.replaceChildren(bold, document.createElement("br"), rest);
    const width = canvas.clientWidth, left = Math.min(Math.max(0, cell.x), Math.max(0, width - tip.offsetWidth));
    tip.style.left = left + "px";
    tip.style.top = cell.y + cell.h + 6 + "px";
    if (aloud) say.textContent = `${name}: ${rest}`;
  }
  const hit = (event) => {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    return cells.findIndex((cell) => x >= cell.x - 2 && x <= cell.x + cell.w + 2 && y >= cell.y - 2 && y <= cell.y + cell.h + 2);
  };
  function visit(index) { if (cells[index]) location.assign(`/nodes/${encodeURIComponent(fleet.cluster)}/${encodeURIComponent(fleet.nodes[cells[index].index][0])}`); }
  // The nearest cell in a direction; sideways along the order of names.
  function step(key) {
    if (at < 0 || key === "Home") return 0;
    if (key === "End") return cells.length - 1;
    if (key === "ArrowRight") return Math.min(at + 1, cells.length - 1);
    if (key === "ArrowLeft") return Math.max(at - 1, 0);
    const from = cells[at], sign = key === "ArrowDown" ? 1 : -1;
    let best = at, least = Infinity;
    cells.forEach((cell, index) => {
      const down = (cell.y - from.y) * sign;
      const far = down * 3 + Math.abs(cell.x - from.x);
      if (down > 1 && far < least) { least = far; best = index; }
    });
    return best;
  }
  canvas.addEventListener("pointermove", (event) => { const index = hit(event); if (index !== at) show(index, false); });
  canvas.addEventListener("pointerleave", () => show(-1, false));
  canvas.addEventListener("click", (event) => {
    const index = hit(event);
    // The first tap tells, the second opens; a mouse has told before it clicks.
    if (event.pointerType === "touch" && index !== at) return show(index, true);
    visit(index);
  });
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Enter") visit(at);
    else if (/^(Arrow|Home|End)/.test(event.key)) show(step(event.key), true);
    else if (event.key === "Escape") show(-1, false);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  canvas.addEventListener("focus", () => { if (at < 0 && cells.length && canvas.matches(":focus-visible")) show(0, true); });
  canvas.addEventListener("blur", () => show(-1, false));
  search?.addEventListener("input", draw);
  let waiting = 0;
  async function load() {
    waiting = 0;
    try {
      const answer = await fetch(canvas.dataset.src, { headers: tag ? { "If-None-Match": tag } : {} });
      if (answer.status !== 200) return;
      tag = answer.headers.get("ETag") || "";
      fleet = await answer.json();
      draw();
    } catch { /* the live mark says that nothing comes; the next event tries again */ }
  }
  const soon = () => { if (!waiting) waiting = setTimeout(load, 250); };
  for (const name of ["fleet", "incident", "all"]) document.addEventListener("healer:" + name, soon);
  new ResizeObserver(draw).observe(canvas.parentNode);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  load();
})();
