// Descriptions of examples and decisions.

import { percent } from "./dom.js";

let classes = [];
export const setClasses = (names) => { classes = names; };
export const className = (label) => (label < 0 ? "no label" : classes[label] ?? `class ${label}`);
export const classCount = () => classes.length;

export const stateOf = (example) => example.decision?.state ?? "open";

export function decisionText(decision) {
  const label = decision.label === null ? "" : className(decision.label);
  return {
    open: "reset to undecided",
    accepted: `accepted: ${label}`,
    kept: `kept: ${label}`,
    changed: `changed to ${label}`,
    removed: "removed",
    unsure: "unsure",
  }[decision.state];
}

export function exampleText(example) {
  const differs = example.given_label !== example.suggested_label;
  const suggestion = differs ? `, suggested ${className(example.suggested_label)}` : `, same suggestion${example.is_doubtful ? ", worth a look" : ""}`;
  const state = stateOf(example) === "open" ? "undecided" : `${decisionText(example.decision)}, by ${example.decision.reviewer}`;
  const issues = example.issues.map((issue) => `, ${issueName(issue.name)}`).join("");
  return `Example ${example.index}, given ${className(example.given_label)}${suggestion}, label quality ${percent(example.label_quality)}${issues}, ${state}`;
}

export const issueName = (name) => name.replaceAll("_", " ");

export function ago(time) {
  const seconds = Math.max(0, (Date.now() - new Date(time).getTime()) / 1000);
  if (seconds < 60) return `${Math.round(seconds)} s ago`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min ago`;
  return new Date(time).toLocaleString();
}
