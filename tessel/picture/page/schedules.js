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
  const bars = rows.map((row) => barsOf(row, block, batch, start));
  return { ...source, block, batch, start, count, position, rows, bars, memory: memoryCurves(rows, block, start) };
}

// What a row shows, side by side in memory, as frames read it: blocks that take no time are left out.
function barsOf(row, block, batch, start) {
  const index = row.filter((i) => data.blocks[block[i]].span);
  return {
    index, start: index.map((i) => start[i]), end: index.map((i) => start[i] + data.blocks[block[i]].span),
    kind: index.map((i) => 2 * block[i] + (batch[i] & 1)),
  };
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
    return { steps: Int32Array.from(steps), held: Float64Array.from(held) };
  });
}

const labelOf = (block) => data.styles[block].label + (data.chunks.length ? `, chunk ${data.styles[block].chunk},` : "");
const current = () => schedules[state.schedule];
const other = () => state.beside === null ? null : schedules[state.beside];
const shown = () => other() ? [current(), other()] : [current()];
const blockOf = (schedule, i) => data.blocks[schedule.block[i]];
const endOf = (schedule, i) => schedule.start[i] + blockOf(schedule, i).span;
const longest = () => Math.max(...shown().map((schedule) => schedule.makespan), 1);

// A block of a micro-batch is one thing in all schedules; `find` says where a schedule runs it, or -1.
const identify = (schedule, i) => ({ block: schedule.block[i], batch: schedule.batch[i] });
const find = (schedule, { block, batch }) => batch < schedule.micro_batches ? schedule.position[block * schedule.micro_batches + batch] : -1;
const isSame = (a, b) => a === b || (a !== null && b !== null && a.block === b.block && a.batch === b.batch);
const nameOf = ({ block, batch }) => `${data.blocks[block].name}[${batch}]`;

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

// Which blocks of a schedule follow another block on one of their devices than they do in the other schedule, or
// are not in it at all: what was ordered differently, where a mere shift in time is none.
function differences(schedule, beside) {
  schedule.differs ??= new Map();
  if (!schedule.differs.has(beside)) schedule.differs.set(beside, findDifferences(schedule, beside));
  return schedule.differs.get(beside);
}

function findDifferences(schedule, beside) {
  const differs = new Uint8Array(schedule.count), after = new Map();
  const code = (owner, i) => owner.block[i] + data.blocks.length * owner.batch[i];
  beside.rows.forEach((row, device) => row.forEach((i, k) => after.set(device + data.devices * code(beside, i), k ? code(beside, row[k - 1]) : -1)));
  schedule.rows.forEach((row, device) => row.forEach((i, k) => {
    if (after.get(device + data.devices * code(schedule, i)) !== (k ? code(schedule, row[k - 1]) : -1)) differs[i] = 1;
  }));
  return differs;
}

const count = (flags) => flags.reduce((sum, flag) => sum + flag, 0);

// When a schedule holds most, in relation to the limit where there is one: [moment, device].
function peakMoment(schedule) {
  let best = [0, 0], most = -Infinity;
  schedule.memory.forEach(({ steps, held }, device) => held.forEach((units, k) => {
    const share = schedule.limit ? units / Math.max(schedule.limit[device], 1) : units;
    if (share > most) { most = share; best = [steps[k], device]; }
  }));
  return best;
}
