// Shows the problems of a form beside its fields. The value is {form, problems, reveal}.
watch("value", () => {
  const { form, problems, reveal } = props.value ?? {};
  if (form) studio.paint(form, problems, reveal);
});
