// The slider of the fleet page: names the moment under it. Its form works without this.
"use strict";
(() => {
  const slider = document.getElementById("at");
  if (!slider) return;
  slider.addEventListener("input", () => {
    const text = new Date(slider.value * 1000).toISOString().slice(11, 16) + " UTC";
    slider.form.querySelector("output").textContent = text;
    slider.setAttribute("aria-valuetext", text);
  });
  // A pointer lets go once; arrow keys go on, and Enter or the button follows them. Firefox sends no form by it.
  slider.addEventListener("pointerup", () => { if (slider.value !== slider.defaultValue) slider.form.requestSubmit(); });
  slider.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    slider.form.requestSubmit();
  });
})();
