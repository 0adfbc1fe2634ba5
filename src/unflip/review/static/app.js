// The review page: showing, moving, deciding, and the keys.

import { get, post } from "./api.js";
import { anyOpen, askConflict, chooseClass, showHelp } from "./dialogs.js";
import { byId, count, examples, make, say, announce } from "./dom.js";
import { showSingle } from "./single.js";
import { columns, markTiles, refreshTile, setPictures, showGrid } from "./tiles.js";
import { className, decisionText, exampleText, issueName, setClasses, stateOf } from "./words.js";

const PAGE = 60;
const MAX_SELECTED = 1000; // examples per request
const POLL = 4000; // milliseconds between requests for the changes of others

let about = null;
let page = { examples: [], total: 0, first: 0, last: -1 };
let at = 0; // the position on the page
let single = false;
let detail = null;
let since = 0; // the last known row of the log
const selected = new Map(); // example -> the version shown when it was selected
const seen = new Map(); // example -> the version shown when it became the current one, or was decided here
let spared = null; // the only example left of a group, of which all but the first were selected

const here = () => page.examples[at];
const versionOf = (example) => example.decision?.version ?? 0;
const inGroup = (example) => example.issues.some((issue) => issue.group !== null);

// ---- one action at a time, however fast keys are pressed

let chain = Promise.resolve();
function queue(work) {
  chain = chain.then(work).catch((error) => {
    if (error.status === undefined) console.error(error);
    say(error.message);
  });
  return chain;
}

// ---- filters and position, kept in the address so that reloading changes nothing

const FILTERS = ["pair", "class", "below", "state", "issue", "order", "search"];

function asQuery(pair, labelClass, below, state, issue, order, search) {
  const [given, suggested] = pair.includes("-") ? pair.split("-") : [null, null];
  return { listed: pair === "listed" ? true : null, differs: pair === "differs" ? true : null, given, suggested, label_class: labelClass || null, below: below || null, state, issue: issue || null, order: order || null, text: search.trim() || null };
}

const query = () => asQuery(...FILTERS.map((name) => byId(name).value));

function remember() {
  const place = Object.fromEntries(FILTERS.map((name) => [name, byId(name).value]));
  if (here()) Object.assign(place, { from: page.examples[0].rank, at: here().rank });
  if (single) place.view = "single";
  history.replaceState(null, "", `/#${new URLSearchParams(place)}`);
}

function recall() {
  const place = new URLSearchParams(location.hash.slice(1));
  byId("order").value = about.order;
  byId("pair").value = usual();
  for (const name of FILTERS) {
    const options = byId(name).options; // none where one types
    if (place.has(name) && (!options || [...options].some((option) => option.value === place.get(name)))) byId(name).value = place.get(name);
  }
  single = place.get("view") === "single";
  const [from, rank] = ["from", "at"].map((name) => Number.parseInt(place.get(name), 10));
  return { from: from >= 0 ? from : null, rank: rank >= 0 ? rank : null };
}

const WHOLE = ["sample", "annotate"]; // orders with a list of their own
const usual = () => (!WHOLE.includes(byId("order").value) && about.label_issues + about.doubtful ? "listed" : "all");

// An issue has its own list, whatever is suggested, and in its own order. A sample is one of all labels.
function suitIssue(changed) {
  if (changed === "order") {
    byId("pair").value = usual();
    if (WHOLE.includes(byId("order").value)) byId("class").value = byId("below").value = "";
  }
  const chosen = byId("issue").value !== "";
  if (changed === "issue" && chosen && ["listed", "differs"].includes(byId("pair").value)) byId("pair").value = "all";
  if (changed === "issue" && !chosen && byId("pair").value === "all") byId("pair").value = usual();
  byId("order").disabled = chosen;
  byId("order").title = chosen ? "Issues have their own order" : "";
}

