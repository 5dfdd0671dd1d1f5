"use strict";
// Draws the schedules embedded in this page. Blocks are kept in typed arrays, sorted by start for each device, so
// that a frame touches only what is visible: a binary search finds the first bar of a row. Where more bars are
// visible than canvas calls fit into a frame, each row is a line of pixels, every pixel the mean of what it covers.
const data = JSON.parse(document.getElementById("data").textContent);
const ROW_MAX = 34, ROW_MIN = 7, AXIS = 26, TOP = 24, LEFT = 78;
const MAX_SHAPES = 2500; // bars drawn one by one; more of them take longer than a frame without a GPU
const MAX_PARTS = 25; // sub-graphs shown before one asks for all
const PLAY_S = 20; // seconds in which the cursor plays what is visible
const byId = (id) => document.getElementById(id);
const canvas = byId("canvas"), context = canvas.getContext("2d");
const pixels = document.createElement("canvas"), pixelContext = pixels.getContext("2d");
const view = { from: 0, to: 1 };
const state = { schedule: 0, hover: null, kept: null, cursor: 0, playing: false, critical: false, allParts: false };
let schedules = [], pending = false;

const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
const lighter = (hex, white) => rgb(hex).map((part) => Math.round(part + (255 - part) * white));
const SHADES = data.styles.map(({ color, white }) => white.map((share) => lighter(color, share))); // of even and odd micro-batches

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// ---- What is written ----------------------------------------------------------------------------------------------

const formatMs = (ms) => ms === 0 || ms >= 1000 ? ms.toFixed(0) : `${+ms.toPrecision(3)}`;
const formatUs = (us) => us < 1000 ? `${us.toFixed(1)} us` : `${(us / 1000).toFixed(2)} ms`;
const formatTime = (steps) =>
  data.step_ms === null ? `${Math.round(steps)} step${Math.round(steps) === 1 ? "" : "s"}` : `${+(steps * data.step_ms).toPrecision(5)} ms`;

function formatMemory(units) {
  if (!data.memory_in_bytes) return `${units}`;
  for (const [size, name] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]])
    if (Math.abs(units) >= size) return `${(units / size).toFixed(1)} ${name}`;
  return `${units} B`;
}

// ---- What is known ------------------------------------------------------------------------------------------------

async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Int32Array(await new Response(stream).arrayBuffer());
}

