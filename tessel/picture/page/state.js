// Shows the schedules embedded in this page, one or two on one time axis. Blocks are kept in typed arrays, sorted by
// start for each device, so that a frame touches only what is visible: a binary search finds the first bar of a row.
const canvas = document.getElementById("canvas"), context = canvas.getContext("2d");
const view = { from: 0, to: 1 };
const state = {
  schedule: 0, beside: null, // which are shown
  hover: null, kept: null, // blocks of a micro-batch: { block, batch }
  cursor: 0, playing: false, critical: false, marking: true, selecting: false, allParts: false,
  match: null, found: -1, partsWanted: "", // what the search found, and where it stands
  area: null, mark: null,
};
let schedules = [], pending = false;