function fillFilters() {
  const option = (value, text) => make("option", { value }, text);
  byId("pair").append(option("listed", `issues and worth a look (${count(about.label_issues + about.doubtful)})`), option("differs", `label issues (${count(about.label_issues)})`), option("all", `all (${count(about.examples)})`),
    ...about.pairs.map(([given, suggested, number]) => option(`${given}-${suggested}`, `${className(given)} → ${className(suggested)} (${count(number)})`)));
  byId("found").hidden = !about.issues.length;
  byId("issue").append(option("", "any"), ...about.issues.map(([name, number]) => option(name, `${issueName(name)} (${count(number)})`)));
  byId("class").append(option("", "any"), ...about.classes.map((name, label) => option(label, name)));
}

// ---- showing

const ask = (wanted, where) => get("/api/examples", { ...wanted, ...where, count: PAGE });

async function load(where = {}, rank = null) {
  await showPage(await ask(query(), where), where, rank);
}

async function showPage(found, where, rank) {
  page = found;
  const place = rank === null ? -1 : page.examples.findIndex((example) => example.rank >= rank);
  at = place >= 0 ? place : where.before === undefined ? 0 : Math.max(0, page.examples.length - 1);
  selected.clear();
  seen.clear();
  showGrid(page.examples);
  showProgress(found.progress);
  await show();
}

async function show({ focus = true } = {}) {
  const example = here();
  spared = null;
  byId("message").hidden = Boolean(example);
  byId("message").textContent = "No examples left. Change the filters, or export the decisions.";
  single = single && Boolean(example);
  byId("grid").hidden = single || !example;
  byId("single").hidden = !single;
  byId("actions").hidden = !example;
  byId("select").hidden = single;
  document.body.dataset.view = single ? "single" : "grid";
  byId("view").replaceChildren(single ? "Grid " : "Open ", make("kbd", {}, single ? "Esc" : "Enter"));
  byId("place").textContent = !example ? "" : single
    ? `${count(page.first + at + 1)} of ${count(page.total)}`
    : `${count(page.first + 1)} to ${count(page.first + page.examples.length)} of ${count(page.total)}`;
  byId("page-back").disabled = page.first === 0;
  byId("page-on").disabled = page.first + page.examples.length >= page.total;
  if (!example) {
    remember();
    return;
  }
  seen.set(example.index, versionOf(example));
  markTiles(example.index, selected);
  showTarget();
  remember();
  if (single) {
    detail = null;
    showSingle(example, null);
    if (focus) byId("single").focus({ preventScroll: true });
    detail = await get(`/api/examples/${example.index}`);
    if (single && here() === example) showSingle(example, detail);
  } else if (focus) byId(`tile-${example.index}`).focus();
}

function showTarget() {
  const example = here();
  const many = selected.size;
  const shown = many > 0 || spared !== null;
  byId("target").textContent = shown ? `${count(many)} selected` : "";
  byId("target").hidden = !shown;
  byId("select").setAttribute("aria-pressed", String(selected.has(example.index)));
  byId("accept").title = many ? "Accept the suggested label of each" : `Accept: ${className(example.suggested_label)}`;
  const suggests = many > 0 || example.suggested_label !== example.given_label;
  byId("accept").classList.toggle("main", suggests);
  byId("keep").classList.toggle("main", !suggests);
  byId("keep").title = many ? "Keep the given label of each" : `Keep: ${className(example.given_label)}`;
  byId("group").hidden = single || !inGroup(example);
}

function showProgress(progress) {
  const total = (counts) => Object.values(counts).reduce((sum, number) => sum + number, 0);
  const done = (counts) => total(counts) - counts.open;
  const { here: mine, all } = progress;
  byId("bar").max = Math.max(1, total(mine));
  byId("bar").value = done(mine);
  const unsure = mine.unsure ? `, ${count(mine.unsure)} unsure` : "";
  byId("progress").textContent = `${count(done(mine))} of ${count(total(mine))} decided${unsure} · ${count(done(all))} of ${count(total(all))} overall${progress.sample ? ` · ${progress.sample}` : ""}`;
}

function take(decision) {
  const example = page.examples.find((one) => one.index === decision.index);
  if (!example || versionOf(example) >= decision.version) return false;
  example.decision = decision;
  refreshTile(example);
  if (single && example === here()) showSingle(example, detail);
  return true;
}

