"use strict";
// The state of the walls stands in the address (#sort=loss&kind=add&text=hat&open=edit-3), so that it can be shared.
const given = new URLSearchParams(location.hash.slice(1));
const NAMES = ["sort", "kind", "text", "scorer", "editor", "from", "to", "split", "open"];
const state = new URLSearchParams([...given].filter(([name]) => NAMES.includes(name)));
const viewer = document.querySelector(".viewer");
let opened = null; // the edit that the viewer shows
let flipped = false; // the viewer shows the other one of its two images

function remember(name, value) {
  if (value) state.set(name, value);
  else state.delete(name);
  history.replaceState(null, "", "#" + state);
}

// Edits that fit the filters, in order; of many, the page shows the first ones, and more as it is scrolled.
const AT_ONCE = 100;
const matches = new WeakMap(); // by wall
const counts = new WeakMap(); // of those that are shown

function editsOf(wall) {
  return matches.get(wall) ?? [];
}

function showMore(wall) {
  const shown = counts.get(wall);
  const next = editsOf(wall).slice(shown, shown + AT_ONCE);
  for (const edit of next) {
    edit.hidden = false;
    markBest(wall, edit);
  }
  wall.querySelector(".none").before(...next);
  counts.set(wall, shown + next.length);
}

function bringUp(edit) {
  const wall = edit.closest(".wall");
  const place = editsOf(wall).indexOf(edit);
  while (place >= counts.get(wall)) showMore(wall);
  edit.focus();
}

// Each edit's title, figures and scores by scorer and editor (null where there is none), read once.
const contents = new WeakMap();
function contentOf(edit) {
  if (!contents.has(edit)) {
    contents.set(edit, {
      title: edit.querySelector("h3").textContent.toLowerCase(),
      figures: [...edit.querySelectorAll(".images figure")],
      values: JSON.parse(edit.dataset.values ?? "[]"),
    });
  }
  return contents.get(edit);
}

const isKnown = (value) => value !== null && value !== undefined;

// Scores by the chosen scorer: of the chosen editor, or of all.
function scoresOf(edit, choice) {
  const scores = contentOf(edit).values[choice.scorer] ?? [];
  return (choice.editor === null ? scores : [scores[choice.editor]]).filter(isKnown);
}

// Of the chosen editor over the best other one; of the best editor over the worst where none is chosen.
function leadOf(edit, choice) {
  const scores = contentOf(edit).values[choice.scorer] ?? [];
  if (choice.editor === null) {
    const known = scores.filter(isKnown);
    return known.length > 1 ? Math.max(...known) - Math.min(...known) : NaN;
  }
  const others = scores.filter((value, i) => i !== choice.editor && isKnown(value));
  return isKnown(scores[choice.editor]) && others.length ? scores[choice.editor] - Math.max(...others) : NaN;
}

// The only editor with the highest score by a scorer; -1 if there is none.
function bestOf(scores) {
  const known = scores.filter(isKnown);
  const best = Math.max(...known);
  return known.length > 1 && known.filter((value) => value === best).length === 1 ? scores.indexOf(best) : -1;
}

function isSplit(edit) {
  return new Set(contentOf(edit).values.map(bestOf).filter((best) => best >= 0)).size > 1;
}

function sortKey(order, choice) {
  const last = (value) => (Number.isFinite(value) ? value : -Infinity); // edits without a value come last
  const number = (name) => (edit) => (edit.dataset[name] === "" ? NaN : Number(edit.dataset[name]));
  const keys = {
    gain: number("gain"),
    loss: (edit) => -number("gain")(edit),
    disagreement: number("disagreement"),
    high: (edit) => Math.max(...scoresOf(edit, choice)),
    low: (edit) => -Math.min(...scoresOf(edit, choice)),
    ahead: (edit) => leadOf(edit, choice),
    behind: (edit) => -leadOf(edit, choice),
  };
  const key = keys[order] ?? ((edit) => -Number(edit.dataset.number));
  return (edit) => last(key(edit));
}

function isWithin(edit, choice, from, to) {
  if (Number.isNaN(from) && Number.isNaN(to)) return true;
  return scoresOf(edit, choice).some((value) => !(value < from) && !(value > to));
}

function valueOf(wall, name) {
  return wall.querySelector(`.controls [name=${name}]`)?.value ?? "";
}

