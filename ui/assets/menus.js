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
  // Gradio opens a menu when it gets the focus, which it keeps after Escape.
  const reopen = (event) => {
    const input = event.target.closest?.(".wrap-inner, .wrap")?.querySelector("input[role=listbox], input[role=combobox]");
    const isOpen = [...document.querySelectorAll("ul[role=listbox]")].some((one) => one.checkVisibility());
    if (!input || input !== document.activeElement || isOpen) return;
    input.blur();
    input.focus();
  };
  window.addEventListener("pointerdown", reopen, true);
  studio.takesTyped = true;
}
