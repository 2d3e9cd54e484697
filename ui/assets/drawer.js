// The settings of forms: in the advanced view groups are closed, a search finds settings in all of
// them, and each value that differs from the preset's has a mark and a button that resets it.
studio.drawer ??= (() => {
  const { h } = studio;
  const fieldsOf = (form) => [...form.querySelectorAll(".ps-field[id]")].filter((one) => one.id.startsWith(`${form.id}-`));
  const nameOf = (form, block) => block.id.slice(form.id.length + 1);
  const titleOf = (block) => (block.querySelector("[data-testid=block-info]") ?? block.querySelector("label"))?.textContent.trim() ?? "";

  // The preset's values.

  const presetOf = (id, field) => {
    const start = studio.startOf(id);
    const chosen = start.presets[studio.valueOf(id, "preset")] ?? {};
    const filled = chosen[start.variant ? studio.valueOf(id, start.variant) : ""] ?? {};
    return field in filled ? filled[field] : start.first[field];
  };
  const isSame = (one, other) => {
    const [left, right] = [one, other].map((value) => (typeof value === "string" ? value.trim() : value ?? ""));
    if (left === right) return true;
    return typeof left === "string" && typeof right === "string" && left !== "" && right !== "" && Number(left) === Number(right);
  };
  const isChanged = (id, field) => {
    const start = studio.startOf(id);
    return field in start.first && !start.inputs.includes(field) && !isSame(studio.valueOf(id, field), presetOf(id, field));
  };
  const written = (block, value) => {
    if (value === "" || value === null || value === undefined) return "empty";
    if (typeof value === "boolean") return value ? "on" : "off";
    const radio = block.querySelector(`input[type=radio][value="${CSS.escape(value)}"]`);
    return radio ? radio.parentElement.textContent.trim() : String(value);
  };

  const mark = (form, block) => {
    const field = nameOf(form, block);
    const changed = isChanged(form.id, field);
    block.toggleAttribute("data-changed", changed);
    const button = block.querySelector(":scope > .ps-reset");
    if (!changed) return button?.remove();
    const value = written(block, presetOf(form.id, field));
    const label = `Reset ${titleOf(block)} to ${value}`;
    if (button) {
      if (button.title !== label) button.title = button.ariaLabel = label;
      return;
    }
    const reset = () => {
      studio.fill(form.id, { [field]: presetOf(form.id, field) });
      block.querySelector("input, textarea")?.focus();
    };
    block.prepend(h("button", { type: "button", class: "ps-reset", title: label, "aria-label": label, onclick: reset }, "↺"));
  };

  const markAll = (form) => {
    if (!studio.startOf(form.id)) return;
    fieldsOf(form).forEach((block) => mark(form, block));
    count(form);
  };

  // Groups and search.

  const toggle = (form, group, open) => {
    group.toggleAttribute("data-open", open);
    const more = group.querySelector(".ps-group-more");
    more?.setAttribute("aria-expanded", String(open));
    if (form) label(form);
  };
  const groupsOf = (form) => [...form.querySelectorAll(":scope .ps-group")].filter((one) => one.querySelector(".ps-advanced"));

  const label = (form) => {
    const all = form.querySelector(".ps-open-all");
    if (all) all.textContent = groupsOf(form).every((one) => one.hasAttribute("data-open")) ? "Close all groups" : "Open all groups";
  };

  const count = (form) => {
    for (const group of groupsOf(form)) {
      const more = group.querySelector(".ps-group-more");
      if (!more) continue;
      const rest = [...group.querySelectorAll(".ps-advanced")];
      const changed = rest.filter((one) => one.hasAttribute("data-changed")).length;
      const all = rest.length === group.querySelectorAll(".ps-field[id]").length;
      const words = `${rest.length} ${all ? "" : "more "}${rest.length === 1 ? "setting" : "settings"}${changed ? `, ${changed} changed` : ""}`;
      if (more.textContent === words) continue;
      more.textContent = words;
      more.ariaLabel = `${more.dataset.group}: ${words}`;
    }
    const changed = form.querySelectorAll(".ps-field[data-changed]").length;
    const only = form.querySelector(".ps-only-changed span");
    if (only) only.textContent = `Only changed (${changed})`;
    search(form);
  };

  const search = (form) => {
    const bar = form.querySelector(".ps-drawer-bar");
    if (!bar) return;
    const words = bar.querySelector("input[type=search]").value.toLowerCase().split(/\s+/).filter(Boolean);
    const only = bar.querySelector("input[type=checkbox]").checked;
    const filters = isAdvanced(form) && (words.length > 0 || only);
    form.toggleAttribute("data-filtered", filters);
    let found = 0;
    for (const block of fieldsOf(form)) {
      const text = `${nameOf(form, block)} ${nameOf(form, block).replaceAll("_", " ")} ${block.textContent} ${block.closest(".ps-group")?.querySelector("h3")?.firstChild.textContent ?? ""}`.toLowerCase();
      const fits = filters && words.every((word) => text.includes(word)) && (!only || block.hasAttribute("data-changed"));
      block.toggleAttribute("data-found", fits);
      found += fits;
    }
    for (const group of form.querySelectorAll(".ps-group")) group.toggleAttribute("data-found", Boolean(group.querySelector("[data-found]")));
    const answer = !filters ? "" : found ? `${found} ${found === 1 ? "setting" : "settings"}` : "No setting matches.";
    const place = bar.querySelector("[role=status]");
    if (place.textContent !== answer) place.textContent = answer;
  };

  const isAdvanced = (form) => Boolean(form.querySelector('.ps-view input[value="Advanced"]:checked'));

  const build = (form) => {
    const view = form.querySelector(":scope > .ps-view, :scope .ps-view");
    if (!view) return;
    for (const group of groupsOf(form)) {
      const title = group.querySelector(".ps-group-title h3");
      if (!title || title.querySelector("button")) continue;
      const name = title.textContent;
      title.append(h("button", {
        type: "button", class: "ps-group-more", "aria-expanded": "false", "data-group": name,
        onclick: () => toggle(form, group, !group.hasAttribute("data-open")),
      }));
    }
    const all = () => {
      const open = !groupsOf(form).every((one) => one.hasAttribute("data-open"));
      groupsOf(form).forEach((one) => toggle(null, one, open));
      label(form);
    };
    const refresh = () => search(form);
    view.after(h("search", { class: "ps-drawer-bar", "aria-label": "Settings" },
      h("input", { type: "search", placeholder: "Search settings", "aria-label": "Search settings", autocomplete: "off", spellcheck: "false", oninput: refresh }),
      h("label", { class: "ps-only-changed gradio-style" }, h("input", { type: "checkbox", onchange: refresh }), h("span", {}, "Only changed (0)")),
      h("button", { type: "button", class: "ps-open-all", onclick: all }, "Open all groups"),
      h("p", { role: "status" })));
    view.addEventListener("change", refresh);
  };

  const scan = () => {
    for (const form of document.querySelectorAll(".ps-form[id]:not([data-drawer])")) {
      if (!studio.startOf(form.id) || !fieldsOf(form).length) continue;
      form.dataset.drawer = "";
      build(form);
      markAll(form);
    }
  };

  // Several fields change together.
  const waiting = new Set();
  studio.heard.add((id) => {
    if (waiting.has(id)) return;
    waiting.add(id);
    setTimeout(() => {
      waiting.delete(id);
      const form = document.getElementById(id);
      if (form?.matches(".ps-form")) markAll(form);
    });
  });
  new MutationObserver(scan).observe(document.body, { childList: true, subtree: true });
  scan();
  return { scan };
})();
