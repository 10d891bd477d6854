"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const numbers = (text) => new Uint16Array(bytes(text).buffer);
const NO_TOKEN = 65535; // as in page.py
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Frames are decoded once; everything else is drawn from numbers.
const frames = data.frames.map((source) => Object.assign(new Image(), { src: source }));
const tables = Object.fromEntries(Object.entries(data.tables).map(([k, v]) => [k, bytes(v)]));
for (const method of data.methods) {
  for (const step of method.steps) {
    step.kept = bytes(step.kept);
    for (const map of Object.values(step.maps)) map.values = numbers(map.values);
  }
}

// The steps of all methods on one scale: how deep in the model they are.
const depths = [...new Set(data.methods.flatMap((m) => m.steps.map((s) => s.depth)))].sort((a, b) => a - b);
const positions = Object.fromEntries(data.methods.flatMap((m) => m.steps.map((s) => [s.depth, s.position])));
const state = { time: 0, position: 0 };

/** The last step of a method at or before the chosen depth, and the one before that. */
function current(method) {
  const depth = state.position === 0 ? -1 : depths[state.position - 1];
  const done = method.steps.filter((step) => step.depth <= depth);
  return [done.at(-1), done.at(-2)];
}

/** Calls draw(cell index, x, y, width, height) for every cell of a step in this frame. */
function eachCell(step, draw) {
  const [t, h, w] = step.patch;
  const [times, rows, columns] = step.grid;
  const start = Math.min(Math.floor(state.time / t), times - 1) * rows * columns;
  for (let i = 0; i < rows; i++) {
    for (let j = 0; j < columns; j++) {
      const x = j * w, y = i * h;
      draw(start + i * columns + j, x, y, Math.min(w, data.width - x), Math.min(h, data.height - y));
    }
  }
}

function shade(map, index) {
  const value = map.values[index];
  if (value === NO_TOKEN) return css("--gone");
  const at = Math.round((value / (NO_TOKEN - 1)) * 255) * 3;
  return `rgb(${tables[map.table].slice(at, at + 3).join(" ")})`;
}

function drawKept(context, step, before) {
  const fresh = before && before.grid.join() === step.grid.join() ? before.kept : null;
  eachCell(step, (index, x, y, w, h) => {
    const now = fresh === null || fresh[index];
    context.fillStyle = css(step.kept[index] ? "--accent" : now ? "--now" : "--gone");
    context.fillRect(x, y, w, h);
  });
}

function drawMap(context, step, map) {
  eachCell(step, (index, x, y, w, h) => {
    context.fillStyle = shade(map, index);
    context.fillRect(x, y, w, h);
  });
}

/** The large picture: the frame, dropped patches white, and what is laid over it. */
function drawPicture(card) {
  const [step, before] = current(card.method);
  const context = card.canvas.getContext("2d");
  const over = step && (card.over === "kept" || step.maps[card.over]) ? card.over : null;
  context.filter = over === null ? "none" : "grayscale(1)";
  context.drawImage(frames[state.time], 0, 0, data.width, data.height);
  context.filter = "none";
  if (!step) return;
  if (over === null) {
    context.fillStyle = "#fff";
    eachCell(step, (index, x, y, w, h) => { if (!step.kept[index]) context.fillRect(x, y, w, h); });
    return;
  }
  context.globalAlpha = 0.72;
  if (over === "kept") drawKept(context, step, before);
  else drawMap(context, step, step.maps[over]);
  context.globalAlpha = 1;
}

function drawCard(card) {
  const [step, before] = current(card.method);
  drawPicture(card);
  card.caption.textContent = step ? step.text : "All tokens, before the first step";
  for (const [name, canvas] of Object.entries(card.maps)) {
    const context = canvas.getContext("2d");
    context.fillStyle = css("--gone");
    context.fillRect(0, 0, data.width, data.height);
    if (!step) continue;
    if (name === "kept") drawKept(context, step, before);
    else if (step.maps[name]) drawMap(context, step, step.maps[name]);
  }
}

function render() {
  cards.forEach(drawCard);
  $("time-text").textContent = `frame ${state.time + 1} of ${data.frames.length}`;
  $("step-text").textContent = state.position === 0 ? "input" : positions[depths[state.position - 1]];
}

// Building the cards

function add(parent, tag, text = "", name = "") {
  const element = document.createElement(tag);
  element.textContent = text;
  if (name) element.className = name;
  return parent.appendChild(element);
}

function addCanvas(parent) {
  const canvas = add(parent, "canvas");
  canvas.width = data.width;
  canvas.height = data.height;
  return canvas;
}

