// Looks again now and then whether a start is possible: the missing file, tokenizer or sign-in may
// have come from elsewhere.
const button = () => document.getElementById(props.button);
const ask = () => {
  if (!element.isConnected) return clearInterval(asking);
  const start = button();
  const words = start?.textContent.trim() ?? "";
  const isBlocked = props.blocked.some((one) => words.startsWith(one)) || studio.isCheckFirst(words);
  if (isBlocked && studio.isShown(start) && !document.hidden) trigger("again");
};
const asking = setInterval(ask, 3000);
window.addEventListener("focus", ask);
window.addEventListener("ps-again", ask);
