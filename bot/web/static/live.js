// What a page that follows a log needs beside htmx: it goes on where it was, and stays at the end for who reads there.
"use strict";
(() => {
  const KEPT = 5000; // Entries of a log that stay on the page.
  const reached = new Map(); // By address: the offset of the last event, for a connection that is made anew.

  const connect = (address) => {
    const url = new URL(address, location.href);
    if (reached.has(address)) url.searchParams.set("from", reached.get(address));
    const source = new EventSource(url, { withCredentials: true });
    source.addEventListener("log", (event) => event.lastEventId && reached.set(address, event.lastEventId));
    return source;
  };
  const isAtEnd = () => innerHeight + scrollY >= document.documentElement.scrollHeight - 40;
  const mark = (event, isLost) => event.target.toggleAttribute && event.target.toggleAttribute("data-lost", isLost);

  document.addEventListener("DOMContentLoaded", () => {
    htmx.createEventSource = connect;
    let follows = false;
    document.body.addEventListener("htmx:sseBeforeMessage", () => { follows = isAtEnd(); });
    document.body.addEventListener("htmx:sseMessage", (event) => {
      const log = event.target.closest(".log");
      while (follows && log && log.childElementCount > KEPT) log.firstElementChild.remove();
      if (follows) scrollTo({ top: document.documentElement.scrollHeight, behavior: "instant" });
    });
    document.body.addEventListener("htmx:sseError", (event) => mark(event, true));
    document.body.addEventListener("htmx:sseOpen", (event) => mark(event, false));
  });
})();
