// The dialogs: choosing a class, resolving a conflict, and the list of keys.

import { byId, make } from "./dom.js";
import { ago, className, classCount, decisionText } from "./words.js";

const SHOWN = 50;

// Open a dialog and wait until it is closed; the browser traps the focus in it and restores it afterwards.
function closed(dialog) {
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((done) => dialog.addEventListener("close", () => done(dialog.returnValue), { once: true }));
}

export const anyOpen = () => document.querySelector("dialog[open]") !== null;

export async function showHelp() {
  await closed(byId("help"));
}

const text = byId("chooser-text");
const list = byId("chooser-list");
let found = [];
let at = 0;

function matches(wanted) {
  const names = Array.from({ length: classCount() }, (_, label) => ({ label, name: className(label).toLowerCase() }));
  const rank = ({ name }) => (name === wanted ? 0 : name.startsWith(wanted) ? 1 : 2);
  return names.filter(({ name }) => name.includes(wanted)).sort((a, b) => rank(a) - rank(b)).map(({ label }) => label);
}

function showFound() {
  const all = matches(text.value.trim().toLowerCase());
  found = all.slice(0, SHOWN);
  at = Math.min(at, Math.max(0, found.length - 1));
  list.replaceChildren(...found.map((label, place) => {
    const option = make("li", { role: "option", id: `chooser-${label}`, "aria-selected": String(place === at) }, className(label));
    option.addEventListener("click", () => choose(label));
    return option;
  }));
  if (found.length) text.setAttribute("aria-activedescendant", `chooser-${found[at]}`);
  else text.removeAttribute("aria-activedescendant");
  list.children[at]?.scrollIntoView({ block: "nearest" });
  byId("chooser-count").textContent = all.length > SHOWN ? `first ${SHOWN} of ${all.length} classes` : all.length ? "" : "No matching class.";
}

const choose = (label) => byId("chooser").close(String(label));

text.addEventListener("input", () => { at = 0; showFound(); });
text.addEventListener("keydown", (event) => {
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    const step = event.key === "ArrowDown" ? 1 : -1;
    at = (at + step + found.length) % Math.max(1, found.length);
    showFound();
  } else if (event.key === "Enter") {
    if (found.length) choose(found[at]);
  } else return;
  event.preventDefault();
});

export async function chooseClass() {
  text.value = "";
  at = 0;
  const answer = closed(byId("chooser"));
  showFound();
  text.focus();
  const label = await answer;
  return label === "" ? null : Number(label);
}

// Returns whether to replace the decisions of others with our own.
export async function askConflict(conflicts) {
  byId("conflict-list").replaceChildren(...conflicts.map((decision) =>
    make("li", {}, `Example ${decision.index}: ${decision.reviewer} ${decisionText(decision)}, ${ago(decision.at)}`)));
  const answer = closed(byId("conflict"));
  byId("conflict-theirs").focus();
  return (await answer) === "mine";
}

byId("chooser-cancel").addEventListener("click", () => byId("chooser").close(""));
byId("help-close").addEventListener("click", () => byId("help").close(""));
byId("conflict-theirs").addEventListener("click", () => byId("conflict").close("theirs"));
byId("conflict-mine").addEventListener("click", () => byId("conflict").close("mine"));