async function loadSchedule(source) {
  const flat = await inflate(source.packed), count = flat.length / 3;
  const block = flat.subarray(0, count), batch = flat.subarray(count, 2 * count), start = flat.subarray(2 * count);
  for (let i = 1; i < count; i++) start[i] += start[i - 1]; // starts are stored as differences
  const sizes = new Array(data.devices).fill(0);
  for (let i = 0; i < count; i++) for (const device of data.blocks[block[i]].devices) sizes[device]++;
  const rows = sizes.map((size) => new Int32Array(size)), filled = new Array(data.devices).fill(0);
  const position = new Int32Array(data.blocks.length * source.micro_batches).fill(-1);
  for (let i = 0; i < count; i++) {
    for (const device of data.blocks[block[i]].devices) rows[device][filled[device]++] = i;
    position[block[i] * source.micro_batches + batch[i]] = i;
  }
  return { ...source, block, batch, start, count, position, rows, memory: memoryCurves(rows, block, start) };
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

const labelOf = (block) => data.styles[block].label + (data.chunks.length ? `, chunk ${data.styles[block].chunk},` : "");
const current = () => schedules[state.schedule];
const blockOf = (schedule, i) => data.blocks[schedule.block[i]];
const endOf = (schedule, i) => schedule.start[i] + blockOf(schedule, i).span;
const longest = () => Math.max(...schedules.map((schedule) => schedule.makespan), 1);

// The first of `count` numbers for which `test` is true; it must be false before that and true after.
function firstWhere(count, test) {
  let low = 0, high = count;
  while (low < high) { const middle = (low + high) >> 1; if (test(middle)) high = middle; else low = middle + 1; }
  return low;
}

const firstVisible = (schedule, row, time) => firstWhere(row.length, (k) => endOf(schedule, row[k]) > time);
const firstAfter = (schedule, row, time) => firstWhere(row.length, (k) => schedule.start[row[k]] >= time);

function neighbours(schedule, i, forward) {
  const found = [], key = forward ? 0 : 1;
  for (const edge of data.edges) {
    if (edge[key] !== schedule.block[i]) continue;
    const at = schedule.position[edge[1 - key] * schedule.micro_batches + schedule.batch[i]];
    if (at >= 0) found.push(at);
  }
  return found;
}

// Moments at which a block starts or ends, rising.
function moments(schedule) {
  if (!schedule.moments) {
    const all = new Int32Array(2 * schedule.count);
    for (let i = 0; i < schedule.count; i++) { all[2 * i] = schedule.start[i]; all[2 * i + 1] = endOf(schedule, i); }
    schedule.moments = all.sort().filter((time, k) => !k || time !== all[k - 1]);
  }
  return schedule.moments;
}

// Blocks that follow each other without a pause up to the one that ends last, as far back as that goes.
function criticalPath(schedule) {
  if (schedule.critical) return schedule.critical;
  const before = new Map();
  for (const row of schedule.rows)
    for (let k = 1; k < row.length; k++) before.set(row[k], [...(before.get(row[k]) ?? []), row[k - 1]]);
  let last = 0;
  for (let i = 0; i < schedule.count; i++) if (endOf(schedule, i) > endOf(schedule, last)) last = i;
  const path = [last], seen = new Set(path);
  for (;;) {
    const i = path[path.length - 1], start = schedule.start[i], tight = [];
    for (const [source, target, lag] of data.edges) {
      if (target !== schedule.block[i]) continue;
      const at = schedule.position[source * schedule.micro_batches + schedule.batch[i]];
      if (at >= 0 && endOf(schedule, at) + lag === start) tight.push(at);
    }
    tight.push(...(before.get(i) ?? []).filter((at) => endOf(schedule, at) === start));
    const next = tight.find((at) => !seen.has(at));
    if (next === undefined) break;
    path.push(next); seen.add(next);
  }
  return schedule.critical = path.reverse();
}

// ---- The timeline -------------------------------------------------------------------------------------------------

const rowHeight = () => {
  const room = Math.max(window.innerHeight - 260, 320);
  return Math.max(ROW_MIN, Math.min(ROW_MAX, Math.floor(room / data.devices)));
};
const toX = (time) => LEFT + (time - view.from) / (view.to - view.from) * (canvas.clientWidth - LEFT);
const toTime = (x) => view.from + (x - LEFT) / (canvas.clientWidth - LEFT) * (view.to - view.from);
const middleOf = (device) => TOP + (device + 0.5) * rowHeight();

function redraw() { if (!pending) { pending = true; requestAnimationFrame(draw); } }

function draw() {
  pending = false;
  const schedule = current(), ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
  const bottom = TOP + data.devices * rowHeight(), height = bottom + AXIS;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
  }
  const style = getComputedStyle(document.body), ink = style.color, idle = style.getPropertyValue("--idle").trim();
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.save();
  context.beginPath(); context.rect(LEFT, 0, width - LEFT, height); context.clip();
  const ranges = schedule.rows.map((row) => [firstVisible(schedule, row, view.from), firstAfter(schedule, row, view.to)]);
  const visible = ranges.reduce((sum, [from, to]) => sum + Math.max(to - from, 0), 0);
  if (visible > MAX_SHAPES) drawPixels(schedule, ranges, idle, ratio, width);
  else drawShapes(schedule, ranges, idle);
  drawPhases(schedule, ink, bottom);
  drawBaseline(schedule, ink, bottom);
  if (state.critical) drawCritical(schedule);
  for (const i of new Set([state.hover, state.kept])) if (i !== null) outline(schedule, i, ink);
  drawDependencies(schedule, ink);
  drawCursor(bottom);
  context.restore();
  drawAxes(ink, width, bottom);
}

function drawShapes(schedule, ranges, idle) {
  const size = rowHeight(), gap = size > 14 ? 2 : 1, tall = size - 2 * gap;
  context.fillStyle = idle;
  for (let device = 0; device < data.devices; device++)
    context.fillRect(toX(0), TOP + device * size + gap, toX(schedule.makespan) - toX(0), tall);
  context.font = "11px system-ui, sans-serif"; context.textAlign = "center"; context.textBaseline = "middle";
  ranges.forEach(([from, to], device) => {
    const row = schedule.rows[device], top = TOP + device * size + gap;
    for (let k = from; k < to; k++) {
      const i = row[k];
      if (!blockOf(schedule, i).span) continue; // nothing to see
      const left = toX(schedule.start[i]), wide = Math.max(toX(endOf(schedule, i)) - left, 0.7);
      context.fillStyle = `rgb(${SHADES[schedule.block[i]][schedule.batch[i] % 2]})`;
      if (wide > 4) {
        context.fillRect(left, top, wide, tall);
        context.strokeStyle = "rgba(0,0,0,.55)"; context.lineWidth = 0.7;
        context.strokeRect(left + 0.35, top + 0.35, wide - 0.7, tall - 0.7);
      } else context.fillRect(left, top, wide, tall);
      const text = `${schedule.batch[i]}`;
      if (tall >= 11 && wide > 7.2 * text.length + 2) {
        context.fillStyle = "#111"; context.fillText(text, left + wide / 2, top + tall / 2 + 0.5);
      }
    }
  });
}

