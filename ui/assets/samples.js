// Masked tokens as predicted, with the text's own where they differ.
studio.sampleParts = ({ parts, given, wanted, text }) => {
  const { h } = studio;
  if (parts) {
    return parts.flatMap((part) => {
      if (typeof part === "string") return [`${part} `];
      const [truth, guess] = part;
      if (truth === guess) return [h("ins", {}, guess), " "];
      return [h("del", {}, guess), " ", h("small", {}, `(${truth})`), " "];
    });
  }
  const own = wanted && h("p", {}, h("small", {}, "The text: "), wanted);
  return [h("p", {}, h("span", { class: "given" }, `${given} `), wanted ? "" : h("b", {}, text)), ...(own ? [own, h("p", {}, h("small", {}, "The model: "), h("b", {}, text))] : [])];
};
