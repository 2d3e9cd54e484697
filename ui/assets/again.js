// Asks now and then whether a start button that is disabled may be pressed after all: the file, the
// tokenizer or the sign-in that it waits for may come from elsewhere.
const button = () => document.getElementById(props.button);
const ask = () => {
  if (!element.isConnected) return clearInterval(asking);
  const start = button();
  if (start?.disabled && studio.isShown(start) && !document.hidden) trigger("again");
};
const asking = setInterval(ask, 3000);
window.addEventListener("focus", ask);
