// Images and maps, drawn like all figures of msdscore: strengths and colour ramps come from the service.
let look = {};
let ramps = {};
export const load = (loaded) => {
  look = loaded;
  ramps = look.ramps;
};
export const colour = (role, strength) =>
  ramps[role][Math.round(Math.min(1, Math.max(0, strength)) * (ramps[role].length - 1))];
const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

// For every pixel along one side: the two cells with the nearest centres, and the weight of the second.
// Cells that consist of padding have no width; null marks pixels that the encoder did not see.
function between(cells, length) {
  const real = cells
    .map((cell, number) => ({ number, low: cell[0], high: cell[1], middle: (cell[0] + cell[1]) / 2 }))
    .filter((cell) => cell.high > cell.low);
  const first = Math.min(...real.map((cell) => cell.low)),
    last = Math.max(...real.map((cell) => cell.high));
  return Array.from({ length }, (_, pixel) => {
    const at = (pixel + 0.5) / length;
    if (at < first || at > last) return null;
    let right = real.findIndex((cell) => cell.middle >= at);
    if (right < 0) right = real.length - 1;
    const left = Math.max(0, right - 1);
    const wide = real[right].middle - real[left].middle;
    const share = wide > 0 ? Math.min(1, Math.max(0, (at - real[left].middle) / wide)) : 0;
    return [real[left].number, real[right].number, share];
  });
}

// The image in light grey, tinted by the strengths of its patches from 0 to 1; unseen regions are darkened.
export function tint(canvas, bitmap, map) {
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  if (!map) return;
  const image = pen.getImageData(0, 0, canvas.width, canvas.height),
    data = image.data;
  const across = between(map.cells.columns, canvas.width),
    down = between(map.cells.rows, canvas.height);
  const wide = map.cells.columns.length,
    values = map.strength,
    last = ramps[map.role].length - 1;
  const shades = ramps[map.role].map(rgb);
  for (let y = 0, i = 0; y < canvas.height; y++) {
    for (let x = 0; x < canvas.width; x++, i += 4) {
      const grey = Math.round(0.299 * data[i] + 0.587 * data[i + 1] + 0.114 * data[i + 2]) / 255;
      if (!across[x] || !down[y]) {
        data[i] = data[i + 1] = data[i + 2] = 90 * grey + 40;
        continue;
      }
      const [c0, c1, c] = across[x],
        [r0, r1, r] = down[y];
      const along = (row) => values[row * wide + c0] * (1 - c) + values[row * wide + c1] * c;
      const strength = Math.min(1, along(r0) * (1 - r) + along(r1) * r);
      const light = 0.45 + 0.55 * grey + 0.3 * strength * (1 - grey);
      const shade = shades[Math.round(strength * last)];
      data[i] = light * shade[0];
      data[i + 1] = light * shade[1];
      data[i + 2] = light * shade[2];
    }
  }
  pen.putImageData(image, 0, 0);
}

const SPOT = 160; // pixels of the longer side of a spotlight, which the browser scales smoothly
const DIM = 0.78; // opacity of the overlay outside the regions of a word

// A dark overlay that is lighter in the regions of a word; strengths from 0 to 1.
export function spotlight(canvas, { cells, strength }, ratio) {
  canvas.width = Math.max(1, Math.round(ratio >= 1 ? SPOT : SPOT * ratio));
  canvas.height = Math.max(1, Math.round(ratio >= 1 ? SPOT / ratio : SPOT));
  const pen = canvas.getContext("2d"),
    image = pen.createImageData(canvas.width, canvas.height);
  const across = between(cells.columns, canvas.width),
    down = between(cells.rows, canvas.height),
    wide = cells.columns.length;
  const smooth = (share) => share * share * (3 - 2 * share);
  for (let y = 0, i = 3; y < canvas.height; y++) {
    for (let x = 0; x < canvas.width; x++, i += 4) {
      let light = 0;
      if (across[x] && down[y]) {
        const [c0, c1, c] = across[x],
          [r0, r1, r] = down[y],
          s = smooth(c);
        const along = (row) => strength[row * wide + c0] * (1 - s) + strength[row * wide + c1] * s;
        light = along(r0) * (1 - smooth(r)) + along(r1) * smooth(r);
      }
      image.data[i] = Math.round(255 * DIM * (1 - Math.sqrt(Math.min(1, Math.max(0, light)))));
    }
  }
  pen.putImageData(image, 0, 0);
}

// A frame around one patch, light on dark so that it is visible on any image.
export function frame(canvas, cells, patch) {
  const wide = cells.columns.length,
    column = cells.columns[patch % wide],
    row = cells.rows[Math.floor(patch / wide)];
  const pen = canvas.getContext("2d"),
    x = column[0] * canvas.width,
    y = row[0] * canvas.height;
  for (const [ink, width] of [
    ["#111", 5],
    ["#fff", 2],
  ]) {
    pen.strokeStyle = ink;
    pen.lineWidth = width;
    pen.strokeRect(x, y, (column[1] - column[0]) * canvas.width, (row[1] - row[0]) * canvas.height);
  }
}

// The patch at a position of the image, in fractions of its sides; −1 if the encoder did not see it.
export function patchAt(cells, x, y) {
  const column = cells.columns.findIndex((cell) => x >= cell[0] && x < cell[1]);
  const row = cells.rows.findIndex((cell) => y >= cell[0] && y < cell[1]);
  return column < 0 || row < 0 ? -1 : row * cells.columns.length + column;
}

// A ramp as a CSS background, from white to the colour of a role.
export function gradient(role) {
  const shades = look.ramps[role].filter((_, step, all) => step % 16 === 0 || step === all.length - 1);
  return `linear-gradient(90deg, ${shades.join(", ")})`;
}
