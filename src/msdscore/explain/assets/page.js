"use strict";
for (const section of document.querySelectorAll("section")) {
  const images = JSON.parse(section.querySelector("script").textContent);
  const shown = section.querySelector(".shown"),
    key = section.querySelector(".key");
  const buttons = [...section.querySelectorAll(".tabs button")],
    words = [...section.querySelectorAll(".w")];
  let kept = images.image ? "image" : "penalty"; // the plain photograph first
  const show = (name) => {
    const image = images[name];
    if (!image) return;
    shown.src = image.src;
    shown.alt = image.title;
    key.children[0].textContent = image.low;
    key.children[1].style.background = image.ramp ?? "";
    key.children[2].textContent = image.high;
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.map === name));
    for (const word of words) word.classList.toggle("on", "word-" + word.dataset.word === name);
  };
  for (const button of buttons) button.addEventListener("click", () => show((kept = button.dataset.map)));
  for (const word of words) {
    const name = "word-" + word.dataset.word;
    word.tabIndex = 0;
    word.addEventListener("mouseenter", () => show(name));
    word.addEventListener("mouseleave", () => show(kept));
    word.addEventListener("focus", () => show(name));
    word.addEventListener("click", () => show((kept = name)));
    word.addEventListener("keydown", (event) => {
      if (event.key === "Enter") show((kept = name));
    });
  }
  show(kept);
}
