// Rank by step in one canvas: how much slower than its peers each rank was. The table below names the worst.
"use strict";
(() => {
  // Upper ends of the bins in 0.1 %; bin 0 is "unknown". The legend in job.html says the same.
  const ENDS = [-100, -50, -20, 20, 50, 100, 200, Infinity], AXIS = 18, TICK = 5;
  const say = document.getElementById("say");
  let canvas = null, tip = null, heat = null, tag = "", at = null, plan = null;
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const bin = (value) => value === -32768 ? 0 : ENDS.findIndex((end) => value <= end) + 1;

  function unpack(text, Kind) {
    const raw = Uint8Array.from(atob(text), (one) => one.charCodeAt(0)), view = new DataView(raw.buffer), found = new Kind(raw.length / 2);
    for (let i = 0; i < found.length; i++) found[i] = Kind === Int16Array ? view.getInt16(i * 2, true) : view.getUint16(i * 2, true);
    return found;
  }
  function layout() {
    const width = canvas.parentNode.clientWidth, rows = heat.rows.length, pen = canvas.getContext("2d");
    pen.font = `11px ${css("mono")}`;
    const names = [...new Set(heat.rows.map((row) => row.n).filter(Boolean))];
    const wanted = Math.max(28, ...names.map((name) => pen.measureText(name).width + 10));
    const left = Math.min(wanted, width < 500 ? 84 : 200);
    const high = Math.max(1, Math.min(18, Math.floor((rows > 64 ? 620 : 420) / rows)));
    return { width, left, top: TICK + 2, high, rows, steps: heat.steps.length, cell: (width - left - 1) / heat.steps.length, height: TICK + 2 + rows * high + AXIS };
  }
  // Rows of one node belong together: where the next node begins.
  const begins = (row) => row > 0 && heat.rows[row].n !== heat.rows[row - 1].n;
  function draw() {
    if (!heat?.rows || !canvas.isConnected) return;
    plan = layout();
    const ratio = devicePixelRatio || 1, pen = canvas.getContext("2d");
    canvas.width = Math.round(plan.width * ratio);
    canvas.height = Math.round(plan.height * ratio);
    canvas.style.height = plan.height + "px";
    pen.scale(ratio, ratio);
    const fills = [css("d-0"), ...ENDS.map((_, index) => css("d-" + (index + 1)))];
    const picture = document.createElement("canvas"), ink = picture.getContext("2d");
    picture.width = plan.steps;
    picture.height = plan.rows;
    heat.dev.forEach((value, index) => { ink.fillStyle = fills[bin(value)]; ink.fillRect(index % plan.steps, Math.floor(index / plan.steps), 1, 1); });
    pen.imageSmoothingEnabled = false;
    pen.drawImage(picture, plan.left, plan.top, plan.cell * plan.steps, plan.high * plan.rows);
    words(pen);
    if (at) {
      pen.strokeStyle = css("focus");
      pen.lineWidth = 2;
      pen.strokeRect(plan.left + at[1] * plan.cell - 1, plan.top + at[0] * plan.high - 1, Math.max(plan.cell, 3) + 2, Math.max(plan.high, 3) + 2);
    }
  }
  function words(pen) {
    const { left, top, high, rows, cell, steps } = plan, bottom = top + rows * high;
    pen.font = `11px ${css("mono")}`;
    pen.fillStyle = css("c-label");
    pen.textBaseline = "middle";
    let free = -Infinity;
    for (let row = 0; row < rows; row++) {
      if (row && !begins(row)) continue;
      const y = top + row * high;
      if (row && high >= 3) { pen.fillStyle = css("bg"); pen.fillRect(left, y - .5, cell * steps, 1); pen.fillStyle = css("c-label"); }
      if (!heat.rows[row].n || y + 6 < free) continue;
      let name = heat.rows[row].n;
      while (pen.measureText(name).width > left - 8 && name.length > 4) name = "…" + name.slice(2);
      pen.fillText(name, 0, Math.min(y + Math.max(6, high / 2), bottom - 6));
      free = y + 18;
    }
    pen.textBaseline = "alphabetic";
    const every = Math.max(1, Math.ceil(70 / cell));
    for (let step = 0; step < steps; step += every) {
      const text = heat.steps[step].toLocaleString("en"), x = left + step * cell;
      if (x + pen.measureText(text).width > plan.width) break;
      pen.fillRect(Math.round(x), bottom, 1, 3);
      pen.fillText(text, x + 3, bottom + 13);
    }
    pen.fillStyle = css("mark");
    for (const step of heat.checkpoints) {
      pen.fillRect(Math.round(left + (step + .5) * cell) - 1, 0, 3, TICK);
      pen.globalAlpha = .45;
      pen.fillRect(Math.round(left + (step + .5) * cell), TICK, 1, bottom - TICK);
      pen.globalAlpha = 1;
    }
  }
  function describe([row, step]) {
    const one = heat.rows[row], index = row * plan.steps + step, dev = heat.dev[index], seconds = heat.sec[index];
    const who = one.c ? w("slowest of {c} ranks from {r} to {to}", one) : w("rank {r}", one);
    const where = [one.n || w("node unknown"), one.g == null ? "" : `GPU ${one.g}`, one.s == null ? "" : w("stage {s}", one)].filter(Boolean).join(" ");
    const what = dev === -32768 ? w("no data") : `${w(heat.mode === "compute" ? "{time} s compute" : "{time} s whole step", { time: (seconds * heat.scale_s).toFixed(3) })}, ${(dev > 0 ? "+" : dev < 0 ? "−" : "") + (Math.abs(dev) / 10).toFixed(1)}%`;
    return [w("{who}, {where}", { who, where }), w("step {step}: {what}", { step: heat.steps[step].toLocaleString("en"), what })];
  }
  function show(cell, aloud) {
    at = cell;
    draw();
    tip.hidden = !cell;
    if (!cell) return;
    const [head, rest] = describe(cell), bold = document.createElement("b");
    bold.textContent = head;
    tip.replaceChildren(bold, document.createElement("br"), rest);
    const x = plan.left + (cell[1] + 1) * plan.cell + 8;
    tip.style.left = Math.max(0, Math.min(x, plan.width - tip.offsetWidth)) + "px";
    tip.style.top = plan.top + (cell[0] + 1) * plan.high + 8 + "px";
    if (aloud) say.textContent = head + w("; ") + rest;
  }
  function hit(event) {
    if (!plan) return null;
    const box = canvas.getBoundingClientRect(), row = Math.floor((event.clientY - box.top - plan.top) / plan.high), step = Math.floor((event.clientX - box.left - plan.left) / plan.cell);
    return row >= 0 && row < plan.rows && step >= 0 && step < plan.steps ? [row, step] : null;
  }
  const same = (one, other) => one === other || one && other && one[0] === other[0] && one[1] === other[1];
  function visit(cell) {
    const node = cell && heat.rows[cell[0]].n;
    if (node) location.assign(`/nodes/${encodeURIComponent(heat.cluster)}/${encodeURIComponent(node)}`);
  }
  const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  function keys(event) {
    if (!plan) return;
    const [row, step] = at || [0, plan.steps - 1], move = MOVES[event.key];
    if (event.key === "Enter") visit(at);
    else if (event.key === "Escape") show(null, false);
    else if (event.key === "Home") show([row, 0], true);
    else if (event.key === "End") show([row, plan.steps - 1], true);
    else if (move) show(at ? [Math.min(Math.max(row + move[0], 0), plan.rows - 1), Math.min(Math.max(step + move[1], 0), plan.steps - 1)] : [row, step], true);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
  const watch = new ResizeObserver(draw);
  // The page may have got another canvas since: bind once per canvas.
  function bind() {
    const found = document.getElementById("heat-map");
    if (!found || found === canvas) return;
    canvas = found;
    tip = canvas.parentNode.querySelector(".tip");
    canvas.addEventListener("pointermove", (event) => { const cell = hit(event); if (!same(cell, at)) show(cell, false); });
    canvas.addEventListener("pointerleave", () => show(null, false));
    canvas.addEventListener("click", (event) => {
      const cell = hit(event);
      if (event.pointerType === "touch" && !same(cell, at)) return show(cell, true);
      visit(cell);
    });
    canvas.addEventListener("keydown", keys);
    canvas.addEventListener("blur", () => show(null, false));
    watch.disconnect();
    watch.observe(canvas.parentNode);
    tag = "";
    load();
  }
  async function load() {
    try {
      const answer = await fetch(canvas.dataset.src, { headers: tag ? { "If-None-Match": tag } : {} });
      if (answer.status !== 200) return;
      tag = answer.headers.get("ETag") || "";
      const data = await answer.json();
      heat = data.rows ? { ...data, dev: unpack(data.dev, Int16Array), sec: unpack(data.sec, Uint16Array) } : null;
      if (at && heat && (at[0] >= heat.rows.length || at[1] >= heat.steps.length)) at = null;
      draw();
    } catch { /* the live mark says that nothing comes; the next look tries again */ }
  }
  document.addEventListener("healer:swapped", bind);
  document.addEventListener("healer:all", () => { if (canvas) load(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  bind();
})();
