// Keeps a page up to date: what changed on the server is put in its place, and nothing else is touched.
// Every element with data-live and an id is such a place. Without this script pages work, and are loaded by hand.
"use strict";

const PAUSE_MS = 1500;
const places = () => document.querySelectorAll("[data-live]");
const seen = new Map(Array.from(places(), (place) => [place.id, place.outerHTML]));

function keepOpen(old, fresh) {
  const opened = old.querySelectorAll("details");
  fresh.querySelectorAll("details").forEach((part, index) => { part.open = opened[index]?.open ?? part.open; });
}

function update(page) {
  const fresh = page.querySelectorAll("[data-live]");
  const ids = new Set(Array.from(fresh, (place) => place.id));
  let last = null;
  for (const place of fresh) {
    const html = place.outerHTML, here = document.getElementById(place.id);
    if (here && seen.get(place.id) !== html) {
      keepOpen(here, place);
      here.replaceWith(place);
    } else if (!here && last) {
      last.after(place);
    }
    seen.set(place.id, html);
    last = document.getElementById(place.id);
  }
  for (const place of places()) {
    if (!ids.has(place.id)) place.remove();
  }
}

async function follow() {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    if (document.hidden) continue;
    try {
      const answer = await fetch(location.href);
      if (answer.ok) update(new DOMParser().parseFromString(await answer.text(), "text/html"));
    } catch {
      return;  // The demo has ended.
    }
  }
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button.copy");
  if (!button) return;
  await navigator.clipboard.writeText(button.parentElement.querySelector("pre").textContent.trimEnd());
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
});

if (seen.size) follow();