// Each row as a line of pixels: the mean colour of what a pixel covers, idle time included.
function drawPixels(schedule, ranges, idle, ratio, width) {
  const across = Math.max(Math.round((width - LEFT) * ratio), 1), perStep = across / (view.to - view.from);
  if (pixels.width !== across || pixels.height !== data.devices) { pixels.width = across; pixels.height = data.devices; }
  const image = pixelContext.createImageData(across, data.devices), out = image.data;
  const [idleRed, idleGreen, idleBlue] = rgb(idle);
  const sums = new Float32Array(4 * across);
  const add = (at, share, shade) => {
    sums[4 * at] += share * shade[0]; sums[4 * at + 1] += share * shade[1]; sums[4 * at + 2] += share * shade[2];
    sums[4 * at + 3] += share;
  };
  const end = (schedule.makespan - view.from) * perStep;
  ranges.forEach(([from, to], device) => {
    sums.fill(0);
    const row = schedule.rows[device];
    for (let k = from; k < to; k++) {
      const i = row[k], span = data.blocks[schedule.block[i]].span, shade = SHADES[schedule.block[i]][schedule.batch[i] & 1];
      const left = Math.max((schedule.start[i] - view.from) * perStep, 0);
      const right = Math.min((schedule.start[i] + span - view.from) * perStep, across);
      for (let at = left | 0; at < right; at++) add(at, Math.min(at + 1, right) - Math.max(at, left), shade);
    }
    for (let at = 0, o = 4 * across * device; at < across; at++, o += 4) {
      const busy = Math.min(sums[4 * at + 3], 1), free = Math.max(Math.min(end - at, 1), busy) - busy;
      if (busy + free === 0) continue;
      out[o] = (sums[4 * at] + free * idleRed) / (busy + free);
      out[o + 1] = (sums[4 * at + 1] + free * idleGreen) / (busy + free);
      out[o + 2] = (sums[4 * at + 2] + free * idleBlue) / (busy + free);
      out[o + 3] = 255 * (busy + free);
    }
  });
  pixelContext.putImageData(image, 0, 0);
  const size = rowHeight(), gap = size > 14 ? 2 : 1;
  context.imageSmoothingEnabled = false;
  for (let device = 0; device < data.devices; device++)
    context.drawImage(pixels, 0, device, across, 1, LEFT, TOP + device * size + gap, width - LEFT, size - 2 * gap);
}

function vertical(time, bottom, color, dash, wide) {
  const x = toX(time);
  context.strokeStyle = color; context.lineWidth = wide; context.setLineDash(dash);
  context.beginPath(); context.moveTo(x, 4); context.lineTo(x, bottom); context.stroke();
  context.setLineDash([]);
}

function drawPhases(schedule, ink, bottom) {
  if (!schedule.repetend) return;
  const { start, end } = schedule.repetend;
  for (const time of [start, end]) vertical(time, bottom, ink, [6, 4], 1);
  context.fillStyle = ink; context.font = "12px system-ui, sans-serif";
  context.textAlign = "center"; context.textBaseline = "middle";
  for (const [name, from, to] of [["warm-up", 0, start], ["repetend", start, end], ["cool-down", end, schedule.makespan]]) {
    const left = Math.max(toX(from), LEFT), right = Math.min(toX(to), canvas.clientWidth);
    if (right - left > context.measureText(name).width + 6) context.fillText(name, (left + right) / 2, TOP / 2);
  }
}

