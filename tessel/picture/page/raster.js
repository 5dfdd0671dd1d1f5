// ---- Bars as pixels -----------------------------------------------------------------------------------------------
// All rows are written into one image, which is kept until what it shows changes: a cursor, a selection or a pointer
// that moves is drawn over it. A pixel takes the colour of the bar at its centre; where bars are narrower than WIDE
// pixels, of the bar at a point within the pixel that a golden-ratio sequence chooses. So every colour is one of the
// legend's, over some width each has the area that is its due, and bars of a regular pattern do not beat with the
// pixels. Points belong to times, not to places of the window: a picture that is panned does not flicker.

const WIDE = 4; // pixels from which a bar has an outline of its own
const MARK = 3; // pixels of the line under a block that differs
const GOLDEN = 0.6180339887498949;
let image = null, words = null, line = new Int32Array(0), rasterized = [];

function imageOf(wide, tall) {
  if (!image || image.width !== wide || image.height !== tall) {
    image = context.createImageData(wide, tall);
    words = new Uint32Array(image.data.buffer);
    line = new Int32Array(wide);
  } else words.fill(0);
  return image;
}

const SPANS = Int32Array.from(data.blocks, ({ span }) => span);

// Pixels of a unit of time, and the time of the first pixel: whole pixels from zero, so that panning moves all alike.
function scaleOf(wide) {
  const scale = wide / (view.to - view.from), first = Math.round(view.from * scale);
  return { scale, first, origin: first / scale };
}

// Write a row's bars; `top` and `tall` in pixels of the image. `flags` are blocks to be marked, or null.
function rasterRow(schedule, device, place) {
  const { start, end, kind, index } = schedule.bars[device], { wide, scale, origin, flags, tall } = place;
  sampleRow(schedule, device, place);
  paint(place);
  const isMarked = flags !== null && tall > 2 * MARK, least = WIDE / scale;
  const from = firstWhere(end.length, (k) => end[k] > origin), last = origin + wide / scale;
  for (let k = from; k < end.length && start[k] < last; k++)
    if (end[k] - start[k] >= least || (isMarked && flags[index[k]])) outlineBar(schedule, index[k], kind[k], place);
}

// The kind of bar that each pixel of a row shows, into `line`: twice the block, and one more for odd micro-batches of
// wide bars; `idle` where nothing runs, -1 after the schedule's end.
function sampleRow(schedule, device, { wide, scale, origin, first, idle }) {
  const { start, end, kind } = schedule.bars[device], count = end.length, least = WIDE / scale, perPixel = 1 / scale;
  const shift = device * GOLDEN * GOLDEN;
  let k = firstWhere(count, (n) => end[n] > origin);
  for (let x = 0; x < wide; x++) {
    const left = origin + x * perPixel, centre = left + perPixel / 2;
    if (centre < 0 || centre >= schedule.makespan) { line[x] = -1; continue; }
    while (k < count && end[k] <= centre) k++;
    const isBar = k < count && start[k] <= centre, until = isBar ? end[k] : k < count ? start[k] : schedule.makespan;
    const isWide = isBar && end[k] - start[k] >= least, from = isBar ? start[k] : k ? end[k - 1] : 0, right = left + perPixel;
    if (isWide || (from <= left && until >= right)) { // as far as it has whole pixels, and half of one
      const value = isBar ? isWide ? kind[k] : kind[k] & ~1 : idle, next = Math.floor((until - origin) * scale + (isWide ? 0.5 : 0));
      while (x + 1 < next && x + 1 < wide) line[x++] = value;
      line[x] = value;
      continue;
    }
    const step = (first + x) * GOLDEN + shift, time = left + perPixel * (step - Math.floor(step));
    let n = k;
    while (n > 0 && end[n - 1] > time) n--;
    while (n < count && end[n] <= time) n++;
    const isHit = n < count && start[n] <= time;
    if (isHit && end[n] - start[n] < least) line[x] = kind[n] & ~1;
    else line[x] = isBar ? kind[k] & ~1 : idle; // the outline of a wide bar begins at a whole pixel
  }
}

function paint({ top, tall, wide, colors, idle }) {
  const match = state.match, first = top * wide, rim = first + wide, isTall = tall >= 6;
  const fill = colors.fill, edge = isTall ? colors.edge : fill, faint = colors.faint, faintEdge = isTall ? colors.faintEdge : faint;
  for (let x = 0; x < wide; x++) {
    const kind = line[x];
    if (kind < 0) continue;
    if (kind === idle) { words[first + x] = words[rim + x] = colors.words.idle; continue; }
    const isFaded = match !== null && !match.blocks[kind >> 1];
    words[first + x] = (isFaded ? faintEdge : edge)[kind];
    words[rim + x] = (isFaded ? faint : fill)[kind];
  }
  for (let y = 2; y < tall; y++) words.copyWithin((top + y) * wide, rim, rim + wide);
  if (isTall) words.copyWithin((top + tall - 1) * wide, first, first + wide);
}

function outlineBar(schedule, i, kind, { top, tall, wide, scale, origin, colors, flags }) {
  const block = schedule.block[i], span = SPANS[block] * scale;
  const begin = (schedule.start[i] - origin) * scale, left = Math.max(Math.round(begin), 0), right = Math.min(Math.round(begin + span), wide);
  if (right <= left) return;
  const faint = isFaint(schedule, i);
  if (span >= WIDE) {
    const edge = (faint ? colors.faintEdge : colors.edge)[kind];
    if (faint && state.match.blocks[block]) fillWords(left, right, top, tall, wide, colors.faint[kind]); // another micro-batch of it
    const last = (top + tall) * wide, isBegun = begin > -1, isEnded = begin + span < wide + 1;
    for (let at = top * wide; at < last; at += wide) {
      if (isBegun) words[at + left] = edge;
      if (isEnded) words[at + right - 1] = edge;
    }
  }
  if (flags?.[i] && tall > 2 * MARK && data.blocks[block].devices.length === 1) fillWords(left, right, top + tall - MARK, MARK, wide, colors.words.ink);
}

function fillWords(left, right, top, tall, wide, color) {
  for (let y = top; y < top + tall; y++) words.fill(color, y * wide + left, y * wide + right);
}

// Fill where nothing runs: behind the bars that are there already.
function fillBehind(left, right, top, bottom, wide, { ink, idle }) {
  for (let y = top; y < bottom; y++)
    for (let at = y * wide + left; at < y * wide + right; at++) if (!words[at] || words[at] === idle) words[at] = ink;
}

const isFaint = (schedule, i) =>
  state.match !== null && !(state.match.blocks[schedule.block[i]] && (state.match.batch === null || state.match.batch === schedule.batch[i]));

// A block on several devices as one: neighbouring rows are one bar, and a bar between them joins distant ones.
function rasterShared(schedule, range, row, device, { rowTop, tall, wide, scale, origin, colors, flags }) {
  for (let k = range[0]; k < range[1]; k++) {
    const i = row[k], { devices, span } = blockOf(schedule, i);
    if (devices.length < 2 || Math.min(...devices) !== device || !span) continue;
    const begin = (schedule.start[i] - origin) * scale, left = Math.max(Math.round(begin), 0), right = Math.min(Math.round(begin + span * scale), wide);
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
      fillBehind(Math.max(middle - 1, left), Math.min(middle + 2, right), from, to, wide, colors.words);
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