// Take what was decided here, or what a dialog says that others decided: both have been seen.
function takeSeen(decision) {
  const { index, version } = decision;
  seen.set(index, version);
  if (selected.has(index)) selected.set(index, version);
  return take(decision);
}

// ---- moving

async function go(place) {
  if (place >= 0 && place < page.examples.length) {
    at = place;
    await show();
  } else if (place >= page.examples.length && page.first + page.examples.length < page.total) await load({ after: page.last });
  else if (place < 0 && page.first > 0) await load({ before: page.examples[0].rank });
  else if (page.examples.length) say(place < 0 ? "This is the first example." : "This is the last example.");
}

// Go to the next undecided example, if needed on the next page; if the filter shows decided ones, simply to the next.
async function advance() {
  const wanted = byId("state").value;
  if (wanted !== "open" && wanted !== "any") {
    await go(at + 1);
    return;
  }
  const rest = page.examples.findIndex((example, place) => place > at && stateOf(example) === "open");
  if (rest >= 0) await go(rest);
  else if (page.first + page.examples.length < page.total || wanted === "open") await load({ after: page.last });
  else await show();
  if (!here() && page.total) await load(); // past the end, but some were skipped before
}

async function toggle(place, { on = null } = {}) {
  const example = page.examples[place];
  if (!example) return;
  spared = null;
  if (on ?? !selected.has(example.index)) select(example);
  else selected.delete(example.index);
  markTiles(here().index, selected);
  showTarget();
}

// One request decides on those selected, so that one step undoes it: there are never more than it can take.
function select(example) {
  if (selected.has(example.index)) return;
  if (selected.size < MAX_SELECTED) selected.set(example.index, seen.get(example.index) ?? versionOf(example));
  else say(`${howMany()}; decide on these first`);
}

const howMany = () => `${count(selected.size)} selected${selected.size < MAX_SELECTED ? "" : ", the maximum"}`;

// ---- deciding

async function decide(action, label = null) {
  if (!here()) return;
  if (spared !== null) {
    say(`Nothing selected: only example ${spared} of its group is left. Press Esc to decide on it.`);
    return;
  }
  const chosen = selected.size ? [...selected] : [[here().index, seen.get(here().index)]];
  const body = { action, reviewer: byId("reviewer").value.trim() || about.reviewer };
  if (label !== null) body.label = label;
  const many = chosen.length > 1;
  const answer = await post("/api/decide", { ...body, items: chosen.map(([index, version]) => ({ index, version })) });
  let written = answer.written;
  if (answer.conflicts.length) {
    answer.conflicts.forEach(takeSeen);
    if (await askConflict(answer.conflicts)) {
      const again = await post("/api/decide", { ...body, items: answer.conflicts.map(({ index, version }) => ({ index, version })) });
      written = [...written, ...again.written];
      if (again.conflicts.length) say("Decided again by someone else; please check.");
    }
  }
  written.forEach(takeSeen);
  selected.clear();
  if (written.length) say(many ? `${count(written.length)} decided` : `Example ${written[0].index} ${decisionText(written[0])}`);
  if (action === "clear") await show();
  else await advance();
  await refresh();
}

async function choose() {
  if (!here()) return;
  const label = await chooseClass();
  if (label === null) await show();
  else await decide("choose", label);
}

async function undo() {
  const { written } = await post("/api/undo", { reviewer: byId("reviewer").value.trim() || about.reviewer });
  if (!written.length) {
    say("Nothing to undo.");
    return;
  }
  const first = written[0].index;
  const { issue, order } = query();
  const { rank } = await get(`/api/examples/${first}`, { issue, order });
  if (written.map(takeSeen).includes(false)) await load(rank < 0 ? {} : { after: rank - 1 }, rank < 0 ? null : rank);
  else await go(page.examples.findIndex((example) => example.index === first));
  const { state } = written[0];
  say(written.length > 1 ? `${count(written.length)} decisions undone` : `Undone: example ${first} is ${state === "open" ? "undecided" : decisionText(written[0])}`);
  await refresh();
}

