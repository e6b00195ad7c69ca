"use strict";
(() => {
  const every = 2000;
  const main = document.querySelector("main");
  const stale = document.getElementById("stale");
  const next = () => setTimeout(refresh, every);
  async function refresh() {
    if (document.hidden) return next();
    try {
      const answer = await fetch(document.body.dataset.main, { signal: AbortSignal.timeout(5000) });
      if (!answer.ok) throw new Error(answer.statusText);
      main.innerHTML = await answer.text();
      stale.hidden = true;
    } catch {
      stale.hidden = false;
    }
    next();
  }
  next();
})();
