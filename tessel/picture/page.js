"use strict";
// Draws the schedules embedded in this page. Blocks are kept in typed arrays, sorted by start for each device, so
// that a frame touches only what is visible: a binary search finds the first bar of a row, and bars narrower than
// a pixel are drawn once a pixel.
const data = JSON.parse(document.getElementById("data").textContent);
const COLORS = data.colors, LABELS = data.labels;
const ROW = 34, ROW_MIN = 9, AXIS = 26, LEFT = 92;
const byId = (id) => document.getElementById(id);
const canvas = byId("canvas"), context = canvas.getContext("2d");
const view = { from: 0, to: 1 };
const state = { schedule: 0, hover: null, kept: null, cursor: 0 };
let schedules = [], pending = false;

const formatTime = (steps) => data.step_ms === null ? `${Math.round(steps)} steps` : `${(steps * data.step_ms).toPrecision(5) / 1} ms`;
function formatMemory(units) {
  if (!data.memory_in_bytes) return `${units}`;
  for (const [size, name] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) if (Math.abs(units) >= size) return `${(units / size).toFixed(1)} ${name}`;
  return `${units} B`;
}

async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Int32Array(await new Response(stream).arrayBuffer());
}

async function loadSchedule(source) {
  const flat = await inflate(source.packed), count = flat.length / 3;
  const block = flat.subarray(0, count), batch = flat.subarray(count, 2 * count), start = flat.subarray(2 * count);
  for (let i = 1; i < count; i++) start[i] += start[i - 1]; // starts are stored as differences
  const rows = Array.from({ length: data.devices }, () => []);
  const position = new Map();
  for (let i = 0; i < count; i++) {
    for (const device of data.blocks[block[i]].devices) rows[device].push(i);
    position.set(block[i] * source.micro_batches + batch[i], i);
  }
  return { ...source, block, batch, start, count, position, rows: rows.map((row) => Int32Array.from(row)), memory: memoryCurves(rows, block, start) };
}

function memoryCurves(rows, block, start) {
  return rows.map((row) => {
    const steps = [0], held = [0];
    for (const i of row) {
      const change = data.blocks[block[i]].memory;
      if (!change) continue;
      if (steps[steps.length - 1] === start[i]) held[held.length - 1] += change;
      else { steps.push(start[i]); held.push(held[held.length - 1] + change); }
    }
    return { steps, held };
  });
}

const current = () => schedules[state.schedule];
const endOf = (schedule, i) => schedule.start[i] + data.blocks[schedule.block[i]].span;
const rowHeight = () => Math.max(ROW_MIN, Math.min(ROW, Math.floor(900 / data.devices)));
const toX = (time) => LEFT + (time - view.from) / (view.to - view.from) * (canvas.clientWidth - LEFT);
const toTime = (x) => view.from + (x - LEFT) / (canvas.clientWidth - LEFT) * (view.to - view.from);

function firstVisible(schedule, row, time) {
  let low = 0, high = row.length;
  while (low < high) { const middle = (low + high) >> 1; if (endOf(schedule, row[middle]) <= time) low = middle + 1; else high = middle; }
  return low;
}

function redraw() { if (!pending) { pending = true; requestAnimationFrame(draw); } }

function draw() {
  pending = false;
  const schedule = current(), ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, height = data.devices * rowHeight() + AXIS;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.style.height = `${height}px`; canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
  }
  const style = getComputedStyle(document.body), ink = style.color;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.save();
  context.beginPath(); context.rect(LEFT, 0, width - LEFT, height); context.clip();
  for (let device = 0; device < data.devices; device++) drawRow(schedule, device, ink);
  drawPhases(schedule, ink, height - AXIS);
  drawDependencies(schedule, ink);
  drawCursor(ink, height - AXIS);
  context.restore();
  drawAxes(schedule, ink, width, height);
}

function drawRow(schedule, device, ink) {
  const row = schedule.rows[device], size = rowHeight(), top = device * size + 2, tall = size - 4;
  let drawnTo = -1;
  for (let k = firstVisible(schedule, row, view.from); k < row.length && schedule.start[row[k]] < view.to; k++) {
    const i = row[k], left = toX(schedule.start[i]), right = toX(endOf(schedule, i)), block = data.blocks[schedule.block[i]];
    if (right - left < 0.7 && Math.floor(left) === drawnTo) continue;
    drawnTo = Math.floor(left);
    context.fillStyle = COLORS[block.kind];
    context.fillRect(left, top, Math.max(right - left, 0.7), tall);
    if (right - left > 4) { context.strokeStyle = "rgba(0,0,0,.55)"; context.lineWidth = 0.7; context.strokeRect(left + 0.35, top + 0.35, right - left - 0.7, tall - 0.7); }
    const text = `${schedule.batch[i]}`;
    if (tall >= 12 && right - left > 7.2 * text.length + 2) {
      context.fillStyle = "#111"; context.font = "11px system-ui, sans-serif"; context.textAlign = "center"; context.textBaseline = "middle";
      context.fillText(text, (left + right) / 2, top + tall / 2 + 0.5);
    }
    if (i === state.hover || i === state.kept) { context.strokeStyle = ink; context.lineWidth = 2.4; context.strokeRect(left, top, right - left, tall); }
  }
}

