// Buttons that copy. The text is on the page, too, so that people can select it.
document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-copy]");
  const source = button && document.getElementById(button.dataset.copy);
  if (!source) return;
  try {
    await navigator.clipboard.writeText(source.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(source);
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
});

// Lists refresh while somebody looks at them, unless they are selecting text or using a button in them.
const refreshSoon = () => {
  const live = document.getElementById("live");
  if (!live) return;
  setTimeout(() => {
    const list = document.getElementById("live");
    const isIdle = !list.contains(document.activeElement) && getSelection().isCollapsed;
    if (document.visibilityState === "visible" && isIdle) htmx.trigger(list, "refresh");
    refreshSoon();
  }, 1000 * live.dataset.refresh);
};
document.addEventListener("DOMContentLoaded", refreshSoon);

// A choice that depends on another one offers only what belongs to it.
const offer = () => {
  for (const choice of document.querySelectorAll("select[data-offers]")) {
    const wanted = choice.form.elements[choice.dataset.offers].value;
    for (const group of choice.querySelectorAll("optgroup")) group.hidden = group.disabled = group.label !== wanted;
    if (choice.selectedOptions[0]?.closest("optgroup")?.hidden) choice.value = "";
  }
};
document.addEventListener("DOMContentLoaded", offer);
document.addEventListener("change", offer);
