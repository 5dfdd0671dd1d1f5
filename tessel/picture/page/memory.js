// ---- Memory -------------------------------------------------------------------------------------------------------
// A lane a device, each with an axis from nothing to the most: the area is what the first schedule holds, its lower
// part weights and what is held beside them throughout, the line what the second does, the dashed line the limit.
// What is above the limit has a colour of its own.

const LIMIT_IN_VIEW = 3; // a limit more often the peak than this would flatten every curve, and is written instead
const AXIS_LANE = 26; // pixels from which a lane has room for both ends of its axis
const STATICS = data.static_memory ?? new Array(data.devices).fill(0);
const statics = () => STATICS;

function memoryScale() {
  const peak = Math.max(1, ...shown().flatMap((schedule) => schedule.peak_memory.map((units, device) => units + statics()[device])));
  const limits = current().limit, limit = limits ? Math.max(...limits.map((units, device) => units + statics()[device])) : 0;
  return { peak, limit, top: 1.04 * (limit > LIMIT_IN_VIEW * peak ? peak : Math.max(peak, limit)) };
}

function drawMemoryHeading(ink) {
  const { peak, limit, top } = memoryScale(), beside = other();
  const where = !limit ? "no limit" : limit <= top ? `limit ${formatMemory(limit)} (dashed)` : `limit ${formatMemory(limit)}, ${(limit / peak).toFixed(1)} times the peak`;
  const rest = STATICS.some((bytes) => bytes) ? " · lower part: weights and optimizer state" : "";
  const curves = beside ? ` · area ${current().title}, line ${beside.title}` : "";
  context.fillStyle = ink; context.textAlign = "left"; context.textBaseline = "middle"; context.font = lettering("600 ");
  const x = isNarrow() ? 0 : leftEdge() + 2, full = `Memory, peak ${formatMemory(peak)}, ${where}${rest}${curves}`, short = `Memory, ${where}`;
  writeClear(context.measureText(full).width < canvas.clientWidth - x ? full : short, x, memoryTop() - HEADING / 2);
}

// The two ends of each lane's axis, written within it where there is room.
function drawMemoryAxis(ink) {
  const lane = laneHeight(), { top } = memoryScale(), x = leftEdge() + 3;
  if (lane < AXIS_LANE) return;
  context.fillStyle = ink; context.textAlign = "left"; context.textBaseline = "middle"; context.font = `10px ${FAMILY}`;
  for (let device = 0; device < data.devices; device++) {
    const begin = memoryTop() + device * lane;
    writeClear(formatMemory(data.memory_in_bytes ? top : Math.floor(top)), x, begin + 6);
    writeClear("0", x, begin + lane - 7);
  }
}

let mostIn = [new Float64Array(0), new Float64Array(0)]; // of both schedules, by column of pixels

function rasterMemory(panes, ratio, { wide, scale, origin, colors: { words: colors } }) {
  const most = memoryScale().top, lane = laneHeight(), tall = Math.max(Math.round((lane - 1) * ratio), 2);
  const limits = current().limit, rests = statics();
  if (mostIn[0].length !== wide) mostIn = mostIn.map(() => new Float64Array(wide));
  const [first, second] = mostIn, isBeside = panes.length > 1;
  for (let device = 0; device < data.devices; device++) {
    const top = Math.round((memoryTop() + device * lane) * ratio), rest = rests[device], base = (top + tall - 1) * wide;
    const factor = (tall - 1) / most, ground = rest * factor + 0.5 | 0, bound = limits ? (limits[device] + rest) * factor + 0.5 | 0 : Infinity;
    panes.forEach((schedule, pane) => columnMaxima(schedule.memory[device], mostIn[pane], origin, 1 / scale));
    words.fill(colors.lane, top * wide, (top + tall) * wide);
    let value = NaN, height = 0, other = NaN, line = 0; // curves are level over many pixels
    for (let x = 0; x < wide; x++) {
      if (first[x] !== value) height = Math.max((value = first[x]) + rest, 0) * factor + 0.5 | 0;
      const isOver = limits !== null && value > limits[device];
      if (height) for (let y = 0, at = base + x; y <= height; y++, at -= wide) words[at] = isOver && y > bound ? colors.over : y < ground ? colors.rest : colors.held;
      if (isBeside) {
        if (second[x] !== other) line = Math.max((other = second[x]) + rest, 0) * factor + 0.5 | 0;
        words[base + x - line * wide] = colors.ink;
      }
      if (bound < tall && (x / ratio | 0) % 6 < 4) words[base + x - bound * wide] = colors.ink;
    }
  }
}

// The most that a device holds within each column of pixels, into `most`.
function columnMaxima({ steps, held }, most, origin, perPixel) {
  const count = steps.length, wide = most.length;
  let k = Math.max(firstWhere(count, (n) => steps[n] > origin) - 1, 0);
  for (let x = 0; x < wide; x++) {
    const end = origin + (x + 1) * perPixel;
    let value = held[k];
    while (k + 1 < count && steps[k + 1] < end) { k++; if (held[k] > value) value = held[k]; }
    most[x] = value;
  }
}

const heldAt = ({ steps, held }, time) => {
  const after = firstWhere(steps.length, (k) => steps[k] > time);
  return after ? held[after - 1] : 0;
};

let memoryCells = [];

function buildMemory() {
  const schedule = current(), limits = schedule.limit, rows = [];
  memoryCells = schedule.memory.map((_, device) => {
    const value = element("span", { className: "value" }), limit = limits ? formatMemory(limits[device] + statics()[device]) : "none";
    rows.push([`device ${data.device_names[device]}`, value, formatMemory(schedule.peak_memory[device] + statics()[device]), limit]);
    return value;
  });
  byId("memory-table").replaceChildren(makeTable({ title: `Memory of ${schedule.title}`, columns: ["device", "at the cursor", "peak", "limit"], rows }));
  showMemory(); fillCells(PROMPT, data.devices);
}

const PROMPT = 12; // rows of the table that are seen without scrolling; the others follow when there is time
const LATER_MS = 500;
let filling = null;

function showMemory() {
  byId("cursor-time").textContent = formatTime(state.cursor);
  byId("cursor").setAttribute("aria-valuetext", formatTime(state.cursor));
  fillCells(0, PROMPT);
  if (data.devices > PROMPT) filling ??= setTimeout(() => { filling = null; fillCells(PROMPT, data.devices); }, LATER_MS);
}

// Cells are of a fixed size, so that a figure that changes moves nothing else (style.css).
function fillCells(first, end) {
  const { memory } = current(), rests = statics();
  for (let device = first; device < Math.min(end, data.devices); device++) {
    const text = formatMemory(heldAt(memory[device], state.cursor) + rests[device]);
    if (memoryCells[device].textContent !== text) memoryCells[device].textContent = text;
  }
}
