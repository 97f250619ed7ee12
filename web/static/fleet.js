// The fleet map: one canvas, one cell per node by pod, row, rack and leaf. The table below it says the same.
// What changed is fetched and only those cells are drawn again; the marked cell is an element above the canvas.
"use strict";
(() => {
  const canvas = document.getElementById("map");
  if (!canvas) return;
  const pen = canvas.getContext("2d"), tip = $("tip"), spot = $("spot"), search = $("q"), place = canvas.dataset.place;
  // Cell sizes, largest first: [width, height, gap]; the first that fits the height is taken.
  const SIZES = [[134, 50, 6], [106, 48, 6], [82, 46, 6], [60, 36, 5], [26, 26, 3], [20, 20, 2], [18, 18, 2], [16, 16, 2], [14, 14, 2], [12, 12, 2], [10, 10, 1], [8, 8, 1], [5, 5, 1]];
  const LABEL = 16, BAND = 22, EVERY_MS = 200, MEASURED_MS = 5000;
  let fleet = null, cells = [], labels = [], at = -1, style = null, mono = "", colours = {}, words = [];
  const colour = (name) => colours[name] ??= style.getPropertyValue("--" + name).trim();

  // One block per rack, blocks in rows, a band for each row of each pod. Without places: one plain grid.
  function layout(width, [w, h, gap], named) {
    const found = [], texts = [], bands = new Map();
    fleet.nodes.forEach((node, index) => {
      const [pod, row, rack, leaf] = fleet.groups[node[1]], band = [pod, row].filter(Boolean).join(" ");
      if (!bands.has(band)) bands.set(band, new Map());
      const racks = bands.get(band);
      if (!racks.has(rack)) racks.set(rack, { leaf, members: [] });
      racks.get(rack).members.push(index);
    });
    let y = 0;
    // Small cells have no names: the name of a band is then in a gutter beside its racks.
    const beside = !named && bands.size > 1, left = beside ? (width < 600 ? 48 : 84) : 0;
    for (const [band, racks] of bands) {
      if (band && beside) texts.push([0, y + 11, band, true, left - 6]);
      else if (band && (bands.size > 1 || named)) { texts.push([0, y + 13, band, true]); y += BAND; }
      let x = left, tallest = 0, before = null;
      const top = named && [...racks.keys()].some(Boolean) ? LABEL : 0;
      for (const [rack, { leaf, members }] of racks) {
        const fit = Math.max(1, Math.floor((width - left + gap) / (w + gap)));
        const columns = racks.size === 1 ? fit : Math.min(members.length, fit, members.length > 8 ? Math.ceil(members.length / 2) : 8);
        const blockW = columns * (w + gap) - gap, blockH = Math.ceil(members.length / columns) * (h + gap) - gap;
        if (before !== null && leaf !== before && x > left) x += gap * 2; // another leaf begins
        if (x > left && x + blockW > width) { x = left; y += tallest + top + (top ? gap * 2.5 : gap + 2); tallest = 0; }
        if (top) texts.push([x, y + 11, leaf && leaf !== before ? `${rack} ${leaf}` : rack, false, blockW, rack]);
        members.forEach((index, place) => found.push({ index, x: x + place % columns * (w + gap), y: y + top + Math.floor(place / columns) * (h + gap), w, h }));
        x += blockW + Math.max(gap * 2.5, 5);
        tallest = Math.max(tallest, blockH);
        before = leaf;
      }
      y += tallest + top + Math.max(gap * 3, 8);
    }
    return { found, texts, height: y };
  }
  function draw() {
    if (!fleet) return;
    const begun = performance.now(), width = canvas.parentNode.clientWidth;
    style = getComputedStyle(document.documentElement);
    colours = {};
    mono = colour("mono");
    let plan = null;
    for (const size of SIZES) {
      plan = layout(width, size, size[0] >= 26);
      if (plan.height <= (width < 600 ? 720 : 580)) break;
    }
    cells = plan.found.sort((a, b) => a.index - b.index);
    labels = plan.texts;
    canvas.style.height = Math.max(40, Math.ceil(plan.height)) + "px";
    fill(begun);
  }
  function fill(begun) { // all cells
    const ratio = devicePixelRatio || 1;
    canvas.width = Math.round(canvas.parentNode.clientWidth * ratio);
    canvas.height = Math.round(parseInt(canvas.style.height, 10) * ratio);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    for (const [x, y, text, band, most] of labels) {
      pen.font = `${band ? "600 12px" : "11px"} ${mono}`;
      pen.fillStyle = colour(band ? "ink" : "c-label");
      pen.fillText(text, x, y, most);
    }
    words = (search?.value || "").toLowerCase().split(/\s+/).filter(Boolean);
    for (const cell of cells) paint(cell);
    if (at >= 0) show(at, false);
    took(begun);
  }
  function took(begun) { // what the browser's own tools and our benchmark read
    performance.clearMeasures("map");
    performance.measure("map", { start: begun });
  }
  function fits(node) {
    const where = fleet.groups[node[1]];
    if (place && !where.includes(place)) return false;
    if (!words.length) return true;
    const text = [node[0], ...where, node[4], fleet.kinds[node[2]][1], fleet.kinds[node[2]][3], node[3]].join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  }
  const bin = (code) => code === "-" || code === undefined ? null : fleet.bins[code];
  function paint(cell) {
    const node = fleet.nodes[cell.index], [name, , kind, verdict, , gpus, bad, , code] = node, { x, y, w, h } = cell;
    const one = code ? code.length === 1 && bin(code) : fleet.kinds[kind], fill = one?.[0], letter = one?.[2];
    pen.globalAlpha = fits(node) ? 1 : .18;
    pen.fillStyle = fill ? colour(fill) : colour("panel");
    if (w < 9) pen.fillRect(x, y, w, h); else { pen.beginPath(); pen.roundRect(x, y, w, h, Math.min(4, w / 5)); pen.fill(); }
    // What is idle or unknown has a line and no colour.
    if (!fill || fill === "c-idle" || fill === "c-unknown") {
      pen.strokeStyle = colour(fill === "c-unknown" ? "ink" : "c-idle-line");
      pen.lineWidth = 1;
      pen.strokeRect(x + .5, y + .5, w - 1, h - 1);
    }
    const on = colour(fill === "c-person" ? "c-on-light" : letter && kind !== "unknown" && !/^d-[25]$/.test(fill) ? "c-on" : "ink");
    if (w >= 50) {
      pen.fillStyle = on;
      pen.font = `12px ${mono}`;
      pen.fillText(name.length * 7.3 > w - 22 ? "…" + name.slice(-Math.floor((w - 26) / 7.3)) : name, x + 6, y + 15);
      if (letter) { pen.font = `700 13px ${mono}`; pen.fillText(letter, x + w - 14, y + 15); }
      const tick = Math.min(13, (w - 12) / Math.max(gpus, 1) - 1);
      for (let gpu = 0; gpu < gpus && h >= 30; gpu++) {
        const tx = x + 6 + gpu * (tick + 1.4), ty = y + h - 12, broken = bad.includes(gpu), own = code && code.length > 1 ? bin(code[gpu]) : null;
        const tall = broken || own;
        pen.globalAlpha *= tall ? 1 : .35;
        pen.fillStyle = own ? colour(own[0]) : on;
        if (code.length > 1 && !own) { pen.strokeStyle = on; pen.strokeRect(tx + .5, ty - 4.5, tick - 1, 11); } // unknown
        else pen.fillRect(tx, tall ? ty - 5 : ty, tick, tall ? 12 : 6);
        pen.globalAlpha /= tall ? 1 : .35;
      }
    } else if (code && code.length > 1) gpuSquares(cell, code);
    else if (letter && w >= 9) {
      pen.fillStyle = on;
      pen.font = `700 ${Math.round(w * .72)}px ${mono}`;
      pen.textAlign = "center";
      pen.fillText(letter, x + w / 2, y + h / 2 + w * .26);
      pen.textAlign = "start";
    }
    // A verdict on a node that still serves: a corner, so that it is seen on any colour.
    if (!code && verdict !== "healthy" && !letter) {
      const side = Math.max(Math.min(5, w), Math.min(12, w / 2)) + (verdict === "isolate" && w > 8 ? 3 : 0);
      pen.fillStyle = colour(verdict === "isolate" ? "c-bad" : "c-suspect");
      pen.beginPath();
      pen.moveTo(x + w - side, y + h); pen.lineTo(x + w, y + h); pen.lineTo(x + w, y + h - side);
      if (verdict !== "watch") pen.fill(); else { pen.strokeStyle = colour("c-suspect"); pen.lineWidth = 1.5; pen.stroke(); }
    }
    pen.globalAlpha = 1;
  }
  // A square for each GPU; where there is no room the worst of them is the node's.
  function gpuSquares({ x, y, w, h }, code) {
    if (w < 10) {
      const worst = bin([...code].filter((one) => one !== "-").sort().pop());
      if (worst) { pen.fillStyle = colour(worst[0]); pen.fillRect(x, y, w, h); }
      return;
    }
    const across = Math.ceil(Math.sqrt(code.length * 2)), down = Math.ceil(code.length / across), sw = (w - 2) / across, sh = (h - 2) / down;
    [...code].forEach((one, gpu) => {
      const own = bin(one);
      if (!own) return;
      pen.fillStyle = colour(own[0]);
      pen.fillRect(x + 1 + gpu % across * sw, y + 1 + Math.floor(gpu / across) * sh, sw - (sw > 4 ? .5 : 0), sh - (sh > 4 ? .5 : 0));
    });
  }
  function describe(node) {
    const [name, group, kind, verdict, state, gpus, bad, worst, code] = node;
    return [name, [measured(code), fleet.kinds[kind][1], verdict === "healthy" ? "" : fleet.verdicts[verdict], state, fleet.groups[group].filter(Boolean).join(" "), w("{gpus} GPUs", { gpus }), bad.length ? w("bad GPU {bad}", { bad: bad.join(", ") }) : "", worst].filter(Boolean).join(" · ")];
  }
  function measured(code) { // the worst, of which GPUs, and of how many nothing is known
    if (!code) return "";
    const known = [...code].filter((one) => one !== "-"), worst = [...known].sort().pop();
    if (!worst) return w("unknown");
    const which = [...code].flatMap((one, gpu) => one === worst ? [gpu] : []);
    return bin(worst)[1] + (code.length > 1 && which.length < code.length ? ` (GPU ${which.join(", ")})` : "") + (known.length < code.length ? w(", {count} unknown", { count: code.length - known.length }) : "");
  }
  function show(index, aloud) {
    at = index;
    const cell = cells[index];
    tip.hidden = spot.hidden = !cell;
    if (!cell) return;
    Object.assign(spot.style, { left: cell.x - 4 + "px", top: cell.y - 4 + "px", width: cell.w + 8 + "px", height: cell.h + 8 + "px" });
    const [name, rest] = describe(fleet.nodes[cell.index]);
    tip.replaceChildren(el("b", name), document.createElement("br"), rest);
    tip.style.left = Math.min(Math.max(0, cell.x), Math.max(0, canvas.clientWidth - tip.offsetWidth)) + "px";
    tip.style.top = cell.y + cell.h + 6 + "px";
    if (aloud) say(w("{name}: {rest}", { name, rest }));
  }
  const spotted = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  function hit(event) {
    const [x, y] = spotted(event);
    return cells.findIndex((cell) => x >= cell.x - 2 && x <= cell.x + cell.w + 2 && y >= cell.y - 2 && y <= cell.y + cell.h + 2);
  }
  function visit(index) { if (cells[index]) location.assign(`/nodes/${encodeURIComponent(fleet.cluster)}/${encodeURIComponent(fleet.nodes[cells[index].index][0])}`); }
  // One rack alone, or all again: in the address, so that the table follows and the view can be passed on.
  function only(name) {
    const there = new URL(location.href);
    if (!name || name === place) there.searchParams.delete("place"); else there.searchParams.set("place", name);
    there.searchParams.delete("page");
    location.assign(there);
  }
  const rackOf = (index) => { const [pod, row, rack, leaf] = fleet.groups[fleet.nodes[cells[index].index][1]]; return rack || leaf || row || pod; };
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
    const index = hit(event), [x, y] = spotted(event);
    const label = labels.find(([lx, ly, , , most, rack]) => rack && x >= lx && x <= lx + most && y >= ly - 12 && y <= ly + 4);
    if (index < 0) return label ? only(label[5]) : undefined;
    if (event.shiftKey) return only(rackOf(index));
    // The first tap shows the node, the second opens it.
    if (event.pointerType === "touch" && index !== at) return show(index, true);
    visit(index);
  });
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter") visit(at);
    else if (event.key === "s" && cells[at]) only(rackOf(at));
    else if (/^(Arrow|Home|End)/.test(event.key)) show(step(event.key), true);
    else if (event.key === "Escape") show(-1, false);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  document.addEventListener("keydown", (event) => { // the next colouring, from anywhere on the page
    if (event.key !== "c" || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
    const tabs = [...document.querySelectorAll("#colours a")], now = tabs.findIndex((tab) => tab.ariaCurrent);
    tabs[(now + 1) % tabs.length]?.click();
  });
  canvas.addEventListener("focus", () => { if (at < 0 && cells.length && canvas.matches(":focus-visible")) show(0, true); });
  canvas.addEventListener("blur", () => show(-1, false));
  search?.addEventListener("input", () => fleet && requestAnimationFrame(fill));

  let waiting = 0, last = 0, loading = false;
  async function load() {
    waiting = 0;
    if (document.hidden) return;
    if (loading) return soon();
    loading = true;
    last = Date.now();
    try {
      const answer = await fetch(canvas.dataset.src + (fleet ? "&since=" + fleet.tag : ""));
      if (answer.status === 200) take(await answer.json());
    } catch { /* the live mark says that nothing comes; the next event tries again */ } finally { loading = false; }
  }
  function take(update) {
    if (!update.changed) { fleet = update; return draw(); }
    const begun = performance.now();
    fleet.tag = update.tag;
    for (const [index, node] of update.changed) {
      fleet.nodes[index] = node;
      const cell = cells[index];
      pen.clearRect(cell.x - .5, cell.y - .5, cell.w + 1, cell.h + 1);
      paint(cell);
    }
    if (at >= 0) show(at, false);
    took(begun);
  }
  const soon = () => { if (!waiting && !canvas.dataset.past) waiting = setTimeout(load, Math.max(0, last + EVERY_MS - Date.now())); };
  for (const name of ["fleet", "incident", "all"]) document.addEventListener("healer:" + name, soon);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) soon(); });
  if ("measured" in canvas.dataset) setInterval(soon, MEASURED_MS);
  new ResizeObserver(draw).observe(canvas.parentNode);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  load();
})();
