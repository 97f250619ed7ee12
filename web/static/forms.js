// A form is sent once: what it carries (a link, a code, a secret) is used up by the first press, and a second press
// would only show that. After ten seconds it may be sent again: the answer may never come.
"use strict";
const sent = new WeakMap(); // form -> when it was sent
document.addEventListener("submit", (event) => {
  if (event.target.method !== "post" || event.defaultPrevented) return;
  if (event.timeStamp - (sent.get(event.target) ?? -Infinity) < 10000) event.preventDefault();
  else sent.set(event.target, event.timeStamp);
});
// Back shows the page as it was left.
addEventListener("pageshow", () => { for (const form of document.forms) sent.delete(form); });