// Where 1F1B ends, so that what another schedule saves is seen at its end.
function drawBaseline(schedule, ink, bottom) {
  const base = schedules.find((other) => other.name === "1f1b");
  if (!base || base === schedule || base.makespan === schedule.makespan) return;
  vertical(base.makespan, bottom, ink, [2, 3], 1);
  context.fillStyle = ink; context.font = "11px system-ui, sans-serif"; context.textBaseline = "middle";
  const x = toX(base.makespan), fits = canvas.clientWidth - x > 62;
  context.textAlign = fits ? "left" : "right";
  context.fillText("1F1B ends", x + (fits ? 4 : -4), TOP / 2);
}

function drawCritical(schedule) {
  context.strokeStyle = "#d55e00"; context.lineWidth = 2.2; context.lineJoin = "round";
  context.beginPath();
  let begun = false;
  for (const i of criticalPath(schedule)) {
    const y = middleOf(blockOf(schedule, i).devices[0]) + rowHeight() * 0.25;
    if (begun) context.lineTo(toX(schedule.start[i]), y); else context.moveTo(toX(schedule.start[i]), y);
    context.lineTo(toX(endOf(schedule, i)), y);
    begun = true;
  }
  context.stroke();
}

function outline(schedule, i, ink) {
  const size = rowHeight(), left = toX(schedule.start[i]), wide = Math.max(toX(endOf(schedule, i)) - left, 2);
  context.strokeStyle = ink; context.lineWidth = 2.4;
  for (const device of blockOf(schedule, i).devices) context.strokeRect(left, TOP + device * size + 1, wide, size - 2);
}

function drawDependencies(schedule, ink) {
  const chosen = state.kept ?? state.hover;
  if (chosen === null) return;
  const row = (i) => middleOf(blockOf(schedule, i).devices[0]);
  context.lineWidth = 1.6; context.strokeStyle = context.fillStyle = ink;
  const arrow = (a, b) => {
    const x1 = toX(endOf(schedule, a)), y1 = row(a), x2 = toX(schedule.start[b]), y2 = row(b);
    const bend = Math.max(18, (x2 - x1) / 2);
    context.beginPath(); context.moveTo(x1, y1);
    context.bezierCurveTo(x1 + bend, y1, x2 - bend, y2, x2, y2); context.stroke();
    context.beginPath(); context.moveTo(x2, y2); context.lineTo(x2 - 7, y2 - 4); context.lineTo(x2 - 7, y2 + 4);
    context.closePath(); context.fill();
  };
  for (const i of neighbours(schedule, chosen, false)) arrow(i, chosen);
  for (const i of neighbours(schedule, chosen, true)) arrow(chosen, i);
}

function drawCursor(bottom) {
  vertical(state.cursor, bottom, "#d55e00", [], 1.4);
}

function drawAxes(ink, width, bottom) {
  const size = rowHeight(), every = Math.ceil(13 / size);
  context.fillStyle = ink; context.textBaseline = "middle"; context.textAlign = "left";
  context.font = "12px system-ui, sans-serif";
  for (let device = 0; device < data.devices; device += every) context.fillText(`device ${device}`, 2, middleOf(device));
  const unit = data.step_ms ?? 1, span = (view.to - view.from) * unit, rough = span / Math.max((width - LEFT) / 110, 1);
  const power = 10 ** Math.floor(Math.log10(rough)), tick = [1, 2, 5, 10].map((f) => f * power).find((t) => t >= rough);
  context.strokeStyle = ink; context.lineWidth = 1; context.textAlign = "center"; context.textBaseline = "top";
  context.beginPath(); context.moveTo(LEFT, bottom + 0.5); context.lineTo(width, bottom + 0.5); context.stroke();
  for (let at = Math.ceil(view.from * unit / tick) * tick; at <= view.to * unit; at += tick) {
    const x = toX(at / unit);
    if (x > width - 24) break;
    context.beginPath(); context.moveTo(x, bottom); context.lineTo(x, bottom + 5); context.stroke();
    context.fillText(`${+at.toPrecision(6)}`, x, bottom + 7);
  }
  context.textAlign = "left"; context.fillText(data.step_ms === null ? "steps" : "ms", 2, bottom + 7);
}

// ---- Facts --------------------------------------------------------------------------------------------------------

const nameOf = (schedule, i) => `${blockOf(schedule, i).name}[${schedule.batch[i]}]`;

function phaseOf(schedule, i) {
  if (!schedule.repetend) return "";
  if (schedule.start[i] < schedule.repetend.start) return ", warm-up";
  return schedule.start[i] < schedule.repetend.end ? ", repetend" : ", cool-down";
}

