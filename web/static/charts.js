// Charts: every element with data-chart gets a uPlot of it. The table beside each says the same in words.
"use strict";
(() => {
  const plots = new Map(), still = matchMedia("(prefers-color-scheme: dark)");
  const LANES = 3, LANE = 15;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const BARE = ["", "ratio", "count", "state", "bits", "bool"];
  function number(value) {
    if (value == null) return "–";
    const size = Math.abs(value);
    if (size >= 1e15 || (size > 0 && size < 1e-4)) return value.toExponential(1);
    return value.toLocaleString("en", { maximumSignificantDigits: size >= 1000 ? Math.ceil(Math.log10(size + 1)) : 4 }).replace("-", "−");
  }
  const figure = (value, unit) => value == null || BARE.includes(unit) ? number(value) : number(value) + (unit === "%" ? "" : " ") + unit;
  const two = (count) => String(count).padStart(2, "0");
  function clock(seconds, fine) {
    const at = new Date(seconds * 1000);
    return two(at.getUTCHours()) + ":" + two(at.getUTCMinutes()) + (fine ? ":" + two(at.getUTCSeconds()) : "");
  }

  // Moments: a line each, its word above the plot in the first lane that is free there.
  function moments(plot, marks) {
    const pen = plot.ctx, ratio = devicePixelRatio || 1, { left, top, width, height } = plot.bbox, ends = [];
    pen.save();
    pen.font = `${11 * ratio}px ${colour("sans")}`;
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    for (const mark of marks) {
      const x = Math.round(plot.valToPos(mark.t, "x", true));
      if (x < left - 1 || x > left + width + 1) continue;
      const wide = pen.measureText(mark.l).width, room = 4 * ratio;
      let at = x + room;
      if (at + wide > left + width) at = x - room - wide;
      let lane = ends.findIndex((end) => end < Math.min(at, x) - room);
      if (lane < 0) lane = ends.length;
      pen.strokeStyle = colour("mark");
      pen.lineWidth = ratio;
      pen.setLineDash([4 * ratio, 3 * ratio]);
      pen.beginPath();
      const y = top - (LANES - Math.min(lane, LANES) - .5) * LANE * ratio;
      pen.moveTo(x + .5, lane < LANES ? y : top);
      pen.lineTo(x + .5, top + height);
      pen.stroke();
      if (lane >= LANES) continue;
      pen.fillStyle = colour("mark");
      pen.fillText(mark.l, at, y);
      ends[lane] = Math.max(x, at + wide);
    }
    pen.restore();
  }
  const HUES = ["h-own", "h-1", "h-2", "h-3", "h-4", "h-5", "h-6", "h-7", "h-8"];
  function look(line, index, many) {
    if (line.r === "own") return { stroke: colour(many ? HUES[1 + index % 8] : "h-own"), width: line.b ? 3 : many ? 1.5 : 2.25 };
    if (line.r === "peers") return { stroke: colour("h-peers"), width: 1.5, dash: [2, 3] };
    if (line.r === "threshold") return { stroke: colour("bad"), width: 1.5, dash: [8, 4] };
    return { stroke: colour("h-edge"), width: 1 };
  }
  // Lines of one chart have moments of their own: only a longer silence breaks one (GAP_S of views/charts.py).
  const GAP_S = 120;
  function draw(box) {
    const data = JSON.parse(box.dataset.chart), timed = data.x === "time";
    const many = data.s.filter((line) => line.r === "own").length > 1;
    const low = data.s.findIndex((line) => line.r === "low"), high = data.s.findIndex((line) => line.r === "high");
    const axis = { stroke: colour("dim"), font: `11px ${colour("sans")}`, grid: { stroke: colour("hair"), width: 1 }, ticks: { stroke: colour("line"), width: 1, size: 4 } };
    const shown = data.m.map((mark) => mark.t), ends = [...data.t.slice(0, 1), ...data.t.slice(-1), ...(timed ? shown : [])];
    const marked = data.m.length > 0;
    // Without a pointer, the legend shows the last value.
    const last = data.t.findLastIndex((at, index) => data.s.some((line) => line.r === "own" && line.v[index] != null));
    // The room above the plot is for the words of the moments.
    const room = marked ? LANES * LANE + 6 : 10;
    const options = {
      width: box.clientWidth || 300, height: box.clientWidth < 520 ? 230 : 260, padding: [room, 12, 0, 0],
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      legend: { live: true }, cursor: { y: false, drag: { x: true, y: false }, focus: { prox: many ? 24 : -1 } }, focus: { alpha: .25 },
      scales: { x: { time: timed, range: (plot, from, to) => from == null ? [0, 1] : from === ends[0] || to === ends[1] || from === to ? [Math.min(...ends), Math.max(...ends, Math.min(...ends) + 1)] : [from, to] }, y: { range: (plot, from, to) => spread(from, to, data.unit) } },
      axes: [
        { ...axis, space: 60, size: 28, values: (plot, at) => at.map((one, index) => timed ? clock(one, at.length > 1 && at[1] - at[0] < 60) : number(one)) },
        { ...axis, size: (plot, values) => 14 + 6.6 * Math.max(3, ...(values || []).map((one) => one.length)), values: (plot, at) => at.map(number) },
      ],
      series: [
        { label: timed ? "UTC" : w("step"), value: (plot, at) => at == null ? "–" : timed ? clock(at, true) : number(at) },
        ...data.s.map((line, index) => ({ label: line.l, ...look(line, index, many), points: { show: data.t.length < 3 }, spanGaps: false, gaps: (plot, number, from, to, gaps) => timed ? gaps.filter(([a, b]) => plot.posToVal(b, "x", true) - plot.posToVal(a, "x", true) > GAP_S) : gaps, value: (plot, value) => figure(value, data.unit) })),
      ],
      bands: low >= 0 && high >= 0 ? [{ series: [high + 1, low + 1], fill: colour("h-band") }] : [],
      hooks: { draw: [(plot) => moments(plot, data.m)], setCursor: [(plot) => { if (plot.cursor.idx == null) plot.setLegend({ idx: last }, false); }] },
    };
    box.replaceChildren();
    const plot = new uPlot(options, [data.t, ...data.s.map((line) => line.v)], box);
    plot.setLegend({ idx: last }, false);
    plots.set(box, plot);
  }
  // Room around the values; shares and counts keep their zero in sight when they are near it.
  function spread(from, to, unit) {
    if (from == null || to == null) return [0, 1];
    if (from === to && from >= 0 && from <= 1) return [0, 1.08];
    const room = (to - from || Math.abs(to) * .1 || 1) * .08;
    const least = from >= 0 && (from <= (to - from) * .5) ? 0 : from - room;
    return [least, unit === "%" && to <= 100 ? Math.min(to + room, 101) : to + room];
  }
  function drop(box) { plots.get(box)?.destroy(); plots.delete(box); }
  const watch = new ResizeObserver((seen) => {
    for (const { target } of seen) {
      const plot = plots.get(target);
      if (plot && target.clientWidth && plot.width !== target.clientWidth) plot.setSize({ width: target.clientWidth, height: plot.height });
    }
  });
  function all() {
    for (const box of plots.keys()) if (!box.isConnected) { watch.unobserve(box); drop(box); }
    for (const box of document.querySelectorAll("[data-chart]")) if (!plots.has(box)) { draw(box); watch.observe(box); }
  }
  still.addEventListener("change", () => { for (const box of [...plots.keys()]) { drop(box); draw(box); } });
  document.addEventListener("healer:swapped", all);
  all();
})();
