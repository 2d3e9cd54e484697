// Shows the problems of a form beside its fields. The value is {form, problems, reveal, place, check}.
watch("value", () => {
  const { form, problems, reveal, place, check } = props.value ?? {};
  if (form) studio.paint(form, problems, reveal, place, check);
});
