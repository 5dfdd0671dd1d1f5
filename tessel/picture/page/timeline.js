// ---- The timeline -------------------------------------------------------------------------------------------------
// From above: for each schedule shown a heading and a row a device, the memory of each device, the time axis.

const ROW_MAX = 34, AXIS = 26, HEADING = 22, LANE_MAX = 44, MAX_LABELS = 1500, LEAST_FONT = 7, FONT = 11;
const FAMILY = "system-ui, sans-serif";
const isNarrow = () => canvas.clientWidth < 560;
const isLarge = () => canvas.clientWidth > 1900; // where style.css makes letters larger, too
const leftEdge = () => isNarrow() ? 30 : isLarge() ? 92 : 78;
const lettering = (weight = "") => `${weight}${isLarge() ? 14 : 12}px ${FAMILY}`;
const laneHeight = () => {
  const room = Math.max(180, window.innerHeight / 5), most = isLarge() ? 1.5 * LANE_MAX : LANE_MAX;
  return data.devices > 24 ? 4 : Math.max(8, Math.min(most, Math.floor(room / data.devices)));
};

const rowHeight = () => {
  const room = Math.max(window.innerHeight - 330 - data.devices * laneHeight() * 0.5, 300), panes = shown().length;
  const most = isLarge() ? 1.5 * ROW_MAX : ROW_MAX;
  return Math.max(panes > 1 ? 5 : 7, Math.min(most, Math.floor((room / panes - HEADING) / data.devices)));
};
const paneTop = (pane) => HEADING + pane * (HEADING + data.devices * rowHeight());
const panesBottom = () => paneTop(shown().length - 1) + data.devices * rowHeight();
const memoryTop = () => panesBottom() + HEADING;
const bottomEdge = () => memoryTop() + data.devices * laneHeight();
const toX = (time) => leftEdge() + (time - view.from) / (view.to - view.from) * (canvas.clientWidth - leftEdge());
const toTime = (x) => view.from + (x - leftEdge()) / (canvas.clientWidth - leftEdge()) * (view.to - view.from);
const middleOf = (device, pane = 0) => paneTop(pane) + (device + 0.5) * rowHeight();

function redraw() { if (!pending) { pending = true; requestAnimationFrame(draw); } }

function draw() {
  pending = false;
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, bottom = bottomEdge(), height = bottom + AXIS, left = leftEdge();
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
  }
  const panes = shown(), { ink } = currentTheme();
  const ranges = panes.map((schedule) => schedule.rows.map((row) => [firstVisible(schedule, row, view.from), firstAfter(schedule, row, view.to)]));
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  drawPixels(panes, ranges, ratio, width - left, bottom);
  context.save();
  context.beginPath(); context.rect(left, 0, width - left, height); context.clip();
  panes.forEach((schedule, pane) => {
    drawPhases(schedule, pane, ink);
    drawLabels(schedule, ranges[pane], pane);
    for (const chosen of [state.hover, state.kept]) if (chosen) outline(schedule, pane, chosen, ink);
    drawDependencies(schedule, pane, ink);
  });
  if (state.critical) drawCritical(current());
  drawArea(ink);
  vertical(state.cursor, 4, bottom, currentTheme().over, [], 1.4);
  panes.forEach((schedule, pane) => drawHeading(schedule, pane, ink)); // their letters are above every line
  context.restore();
  drawMemoryHeading(ink);
  drawMemoryAxis(ink);
  drawAxes(panes, ink, width, bottom);
}

function drawPixels(panes, ranges, ratio, room, bottom) {
  const wide = Math.max(Math.round(room * ratio), 1), tall = Math.round(bottom * ratio), colors = currentTheme();
  const shows = [view.from, view.to, wide, tall, rowHeight(), panes[0], panes[1], colors, state.match, state.marking];
  if (shows.some((value, k) => value !== rasterized[k])) {
    imageOf(wide, tall);
    rasterPanes(panes, ranges, ratio, { wide, colors, idle: 2 * data.blocks.length, ...scaleOf(wide) });
    rasterized = shows;
  }
  context.putImageData(image, Math.round(leftEdge() * ratio), 0);
}

function rasterPanes(panes, ranges, ratio, frame) {
  const size = rowHeight(), gap = size > 14 ? 2 : 1, tall = Math.max(Math.round((size - 2 * gap) * ratio), 1);
  panes.forEach((schedule, pane) => {
    const beside = panes[1 - pane], flags = beside && state.marking ? differences(schedule, beside) : null;
    const rowTop = (device) => Math.round((paneTop(pane) + device * size + gap) * ratio), place = { ...frame, tall, flags, rowTop, top: 0 };
    for (let device = 0; device < data.devices; device++) { place.top = rowTop(device); rasterRow(schedule, device, place); }
    if (data.shared) schedule.rows.forEach((row, device) => rasterShared(schedule, ranges[pane][device], row, device, place));
  });
  rasterMemory(panes, ratio, frame);
}

