// ---- Bars as pixels -----------------------------------------------------------------------------------------------
// All rows are written into one image. Where several blocks share a pixel, it takes the colour of the one that has
// most of it, and what the others had is carried on to the next pixels: every colour is one of the legend's, and over
// some width each has the area that is its due (error diffusion along the row).

const WIDE = 4; // pixels from which a bar has an outline of its own
const MARK = 3; // pixels of the line under a block that differs
let image = null, words = null;

function imageOf(wide, tall) {
  if (!image || image.width !== wide || image.height !== tall) {
    image = context.createImageData(wide, tall);
    words = new Uint32Array(image.data.buffer);
  } else words.fill(0);
  return image;
}

const SPANS = Int32Array.from(data.blocks, ({ span }) => span);
const owed = new Float64Array(0x1000);

// Write a row's bars; `top` and `tall` in pixels of the image. `flags` are blocks to be marked, or null.
function rasterRow(schedule, row, range, { top, tall, wide, flags }) {
  const colors = currentTheme(), line = new Int32Array(wide).fill(-1), scale = wide / (view.to - view.from);
  const classes = 2 * data.blocks.length, IDLE = classes, end = Math.min((schedule.makespan - view.from) * scale, wide);
  const amounts = classes < owed.length ? owed.fill(0, 0, classes + 1) : new Float64Array(classes + 1);
  const active = []; // classes with a share of this or an earlier pixel
  let at = Math.max((0 - view.from) * scale, 0);
  const deposit = (kind, to) => {
    while (at < to) {
      const pixel = Math.floor(at), whole = Math.floor(to);
      if (at === pixel && whole - pixel > 1) { line.fill(kind, pixel, whole); at = whole; continue; }
      const next = Math.min(pixel + 1, to);
      if (!amounts[kind] && !active.includes(kind)) active.push(kind);
      amounts[kind] += next - at; at = next;
      if (at < pixel + 1 && at < end) return;
      let most = active[0];
      for (const each of active) if (amounts[each] > amounts[most]) most = each;
      amounts[most] -= 1;
      line[pixel] = most;
      if (next < pixel + 1) at = pixel + 1;
    }
  };
  for (let k = range[0]; k < range[1]; k++) {
    const i = row[k], block = schedule.block[i], span = SPANS[block];
    if (!span) continue;
    const left = (schedule.start[i] - view.from) * scale, right = Math.min(left + span * scale, wide), isWide = right - left >= WIDE;
    const kind = 2 * block + (isWide ? schedule.batch[i] & 1 : 0);
    if (left > at) deposit(IDLE, Math.min(left, wide));
    if (right > at) deposit(kind, right);
  }
  if (at < end) deposit(IDLE, end);
  paint(line, colors, { top, tall, wide, IDLE });
  const place = { top, tall, wide, scale, colors, flags };
  for (let k = range[0]; k < range[1]; k++) {
    const i = row[k];
    if (SPANS[schedule.block[i]] * scale >= WIDE || (flags !== null && flags[i])) outlineBar(schedule, i, place);
  }
}

function paint(line, colors, { top, tall, wide, IDLE }) {
  const match = state.match, first = top * wide, rim = first + wide, isTall = tall >= 6;
  for (let x = 0; x < wide; x++) {
    const kind = line[x];
    if (kind < 0) continue;
    if (kind === IDLE) { words[first + x] = words[rim + x] = colors.words.idle; continue; }
    const faint = match && !match.blocks[kind >> 1];
    words[first + x] = (isTall ? (faint ? colors.faintEdge : colors.edge) : faint ? colors.faint : colors.fill)[kind];
    words[rim + x] = (faint ? colors.faint : colors.fill)[kind];
  }
  const source = words.subarray(rim, rim + wide);
  for (let y = 2; y < tall; y++) words.set(source, (top + y) * wide);
  if (isTall) words.copyWithin((top + tall - 1) * wide, first, first + wide);
}

function outlineBar(schedule, i, { top, tall, wide, scale, colors, flags }) {
  const block = schedule.block[i], span = SPANS[block] * scale;
  if (!span) return;
  const begin = (schedule.start[i] - view.from) * scale, left = Math.max(Math.round(begin), 0), right = Math.min(Math.round(begin + span), wide);
  if (right <= left) return;
  const faint = isFaint(schedule, i), kind = 2 * block + (schedule.batch[i] & 1);
  if (span >= WIDE) {
    const edge = (faint ? colors.faintEdge : colors.edge)[kind];
    if (faint && state.match.blocks[block]) fillWords(left, right, top, tall, wide, colors.faint[kind]); // another micro-batch of it
    if (begin > -1) fillWords(left, left + 1, top, tall, wide, edge);
    if (begin + span < wide + 1) fillWords(right - 1, right, top, tall, wide, edge);
  }
  if (flags?.[i] && tall > 2 * MARK && data.blocks[block].devices.length === 1) fillWords(left, right, top + tall - MARK, MARK, wide, colors.words.ink);
}

function fillWords(left, right, top, tall, wide, color) {
  for (let y = top; y < top + tall; y++) words.fill(color, y * wide + left, y * wide + right);
}

const isFaint = (schedule, i) =>
  state.match !== null && !(state.match.blocks[schedule.block[i]] && (state.match.batch === null || state.match.batch === schedule.batch[i]));

// A block on several devices as one: neighbouring rows are one bar, and a bar between them joins distant ones.
function rasterShared(schedule, range, row, device, { rowTop, tall, wide, flags }) {
  const colors = currentTheme(), scale = wide / (view.to - view.from);
  for (let k = range[0]; k < range[1]; k++) {
    const i = row[k], { devices, span } = blockOf(schedule, i);
    if (devices.length < 2 || Math.min(...devices) !== device || !span) continue;
    const begin = (schedule.start[i] - view.from) * scale, left = Math.max(Math.round(begin), 0), right = Math.min(Math.round(begin + span * scale), wide);
    if (right - left < 1) continue;
    const kind = 2 * schedule.block[i] + (schedule.batch[i] & 1), faint = isFaint(schedule, i);
    const fill = (faint ? colors.faint : colors.fill)[kind], edge = (faint ? colors.faintEdge : colors.edge)[kind];
    const runs = runsOf(devices);
    for (const [first, last] of runs) {
      const from = rowTop(first), to = rowTop(last) + tall;
      const isWide = right - left >= WIDE;
      for (let each = first; each < last; each++)
        fillWords(left + isWide, right - isWide, rowTop(each) + tall - 1, rowTop(each + 1) - rowTop(each) - tall + 2, wide, fill);
      if (isWide) { fillWords(left, left + 1, from, to - from, wide, edge); fillWords(right - 1, right, from, to - from, wide, edge); }
      if (flags?.[i] && tall > 2 * MARK) fillWords(left, right, to - MARK, MARK, wide, colors.words.ink);
    }
    const middle = (left + right) >> 1;
    for (let k = 1; k < runs.length; k++) {
      const from = rowTop(runs[k - 1][1]) + tall, to = rowTop(runs[k][0]);
      fillWords(Math.max(middle - 1, left), Math.min(middle + 2, right), from, to - from, wide, colors.words.ink);
    }
  }
}

// Neighbouring devices together: [0, 1, 3] is [[0, 1], [3, 3]].
function runsOf(devices) {
  const runs = [];
  for (const device of [...devices].sort((a, b) => a - b)) {
    const last = runs[runs.length - 1];
    if (last && last[1] === device - 1) last[1] = device; else runs.push([device, device]);
  }
  return runs;
}