function drawPhases(schedule, ink, bottom) {
  if (!schedule.repetend) return;
  context.strokeStyle = ink; context.setLineDash([6, 4]); context.lineWidth = 1;
  for (const time of [schedule.repetend.start, schedule.repetend.end]) { const x = toX(time); context.beginPath(); context.moveTo(x, 0); context.lineTo(x, bottom); context.stroke(); }
  context.setLineDash([]);
}

function neighbours(schedule, i, forward) {
  const found = [], key = forward ? 0 : 1, other = 1 - key;
  for (const edge of data.edges) {
    if (edge[key] !== schedule.block[i]) continue;
    const at = schedule.position.get(edge[other] * schedule.micro_batches + schedule.batch[i]);
    if (at !== undefined) found.push(at);
  }
  return found;
}

function drawDependencies(schedule, ink) {
  const chosen = state.kept ?? state.hover;
  if (chosen === null) return;
  const size = rowHeight(), middle = (i) => (data.blocks[schedule.block[i]].devices[0] + 0.5) * size;
  context.lineWidth = 1.6; context.strokeStyle = ink;
  const arrow = (a, b) => {
    const x1 = toX(endOf(schedule, a)), y1 = middle(a), x2 = toX(schedule.start[b]), y2 = middle(b), bend = Math.max(18, (x2 - x1) / 2);
    context.beginPath(); context.moveTo(x1, y1); context.bezierCurveTo(x1 + bend, y1, x2 - bend, y2, x2, y2); context.stroke();
    context.beginPath(); context.moveTo(x2, y2); context.lineTo(x2 - 7, y2 - 4); context.lineTo(x2 - 7, y2 + 4); context.closePath(); context.fillStyle = ink; context.fill();
  };
  for (const i of neighbours(schedule, chosen, false)) arrow(i, chosen);
  for (const i of neighbours(schedule, chosen, true)) arrow(chosen, i);
}

function drawCursor(ink, bottom) {
  const x = toX(state.cursor);
  context.strokeStyle = "#d55e00"; context.lineWidth = 1.4; context.beginPath(); context.moveTo(x, 0); context.lineTo(x, bottom); context.stroke();
}

function drawAxes(schedule, ink, width, height) {
  const size = rowHeight();
  context.fillStyle = ink; context.textBaseline = "middle"; context.textAlign = "left"; context.font = "12px system-ui, sans-serif";
  const every = Math.ceil(13 / size);
  for (let device = 0; device < data.devices; device += every) context.fillText(`device ${device}`, 2, (device + 0.5) * size);
  const unit = data.step_ms ?? 1, span = (view.to - view.from) * unit, rough = span / Math.max((width - LEFT) / 110, 1);
  const power = 10 ** Math.floor(Math.log10(rough)), tick = [1, 2, 5, 10].map((f) => f * power).find((t) => t >= rough);
  context.strokeStyle = ink; context.lineWidth = 1; context.textAlign = "center"; context.textBaseline = "top";
  context.beginPath(); context.moveTo(LEFT, height - AXIS + 0.5); context.lineTo(width, height - AXIS + 0.5); context.stroke();
  for (let at = Math.ceil(view.from * unit / tick) * tick; at <= view.to * unit; at += tick) {
    const x = toX(at / unit);
    if (x > width - 24) break;
    context.beginPath(); context.moveTo(x, height - AXIS); context.lineTo(x, height - AXIS + 5); context.stroke();
    context.fillText(`${+at.toPrecision(6)}`, x, height - AXIS + 7);
  }
  context.textAlign = "left"; context.fillText(data.step_ms === null ? "steps" : "ms", 2, height - AXIS + 7);
}