// The number of a bar is its micro-batch. Bars of one width are written alike: all numbers of the schedule fit, or none is.
function drawLabels(schedule, ranges, pane) {
  const size = rowHeight(), scale = (canvas.clientWidth - leftEdge()) / (view.to - view.from), fonts = labelFonts(schedule, scale, size);
  const labelled = ranges.reduce((sum, [from, to]) => sum + Math.max(to - from, 0), 0);
  if (!fonts.size || labelled > MAX_LABELS) return;
  context.textAlign = "center"; context.textBaseline = "middle";
  const colors = currentTheme();
  const phases = schedule.repetend ? [schedule.repetend.start, schedule.repetend.end] : []; // whose lines run beside the numbers
  let font = 0;
  ranges.forEach(([from, to], device) => {
    for (let k = from; k < to; k++) {
      const i = schedule.rows[device][k], { span, devices } = blockOf(schedule, i), own = fonts.get(span);
      if (!own || !isLabelled(devices, device)) continue;
      const [first, last] = runsOf(devices).find(([begin, end]) => begin <= device && device <= end);
      if (own !== font) { font = own; context.font = `${font}px ${FAMILY}`; }
      context.fillStyle = isFaint(schedule, i) ? colors.ink : colors.text[2 * schedule.block[i] + (schedule.batch[i] & 1)];
      const text = `${schedule.batch[i]}`, middle = schedule.start[i] + span / 2, half = 0.31 * text.length * font / scale;
      const line = phases.find((time) => Math.abs(time - middle) < 1.2 * half), aside = line === undefined || half > span / 4 ? 0 : line <= middle ? span / 4 : -span / 4;
      context.fillText(text, toX(middle + aside), (middleOf(first, pane) + middleOf(last, pane)) / 2 + 0.5);
    }
  });
}

// Of a block on several devices, the first of its widest run of neighbouring rows has the number.
function isLabelled(devices, device) {
  if (devices.length === 1) return true;
  const widest = runsOf(devices).reduce((best, run) => run[1] - run[0] > best[1] - best[0] ? run : best);
  return widest[0] === device;
}

function labelFonts(schedule, scale, size) {
  const digits = `${schedule.micro_batches - 1}`.length, fonts = new Map();
  if (size < LEAST_FONT + 3) return fonts;
  for (const { span } of data.blocks) {
    const font = Math.min(isLarge() ? 1.2 * FONT : FONT, size - 3, Math.floor((span * scale - 2) / (0.62 * digits)));
    if (font >= LEAST_FONT) fonts.set(span, font);
  }
  return fonts;
}

function vertical(time, top, bottom, color, dash, wide) {
  const x = toX(time);
  context.strokeStyle = color; context.lineWidth = wide; context.setLineDash(dash);
  context.beginPath(); context.moveTo(x, top); context.lineTo(x, bottom); context.stroke();
  context.setLineDash([]);
}

// Letters on a ground of paper, which no line crosses.
function writeClear(text, x, y) {
  context.strokeStyle = currentTheme().paper; context.lineWidth = 5; context.lineJoin = "round";
  context.strokeText(text, x, y); context.fillText(text, x, y);
}

// The name and what it shows of the phases; each text only where it covers no other.
function drawHeading(schedule, pane, ink) {
  const top = paneTop(pane), taken = [], right = canvas.clientWidth, middle = top - HEADING / 2;
  const write = (text, x, align) => {
    const wide = context.measureText(text).width, from = align === "left" ? x : align === "right" ? x - wide : x - wide / 2;
    if (from < leftEdge() || from + wide > right || taken.some(([a, b]) => from < b + 8 && from + wide > a - 8)) return;
    taken.push([from, from + wide]);
    context.textAlign = "left"; writeClear(text, from, middle);
  };
  context.fillStyle = ink; context.textBaseline = "middle"; context.font = lettering("600 ");
  write(`${schedule.title}: ${formatTime(schedule.makespan)}`, leftEdge() + 2, "left");
  context.font = lettering();
  const ends = endOf1f1b(schedule, pane), x = ends === null ? 0 : toX(ends), fits = right - x > 66;
  if (ends !== null) write("1F1B ends", x + (fits ? 4 : -4), fits ? "left" : "right");
  if (!schedule.repetend) return;
  const { start, end } = schedule.repetend;
  for (const [name, from, to] of [["warm-up", 0, start], ["repetend", start, end], ["cool-down", end, schedule.makespan]]) {
    const a = Math.max(toX(from), leftEdge()), b = Math.min(toX(to), right);
    if (b - a > context.measureText(name).width + 6) write(name, (a + b) / 2, "center");
  }
}

