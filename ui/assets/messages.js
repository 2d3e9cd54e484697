// Messages have one place, a panel below the status bar that covers nothing. What Gradio would show
// over the page moves there; the same message twice is shown once.
{
  const { h } = studio;
  const panel = element.querySelector(".ps-toasts");
  const OPEN_SECONDS = 60;
  const MOST = 3;
  const WORDS = { error: "Error", warning: "Warning", info: "Note", success: "Note" };
  const shown = new Map(); // text -> node
  const close = (text) => {
    shown.get(text)?.remove();
    shown.delete(text);
  };
  const say = (kind, nodes) => {
    const text = nodes.map((node) => node.textContent).join("\n");
    close(text);
    const isBad = kind === "error";
    const shut = h("button", { type: "button", "aria-label": "Close", onclick: () => close(text) }, "✕");
    const node = h("div", { class: `ps-toast ps-message${isBad ? " bad" : ""}`, role: isBad ? "alert" : "status" },
      shut, h("span", { class: "kind" }, WORDS[kind]), h("div", {}, ...nodes));
    shown.set(text, node);
    panel.append(node);
    if (!isBad) setTimeout(() => shown.get(text) === node && close(text), 1000 * OPEN_SECONDS);
    while (shown.size > MOST) close([...shown.keys()][0]);
    // The answer to a button further down would be missed.
    if (isBad) node.scrollIntoView({ block: "nearest" });
  };
  // Each call that fails says so in Gradio; the status bar tells if nobody answers at all.
  const LOST = /connection errored out/i;
  const sayOf = (kind, text) => {
    if (!LOST.test(text.textContent)) say(kind, [...text.childNodes].map((node) => node.cloneNode(true)));
    else if (!document.body.classList.contains("ps-offline")) say("warning", [document.createTextNode("The studio was too busy to answer. Try again.")]);
  };
  const bodies = document.getElementsByClassName("toast-body");
  const take = () => {
    for (const body of [...bodies]) {
      const kind = Object.keys(WORDS).find((one) => body.classList.contains(one)) ?? "info";
      for (const text of body.querySelectorAll("[data-testid=toast-text]:not([data-taken])")) {
        text.dataset.taken = "";
        sayOf(kind, text);
      }
      if (!body.dataset.taken) body.querySelector("[data-testid=toast-close]")?.click();
      body.dataset.taken = "";
    }
  };
  document.body.classList.add("ps-has-messages");
  new MutationObserver(() => bodies.length && take()).observe(document.body, { childList: true, subtree: true });
  take();
}
