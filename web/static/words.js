// Words: the scripts hold English; a page in another language carries their translations.
"use strict";
const WORDS = JSON.parse(document.getElementById("words")?.textContent || "null");
const w = (text, parts = {}) => (WORDS?.[text] || text).replace(/\{(\w+)\}/g, (hole, name) => parts[name] ?? hole);