// Where 1F1B would end, for a schedule that is shown alone; null where that is not told.
function endOf1f1b(schedule, pane) {
  if (pane > 0 || other() || schedule.name === "1f1b") return null;
  return schedules.find((each) => each.name === "1f1b" && each.makespan !== schedule.makespan)?.makespan ?? null;
}

// The begin and the end of the repetend, and where 1F1B ends: below the numbers of bars, which stay whole.
function drawPhases(schedule, pane, ink) {
  const top = paneTop(pane) - HEADING, bottom = paneTop(pane) + data.devices * rowHeight(), ends = endOf1f1b(schedule, pane);
  if (ends !== null) vertical(ends, top, bottom, ink, [2, 3], 1);
  if (schedule.repetend) for (const time of [schedule.repetend.start, schedule.repetend.end]) vertical(time, top + 4, bottom, ink, [6, 4], 1);
}

function drawCritical(schedule) {
  context.strokeStyle = currentTheme().over; context.lineWidth = 2.2; context.lineJoin = "round";
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

function outline(schedule, pane, chosen, ink) {
  const i = find(schedule, chosen);
  if (i < 0) return;
  const size = rowHeight(), left = toX(schedule.start[i]), wide = Math.max(toX(endOf(schedule, i)) - left, 2);
  context.strokeStyle = ink; context.lineWidth = 2.4;
  for (const [first, last] of runsOf(blockOf(schedule, i).devices))
    context.strokeRect(left, paneTop(pane) + first * size + 1, wide, (last - first + 1) * size - 2);
}

function drawDependencies(schedule, pane, ink) {
  const named = state.kept ?? state.hover, chosen = named === null ? -1 : find(schedule, named);
  if (chosen < 0) return;
  const row = (i) => middleOf(blockOf(schedule, i).devices[0], pane);
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

function drawAxes(panes, ink, width, bottom) {
  const size = rowHeight(), every = Math.ceil(13 / size), left = leftEdge(), name = isNarrow() ? "" : "device ";
  context.fillStyle = ink; context.textBaseline = "middle"; context.textAlign = "left"; context.font = lettering();
  panes.forEach((_, pane) => {
    for (let device = 0; device < data.devices; device += every) context.fillText(`${name}${data.device_names[device]}`, 2, middleOf(device, pane));
  });
  const lane = laneHeight(), step = Math.ceil(13 / lane);
  for (let device = 0; device < data.devices; device += step) context.fillText(`${name}${data.device_names[device]}`, 2, memoryTop() + (device + 0.5) * lane);
  const unit = data.step_ms ?? 1, span = (view.to - view.from) * unit, rough = span / Math.max((width - left) / 110, 1);
  const power = 10 ** Math.floor(Math.log10(rough)), tick = [1, 2, 5, 10].map((f) => f * power).find((t) => t >= rough);
  context.strokeStyle = ink; context.lineWidth = 1; context.textAlign = "center"; context.textBaseline = "top";
  const unitName = data.step_ms === null ? "steps" : "ms", free = context.measureText(unitName).width + 6;
  context.beginPath(); context.moveTo(left, bottom + 0.5); context.lineTo(width, bottom + 0.5); context.stroke();
  for (let at = Math.ceil(view.from * unit / tick) * tick; at <= view.to * unit; at += tick) {
    const x = toX(at / unit);
    if (x > width - 24) break;
    context.beginPath(); context.moveTo(x, bottom); context.lineTo(x, bottom + 5); context.stroke();
    const text = `${+at.toPrecision(6)}`;
    if (x - context.measureText(text).width / 2 > free) context.fillText(text, x, bottom + 7);
  }
  context.textAlign = "left"; context.fillText(unitName, 0, bottom + 7);
}

// The pane, and the block there, at a point; `block` is null between blocks.
function pointAt(x, y) {
  const panes = shown(), size = rowHeight();
  for (let pane = 0; pane < panes.length; pane++) {
    const device = Math.floor((y - paneTop(pane)) / size);
    if (x < leftEdge() || device < 0 || device >= data.devices) continue;
    const schedule = panes[pane], row = schedule.rows[device], time = toTime(x), k = firstVisible(schedule, row, time);
    const isOn = k < row.length && schedule.start[row[k]] <= time;
    return { pane, device, block: isOn ? identify(schedule, row[k]) : null };
  }
  return { pane: null, device: null, block: null };
}
