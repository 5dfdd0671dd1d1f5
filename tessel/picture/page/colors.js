// ---- Colours ------------------------------------------------------------------------------------------------------
// Bars are written into pixels as 32-bit words, so every colour is kept as red, green and blue, and as such a word.

const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
const mix = (from, to, share) => from.map((part, k) => Math.round(part + (to[k] - part) * share));
const lighter = (hex, white) => mix(rgb(hex), [255, 255, 255], white);
const word = ([red, green, blue]) => (255 << 24 | blue << 16 | green << 8 | red) >>> 0;
const luminance = (color) => color.reduce((sum, part, k) => {
  const share = part / 255, linear = share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  return sum + [0.2126, 0.7152, 0.0722][k] * linear;
}, 0);
const contrast = (a, b) => {
  const [dark, light] = [luminance(a), luminance(b)].sort((x, y) => x - y);
  return (light + 0.05) / (dark + 0.05);
};
const readable = (color) => contrast(color, [0, 0, 0]) >= contrast(color, [255, 255, 255]) ? "#000" : "#fff";

const isForced = matchMedia("(forced-colors: active)");
let theme = null;

// What the scheme in force makes of the colours: read from the style once, and again when the scheme changes.
function currentTheme() {
  if (theme) return theme;
  const style = getComputedStyle(document.body), resolver = document.createElement("canvas").getContext("2d");
  const read = (name) => { resolver.fillStyle = style.getPropertyValue(name).trim(); return resolver.fillStyle; };
  const [ink, paper, idle] = [read("--ink"), read("--paper"), read("--idle")].map(rgb);
  const held = isForced.matches ? mix(ink, paper, 0.5) : rgb(read("--held")); // a line in ink stands out from it
  const fill = data.styles.map(({ color, white }) => white.map((share) => lighter(color, share))); // even, odd micro-batches
  const flat = fill.flat(), edges = flat.map((color) => edgeOf(color, idle, ink)), faint = flat.map((color) => mix(color, idle, 0.8));
  return theme = {
    ink: read("--ink"), paper: read("--paper"), over: read("--over"), held: read("--accent"), idle,
    words: { ink: word(ink), paper: word(paper), idle: word(idle), over: word(rgb(read("--over"))), held: word(held), rest: word(mix(held, ink, 0.45)), lane: word(mix(idle, paper, 0.5)) },
    fill: Uint32Array.from(flat, word), edge: Uint32Array.from(edges, word),
    faint: Uint32Array.from(faint, word), faintEdge: Uint32Array.from(faint.map((color) => mix(color, ink, 0.15)), word),
    text: flat.map(readable), colors: flat, edges,
  };
}

// The outline of a bar: its own colour, darkened or lightened until it stands out from idle time (WCAG 1.4.11).
function edgeOf(color, idle, ink) {
  for (let share = 0.3; share < 1; share += 0.1) {
    const edge = mix(color, ink, share);
    if (contrast(edge, idle) >= 3.2) return edge;
  }
  return ink;
}