function choiceOf(wall) {
  const editor = valueOf(wall, "editor");
  return { scorer: Number(valueOf(wall, "scorer")), editor: editor === "" ? null : Number(editor) };
}

function markBest(wall, edit) {
  const editors = JSON.parse(wall.dataset.editors ?? "[]");
  if (editors.length < 2) return;
  const { figures, values } = contentOf(edit);
  const best = editors[bestOf(values[choiceOf(wall).scorer] ?? [])];
  for (const figure of figures) figure.classList.toggle("best", figure.dataset.label === best);
}

function arrange(wall) {
  const all = [...wall.querySelectorAll(".edit")];
  const words = valueOf(wall, "text").toLowerCase().split(/\s+/).filter(Boolean);
  const kind = valueOf(wall, "kind");
  const choice = choiceOf(wall);
  const from = parseFloat(valueOf(wall, "from"));
  const to = parseFloat(valueOf(wall, "to"));
  const split = wall.querySelector("[name=split]")?.checked;
  const fits = (edit) =>
    (!kind || edit.dataset.kind === kind) &&
    words.every((word) => contentOf(edit).title.includes(word)) &&
    isWithin(edit, choice, from, to) &&
    (!split || isSplit(edit));
  const key = sortKey(valueOf(wall, "sort"), choice);
  const keyed = all.filter(fits).map((edit) => [key(edit), Number(edit.dataset.number), edit]);
  keyed.sort((a, b) => b[0] - a[0] || a[1] - b[1]);
  for (const edit of all) if (!edit.hidden) edit.hidden = true;
  matches.set(wall, keyed.map((one) => one[2]));
  counts.set(wall, 0);
  showMore(wall);
  wall.querySelector("output").textContent = `${keyed.length} of ${all.length}`;
  wall.querySelector(".none").hidden = keyed.length > 0;
}

function imagesOf(edit) {
  const figures = [...edit.querySelectorAll("figure:not(.absent)")].map((figure) => ({
    label: figure.dataset.label,
    href: figure.querySelector("a").href,
  }));
  const others = [...edit.querySelectorAll(".details a")].map((link) => ({ label: link.dataset.label, href: link.href }));
  return [...figures, ...others];
}

function pairOf(edit) {
  const wall = edit.closest(".wall");
  const images = imagesOf(edit);
  const find = (label) => images.find((image) => image.label === label);
  const last = edit.dataset.seen && find(edit.dataset.seen);
  return [find(wall.dataset.left) ?? images[0], last || find(wall.dataset.right) || images[images.length - 1]];
}

// On the wall, the right image of the pair gives way to the left one and comes back.
function flickOnWall(edit, on) {
  const [left, right] = pairOf(edit);
  const figure = [...edit.querySelectorAll("figure")].find((one) => one.dataset.label === right.label);
  if (!figure) return;
  const is = on ?? !figure.classList.contains("flicked");
  figure.classList.toggle("flicked", is);
  figure.querySelector("img").src = is ? left.href : right.href;
  figure.querySelector("b").textContent = is ? left.label : right.label;
}

function place(at) {
  viewer.querySelector("input").value = at;
  viewer.querySelector(".compare").style.setProperty("--at", at + "%");
}

function draw() {
  const images = imagesOf(opened);
  const left = images[viewer.querySelector("[name=left]").value];
  const right = images[viewer.querySelector("[name=right]").value];
  const over = viewer.querySelector(".over");
  const under = viewer.querySelector(".under");
  over.src = left.href;
  under.src = flipped ? left.href : right.href;
  viewer.querySelector(".left").textContent = left.label;
  viewer.querySelector(".right").textContent = flipped ? left.label : right.label;
  viewer.querySelector("[data-file]").href = flipped ? left.href : right.href;
}

function open(edit, label) {
  if (label) edit.dataset.seen = label;
  opened = edit;
  flipped = false;
  const images = imagesOf(edit);
  const [left, right] = pairOf(edit);
  delete edit.dataset.seen;
  viewer.querySelector("h2").textContent = edit.querySelector("h3").textContent;
  for (const [name, chosen] of [["left", left], ["right", right]]) {
    const select = viewer.querySelector(`[name=${name}]`);
    select.replaceChildren(...images.map((image, i) => new Option(image.label, i)));
    select.value = images.findIndex((image) => image.label === chosen.label);
  }
  const details = edit.querySelector(".details").cloneNode(true);
  details.hidden = false;
  viewer.querySelector(".facts").replaceChildren(details);
  place(left.label === right.label ? 0 : 50);
  draw();
  if (!viewer.open) viewer.showModal();
  viewer.focus();
  remember("open", edit.id);
}

