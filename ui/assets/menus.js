// In a menu, Enter takes the option that is typed in full. Gradio takes the first one that contains it.
if (!studio.takesTyped) {
  const onEnter = (event) => {
    if (event.key !== "Enter" || event.isComposing || !event.target.matches?.("input[role=listbox], input[role=combobox]")) return;
    const typed = event.target.value.trim();
    const options = [...document.querySelectorAll("[role=listbox] [role=option]")];
    const exact = options.find((one) => [one.getAttribute("aria-label"), one.textContent.trim()].includes(typed));
    if (!typed || !exact) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    exact.dispatchEvent(new MouseEvent("mousedown", { bubbles: true, cancelable: true }));
  };
  window.addEventListener("keydown", onEnter, true);
  studio.takesTyped = true;
}
