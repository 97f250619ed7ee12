// Charts that the server draws: saved as PNG, printed. The picture is the SVG with the page's styles in it.
"use strict";
(() => {
  const SCALE = 2, LEFT = 52, RIGHT = 16, LINE = 20;
  const PAINT = ["fill", "fill-opacity", "opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "font-family", "font-size", "font-weight", "text-anchor", "display"];

  // A copy that needs no style sheet: an image knows none of the page's.
  function dressed(svg) {
    const copy = svg.cloneNode(true), from = [svg, ...svg.querySelectorAll("*")], to = [copy, ...copy.querySelectorAll("*")];
    from.forEach((node, index) => {
      const style = getComputedStyle(node);
      for (const name of PAINT) if (style.getPropertyValue(name)) to[index].setAttribute(name, style.getPropertyValue(name));
    });
    for (const hit of copy.querySelectorAll(".hit")) hit.remove();
    const box = svg.getBoundingClientRect();
    copy.setAttribute("width", box.width);
    copy.setAttribute("height", box.height);
    copy.setAttribute("overflow", "visible");
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    return copy;
  }
  function loaded(svg, width, height) {
    const outer = document.createElementNS("http://www.w3.org/2000/svg", "svg"), image = new Image();
    for (const [name, value] of Object.entries({ width, height })) outer.setAttribute(name, value);
    outer.append(svg);
    return new Promise((resolve, reject) => {
      image.onload = () => resolve(image);
      image.onerror = reject;
      image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(new XMLSerializer().serializeToString(outer));
    });
  }
  async function png(id) {
    const svg = document.getElementById(id), figure = svg.closest("figure"), note = figure.querySelector("[data-png]").dataset.note, box = svg.getBoundingClientRect();
    const style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue("--" + name).trim();
    const left = svg.closest(".canvas") && !svg.classList.contains("matrix") ? LEFT : RIGHT, width = Math.ceil(box.width + left + RIGHT);
    const canvas = document.createElement("canvas"), pen = canvas.getContext("2d");
    const keys = [...figure.querySelectorAll(".key li, .moments li")], signs = [];
    for (const key of keys) {
      const swatch = key.querySelector("svg"), defs = svg.querySelector("defs"), sign = swatch && dressed(swatch);
      if (sign && defs) sign.prepend(dressed(defs));
      signs.push(sign && await loaded(sign, 18, 12));
    }
    pen.font = `12px ${colour("sans")}`;
    let x = RIGHT, y = 62;
    const places = keys.map((key, index) => { // the legend, in as many lines as it takes
      const wide = (signs[index] ? 26 : 0) + pen.measureText(key.textContent).width + 16;
      if (x > RIGHT && x + wide > width) { x = RIGHT; y += LINE; }
      const place = [x, y];
      x += wide;
      return place;
    });
    const top = (keys.length ? y : 44) + 16, height = Math.ceil(top + box.height + 14), plain = dressed(svg);
    plain.setAttribute("x", left);
    const image = await loaded(plain, width, box.height);
    canvas.width = width * SCALE;
    canvas.height = height * SCALE;
    pen.scale(SCALE, SCALE);
    pen.fillStyle = colour("panel");
    pen.fillRect(0, 0, width, height);
    pen.fillStyle = colour("ink");
    pen.font = `600 14px ${colour("sans")}`;
    pen.fillText(svg.querySelector("title").textContent, RIGHT, 24, width - 2 * RIGHT);
    pen.fillStyle = colour("dim");
    pen.font = `12px ${colour("sans")}`;
    pen.fillText(note, RIGHT, 42, width - 2 * RIGHT);
    keys.forEach((key, index) => {
      const [keyX, keyY] = places[index];
      if (signs[index]) pen.drawImage(signs[index], keyX, keyY - 10);
      pen.fillText(key.textContent, keyX + (signs[index] ? 26 : 0), keyY);
    });
    pen.drawImage(image, 0, top);
    save(await new Promise((resolve) => canvas.toBlob(resolve, "image/png")), id + ".png");
  }
  function save(blob, name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-png], [data-print]");
    if (!button) return;
    if ("print" in button.dataset) print(); else png(button.dataset.png);
  });
  const ready = () => { for (const button of document.querySelectorAll("[data-png], [data-print]")) button.hidden = false; };
  document.addEventListener("healer:swapped", ready);
  ready();
})();
