// Words: English stands in the scripts; in another language the page brings what each of them is there.
"use strict";
const WORDS = JSON.parse(document.getElementById("words")?.textContent || "null");
const w = (text, parts = {}) => (WORDS?.[text] || text).replace(/\{(\w+)\}/g, (hole, name) => parts[name] ?? hole);
