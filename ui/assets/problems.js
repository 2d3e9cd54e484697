// Shows the problems of a form beside its fields. The value is {form, problems, reveal, place}.
watch("value", () => {
  const { form, problems, reveal, place } = props.value ?? {};
  if (form) studio.paint(form, problems, reveal, place);
});
studio.formOf(props.form).apply = () => trigger("apply");
