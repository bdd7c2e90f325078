// Keeps what people type into a form until it was carried out: also when their session ends, or the page is closed.
// It is in this browser's own storage, by person and form. Nobody else's pages read it, and signing out removes it.
"use strict";
(() => {
  const PREFIX = "ptq-draft ", SENT = "ptq-sent", LASTS_MS = 7 * 24 * 3600 * 1000;
  const fields = (form) => [...form.elements].filter((it) => it.matches("textarea, select, input:not([type])"));
  const isTyped = (it) => it.localName !== "select" && it.value.trim();
  const isChanged = (it) => it.localName !== "select" && it.value !== it.defaultValue;

  const nameDraft = (form) => `${PREFIX}${form.dataset.person} ${form.dataset.draft}`;
  const save = (form) => {
    const texts = Object.fromEntries(fields(form).map((it) => [it.name, it.value]));
    if (fields(form).some(isTyped)) localStorage.setItem(form.draft, JSON.stringify({ at: Date.now(), texts }));
    else localStorage.removeItem(form.draft);
  };
  const show = (form) => {
    if (form.draft) return;
    form.draft = nameDraft(form);
    if ("refused" in form.dataset) return save(form);
    const kept = JSON.parse(localStorage.getItem(form.draft) || "null");
    // People can type before the browser has this script.
    if (!kept) return fields(form).some(isChanged) && save(form);
    // All of it, whatever a link names: a link must not choose where the kept text goes, or what is done with it.
    for (const it of fields(form)) it.value = kept.texts[it.name] ?? it.value;
    form.dispatchEvent(new Event("change", { bubbles: true }));
    form.querySelector(".kept").hidden = false;
    form.closest("details")?.setAttribute("open", "");
  };
  const count = (it) => {
    const own = it.value.replace(/^>.*$/gm, "").match(/\p{L}/gu) || [], least = Number(it.dataset.least);
    const told = document.getElementById(it.dataset.counter), enough = own.length >= least;
    told.textContent = enough ? `${it.value.length.toLocaleString("en")} of ${it.maxLength.toLocaleString("en")} characters` : `${own.length} of at least ${least} letters`;
    told.classList.toggle("enough", enough);
  };
  const begin = (part) => {
    part.querySelectorAll("form[data-draft]").forEach(show);
    part.querySelectorAll("[data-counter]").forEach((it) => it.value && count(it));
  };

  const list = () => Object.keys(localStorage).filter((name) => name.startsWith(PREFIX));
  const tidy = () => {
    // The page after a form that was carried out says so in its address.
    const sent = sessionStorage.getItem(SENT);
    if (sent && /[?&](posted|started)\b/.test(location.search)) localStorage.removeItem(sent);
    for (const name of list()) if (Date.now() - JSON.parse(localStorage.getItem(name)).at > LASTS_MS) localStorage.removeItem(name);
  };

  document.addEventListener("input", ({ target }) => {
    if (target.form?.draft) save(target.form);
    if (target.dataset.counter) count(target);
  });
  document.addEventListener("submit", ({ target }) => {
    if (target.draft) sessionStorage.setItem(SENT, target.draft);
    if (target.matches("[action$='/sign-out']")) list().forEach((name) => localStorage.removeItem(name));
  });
  document.addEventListener("click", ({ target }) => {
    if (!target.matches("[data-discard]")) return;
    localStorage.removeItem(target.form.draft);
    target.form.reset();
    target.closest(".kept").hidden = true;
    target.form.querySelectorAll("[data-counter]").forEach(count);
  });
  document.addEventListener("DOMContentLoaded", () => {
    try {
      tidy();
      begin(document);
    } finally {
      sessionStorage.removeItem(SENT);
    }
  });
  document.addEventListener("htmx:load", ({ target }) => begin(target));
})();
