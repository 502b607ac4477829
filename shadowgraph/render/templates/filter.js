(() => {
  "use strict";
  const box = document.getElementById("filter"), input = box.querySelector("input"), told = box.querySelector("output");
  const items = [...document.querySelectorAll("[data-item]")];
  const texts = items.map((item) => item.textContent.toLowerCase());
  box.hidden = false;
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    items.forEach((item, at) => {
      item.hidden = !words.every((word) => texts[at].includes(word));
      shown += item.hidden ? 0 : 1;
    });
    told.textContent = words.length ? `${shown} of ${items.length} findings, nodes, launches and processes` : "";
    if (words.length) document.querySelectorAll("details[data-folds]").forEach((each) => {
      each.open = [...each.querySelectorAll("[data-item]")].some((item) => !item.hidden);
    });
  });
})();
