// Offers the files of the workspace while a path is typed. The value is their paths.
const { h } = studio;
const { form, fields } = props;
const list = h("datalist", { id: `${form}-offered` });
element.append(list);
const offer = () =>
  list.replaceChildren(...(Array.isArray(props.value) ? props.value : []).map((path) =>
    h("option", { value: path, label: path.split("/").slice(-1)[0] })));
const attach = () => {
  for (const field of fields) {
    const input = document.querySelector(`#${form}-${field} input`);
    if (input && !input.hasAttribute("list")) input.setAttribute("list", list.id);
  }
};
watch("value", offer);
offer();
attach();
document.addEventListener("focusin", attach);
