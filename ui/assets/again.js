// Re-evaluates a disabled start button now and then: the missing file, tokenizer or sign-in may have
// come from elsewhere.
const button = () => document.getElementById(props.button);
const ask = () => {
  if (!element.isConnected) return clearInterval(asking);
  const start = button();
  if (start?.disabled && studio.isShown(start) && !document.hidden) trigger("again");
};
const asking = setInterval(ask, 3000);
window.addEventListener("focus", ask);
