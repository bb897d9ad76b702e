"use strict";
// Pictures, maps and words as every other figure of msdscore draws them: ramps come from the service (assets/look.json).
const Draw = (() => {
  let look = { ramps: {}, inks: {} };
  const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const step = (role, strength) => Math.round(Math.min(1, Math.max(0, strength)) * (look.ramps[role].length - 1));
  const colour = (role, strength) => look.ramps[role][step(role, strength)];
  const ink = (role, strength) => look.inks[role][step(role, strength)];

  // Zero is white; the scale is symmetric and the same for all captions on the page.
  function wordColour(gap, limit) {
    if (gap === null || !(limit > 0)) return null;
    const strength = Math.min(1, Math.abs(gap) / limit), role = gap > 0 ? "penalty" : "support";
    return strength < 0.05 ? null : { role, strength, back: colour(role, strength), ink: ink(role, strength) };
  }

  // Values on rows by columns as a function of the place in the picture (0 to 1), linear between the centres of cells.
  function sampler(values, rows, columns, extent) {
    return (x, y) => {
      const u = (x - extent[0]) / (extent[2] - extent[0]), v = (y - extent[1]) / (extent[3] - extent[1]);
      if (u < 0 || u > 1 || v < 0 || v > 1) return NaN;
      const c = Math.min(columns - 1, Math.max(0, u * columns - 0.5)), r = Math.min(rows - 1, Math.max(0, v * rows - 0.5));
      const c0 = Math.floor(c), r0 = Math.floor(r), c1 = Math.min(columns - 1, c0 + 1), r1 = Math.min(rows - 1, r0 + 1);
      const along = (row) => values[row * columns + c0] * (1 - (c - c0)) + values[row * columns + c1] * (c - c0);
      return along(r0) * (1 - (r - r0)) + along(r1) * (r - r0);
    };
  }

  // The picture in light grey tinted by a map; what the encoder did not see is darkened.
  function tint(canvas, bitmap, map) {
    const pen = canvas.getContext("2d", { willReadFrequently: true });
    pen.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    if (!map) return;
    const image = pen.getImageData(0, 0, canvas.width, canvas.height), data = image.data;
    const at = sampler(map.values, map.rows, map.columns, map.extent), ramp = look.ramps[map.role].map(rgb);
    const wide = map.high - map.low || 1, last = ramp.length - 1;
    for (let y = 0, i = 0; y < canvas.height; y++) {
      for (let x = 0; x < canvas.width; x++, i += 4) {
        const grey = (0.299 * data[i] + 0.587 * data[i + 1] + 0.114 * data[i + 2]) / 255;
        const value = at((x + 0.5) / canvas.width, (y + 0.5) / canvas.height);
        if (Number.isNaN(value)) { data[i] = data[i + 1] = data[i + 2] = 90 * grey + 40; continue; }
        const strength = Math.min(1, Math.max(0, (value - map.low) / wide));
        const light = 0.45 + 0.55 * grey + 0.3 * strength * (1 - grey), shade = ramp[Math.round(strength * last)];
        data[i] = light * shade[0]; data[i + 1] = light * shade[1]; data[i + 2] = light * shade[2];
      }
    }
    pen.putImageData(image, 0, 0);
  }

  function legend(canvas, role) {
    const pen = canvas.getContext("2d"), shades = look.ramps[role];
    canvas.width = shades.length; canvas.height = 1;
    shades.forEach((shade, x) => { pen.fillStyle = shade; pen.fillRect(x, 0, 1, 1); });
  }

  return { load: (given) => { look = given; }, colour, ink, wordColour, tint, legend };
})();
