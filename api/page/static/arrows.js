// @ts-check
// Moves as arrows on the map: from the CPUs that a pod leaves to those that it gets.
import { svg } from './dom.js';

/**
 * arrows makes one arrow for each run of neighbours that moves.
 * @param {{from: number[], to: number[]}[]} moves
 * @param {Map<number, {x: number, y: number}>} spots the middle of each CPU
 */
export function arrows(moves, spots) {
  return moves.flatMap(({ from, to }) => {
    const [left, got] = [runs(from.filter((id) => !to.includes(id)), spots), runs(to.filter((id) => !from.includes(id)), spots)];
    const n = Math.max(left.length, got.length);
    if (!left.length || !got.length) return [];
    return Array.from({ length: n }, (_, i) => arrow(left[Math.floor((i * left.length) / n)], got[Math.floor((i * got.length) / n)]));
  });
}

/**
 * runs are the middles of CPUs that stand beside each other.
 * @param {number[]} cpus
 * @param {Map<number, {x: number, y: number}>} spots
 */
function runs(cpus, spots) {
  /** @type {{x: number, y: number}[][]} */
  const out = [];
  const all = cpus.flatMap((id) => spots.get(id) ?? []).sort((a, b) => a.y - b.y || a.x - b.x);
  for (const s of all) {
    const last = out.at(-1)?.at(-1);
    if (last && last.y === s.y && s.x - last.x < 30) out.at(-1)?.push(s);
    else out.push([s]);
  }
  return out.map((run) => ({ x: (run[0].x + run[run.length - 1].x) / 2, y: run[0].y }));
}

/** @param {{x: number, y: number}} a @param {{x: number, y: number}} b */
function arrow(a, b) {
  const [dx, dy] = [b.x - a.x, b.y - a.y];
  const far = Math.hypot(dx, dy) || 1;
  const bend = Math.min(60, far / 4);
  const [mx, my] = [(a.x + b.x) / 2 - (dy / far) * bend, (a.y + b.y) / 2 + (dx / far) * bend];
  return svg('g', { class: 'move' },
    ...['halo', 'arrow'].map((name) => svg('path', { class: name, d: `M${a.x} ${a.y}Q${mx} ${my} ${b.x} ${b.y}`, 'marker-end': name === 'arrow' ? 'url(#tip)' : null })),
    svg('circle', { class: 'tail', cx: a.x, cy: a.y, r: 4 }));
}
