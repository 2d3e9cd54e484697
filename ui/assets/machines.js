// The machines that runs have started and that still exist; asked for when the dialog is opened.
const machines = element.querySelector(".ps-machines");
const machineList = machines.querySelector(".ps-machines-list");
const lookAgain = machines.querySelector(".ps-machines-again");

const machineLine = (one) => {
  const { h, ago } = studio;
  if (one.error) return h("li", {}, h("div", {}, h("b", {}, one.target), h("small", { class: "ps-machine-error" }, one.error)));
  const run = h("a", { href: "#runs", "data-go": `runs/${one.run}`, onclick: () => machines.close() }, one.run);
  const facts = [one.detail, one.launch > 0 && `launch ${one.launch}`, one.created > 0 && `since ${ago(one.created)}`].filter(Boolean).join(" · ");
  return h("li", {}, h("div", {}, h("b", {}, one.id), h("small", {}, one.target), h("small", {}, run, facts && ` · ${facts}`)), h("span", { class: "ps-machine-actions" }, deleteButton(one)));
};

// The first press asks, the second one deletes.
const deleteButton = (one) => {
  const { h } = studio;
  const sure = h("button", { type: "button", class: "ps-button danger", hidden: true }, "Delete, and end its run");
  const first = h("button", { type: "button", class: "ps-button", "aria-label": `Delete ${one.id}` }, "Delete");
  first.addEventListener("click", () => {
    first.hidden = true;
    sure.hidden = false;
    sure.disabled = true; // a double click was meant for the first button
    setTimeout(() => ((sure.disabled = false), sure.focus()), 700);
  });
  sure.addEventListener("click", async () => {
    sure.disabled = true;
    sure.textContent = "Deleting…";
    const answer = await studio.ask(server.delete_one_machine, { id: one.id, target: one.target });
    if (answer.problem) sure.closest("li").append(studio.problemCard(answer.problem));
    else await showMachines();
  });
  return [first, sure];
};

const showMachines = async () => {
  const { h } = studio;
  lookAgain.disabled = true;
  machineList.replaceChildren(h("p", { class: "ps-note" }, "Asking each target…"));
  try {
    const { machines: found, problem } = await studio.ask(server.show_machines);
    if (problem) machineList.replaceChildren(studio.problemCard(problem));
    else if (!found.length) machineList.replaceChildren(h("p", {}, "No machine exists."));
    else machineList.replaceChildren(h("ul", {}, found.map(machineLine)));
  } catch {
    machineList.replaceChildren(h("p", { class: "ps-warning" }, "The studio didn't answer; look again."));
  } finally {
    lookAgain.disabled = false;
  }
};

element.querySelector(".ps-machines-open").addEventListener("click", () => {
  machines.showModal();
  showMachines();
});
lookAgain.addEventListener("click", showMachines);