/** Points at a patch: which it is and what its numbers are. */
function addTip(card, box) {
  const tip = add(box, "div", "", "tip");
  tip.hidden = true;
  card.canvas.addEventListener("pointermove", (event) => {
    const [step, before] = current(card.method);
    if (!step) return;
    const scale = data.width / card.canvas.clientWidth;
    const px = event.offsetX * scale, py = event.offsetY * scale;
    tip.hidden = true;
    eachCell(step, (index, x, y, w, h) => {
      if (px < x || py < y || px >= x + w || py >= y + h) return;
      const earlier = before && before.grid.join() === step.grid.join() && !before.kept[index];
      const when = earlier ? "before" : "here";
      const lines = [step.kept[index] ? "kept" : `${card.method.gone} ${when}`];
      for (const map of Object.values(step.maps)) {
        if (map.values[index] === NO_TOKEN) continue;
        const value = map.low + (map.values[index] / (NO_TOKEN - 1)) * (map.high - map.low);
        lines.push(`${map.label} ${value.toPrecision(3)}`);
      }
      tip.textContent = lines.join("\n");
      tip.style.left = `${(x + w / 2) / scale}px`;
      tip.style.top = `${y / scale}px`;
      tip.hidden = false;
    });
  });
  card.canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
}

/** A small picture that is laid over the large one while it is pointed at, or once it is pressed. */
function addMap(card, parent, name, label) {
  const button = add(parent, "button");
  button.type = "button";
  button.setAttribute("aria-pressed", "false");
  card.maps[name] = addCanvas(button);
  button.append(label);
  const lay = (over) => { card.over = over; drawPicture(card); };
  button.addEventListener("pointerenter", () => lay(name));
  button.addEventListener("pointerleave", () => lay(card.pinned));
  button.addEventListener("focus", () => lay(name));
  button.addEventListener("blur", () => lay(card.pinned));
  button.addEventListener("click", () => {
    card.pinned = card.pinned === name ? null : name;
    for (const other of parent.children) other.setAttribute("aria-pressed", "false");
    button.setAttribute("aria-pressed", String(card.pinned === name));
    lay(card.pinned ?? name);
  });
}

function addBars(parent, method, stock) {
  const bars = add(parent, "div", "", stock ? "bars stock" : "bars");
  for (const [label, share, text] of method.predictions) {
    add(bars, "span", label).title = label;
    add(bars, "i").style.width = `${100 * share}%`;
    add(bars, "b", text);
  }
}

function addFacts(parent, facts) {
  const table = add(parent, "table");
  for (const [name, value, saved] of facts) {
    const row = add(table, "tr");
    add(row, "td", name);
    const cell = add(row, "td", value);
    if (saved) cell.append(" ", Object.assign(document.createElement("em"), { textContent: saved }));
  }
}

function addCard(method, stock) {
  const article = add($("cards"), "article");
  add(article, "h2", method.title);
  const box = add(article, "div", "", "picture");
  const card = { method, over: null, pinned: null, maps: {}, canvas: addCanvas(box) };
  card.canvas.setAttribute("role", "img");
  card.canvas.setAttribute("aria-label", `${method.title}: the frame; patches that are not kept are white`);
  card.caption = add(article, "p", "", "caption");
  const maps = add(article, "div", "", "maps");
  if (!stock) {
    addTip(card, box);
    addMap(card, maps, "kept", "Kept");
    const scored = method.steps.find((step) => Object.keys(step.maps).length);
    for (const [name, map] of Object.entries(scored?.maps ?? {})) addMap(card, maps, name, map.label);
  }
  addBars(article, method, stock);
  addFacts(article, method.facts);
  return card;
}

const cards = [addCard({ ...data.stock, steps: [] }, true)];
for (const method of data.methods) cards.push(addCard(method, false));
$("stages").textContent = data.note;
for (const [name, text] of Object.entries(data.explanations)) $(name).textContent = text;
if (!data.explanations.score) document.querySelectorAll(".scored").forEach((e) => e.remove());

// Controls

$("time").max = data.frames.length - 1;
$("step").max = depths.length;
$("step").value = state.position = depths.length;
$("time").addEventListener("input", () => { state.time = Number($("time").value); render(); });
$("step").addEventListener("input", () => { state.position = Number($("step").value); render(); });

let timer = null;
function play(on) {
  clearInterval(timer);
  timer = on ? setInterval(() => {
    state.time = (state.time + 1) % data.frames.length;
    $("time").value = state.time;
    render();
  }, 1000 / data.fps) : null;
  $("play").textContent = on ? "Pause" : "Play";
  $("play").setAttribute("aria-pressed", String(on));
}
$("play").addEventListener("click", () => play(timer === null));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", render);

Promise.all(frames.map((frame) => frame.decode())).then(() => {
  render();
  document.body.dataset.ready = "yes";
});
