// ---- Search -------------------------------------------------------------------------------------------------------
// `f3` is a block, `f3[2]` or `f3 2` the one of micro-batch 2; else a word of a kind, a layer or an operator.

function matching(text) {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return null;
  const exact = /^(.*?)(?:\[(\d+)\]|\s+(\d+))?$/.exec(wanted), number = exact[2] ?? exact[3];
  const blocks = Uint8Array.from(data.blocks, (block, k) => block.name.toLowerCase() === exact[1] ? 1 : 0);
  if (blocks.some(Boolean)) return { blocks, batch: number === undefined ? null : Number(number), by: "block" };
  const wordsOf = (k) => [data.blocks[k].name, data.styles[k].label, ...data.layers[k],
    ...partsOf(k).flatMap((part) => [...part.operators, part.layers, part.backend])].map((each) => each.toLowerCase());
  return { blocks: Uint8Array.from(data.blocks, (_, k) => wordsOf(k).some((each) => each.includes(wanted)) ? 1 : 0), batch: null, by: "name, kind, layer, operator or backend" };
}

function search(text) {
  state.match = matching(text); state.found = -1;
  const parts = byId("parts"), wanted = text.trim().toLowerCase();
  state.partsWanted = state.match?.blocks.some(Boolean) && state.match.by !== "block" ? wanted : "";
  const total = matches().length;
  byId("found").textContent = !state.match ? "" : total ? `${total} blocks match; Enter goes to the next` : `nothing matches “${text.trim()}”`;
  if (parts) showParts();
  listBlocks(); redraw();
}

function matches() {
  if (!state.match) return [];
  const schedule = current(), found = [];
  for (let i = 0; i < schedule.count; i++) if (!isFaint(schedule, i)) found.push(i);
  return found;
}

function nextMatch(shift) {
  const found = matches();
  if (!found.length) return;
  state.found = state.found < 0 && shift < 0 ? found.length - 1 : (state.found + shift + found.length) % found.length;
  keep(identify(current(), found[state.found]));
  byId("found").textContent = `${state.found + 1} of ${found.length}: ${nameOf(state.kept)}`;
}

// ---- An area ------------------------------------------------------------------------------------------------------
// A range of time and of devices; what runs in it is summed by kind and device, in both schedules.

function setArea(area) {
  state.area = area;
  showArea(); redraw();
}

function drawArea(ink) {
  const area = state.area;
  if (!area) return;
  const size = rowHeight(), left = toX(area.from), wide = toX(area.to) - left, tall = (area.last - area.first + 1) * size;
  shown().forEach((_, pane) => {
    const top = paneTop(pane) + area.first * size;
    context.globalAlpha = 0.14; context.fillStyle = ink; context.fillRect(left, top, wide, tall); context.globalAlpha = 1;
    context.strokeStyle = ink; context.lineWidth = 1.5; context.setLineDash([5, 3]); context.strokeRect(left, top, wide, tall); context.setLineDash([]);
  });
}

// Steps that each of the area's devices spends on each kind of block.
function sumArea(schedule, { from, to, first, last }) {
  const labels = [...new Set(data.styles.map(({ label }) => label))], sums = [];
  for (let device = first; device <= last; device++) {
    const row = schedule.rows[device], spent = new Map(labels.map((label) => [label, 0]));
    for (let k = firstVisible(schedule, row, from); k < row.length && schedule.start[row[k]] < to; k++) {
      const inside = Math.min(endOf(schedule, row[k]), to) - Math.max(schedule.start[row[k]], from), label = data.styles[schedule.block[row[k]]].label;
      spent.set(label, spent.get(label) + inside);
    }
    sums.push({ device, spent, busy: [...spent.values()].reduce((a, b) => a + b, 0) });
  }
  return sums;
}

function showArea() {
  const area = state.area, box = byId("area");
  box.hidden = !area;
  if (!area) return;
  const length = area.to - area.from, time = (steps) => data.step_ms === null ? `${+steps.toFixed(2)}` : `${+(steps * data.step_ms).toPrecision(4)}`;
  const tables = shown().map((schedule) => {
    const sums = sumArea(schedule, area), kinds = [...sums[0].spent.keys()].filter((kind) => sums.some(({ spent }) => spent.get(kind)));
    const total = (kind) => sums.reduce((sum, { spent }) => sum + spent.get(kind), 0), busy = sums.reduce((sum, each) => sum + each.busy, 0);
    const rows = sums.map((each) => [`device ${each.device}`, ...kinds.map((kind) => time(each.spent.get(kind))), time(length - each.busy), percent(each.busy / length)]);
    rows.push(["all", ...kinds.map((kind) => time(total(kind))), time(length * sums.length - busy), percent(busy / (length * sums.length))]);
    return makeTable({ title: `${schedule.title}: ${data.step_ms === null ? "steps" : "ms"} by device and kind`, columns: ["device", ...kinds, "idle", "busy"], rows });
  });
  byId("area-of").textContent = `From ${formatTime(area.from)} to ${formatTime(area.to)}, ${area.first === area.last ? `device ${area.first}` : `devices ${area.first} to ${area.last}`}.`;
  byId("area-tables").replaceChildren(...tables);
}

// By keyboard: once where the area begins, once where it ends; then it holds all devices.
function markArea() {
  if (state.mark === null) { state.mark = state.cursor; say(`the area begins at ${formatTime(state.mark)}; move the cursor, then m again`); return; }
  const [from, to] = [state.mark, state.cursor].sort((a, b) => a - b);
  state.mark = null;
  if (to > from) { setArea({ from, to, first: 0, last: data.devices - 1 }); say("the area is summed below"); }
}