function factsOf(schedule, i) {
  const block = data.blocks[schedule.block[i]], names = (list) => list.map((j) => data.blocks[schedule.block[j]].name).join(", ") || "nothing";
  return [`${block.name} of micro-batch ${schedule.batch[i]}: ${LABELS[block.kind]}`,
    `device ${block.devices.join(", ")}, ${formatTime(schedule.start[i])} to ${formatTime(endOf(schedule, i))} (${formatTime(block.span)})`,
    `memory ${block.memory > 0 ? "+" : ""}${formatMemory(block.memory)}`,
    `waits for ${names(neighbours(schedule, i, false))}; then ${names(neighbours(schedule, i, true))}`];
}

function blockAt(x, y) {
  const schedule = current(), device = Math.floor(y / rowHeight());
  if (x < LEFT || device < 0 || device >= data.devices) return null;
  const row = schedule.rows[device], time = toTime(x), k = firstVisible(schedule, row, time);
  return k < row.length && schedule.start[row[k]] <= time ? row[k] : null;
}

function showTooltip(x, y) {
  const tooltip = byId("tooltip");
  tooltip.hidden = state.hover === null;
  if (tooltip.hidden) return;
  tooltip.textContent = factsOf(current(), state.hover).join("\n");
  const left = Math.min(x + 14, canvas.clientWidth - tooltip.offsetWidth - 4);
  tooltip.style.left = `${Math.max(left, 0)}px`; tooltip.style.top = `${y + 16}px`;
}

function showMemory() {
  const schedule = current(), box = byId("memory-bars"), statics = data.static_memory ?? new Array(data.devices).fill(0);
  byId("cursor-time").textContent = formatTime(state.cursor);
  const held = schedule.memory.map((curve) => {
    let low = 0, high = curve.steps.length;
    while (low < high) { const middle = (low + high) >> 1; if (curve.steps[middle] <= state.cursor) low = middle + 1; else high = middle; }
    return low ? curve.held[low - 1] : 0;
  });
  const limits = data.limit;
  const scale = Math.max(1, ...schedule.peak_memory.map((peak, device) => peak + statics[device]));
  const top = limits && Math.max(...limits) < 3 * scale ? Math.max(scale, ...limits.map((limit, device) => limit + statics[device])) : scale;
  box.replaceChildren(...held.map((units, device) => {
    const row = document.createElement("div"), label = document.createElement("span"), track = document.createElement("div"), value = document.createElement("span");
    row.className = "row"; label.textContent = `device ${device}`; track.className = "track"; value.className = "value";
    value.textContent = `${formatMemory(units + statics[device])} of at most ${formatMemory(schedule.peak_memory[device] + statics[device])}`;
    const bar = (name, left, size) => { const part = document.createElement("div"); part.className = name; part.style.left = `${100 * left / top}%`; part.style.width = `${100 * size / top}%`; track.append(part); };
    if (statics[device]) bar("static", 0, statics[device]);
    bar(limits && units > limits[device] ? "held over" : "held", statics[device], units);
    if (limits && limits[device] + statics[device] <= top) { const line = document.createElement("div"); line.className = "limit"; line.style.left = `${100 * (limits[device] + statics[device]) / top}%`; track.append(line); }
    row.append(label, track, value);
    return row;
  }));
}

function setCursor(time) {
  state.cursor = Math.max(0, Math.min(time, longest()));
  byId("cursor").value = Math.round(1000 * state.cursor / longest());
  showMemory(); redraw();
}

const longest = () => Math.max(...schedules.map((schedule) => schedule.makespan), 1);

function setView(from, to) {
  const limit = longest() * 1.01, span = Math.max(Math.min(to - from, limit), 1e-3 * limit / Math.max(limit, 1), 2);
  view.from = Math.max(0, Math.min(from, limit - span)); view.to = view.from + span;
  redraw();
}

function zoom(factor, center = (view.from + view.to) / 2) { setView(center - (center - view.from) * factor, center + (view.to - center) * factor); }

function select(number) {
  state.schedule = number; state.hover = state.kept = null;
  const schedule = current();
  document.querySelectorAll("#tabs button").forEach((button, k) => button.setAttribute("aria-selected", k === number));
  const proof = schedule.optimal ? "proven least" : schedule.lower_bound ? `bound ${formatTime(schedule.lower_bound)}` : "no bound";
  const base = schedules.find((other) => other.name === "1f1b");
  const ratio = base && base !== schedule ? `, ${(schedule.makespan / base.makespan).toFixed(3)} of 1F1B's makespan` : "";
  const fits = schedule.fits ? "" : ", breaks the memory limit";
  byId("summary").textContent = `${schedule.name}: makespan ${formatTime(schedule.makespan)} (${proof})${ratio}, bubble ratio ${(100 * schedule.bubble_ratio).toFixed(1)} %${fits}`;
  byId("facts").textContent = "";
  showMemory(); redraw();
}