function factsOf(schedule, i) {
  const block = blockOf(schedule, i), from = schedule.start[i], to = endOf(schedule, i);
  const facts = [
    `${nameOf(schedule, i)}: ${labelOf(schedule.block[i])} of micro-batch ${schedule.batch[i]}${phaseOf(schedule, i)}`,
    `device ${block.devices.join(", ")}, ${formatTime(from)} to ${formatTime(to)}, takes ${formatTime(block.span)}`,
    `memory ${block.memory > 0 ? "+" : ""}${formatMemory(block.memory)}`,
  ];
  const counts = new Map();
  for (const part of partsOf(schedule.block[i])) counts.set(part.backend, (counts.get(part.backend) ?? 0) + 1);
  if (counts.size) facts.push(`runs sub-graphs of ${[...counts].map(([backend, n]) => `${backend} (${n})`).join(", ")}`);
  return facts;
}

function blockAt(x, y) {
  const schedule = current(), device = Math.floor((y - TOP) / rowHeight());
  if (x < LEFT || device < 0 || device >= data.devices) return null;
  const row = schedule.rows[device], time = toTime(x), k = firstVisible(schedule, row, time);
  return k < row.length && schedule.start[row[k]] <= time ? row[k] : null;
}

function showTooltip(x, y) {
  const tooltip = byId("tooltip");
  tooltip.hidden = state.hover === null;
  if (tooltip.hidden) return;
  const schedule = current(), names = (forward) =>
    neighbours(schedule, state.hover, forward).map((j) => nameOf(schedule, j)).join(", ") || "nothing";
  tooltip.textContent =
    [...factsOf(schedule, state.hover), `waits for ${names(false)}; then ${names(true)}`].join("\n");
  const left = Math.min(x + 14, canvas.clientWidth - tooltip.offsetWidth - 4);
  const below = y + 16 + tooltip.offsetHeight < canvas.clientHeight || y < tooltip.offsetHeight + 10;
  tooltip.style.left = `${Math.max(left, 0)}px`;
  tooltip.style.top = `${below ? y + 16 : y - tooltip.offsetHeight - 10}px`;
}

function showFacts() {
  const box = byId("facts"), schedule = current(), i = state.kept;
  if (i === null) { box.replaceChildren("Choose a block by a click, or with Enter, to follow what it waits for."); return; }
  const buttons = (list) => list.length
    ? list.map((j) => element("button", { textContent: nameOf(schedule, j), onclick: () => keep(j) }))
    : ["nothing"];
  box.replaceChildren(
    element("div", { textContent: factsOf(schedule, i).join(" · ") }),
    element("div", {}, "waits for ", ...buttons(neighbours(schedule, i, false)),
      " · then ", ...buttons(neighbours(schedule, i, true))),
  );
}

// ---- Memory at the cursor -----------------------------------------------------------------------------------------

let memoryRows = [];

function buildMemory() {
  const schedule = current(), statics = data.static_memory ?? new Array(data.devices).fill(0), limits = data.limit;
  const scale = Math.max(1, ...schedule.peak_memory.map((peak, device) => peak + statics[device]));
  const most = limits ? Math.max(...limits.map((limit, device) => limit + statics[device])) : 0;
  const top = most < 3 * scale ? Math.max(scale, most) : scale; // a limit far away would flatten the bars
  memoryRows = schedule.memory.map((_, device) => {
    const low = rowHeight() < 13, held = element("div", { className: "held" }), value = element("span", { className: "value" });
    const track = element("div", { className: "track" });
    if (statics[device]) {
      const part = element("div", { className: "static" });
      part.style.width = `${100 * statics[device] / top}%`; track.append(part);
    }
    held.style.left = `${100 * statics[device] / top}%`; track.append(held);
    if (limits && limits[device] + statics[device] <= top) {
      const line = element("div", { className: "limit", title: "limit" });
      line.style.left = `${100 * (limits[device] + statics[device]) / top}%`; track.append(line);
    }
    const label = element("span", { className: "device", textContent: `device ${device}` });
    const row = element("div", { className: low ? "row low" : "row" }, label, track, value);
    row.style.height = `${rowHeight()}px`;
    return { row, held, value, top, static: statics[device], limit: limits ? limits[device] : Infinity };
  });
  byId("memory-bars").replaceChildren(...memoryRows.map(({ row }) => row));
  showMemory();
}

