// Trying a change of the rules: one form, and a page that stays fresh while the replay is under way.
"use strict";
(() => {
  const form = document.getElementById("try");
  if (form) {
    const go = document.getElementById("try-go"), wrong = document.getElementById("try-problem");
    const fail = (node) => { wrong.replaceChildren(node); wrong.hidden = false; go.disabled = false; go.textContent = w("Rehearse"); };
    let key = newKey();
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      go.disabled = true;
      wrong.hidden = true;
      go.textContent = w("Checking the rules…");
      const body = {
        cluster: form.dataset.cluster,
        file: form.dataset.file,
        text: document.getElementById("text").value,
        days: Number(document.getElementById("days").value),
        samples: document.getElementById("samples").checked,
        reason: document.getElementById("why").value,
      };
      let answer;
      try { answer = await send("POST", "/api/v1/rehearsals", body, key); } catch { return fail(el("span", w("No answer from healer. Try again: the same action never runs twice."))); }
      if (isFinal(answer)) key = newKey();
      if (!answer.ok) return fail(problem(answer));
      location.assign("/rehearsals/" + answer.data.id);
    });
  }
  setInterval(() => { if (document.querySelector("[data-poll]")) refresh("rehearsal"); }, 2000);
})();
