// ---- What is written ----------------------------------------------------------------------------------------------

const byId = (id) => document.getElementById(id);

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

const svg = (tag, attributes, ...children) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
};

const formatMs = (ms) => ms === 0 || ms >= 1000 ? ms.toFixed(0) : `${+ms.toPrecision(3)}`;
const formatUs = (us) => us < 1000 ? `${us.toFixed(1)} us` : `${(us / 1000).toFixed(2)} ms`;
const formatTime = (steps) =>
  data.step_ms === null ? `${Math.round(steps)} step${Math.round(steps) === 1 ? "" : "s"}` : `${+(steps * data.step_ms).toPrecision(5)} ms`;
const percent = (share) => `${(100 * share).toFixed(1)}%`;

function formatMemory(units) {
  if (!data.memory_in_bytes) return `${units}`;
  for (const [size, name] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]])
    if (Math.abs(units) >= size) return `${(units / size).toFixed(1)} ${name}`;
  return `${units} B`;
}

// A table in a box of its own that scrolls, also by keyboard, where the screen is narrower than the table.
// The first columns, and others by their names, hold words, which may be broken into lines.
function makeTable({ title, columns: named, rows: all, textColumns = 1, texts = [], id = "" }) {
  // A column in which nothing stands is left out, unless it names the rows.
  const filled = named.map((_, k) => !k || !all.length || all.some((cells) => cells[k] !== ""));
  const only = (cells) => cells.filter((_, k) => filled[k]), columns = only(named), rows = all.map(only);
  textColumns = filled.slice(0, textColumns).filter(Boolean).length;
  const isText = (k) => k < textColumns || texts.includes(columns[k]);
  const table = element("table", { id }), head = table.createTHead().insertRow();
  table.createCaption().textContent = title;
  columns.forEach((column, k) => head.append(element("th", { scope: "col", textContent: column, className: isText(k) ? "text" : "" })));
  const body = table.createTBody();
  for (const cells of rows) {
    const row = body.insertRow();
    cells.forEach((cell, k) => {
      const made = k ? row.insertCell() : row.appendChild(element("th", { scope: "row" }));
      if (isText(k)) made.className = "text";
      made.append(cell);
    });
  }
  return scrollBox(table, title);
}

function scrollBox(content, label) {
  const box = element("div", { className: "scroll", tabIndex: 0 }, content);
  box.setAttribute("role", "region"); box.setAttribute("aria-label", label);
  return box;
}

function swatch(color, label) {
  const mark = element("i");
  mark.style.background = color;
  return element("span", { className: "key" }, mark, label);
}