function showMemory() {
  const schedule = current();
  byId("cursor-time").textContent = formatTime(state.cursor);
  schedule.memory.forEach((curve, device) => {
    const after = firstWhere(curve.steps.length, (k) => curve.steps[k] > state.cursor);
    const units = after ? curve.held[after - 1] : 0, row = memoryRows[device], all = units + row.static;
    row.held.style.width = `${100 * Math.max(units, 0) / row.top}%`;
    row.held.className = units > row.limit ? "held over" : "held";
    row.value.textContent = `${formatMemory(all)}, peak ${formatMemory(schedule.peak_memory[device] + row.static)}`;
    row.row.title = `device ${device}: ${row.value.textContent}`;
  });
}

function setCursor(time) {
  state.cursor = Math.max(0, Math.min(time, longest()));
  byId("cursor").value = Math.round(1000 * state.cursor / longest());
  const span = view.to - view.from;
  if (state.cursor < view.from) setView(state.cursor, state.cursor + span);
  else if (state.cursor > view.to) setView(state.cursor - span, state.cursor);
  showMemory(); redraw();
}

function step(forward) {
  const times = moments(current());
  const k = firstWhere(times.length, (at) => forward ? times[at] > state.cursor : times[at] >= state.cursor) - (forward ? 0 : 1);
  if (k >= 0 && k < times.length) setCursor(times[k]);
}

function play(on) {
  state.playing = on;
  byId("play").setAttribute("aria-pressed", on); byId("play").textContent = on ? "Pause" : "Play";
  let last = null;
  const frame = (now) => {
    if (!state.playing) return;
    if (last !== null) setCursor(state.cursor + (now - last) / 1000 * (view.to - view.from) / PLAY_S);
    last = now;
    if (state.cursor >= current().makespan) play(false); else requestAnimationFrame(frame);
  };
  if (!on) return;
  if (state.cursor >= current().makespan) setCursor(0);
  requestAnimationFrame(frame);
}

// ---- What one does ------------------------------------------------------------------------------------------------

function setView(from, to) {
  const limit = longest() * 1.02, span = Math.max(Math.min(to - from, limit), 2);
  view.from = Math.max(0, Math.min(from, limit - span)); view.to = view.from + span;
  redraw();
}

const showAll = () => setView(0, longest() * 1.02);

function zoom(factor, center = (view.from + view.to) / 2) {
  setView(center - (center - view.from) * factor, center + (view.to - center) * factor);
}

function select(number) {
  const before = current(), kept = state.kept;
  state.schedule = number; state.hover = state.kept = null;
  const schedule = current();
  if (kept !== null) { // the same block of the same micro-batch, where this schedule runs it
    const at = schedule.position[before.block[kept] * schedule.micro_batches + before.batch[kept]];
    state.kept = at >= 0 ? at : null;
  }
  document.querySelectorAll("#tabs button").forEach((button, k) => button.setAttribute("aria-selected", k === number));
  const proof = schedule.optimal ? "proven least" : schedule.lower_bound ? `bound ${formatTime(schedule.lower_bound)}` : "no bound";
  const base = schedules.find((other) => other.name === "1f1b");
  const ratio = base && base !== schedule ? `, ${(schedule.makespan / base.makespan).toFixed(3)} of 1F1B's makespan` : "";
  const fits = schedule.fits ? "" : ", breaks the memory limit";
  const bubbles = `bubble ratio ${(100 * schedule.bubble_ratio).toFixed(1)} %`;
  byId("summary").textContent =
    `${schedule.title}: makespan ${formatTime(schedule.makespan)} (${proof})${ratio}, ${bubbles}${fits}`;
  byId("tooltip").hidden = true;
  showFacts(); showParts(); buildMemory(); redraw();
}

function keep(i) {
  state.kept = i; state.allParts = false;
  if (i !== null) {
    const schedule = current(), from = schedule.start[i], to = endOf(schedule, i), span = view.to - view.from;
    if (from < view.from || to > view.to) setView((from + to - span) / 2, (from + to + span) / 2);
    setCursor(from);
  }
  showFacts(); showParts(); redraw();
}

function follow(forward) {
  if (state.kept === null) return keepAtCursor();
  const schedule = current(), found = neighbours(schedule, state.kept, forward);
  if (!found.length) return;
  // What it waited for last, or what waits for it first: the tight one.
  found.sort((a, b) => forward ? schedule.start[a] - schedule.start[b] : endOf(schedule, b) - endOf(schedule, a));
  keep(found[0]);
}

