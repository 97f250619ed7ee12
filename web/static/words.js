// Words: English stands in the scripts; in another language the page brings what each of them is there.
"use strict";
const WORDS = JSON.parse(document.getElementById("words")?.textContent || "null");
const w = (text, parts = {}) => (WORDS?.[text] || text).replace(/\{(\w+)\}/g, (hole, name) => parts[name] ?? hole);
// What the API says comes in English, as finished sentences: the server has them in the page's language.
const SAID = ["title", "detail", "why", "what", "text"];
async function inWords(data) {
  if (!WORDS) return data;
  const places = [];
  const look = (value, ours) => {
    if (!value || typeof value !== "object") return;
    for (const [key, one] of Object.entries(value)) {
      if (typeof one !== "string") look(one, key === "not_available");
      else if (one && one.length <= 2000 && (ours || SAID.includes(key))) places.push([value, key]);
    }
  };
  look(data, false);
  // In parts: the server takes no large body.
  for (let start = 0; start < places.length; start += 50) {
    const some = places.slice(start, start + 50);
    try {
      const answer = await fetch("/words", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(some.map(([one, key]) => one[key])) });
      if (answer.ok) (await answer.json()).forEach((text, i) => { some[i][0][some[i][1]] = text; });
    } catch { /* English says it as well */ }
  }
  return data;
}