function step(by) {
  const edits = editsOf(opened.closest(".wall"));
  const next = edits[edits.indexOf(opened) + by];
  if (next) open(next);
}

// The images are numbered from 0, the source.
function showRight(number) {
  if (number >= imagesOf(opened).length) return;
  viewer.querySelector("[name=right]").value = number;
  flipped = false;
  draw();
}

function flick() {
  flipped = !flipped;
  place(0);
  draw();
}

for (const wall of document.querySelectorAll(".wall")) {
  [...wall.querySelectorAll(".edit")].forEach((edit, i) => (edit.dataset.number = i));
  wall.querySelector(".controls").hidden = wall.querySelectorAll(".edit").length < 2;
  wall.querySelector(".keys").hidden = false;
  for (const control of wall.querySelectorAll(".controls [name]")) {
    const value = state.get(control.name);
    const isBox = control.type === "checkbox";
    if (value && isBox) control.checked = true;
    else if (value) control.value = value;
    control.addEventListener("input", () => {
      remember(control.name, isBox ? control.checked && "1" : control.value);
      arrange(wall);
    });
  }
  wall.querySelector(".controls").addEventListener("submit", (event) => event.preventDefault());
  arrange(wall);
  const end = new IntersectionObserver(([entry]) => entry.isIntersecting && showMore(wall), { rootMargin: "1500px" });
  end.observe(wall.querySelector(".end"));
  wall.addEventListener("click", (event) => {
    const figure = event.target.closest("figure:not(.absent)");
    if (!figure || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    open(figure.closest(".edit"), figure.dataset.label);
  });
  wall.addEventListener("keydown", (event) => {
    const edit = event.target.closest(".edit");
    if (!edit || event.target !== edit) return;
    const edits = editsOf(wall);
    const by = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
    const next = by && edits[edits.indexOf(edit) + by];
    if (by && next) bringUp(next);
    else if (by) return;
    else if (event.key === "Enter") open(edit);
    else if (event.key === " ") flickOnWall(edit);
    else return;
    event.preventDefault();
  });
}

document.addEventListener("load", (event) => {
  if (event.target.tagName === "IMG") event.target.classList.toggle("small", event.target.naturalWidth <= 128);
}, true);

viewer.addEventListener("input", (event) => {
  if (event.target.type === "range") place(event.target.value);
  else {
    flipped = false;
    draw();
  }
});
viewer.addEventListener("click", (event) => {
  const data = event.target.dataset;
  if (data.step) step(Number(data.step));
  else if ("flick" in data) flick();
  else if ("close" in data || event.target === viewer) viewer.close();
});
viewer.addEventListener("keydown", (event) => {
  if (["SELECT", "INPUT"].includes(event.target.tagName)) return;
  if (event.key === "ArrowLeft") step(-1);
  else if (event.key === "ArrowRight") step(1);
  else if (event.key === " " && event.target.tagName !== "BUTTON") flick();
  else if (/^[1-9]$/.test(event.key) && !event.ctrlKey && !event.metaKey && !event.altKey) showRight(Number(event.key));
  else return;
  event.preventDefault();
});
viewer.addEventListener("close", () => {
  remember("open", "");
  if (opened) bringUp(opened);
});
viewer.querySelector(".compare").addEventListener("pointermove", (event) => {
  if (event.pointerType === "mouse" && !event.buttons) return;
  const box = event.currentTarget.getBoundingClientRect();
  place(Math.round((100 * (event.clientX - box.left)) / box.width));
});

for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", async () => {
    const code = button.previousElementSibling;
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(code); // to be copied by hand
    }
  });
}

for (const image of document.images) image.classList.toggle("small", image.complete && image.naturalWidth <= 128);

const first = document.getElementById(state.get("open") ?? "");
if (first?.classList.contains("edit")) open(first);

// A page that is written while a training goes on.
const seconds = Number(document.body.dataset.reload);
if (seconds) setInterval(() => viewer.open || location.reload(), 1000 * seconds);