// The block that a device runs at a time, or else runs next, or else ran last.
function runningOn(schedule, device, time) {
  const row = schedule.rows[device];
  return row.length ? row[Math.min(firstVisible(schedule, row, time), row.length - 1)] : null;
}

function keepAtCursor() {
  const schedule = current();
  const running = schedule.rows.map((_, device) => runningOn(schedule, device, state.cursor)).filter((i) => i !== null);
  const now = running.find((i) => schedule.start[i] <= state.cursor && endOf(schedule, i) > state.cursor);
  keep(state.hover ?? now ?? running[0] ?? null);
}

function keepBeside(shift) {
  if (state.kept === null) return keepAtCursor();
  const schedule = current(), row = schedule.rows[blockOf(schedule, state.kept).devices[0]];
  const found = row[row.indexOf(state.kept) + shift];
  if (found !== undefined) keep(found);
}

function keepOnDevice(shift) {
  if (state.kept === null) return keepAtCursor();
  const schedule = current(), device = blockOf(schedule, state.kept).devices[0] + shift;
  const found = device >= 0 && device < data.devices ? runningOn(schedule, device, schedule.start[state.kept]) : null;
  if (found !== null) keep(found);
}

function toggleCritical() {
  state.critical = !state.critical;
  byId("critical").setAttribute("aria-pressed", state.critical);
  redraw();
}

// ---- Tables -------------------------------------------------------------------------------------------------------

const partsOf = (block) => data.parts.filter((part) => part.blocks.includes(block));
const costOf = (part) => part.latency_us * part.occurrences;

function showParts() {
  if (!data.parts.length) return;
  const block = state.kept === null ? null : current().block[state.kept], own = block === null ? [] : partsOf(block);
  const shown = own.length ? own : data.parts, total = shown.reduce((sum, part) => sum + costOf(part), 0) || 1;
  byId("partition").hidden = false;
  byId("partition-of").textContent = own.length
    ? `Those that ${data.blocks[block].name} runs: ${own.length} of ${data.parts.length} distinct ones; Esc shows all.`
    : `${data.parts.length} distinct ones, each priced once. Choose a block to see those that it runs.`;
  const cost = new Map();
  for (const part of shown) cost.set(part.backend, (cost.get(part.backend) ?? 0) + costOf(part));
  byId("shares").replaceChildren(...[...cost].sort((a, b) => b[1] - a[1]).map(([backend, us]) => {
    const percent = 100 * us / total, textContent = percent < 8 ? "" : `${backend} ${percent.toFixed(1)} %`; // no room below
    const bar = element("div", { textContent, title: `${backend} ${percent.toFixed(1)} %: ${formatUs(us)}` });
    bar.style.width = `${100 * us / total}%`; bar.style.background = data.backend_colors[backend];
    return bar;
  }));
  const rows = [...shown].sort((a, b) => costOf(b) - costOf(a)), few = state.allParts ? rows : rows.slice(0, MAX_PARTS);
  const head = ["operators", "layer", "tensors", "backend", "latency", "from", "runs", "share of time", "alternative"];
  byId("parts").replaceChildren(
    element("thead", {}, element("tr", {}, ...head.map((textContent) => element("th", { scope: "col", textContent })))),
    element("tbody", {}, ...few.map((part) => partRow(part, total))),
  );
  const more = byId("all-parts");
  more.hidden = few.length === rows.length; more.textContent = `Show all ${rows.length}`;
}

function partRow(part, total) {
  const share = costOf(part) / total, bar = element("i"), swatch = element("i");
  bar.style.width = `${Math.max(Math.round(90 * share), 1)}px`;
  bar.style.background = swatch.style.background = data.backend_colors[part.backend];
  const other = part.runner_up ? `${part.runner_up[0]}, ${formatUs(part.runner_up[1])}` : "no other backend";
  return element("tr", {},
    element("td", { textContent: part.operators.join(", ") }),
    element("td", { textContent: part.layers }),
    element("td", { textContent: part.tensors }),
    element("td", {}, element("span", { className: "key" }, swatch, part.backend)),
    element("td", { textContent: formatUs(part.latency_us) }),
    element("td", { textContent: part.source }),
    element("td", { textContent: `${part.occurrences}` }),
    element("td", { className: "share" }, bar, `${(100 * share).toFixed(1)} %`),
    element("td", { textContent: other }));
}