function keep(i) {
  state.kept = i;
  byId("facts").textContent = i === null ? "" : factsOf(current(), i).join(" · ");
  if (i !== null) {
    const schedule = current(), from = schedule.start[i], to = endOf(schedule, i), span = view.to - view.from;
    if (from < view.from || to > view.to) setView((from + to - span) / 2, (from + to + span) / 2);
    setCursor(from);
  }
  redraw();
}

function follow(forward) {
  if (state.kept === null) return;
  const schedule = current(), found = neighbours(schedule, state.kept, forward);
  if (!found.length) return;
  // What it waited for last, or what waits for it first: the tight one.
  found.sort((a, b) => forward ? schedule.start[a] - schedule.start[b] : endOf(schedule, b) - endOf(schedule, a));
  keep(found[0]);
}

function makeTable(source) {
  const table = document.createElement("table"), head = table.createTHead().insertRow();
  table.createCaption().textContent = source.title;
  for (const column of source.columns) { const cell = document.createElement("th"); cell.scope = "col"; cell.textContent = column; head.append(cell); }
  const body = table.createTBody();
  for (const cells of source.rows) { const row = body.insertRow(); for (const cell of cells) row.insertCell().textContent = cell; }
  return table;
}

function wire() {
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => { drag = { x: event.offsetX, from: view.from, to: view.to, moved: false }; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) {
      const shift = (event.offsetX - drag.x) / (canvas.clientWidth - LEFT) * (drag.to - drag.from);
      if (Math.abs(event.offsetX - drag.x) > 3) drag.moved = true;
      if (drag.moved) setView(drag.from - shift, drag.to - shift);
      return;
    }
    const found = blockAt(event.offsetX, event.offsetY);
    if (found !== state.hover) { state.hover = found; redraw(); }
    showTooltip(event.offsetX, event.offsetY);
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved) { keep(blockAt(event.offsetX, event.offsetY)); if (event.offsetX > LEFT) setCursor(toTime(event.offsetX)); }
    drag = null;
  });
  canvas.addEventListener("pointerleave", () => { state.hover = null; showTooltip(0, 0); redraw(); });
  canvas.addEventListener("wheel", (event) => { event.preventDefault(); zoom(Math.exp(event.deltaY * 0.0015), toTime(event.offsetX)); }, { passive: false });
  byId("cursor").addEventListener("input", (event) => setCursor(event.target.value / 1000 * longest()));
  const actions = { "zoom-in": () => zoom(0.6), "zoom-out": () => zoom(1 / 0.6), fit: () => setView(0, longest() * 1.01) };
  document.querySelectorAll("[data-action]").forEach((button) => button.addEventListener("click", actions[button.dataset.action]));
  const span = () => view.to - view.from;
  const keys = {
    ArrowLeft: () => setView(view.from - span() / 8, view.to - span() / 8), ArrowRight: () => setView(view.from + span() / 8, view.to + span() / 8),
    "+": actions["zoom-in"], "=": actions["zoom-in"], "-": actions["zoom-out"], "0": actions.fit,
    ",": () => setCursor(state.cursor - span() / 200), ".": () => setCursor(state.cursor + span() / 200),
    p: () => follow(false), n: () => follow(true), Escape: () => keep(null),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "INPUT") return;
    const number = Number(event.key) - 1;
    if (event.key >= "1" && event.key <= "9" && number < schedules.length) select(number);
    else if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
  window.addEventListener("resize", redraw);
}

(async function main() {
  byId("title").textContent = document.title = data.title;
  schedules = await Promise.all(data.schedules.map(loadSchedule));
  byId("tabs").replaceChildren(...schedules.map((schedule, number) => {
    const button = document.createElement("button");
    button.textContent = schedule.name; button.setAttribute("role", "tab"); button.addEventListener("click", () => select(number));
    return button;
  }));
  const kinds = [...new Set(data.blocks.map((block) => block.kind))];
  byId("legend").replaceChildren(...kinds.map((kind) => {
    const key = document.createElement("span"), swatch = document.createElement("i");
    key.className = "key"; swatch.style.background = COLORS[kind]; key.append(swatch, LABELS[kind]);
    return key;
  }));
  byId("tables").replaceChildren(...data.tables.map(makeTable));
  wire();
  setView(0, longest() * 1.01);
  select(0); setCursor(0);
  document.body.dataset.ready = "yes";
})();
