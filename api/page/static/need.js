// @ts-check
// What a rejected pod needs of NUMA nodes and they do not have, drawn below what they have. The words for it are the trace's.
import { ranges, svg } from './dom.js';

const most = 128; // boxes of a need; a larger one is drawn to scale
const w = 13;

/**
 * drawNeed draws a need on a node that it is about alone.
 * @param {import('./mapparts.js').Box} box
 * @param {any} need a berth.types.v1.Shortage, or a preference
 * @param {number} node
 * @param {number} at
 */
export function drawNeed(box, need, node, at) {
  if (need.sets) return drawPreference(box, need, node, at);
  const nodes = need.numaNodes?.ids || [];
  return nodes.length === 1 && nodes[0] === node ? drawAmount(box, need, '', at) : at;
}

/**
 * drawWide draws a need of several nodes together, or of the machine, below all of them.
 * @param {import('./mapparts.js').Box} box
 * @param {any} need
 * @param {number} at
 */
export function drawWide(box, need, at) {
  const nodes = need.numaNodes?.ids || [];
  return need.sets || nodes.length === 1 ? at : drawAmount(box, need, nodes.length ? ` of nodes ${ranges(nodes)}` : '', at);
}

/**
 * drawAmount draws as much as is free in full lines, and the rest, with a cross, in broken ones.
 * @param {import('./mapparts.js').Box} box
 * @param {any} need
 * @param {string} where
 * @param {number} at
 */
function drawAmount(box, need, where, at) {
  const [wanted, free] = [Number(need.need), Number(need.free)];
  if (!(wanted > 0)) return at;
  box.g.append(svg('text', { x: box.x, y: at + 11, class: 'note' }, `needed: ${need.resource.slice(0, 50)}${where}`));
  const columns = Math.max(1, Math.floor(box.width / w));
  const count = wanted <= most ? wanted : Math.min(most, columns);
  const there = Math.min(count, Math.floor((free / wanted) * count));
  for (let i = 0; i < count; i++) {
    const x = box.x + (i % columns) * w;
    const y = at + 17 + Math.floor(i / columns) * 15;
    box.g.append(svg('rect', { class: i < there ? 'need there' : 'need', x, y, width: w - 3, height: 12, rx: 2 }));
    if (i >= there) box.g.append(svg('text', { class: 'letter cross', x: x + (w - 3) / 2, y: y + 10 }, '×'));
  }
  return at + 20 + Math.ceil(count / columns) * 15;
}

/**
 * drawPreference says on which nodes, together with this one, a resource would best be.
 * @param {import('./mapparts.js').Box} box
 * @param {{resource: string, sets: number[][]}} need
 * @param {number} node
 * @param {number} at
 */
function drawPreference(box, need, node, at) {
  const sets = need.sets.filter((s) => s.includes(node));
  if (!sets.length) return at;
  const texts = sets.slice(0, 4).map((s) => (s.length === 1 ? 'this node' : `nodes ${ranges(s)}`));
  box.g.append(svg('rect', { class: 'need there', x: box.x, y: at + 4, width: 9, height: 9, rx: 2 }),
    svg('text', { x: box.x + 14, y: at + 12, class: 'note' }, `${need.resource.slice(0, 30)} prefers ${texts.join(' or ')}${sets.length > 4 ? ' …' : ''}`));
  return at + 18;
}
