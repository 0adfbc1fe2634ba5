// Creating elements; text from the data is only ever inserted as text.

export const byId = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null).map((child) => (child instanceof Node ? child : String(child))));
  return element;
}

// The format of a label quality, as in the report.
export const percent = (share) => {
  if (share === null || share === undefined) return "unknown";
  const value = 100 * share;
  if (value < 1) return "<1 %";
  return value > 99 && value < 100 ? ">99 %" : `${Math.round(value)} %`;
};

export const count = (number) => number.toLocaleString("en");
export const examples = (number) => `${count(number)} ${number === 1 ? "example" : "examples"}`;

// Announce something to screen readers.
export function announce(text) {
  const live = byId("live");
  live.textContent = "";
  requestAnimationFrame(() => { live.textContent = text; });
}

// Announce something to screen readers and show it on the page.
let silence;
export function say(text) {
  announce(text);
  const toast = byId("toast");
  toast.textContent = text;
  toast.classList.add("shown");
  clearTimeout(silence);
  silence = setTimeout(() => toast.classList.remove("shown"), 4000);
}