function makeTable(source) {
  const table = document.createElement("table"), head = table.createTHead().insertRow();
  table.createCaption().textContent = source.title;
  for (const column of source.columns) head.append(element("th", { scope: "col", textContent: column }));
  const body = table.createTBody();
  for (const cells of source.rows) { const row = body.insertRow(); for (const cell of cells) row.insertCell().textContent = cell; }
  return table;
}

// ---- Mouse and keyboard -------------------------------------------------------------------------------------------

function wire() {
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.offsetX, from: view.from, to: view.to, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
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
    if (drag && !drag.moved) {
      keep(blockAt(event.offsetX, event.offsetY));
      if (event.offsetX > LEFT) setCursor(toTime(event.offsetX));
    }
    drag = null;
  });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("pointerleave", () => { state.hover = null; showTooltip(0, 0); redraw(); });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const span = view.to - view.from, aside = event.shiftKey ? event.deltaY : event.deltaX;
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) setView(view.from + aside / 1000 * span, view.to + aside / 1000 * span);
    else zoom(Math.exp(event.deltaY * 0.0015), toTime(Math.max(event.offsetX, LEFT)));
  }, { passive: false });
  byId("cursor").addEventListener("input", (event) => setCursor(event.target.value / 1000 * longest()));
  const actions = {
    "zoom-in": () => zoom(0.6), "zoom-out": () => zoom(1 / 0.6), fit: showAll, back: () => step(false), step: () => step(true),
    play: () => play(!state.playing), critical: toggleCritical, "all-parts": () => { state.allParts = true; showParts(); },
  };
  document.querySelectorAll("[data-action]").forEach((button) => button.addEventListener("click", actions[button.dataset.action]));
  const pan = (share) => { const shift = share * (view.to - view.from); setView(view.from + shift, view.to + shift); };
  const turn = (shift) => select((state.schedule + shift + schedules.length) % schedules.length);
  const keys = {
    ArrowLeft: () => pan(-1 / 8), ArrowRight: () => pan(1 / 8), ArrowUp: () => keepOnDevice(-1), ArrowDown: () => keepOnDevice(1),
    "+": actions["zoom-in"], "=": actions["zoom-in"], "-": actions["zoom-out"], "0": actions.fit,
    ",": actions.back, ".": actions.step, Home: () => setCursor(0), End: () => setCursor(current().makespan),
    " ": actions.play, Enter: keepAtCursor, p: () => follow(false), n: () => follow(true), c: toggleCritical,
    "[": () => turn(-1), "]": () => turn(1), Escape: () => keep(null), "?": () => { byId("help").open = !byId("help").open; },
  };
  const shifted = { ArrowLeft: () => keepBeside(-1), ArrowRight: () => keepBeside(1) };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "INPUT") return;
    if ((event.key === " " || event.key === "Enter") && ["BUTTON", "SUMMARY"].includes(event.target.tagName)) return;
    const number = Number(event.key) - 1, action = (event.shiftKey && shifted[event.key]) || keys[event.key];
    if (event.key >= "1" && event.key <= "9" && number < schedules.length) select(number);
    else if (action) { event.preventDefault(); action(); }
  });
  window.addEventListener("resize", () => { buildMemory(); redraw(); });
}

(async function main() {
  byId("title").textContent = document.title = data.title;
  schedules = await Promise.all(data.schedules.map(loadSchedule));
  byId("tabs").replaceChildren(...schedules.map((schedule, number) => {
    const length = data.step_ms === null ? `${schedule.makespan}` : `${formatMs(schedule.makespan * data.step_ms)} ms`;
    const button = element("button", { onclick: () => select(number) }, schedule.title, element("small", { textContent: length }));
    button.setAttribute("role", "tab");
    return button;
  }));
  const kinds = new Map(data.styles.filter((_, k) => data.blocks[k].span).map(({ label, color }) => [label, color]));
  const chunks = data.chunks.map((white, chunk) => [`rgb(${lighter(data.chunk_color, white)})`, `chunk ${chunk}`]);
  const keys = [...[...kinds].map(([label, color]) => [color, label]), ...chunks, ["var(--idle)", "idle"]];
  byId("legend").replaceChildren(...keys.map(([color, label]) => {
    const swatch = element("i");
    swatch.style.background = color;
    return element("span", { className: "key" }, swatch, label);
  }));
  byId("tables").replaceChildren(...data.tables.map(makeTable));
  wire();
  showAll();
  select(0);
  draw();
  performance.mark("ready");
  document.body.dataset.ready = "yes";
})();
