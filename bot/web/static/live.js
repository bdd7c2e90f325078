// Comfort on a job's page: a log that goes on where it was, follows its end, and can be searched; tabs that say which
// of them is shown. Without it the page shows the same.
"use strict";
(() => {
  const KEPT = 5000; // Entries of a log that stay on the page.
  const MOST_FOUND = 2000;
  const reached = new Map(); // By address: the offset of the last event, for a connection that is made again.
  const find = (id) => document.getElementById(id);

  const connect = (address) => {
    const url = new URL(address, location.href);
    if (reached.has(address)) url.searchParams.set("from", reached.get(address));
    const source = new EventSource(url, { withCredentials: true });
    source.addEventListener("log", (event) => event.lastEventId && reached.set(address, event.lastEventId));
    return source;
  };
  const isAtEnd = () => innerHeight + scrollY >= document.documentElement.scrollHeight - 40;
  const isShown = (panel) => panel && panel.checkVisibility();
  const mark = (event, isLost) => event.target.toggleAttribute && event.target.toggleAttribute("data-lost", isLost);

  const markTab = () => {
    for (const tab of document.querySelectorAll(".tabs a")) {
      const isCurrent = isShown(find(tab.hash.slice(1)));
      if (isCurrent) tab.setAttribute("aria-current", "true");
      else tab.removeAttribute("aria-current");
    }
  };

  const followLog = () => {
    const box = find("follow");
    if (!box) return;
    let last = scrollY;
    const goToEnd = () => scrollTo({ top: document.documentElement.scrollHeight, behavior: "instant" });
    // Who scrolls up wants to read there. Who scrolls to the end wants to see it grow.
    addEventListener("scroll", () => {
      if (isShown(find("log"))) box.checked = isAtEnd() || (box.checked && scrollY >= last);
      last = scrollY;
    }, { passive: true });
    box.addEventListener("change", () => box.checked && goToEnd());
    document.body.addEventListener("htmx:sseMessage", (event) => {
      if (!box.checked) return;
      // Of several stages the last one runs, and the others are folded as they are on a new page.
      const stages = event.detail.type === "next" ? [...document.querySelectorAll("#logs > section > details")] : [];
      for (const earlier of stages.slice(0, -1)) earlier.open = false;
      const log = event.target.closest(".log");
      if (!log) return;
      while (log.childElementCount > KEPT) log.firstElementChild.remove();
      if (isShown(log)) goToEnd();
    });
  };

  const searchLog = () => {
    const field = find("find"), said = find("found");
    if (!field || !window.Highlight) return;
    let ranges = [], current = -1, timer = 0;
    const collect = (words) => {
      ranges = [];
      const texts = document.createTreeWalker(find("logs"), NodeFilter.SHOW_TEXT);
      while (words && texts.nextNode()) {
        const text = texts.currentNode.data.toLowerCase();
        if (!texts.currentNode.parentElement.closest(".log")) continue;
        for (let at = text.indexOf(words); at >= 0; at = text.indexOf(words, at + words.length)) {
          if (ranges.length >= MOST_FOUND) return;
          const range = new Range();
          range.setStart(texts.currentNode, at);
          range.setEnd(texts.currentNode, at + words.length);
          ranges.push(range);
        }
      }
    };
    const show = () => {
      CSS.highlights.set("found", new Highlight(...ranges));
      CSS.highlights.set("current", new Highlight(...(ranges[current] ? [ranges[current]] : [])));
      const most = ranges.length >= MOST_FOUND ? "+" : "";
      said.textContent = !field.value ? "" : ranges.length ? `${current + 1} of ${ranges.length}${most}` : "not found";
    };
    const look = () => {
      collect(field.value.trim().toLowerCase());
      current = Math.min(current, ranges.length - 1);
      show();
    };
    const go = (by) => {
      if (!ranges.length) return;
      current = (current + by + ranges.length) % ranges.length;
      const log = ranges[current].startContainer.parentElement.closest("details");
      if (log) log.open = true;
      const box = ranges[current].getBoundingClientRect();
      if (find("follow")) find("follow").checked = false;
      scrollBy({ top: box.top - innerHeight / 3, behavior: "instant" });
      show();
    };
    field.addEventListener("input", () => { current = -1; look(); go(1); });
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      go(event.shiftKey ? -1 : 1);
    });
    document.body.addEventListener("htmx:sseMessage", () => {
      clearTimeout(timer);
      timer = setTimeout(() => field.value && look(), 300);
    });
  };

  document.addEventListener("DOMContentLoaded", () => {
    htmx.createEventSource = connect;
    for (const tools of document.querySelectorAll(".tools")) tools.hidden = false;
    document.body.addEventListener("htmx:sseError", (event) => mark(event, true));
    document.body.addEventListener("htmx:sseOpen", (event) => mark(event, false));
    for (const moved of ["hashchange", "load"]) addEventListener(moved, () => requestAnimationFrame(markTab));
    markTab();
    followLog();
    searchLog();
  });
})();
