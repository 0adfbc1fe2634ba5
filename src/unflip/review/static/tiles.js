// The grid: one tile per example.

import { byId, make, percent } from "./dom.js";
import { className, decisionText, exampleText, issueName, stateOf } from "./words.js";

const grid = byId("grid");
let pictures = null;
export const setPictures = (prefix) => { pictures = prefix; };

export function picture(example, size, alt) {
  if (!pictures) return null;
  const image = make("img", { src: `${pictures}${size}/${example.index}`, alt, decoding: "async", draggable: "false" });
  image.addEventListener("error", () => image.replaceWith(make("span", { class: "broken" }, "unreadable image")));
  image.addEventListener("load", () => image.classList.toggle("coarse", image.naturalWidth <= 64));
  return image;
}

// The text of an example, if it has one: what a tile has room for. In a table, an empty one is left out.
export function passage(example) {
  const empty = !example.text?.trim();
  if (typeof example.text !== "string" || (empty && example.cells.length)) return null;
  return !empty ? make("span", { class: "text", dir: "auto" }, example.text) : make("span", { class: "text void" }, "empty text");
}

// The first columns of a row of a table.
export function cells(example) {
  if (!example.cells.length) return null;
  return make("dl", { class: "cells" }, ...example.cells.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", { dir: "auto" }, value))));
}

export function labels(example) {
  const differs = example.given_label !== example.suggested_label;
  const line = make("span", { class: "labels" }, make("span", { class: differs && "given" }, className(example.given_label)));
  if (differs) line.append(make("span", { class: "arrow" }, " → "), make("span", { class: "suggested" }, className(example.suggested_label)));
  return line;
}

// One line per issue: name and reason.
export function issueLines(example) {
  return example.issues.map(({ name, reason }) => make("span", { class: "issue", title: reason },
    make("strong", {}, issueName(name)), ` ${reason}`));
}

function badge(example) {
  const state = stateOf(example);
  return state === "open" ? null : make("span", { class: `badge ${state}` }, decisionText(example.decision));
}

// The labels of all annotators, if there are several.
export function annotations(example) {
  if (!example.annotations.length) return null;
  return make("span", { class: "annotations" }, ...example.annotations.map(([annotator, label, quality]) =>
    make("span", { class: quality < 0.5 && "doubted", title: `label quality ${percent(quality)}` }, make("strong", {}, annotator), ` ${label}`)));
}

export function showGrid(examples) {
  grid.replaceChildren(...examples.map((example, place) => {
    const tile = make("div", { role: "option", id: `tile-${example.index}`, class: "tile", tabindex: "-1",
      "aria-setsize": examples.length, "aria-posinset": place + 1, "aria-selected": "false" });
    fill(tile, example);
    return tile;
  }));
  grid.classList.toggle("bare", !pictures);
  grid.classList.toggle("texts", examples.some((example) => typeof example.text === "string" || example.cells.length));
}

function fill(tile, example) {
  const content = [example.text, ...example.cells.map(([name, value]) => `${name} ${value}`)].filter(Boolean).join(", ");
  tile.setAttribute("aria-label", exampleText(example) + (content ? `: ${content}` : ""));
  tile.dataset.state = stateOf(example);
  tile.classList.toggle("doubtful", example.is_doubtful);
  const name = `#${example.index}${example.id === String(example.index) ? "" : ` · ${example.id}`}`;
  const shown = pictures ? [tile.querySelector(".picture") ?? make("span", { class: "picture" }, picture(example, "small", ""))]
    : [passage(example) ?? make("span", { class: "name" }, name), cells(example)];
  const figures = make("span", { class: "figures", title: "Estimated probability that the given label is correct" }, `label quality ${percent(example.label_quality)}`);
  tile.replaceChildren(...[...shown, labels(example), figures, annotations(example), ...issueLines(example), badge(example)].filter(Boolean));
}

export function refreshTile(example) {
  const tile = byId(`tile-${example.index}`);
  if (tile) fill(tile, example);
}

export function markTiles(focused, selected) {
  for (const tile of grid.children) {
    const index = Number(tile.id.slice(5));
    tile.setAttribute("aria-selected", String(selected.has(index)));
    tile.tabIndex = index === focused ? 0 : -1;
    tile.classList.toggle("at", index === focused);
  }
}

// The current number of tiles per row.
export function columns() {
  const tiles = [...grid.children];
  const next = tiles.findIndex((tile) => tile.offsetTop > tiles[0].offsetTop);
  return next < 0 ? tiles.length : next;
}