// Fetch the changes of others and the progress.
async function refresh() {
  const answer = await get("/api/changes", { ...query(), since });
  const before = here();
  const others = answer.changes.filter(take);
  since = Math.max(since, answer.last);
  showProgress(answer.progress);
  if (others.length && before === here()) {
    const latest = others.at(-1);
    const mine = others.find((decision) => decision.index === here()?.index);
    say(mine ? `${mine.reviewer} just decided this example: ${decisionText(mine)}` : `${latest.reviewer} decided example ${latest.index}: ${decisionText(latest)}`);
  }
}

let lost = false;
async function watch() {
  try {
    await refresh();
    if (lost) say("The server is back.");
    lost = false;
  } catch (error) {
    if (!lost) say(error.message);
    lost = true;
  }
}

// ---- keys and clicks

const KEYS = {
  a: () => decide("accept"),
  k: () => decide("keep"),
  r: () => decide("remove"),
  s: () => decide("unsure"),
  c: choose,
  u: undo,
  Delete: () => decide("clear"),
  n: () => go(at + 1),
  p: () => go(at - 1),
  x: () => (single ? null : toggle(at)),
  g: selectGroup,
  "]": () => go(page.examples.length),
  "[": () => go(-1),
};

async function open(wanted) {
  if (!here()) return;
  single = wanted;
  if (single) selected.clear(); // in the single view, a decision applies only to the example shown
  await show();
}

// Select the page; asked again, all that the filters show, as far as one request can decide on them.
async function selectAll() {
  const whole = page.examples.every((example) => selected.has(example.index));
  for (const place of page.examples.keys()) await toggle(place, { on: true });
  if (whole) await selectEverything();
  const more = page.total - selected.size;
  say(`${howMany()}${more > 0 ? `, ${count(more)} more match` : ""}`);
}

async function selectEverything() {
  for (let after = -1, left = 1; left > 0 && selected.size < MAX_SELECTED;) {
    const found = await get("/api/examples", { ...query(), after, count: 200 });
    for (const example of found.examples) {
      if (selected.size < MAX_SELECTED && !selected.has(example.index)) selected.set(example.index, versionOf(example));
    }
    after = found.last;
    left = found.total - found.first - found.examples.length;
  }
  showTarget();
}

// Select what is left of the group of near-duplicates; asked again, all of it but the first, which is the one to keep.
async function selectGroup() {
  if (single || !here() || !inGroup(here())) return;
  const { examples: members, total } = await get(`/api/examples/${here().index}/group`);
  if (!members.length) {
    say("All examples of this group are removed.");
    return;
  }
  const rest = members.filter((example) => !selected.has(example.index));
  if (selected.size + rest.length > MAX_SELECTED) {
    say(`${count(selected.size)} selected: no room for ${count(rest.length)} more of this group; decide on these first`);
    return;
  }
  const whole = !rest.length;
  rest.forEach(select);
  if (whole) selected.delete(members[0].index);
  spared = whole && !selected.size ? members[0].index : null;
  markTiles(here().index, selected);
  showTarget();
  const more = total > members.length ? `, the group has ${count(total)}` : "";
  say(whole ? `${count(selected.size)} selected: all but example ${members[0].index}` : `${howMany()}${more}`);
}

async function selectHere() {
  await toggle(at);
  if (!single) byId(`tile-${here().index}`).focus();
}

async function escape() {
  if (single) await open(false);
  else if (selected.size || spared !== null) {
    selected.clear();
    await show();
    say("Nothing selected");
  }
}

async function move(step, extend) {
  const from = at;
  if (extend) await toggle(from, { on: true });
  const target = at + step;
  const keeps = target >= 0 && target < page.examples.length;
  if (extend && !keeps) return;
  await go(target);
  if (extend) {
    const [low, high] = [Math.min(from, at), Math.max(from, at)];
    for (let place = low; place <= high; place += 1) await toggle(place, { on: true });
    say(howMany());
  }
}

