// The single view: one example with everything known about it.

import { byId, make, percent } from "./dom.js";
import { annotations, cells, issueLines, labels, passage, picture } from "./tiles.js";
import { ago, className, decisionText, exampleText, stateOf } from "./words.js";

const article = byId("single");
const VIEWS = [["network", "Class probability by the trained network"], ["Gaussian", "Class probability by Gaussians that were fitted to the features of each class"]];
const LONG = 20; // characters of a cell that gets a line of its own

export function showSingle(example, detail) {
  const differs = example.given_label !== example.suggested_label;
  article.setAttribute("aria-label", exampleText(example));
  const shown = picture(example, "large", `Example ${example.index}`);
  const text = wholeText(example, detail);
  const before = article.querySelector(`.passage[data-index="${example.index}"]`);
  const [place, focused] = [before?.scrollTop ?? 0, before && before === document.activeElement];
  article.replaceChildren(...[
    make("div", { class: "look" }, shown && make("div", { class: "picture" }, shown), text),
    make("div", { class: "facts" },
      make("h2", {}, labels(example)),
      make("p", { class: "id" }, `Example ${example.index}`, example.id === String(example.index) ? "" : ` · ${example.id}`, ` · ${example.split}`),
      make("p", { class: "state", "data-state": stateOf(example) },
        stateOf(example) === "open" ? "undecided" : `${decisionText(example.decision)} · ${example.decision.reviewer}, ${ago(example.decision.at)}`),
      probabilities(example, differs),
      make("p", { title: "Estimated probability that the given label is correct" }, `Label quality: ${percent(example.label_quality)}`),
      annotations(example),
      ...issueLines(example).map((line) => make("p", {}, line))),
    make("section", { class: "history" }, make("h3", {}, "Label changes in training"), history(detail?.history)),
    values(detail),
    group(example, detail?.group),
    make("section", { class: "near" }, ...neighbors(example, detail?.neighbors)),
  ].filter(Boolean));
  article.classList.toggle("bare", !shown && !text);
  article.classList.toggle("texts", Boolean(text));
  if (!text) return;
  text.scrollTop = place;
  if (focused) text.focus({ preventScroll: true });
}

// A box of its own that scrolls, by keys too. What a tile shows stands in until the whole has come.
function wholeText(example, detail) {
  const short = passage(example);
  if (!short) return null;
  const whole = detail?.whole_text && example.text.trim() ? make("span", { class: "text", dir: "auto" }, detail.whole_text) : short;
  return make("div", { class: "passage", role: "region", tabindex: "0", "aria-label": `Text of example ${example.index}`, "data-index": example.index }, whole);
}

function probabilities(example, differs) {
  const known = (view, kind) => example[`${view.toLowerCase()}_prob_${kind}`];
  const views = VIEWS.filter(([view]) => known(view, "given") !== null || known(view, "suggested") !== null);
  const share = (value) => make("td", {}, value === null ? null : make("meter", { min: 0, max: 1, value, "aria-hidden": "true" }), " ", percent(value));
  const row = (kind) => make("tr", {}, make("th", { scope: "row" }, make("span", { class: "kind" }, `${kind} `), make("span", { class: differs && kind }, className(example[`${kind}_label`]))),
    ...views.map(([view]) => share(known(view, kind))));
  return make("table", { class: "probabilities" },
    make("thead", {}, make("tr", {}, make("td"), ...views.map(([view, title]) => make("th", { scope: "col", title }, view)))),
    make("tbody", {}, row("given"), differs ? row("suggested") : null));
}

function history(changes) {
  if (!changes) return make("p", {}, "…");
  if (!changes.length) return make("p", {}, "None.");
  return make("table", {},
    make("thead", {}, make("tr", {}, ...["epoch", "from", "to", "confidence"].map((name) => make("th", { scope: "col" }, name)))),
    make("tbody", {}, ...changes.map((change) => make("tr", {}, ...[change.epoch, className(change.old), className(change.new),
      percent(change.confidence)].map((cell) => make("td", {}, cell))))));
}

function values(detail) {
  if (!detail?.values.length) return null;
  const more = detail.more_columns ? make("p", { class: "id" }, `and ${detail.more_columns} more columns`) : null;
  return make("section", { class: "values" }, make("h3", {}, detail.whole_text?.trim() ? "Other columns" : detail.cells.length ? "Columns" : "Feature values"),
    make("dl", {}, ...detail.values.map(([name, value]) => make("div", { class: value.length > LONG && "long" }, make("dt", {}, name), cell(value)))), more);
}

function cell(value) {
  if (typeof value === "number") return make("dd", {}, Number.isInteger(value) ? value : Number(value.toPrecision(6)));
  return value.trim() ? make("dd", { class: "words", dir: "auto" }, value) : make("dd", { class: "void" }, "empty");
}

function group(example, members) {
  if (!members?.length) return null;
  return make("section", { class: "near" }, make("div", {}, make("h3", {}, "Group of near-duplicates"),
    make("ul", { class: "neighbors" }, ...members.map((one) => member(one, one.index === example.index)))));
}

function member(example, own) {
  const shown = picture(example, "small", "");
  return make("li", { "aria-current": own && "true" }, shown && make("span", { class: "picture" }, shown), passage(example), cells(example),
    make("span", { class: "labels" }, className(example.given_label)), make("span", { class: "distance" }, own ? "this one" : `#${example.index}`),
    stateOf(example) === "open" ? null : make("span", { class: `badge ${stateOf(example)}` }, decisionText(example.decision)));
}

function neighbors(example, groups) {
  if (!groups) return [make("h3", {}, "Nearest"), make("p", {}, "…")];
  if (!groups.length) return [make("h3", {}, "Nearest"), make("p", {}, "Not available: the run has no features.")];
  return groups.map((group) => make("div", {},
    make("h3", {}, group.label === null ? "Nearest of other classes" : `Nearest with label ${className(group.label)}`),
    group.examples.length ? make("ul", { class: "neighbors" }, ...group.examples.map(neighbor)) : make("p", {}, "None.")));
}

function neighbor(example) {
  const shown = picture(example, "small", "");
  const words = [passage(example), cells(example)].filter(Boolean);
  const name = className(example.current_label);
  const given = example.given_label === example.current_label ? "" : `given ${className(example.given_label)}`;
  return make("li", {}, shown && make("span", { class: "picture" }, shown), ...words,
    make("span", { class: words.length > 0 && "labels" }, shown || words.length ? name : `#${example.index} ${name}`), given ? make("span", { class: "was" }, given) : null,
    make("span", { class: "distance" }, `distance ${example.distance.toPrecision(3)}`));
}
