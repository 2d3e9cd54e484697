// Shows what is wrong with a form's fields beside them. The value: {form, problems, reveal}.
watch("value", () => {
  const { form, problems, reveal } = props.value ?? {};
  if (form) studio.paint(form, problems, reveal);
});