function arrow(event) {
  const across = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const down = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (across) return () => move(across, event.shiftKey && !single);
  if (down && !single) return () => move(down * columns(), event.shiftKey);
  if (!single && event.key === "Home") return () => go(0);
  if (!single && event.key === "End") return () => go(page.examples.length - 1);
  return null;
}

function onKey(event) {
  if (event.target.id === "search" && event.key === "Escape") queue(() => show());
  if (anyOpen() || event.altKey || event.target.matches("input, select, textarea")) return;
  const native = event.target.matches("button, a") && (event.key === "Enter" || event.key === " ");
  if (native) return;
  let work = null;
  if (event.ctrlKey || event.metaKey) {
    if (event.key.toLowerCase() === "a" && !single) work = selectAll;
  } else if (event.key === "?") work = showHelp;
  else if (event.key === "Enter") work = () => open(true);
  else if (event.key === "Escape") work = escape;
  else if (event.key === " " && !single) work = () => toggle(at);
  else if (event.key === "/") work = () => byId("search").select();
  else if (event.key.toLowerCase() === "f") work = () => byId("pair").focus();
  else work = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key] ?? arrow(event);
  if (!work) return;
  event.preventDefault();
  queue(work);
}

function onTile(event) {
  const tile = event.target.closest(".tile");
  if (!tile) return;
  const place = [...byId("grid").children].indexOf(tile);
  queue(async () => {
    if (event.ctrlKey || event.metaKey) {
      at = place;
      await toggle(place);
      await show();
    } else if (event.shiftKey) await move(place - at, true);
    else if (place === at && event.detail < 2 && tile.dataset.touched) await open(true);
    else await go(place);
    for (const other of byId("grid").children) delete other.dataset.touched;
    if (!single) tile.dataset.touched = "yes"; // the second click opens it
  });
}

function connect() {
  document.addEventListener("keydown", onKey);
  byId("grid").addEventListener("click", onTile);
  byId("grid").addEventListener("dblclick", () => queue(() => open(true)));
  for (const [id, work] of [["accept", KEYS.a], ["keep", KEYS.k], ["remove", KEYS.r], ["unsure", KEYS.s], ["group", selectGroup], ["choose", choose], ["undo", undo], ["view", () => open(!single)], ["select", selectHere],
    ["page-back", KEYS["["]], ["page-on", KEYS["]"]], ["help-open", showHelp]]) byId(id).addEventListener("click", () => queue(work));
  for (const id of FILTERS) byId(id).addEventListener("change", () => queue(async () => {
    const focused = document.activeElement;
    single = false;
    suitIssue(id);
    await load();
    focused?.focus();
    say(examples(page.total));
  }));
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("reviewer").addEventListener("change", () => localStorage.setItem("reviewer", byId("reviewer").value.trim()));
  setInterval(() => { if (!document.hidden && !anyOpen()) queue(watch); }, POLL);
}

async function start() {
  const asked = location.hash.length > 1 ? null : ask(asQuery("listed", "", "", "open", "", "", ""), {}); // usually the right page, and it saves a round trip
  asked?.catch(() => null); // errors are reported below
  about = await get("/api/about");
  setClasses(about.classes);
  setPictures(about.pictures);
  byId("run").textContent = about.run;
  byId("data").textContent = `${examples(about.examples)} of ${about.data}, ${count(about.classes.length)} classes, method ${about.method}: ${about.summary}`;
  document.title = `Review ${about.run}`;
  byId("reviewer").value = localStorage.getItem("reviewer") || about.reviewer;
  since = about.last;
  fillFilters();
  const { from, rank } = recall();
  suitIssue(null);
  if (asked && usual() === "listed" && !WHOLE.includes(about.order)) await showPage(await asked, {}, null);
  else await load(from === null ? {} : { after: from - 1 }, rank);
  connect();
  document.body.dataset.ready = "yes";
  if (here()) announce(`${examples(page.total)}. ${exampleText(here())}. Press question mark for keys.`);
}

queue(start);
