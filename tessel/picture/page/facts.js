// ---- Facts --------------------------------------------------------------------------------------------------------

function phaseOf(schedule, i) {
  if (!schedule.repetend) return "";
  if (schedule.start[i] < schedule.repetend.start) return ", warm-up";
  return schedule.start[i] < schedule.repetend.end ? ", repetend" : ", cool-down";
}

const devicesOf = (block) => block.devices.map((device) => data.device_names[device]).join(", ");

function factsOf(chosen) {
  const block = data.blocks[chosen.block], schedule = current(), i = find(schedule, chosen);
  const facts = [
    `${nameOf(chosen)}: ${labelOf(chosen.block)} of micro-batch ${chosen.batch}${i < 0 ? "" : phaseOf(schedule, i)}`,
    `device ${devicesOf(block)}, ${timesOf(chosen)}, takes ${formatTime(block.span)}`,
    `memory ${block.memory > 0 ? "+" : ""}${formatMemory(block.memory)}`,
  ];
  const layers = data.layers[chosen.block];
  if (layers.length) facts.push(layers.length > 3 ? `layers ${layers[0]} … ${layers[layers.length - 1]}` : `layers ${layers.join(", ")}`);
  const counts = new Map();
  for (const part of partsOf(chosen.block)) counts.set(part.backend, (counts.get(part.backend) ?? 0) + 1);
  if (counts.size) facts.push(`runs sub-graphs of ${[...counts].map(([backend, n]) => `${backend} (${n})`).join(", ")}`);
  return facts;
}

// When it runs, in both schedules where two are shown.
function timesOf(chosen) {
  const places = shown().map((schedule) => [schedule, find(schedule, chosen)]);
  const texts = places.map(([schedule, i]) => i < 0 ? "not run" : `${formatTime(schedule.start[i])} to ${formatTime(endOf(schedule, i))}`);
  if (places.length === 1) return texts[0];
  const [[first, a], [second, b]] = places, shift = a < 0 || b < 0 ? 0 : second.start[b] - first.start[a];
  const later = shift ? ` (${formatTime(Math.abs(shift))} ${shift > 0 ? "later" : "earlier"})` : "";
  return `${texts[0]} in ${first.title}, ${texts[1]} in ${second.title}${later}`;
}

const namesAround = (chosen, forward) => {
  const schedule = current(), i = find(schedule, chosen);
  return i < 0 ? [] : neighbours(schedule, i, forward).map((j) => identify(schedule, j));
};

// What is under the pointer is written in a line of its own, where it hides nothing.
function showReadout() {
  const names = (forward) => namesAround(state.hover, forward).map(nameOf).join(", ") || "nothing";
  byId("readout").textContent = state.hover === null ? "" : [...factsOf(state.hover), `waits for ${names(false)}; then ${names(true)}`].join(" · ");
}

function showFacts() {
  const box = byId("facts"), chosen = state.kept;
  if (chosen === null) { box.replaceChildren("Choose a block by a click, or with Enter, to follow what it waits for."); return; }
  const buttons = (list) => list.length ? list.map((each) => element("button", { textContent: nameOf(each), onclick: () => keep(each) })) : ["nothing"];
  box.replaceChildren(
    element("div", { textContent: factsOf(chosen).join(" · ") }),
    element("div", {}, "waits for ", ...buttons(namesAround(chosen, false)), " · then ", ...buttons(namesAround(chosen, true))),
  );
}

function summaryOf(schedule) {
  const proof = schedule.optimal ? " (order proven optimal on these stages)" : schedule.lower_bound ? ` (bound ${formatTime(schedule.lower_bound)})` : "";
  const base = schedules.find((each) => each.name === "1f1b" && each.micro_batches === schedule.micro_batches);
  const ratio = base && base !== schedule ? `, ${(schedule.makespan / base.makespan).toFixed(3)} of 1F1B's makespan` : "";
  const fits = schedule.fits ? "" : ", breaks the memory limit";
  return `${schedule.title}: makespan ${formatTime(schedule.makespan)}${proof}${ratio}, bubble ratio ${percent(schedule.bubble_ratio)}${fits}`;
}

function besideText() {
  const first = current(), second = other();
  if (!second) return "";
  const shift = first.makespan - second.makespan, moved = count(differences(first, second));
  const length = shift ? `${formatTime(Math.abs(shift))} ${shift < 0 ? "shorter" : "longer"} than` : "as long as";
  return ` It is ${length} ${second.title}, and ${moved} of its ${first.count} blocks follow another block on their device.`;
}

// What the picture shows, as a table, for those who cannot see it: made when it is asked for.
const MAX_LISTED = 200;

function listBlocks() {
  const box = byId("block-list");
  if (!byId("listed").open) return;
  const schedule = current(), found = [];
  for (let i = 0; i < schedule.count && found.length <= MAX_LISTED; i++)
    if (endOf(schedule, i) > view.from && schedule.start[i] < view.to && !isFaint(schedule, i)) found.push(i);
  const rows = found.slice(0, MAX_LISTED).map((i) => {
    const { name, devices, span } = blockOf(schedule, i);
    return [name, `${schedule.batch[i]}`, labelOf(schedule.block[i]), devicesOf({ devices }), formatTime(schedule.start[i]), formatTime(span)];
  });
  const title = `Blocks of ${schedule.title} in view${found.length > MAX_LISTED ? `, the first ${MAX_LISTED}` : ""}`;
  box.replaceChildren(makeTable({ title, columns: ["block", "micro-batch", "kind", "device", "start", "takes"], rows, textColumns: 1 }));
}
