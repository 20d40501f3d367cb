// @ts-check
// The map draws a machine with the pods on it. What a CPU is used for is told by a letter or a
// sign and by a color; either is enough. Neighbours of one pod are joined, and the first has the letter.
import { svg, bytes } from './dom.js';
import { color, deviceHolders, letter, uses } from './pod.js';
import { drawMemory, drawDevices } from './mapparts.js';
import { arrows } from './arrows.js';
import { drawNeed, drawWide } from './need.js';
import { zoomable } from './zoom.js';

/**
 * @typedef {import('./pod.js').Scene} Scene
 * @typedef {import('./pod.js').Use} Use
 * @typedef {{x: number, y: number}} Spot
 * @typedef {{label?: string, needs?: any[], moves?: {from: number[], to: number[]}[]}} Options
 * @typedef {{scene: Scene, use: Map<number, Use>, holders: Map<string, string>, pods: Map<string, number>, options: Options, spots: Map<number, Spot>, many: boolean, perRow: number, cells: Map<string, Element>, colors: string[]}} Drawing
 */

/** The most and the fewest cores in a row. */
const perRow = { most: 16, least: 10 };
/** How much a picture is enlarged at most. */
const largest = 1.25;
const cell = { w: 26, h: 25 };
const pad = 10;
/** Where a row has its number, on a machine with so many CPUs that not each has its own. */
const aside = 34;
// Up to so many CPUs each has its number. Texts take a browser longest.
const everyNumber = 1024;

/**
 * draw makes the picture. Every CPU is a rectangle with data-cpu.
 * @param {Scene} scene
 * @param {Options} [options]
 */
export function draw(scene, options = {}) {
  const many = scene.machine.cpus.length > everyNumber;
  const sockets = bySocket(scene.machine);
  const cores = Math.max(0, ...[...sockets.values()].flatMap((of) => [...of.values()].flatMap((cpus) => [...byCache(cpus).values()].map((c) => c.size))));
  /** @type {Drawing} */
  const d = {
    scene, use: uses(scene), holders: deviceHolders(scene), pods: new Map(scene.pods.map((p, i) => [p.uid, i])), options, spots: new Map(), cells: new Map(), colors: [], many, perRow: Math.min(perRow.most, Math.max(perRow.least, cores)),
  };
  const root = svg('g');
  const nodes = new Map(scene.machine.nodes.map((/** @type {any} */ n) => [n.numaNode, n]));
  const width = d.perRow * cell.w + 2 * pad + (many ? aside : 0);
  const columns = scene.machine.nodes.length > 8 ? 4 : Math.min(2, Math.max(...[...sockets.values()].map((of) => of.size)));
  let y = 0;
  let right = 0;
  // Many sockets of one node each are two in a row: one below the other, they would be a tall and narrow picture.
  const pairs = columns === 1 && sockets.size > 2 ? 2 : 1;
  let [placed, top, end] = [0, 0, 0];
  const row = (/** @type {string} */ title, /** @type {[number, any[]][]} */ list) => {
    const left = (placed++ % pairs) * (width + pad);
    if (left) y = top;
    else [top, end] = [y, 0];
    root.append(svg('text', { x: left, y: y + 13, class: 'head' }, title));
    y += 22;
    let tallest = 0;
    list.forEach(([id, cpus], i) => {
      if (i > 0 && i % columns === 0) { y += tallest + pad; tallest = 0; }
      const x = left + (i % columns) * (width + pad);
      const box = drawNode(d, nodes.get(id), cpus, x, y, width);
      nodes.delete(id);
      root.append(box.node);
      tallest = Math.max(tallest, box.height);
      right = Math.max(right, x + width);
    });
    end = Math.max(end, y + tallest + 2 * pad);
    y = end;
  };
  for (const [socket, of] of [...sockets].sort((a, b) => a[0] - b[0])) row(`socket ${socket}`, [...of].sort((a, b) => a[0] - b[0]));
  if (nodes.size) row('nodes without CPUs', [...nodes.keys()].map((id) => [id, []]));
  for (const need of options.needs || []) y = drawWide({ g: root, x: pad, width: right - 2 * pad }, need, y - pad) + pad;
  if (options.moves) root.append(...arrows(options.moves, d.spots));
  const picture = svg('svg', {
    class: many ? 'map many' : 'map', viewBox: `-4 -4 ${right + 8} ${Math.max(1, y - 2 * pad) + 8}`, preserveAspectRatio: 'xMinYMin meet', role: 'img', tabindex: 0,
    'aria-label': `${options.label ?? 'Map'} of ${scene.machine.cpus.length} CPUs on ${scene.machine.nodes.length} NUMA nodes with ${scene.pods.length} pods. The table of pods tells the same.`,
  }, patterns(), root);
  picture.style.maxWidth = `${Math.round((right + 8) * largest)}px`;
  zoomable(picture);
  return { picture, use: d.use };
}

/** @param {any} machine @returns {Map<number, Map<number, any[]>>} CPUs by socket and node, those offline too whose place is known */
function bySocket(machine) {
  /** @type {Map<number, Map<number, any[]>>} */
  const sockets = new Map();
  for (const c of [...machine.cpus, ...(machine.offlinePlaces || [])]) {
    const of = sockets.get(c.socket) ?? new Map();
    const cpus = of.get(c.numaNode) ?? [];
    cpus.push(c);
    of.set(c.numaNode, cpus);
    sockets.set(c.socket, of);
  }
  return sockets;
}

function patterns() {
  return svg('defs', {},
    svg('pattern', { id: 'hatch', width: 5, height: 5, patternUnits: 'userSpaceOnUse', patternTransform: 'rotate(45)' }, svg('line', { class: 'hatch', x1: 0, y1: 0, x2: 0, y2: 5 })),
    svg('marker', { id: 'tip', viewBox: '0 0 8 8', refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: 'auto-start-reverse' }, svg('path', { class: 'tip', d: 'M0 0 8 4 0 8z' })));
}

/**
 * @param {Drawing} d
 * @param {any} node
 * @param {any[]} cpus
 * @param {number} x
 * @param {number} y
 * @param {number} width
 */
function drawNode(d, node, cpus, x, y, width) {
  const { scene } = d;
  const g = svg('g', {});
  const box = { g, x: x + pad, width: width - 2 * pad };
  if (Number(node.memoryBytes) > 0) g.append(svg('text', { x: x + width - pad, y: y + 18, class: 'note end' }, bytes(node.memoryBytes)));
  const distances = Object.keys(node.distances || {}).map(Number).sort((a, b) => a - b).map((to) => node.distances[to]).join(' ');
  g.append(svg('text', { x: box.x, y: y + 18, class: 'head' }, `node ${node.numaNode}`));
  if (scene.machine.nodes.length > 1) g.append(svg('text', { x: box.x + 62, y: y + 18, class: 'note' }, `distances ${distances.slice(0, d.perRow < perRow.most ? 24 : 50)}`));
  let at = y + 27;
  const caches = byCache(cpus);
  for (const [cache, cores] of [...caches].sort((a, b) => a[0] - b[0])) {
    if (caches.size > 1) {
      g.append(svg('text', { x: box.x, y: at + 8, class: 'note' }, `cache ${cache}`));
      at += 13;
    }
    at = drawCores(d, g, [...cores].sort((a, b) => a[0] - b[0]).map(([, threads]) => threads), box.x, at) + 4;
  }
  const memory = (scene.state.memory.nodes || []).find((/** @type {any} */ n) => n.numaNode === node.numaNode);
  for (const r of memory?.resources || []) at = drawMemory(d, box, node.numaNode, r, at);
  at = drawDevices(d, box, node.numaNode, at);
  for (const need of d.options.needs || []) at = drawNeed(box, need, node.numaNode, at);
  const short = (d.options.needs || []).some((n) => (n.numaNodes?.ids || []).includes(node.numaNode)) ? ' short' : '';
  g.prepend(svg('rect', { class: `box${short}`, x, y, width, height: at + 4 - y, rx: 6, 'data-node': node.numaNode }));
  return { node: g, height: at + 4 - y };
}

/** @param {any[]} cpus @returns {Map<number, Map<number, any[]>>} threads by cache and core */
function byCache(cpus) {
  const caches = new Map();
  for (const c of cpus) {
    const of = caches.get(c.uncoreCache) ?? new Map();
    const core = of.get(c.core) ?? [];
    core.push(c);
    of.set(c.core, core);
    caches.set(c.uncoreCache, of);
  }
  return caches;
}

/**
 * drawCores draws cores in rows, the threads of a core one below the other.
 * @param {Drawing} d
 * @param {SVGElement} g
 * @param {any[][]} cores
 * @param {number} x
 * @param {number} y
 */
function drawCores(d, g, cores, x, y) {
  const left = d.many ? x + aside : x;
  for (let from = 0; from < cores.length; from += d.perRow) {
    const line = cores.slice(from, from + d.perRow);
    const threads = Math.max(...line.map((c) => c.length));
    for (let t = 0; t < threads; t++) {
      if (d.many && line[0][t]) g.append(svg('text', { class: 'number aside', x: left - 4, y: y + 17 }, line[0][t].cpu));
      line.forEach((core, i) => {
        if (!core[t]) return;
        const same = (/** @type {any} */ other) => other !== undefined && joined(d.use.get(core[t].cpu), d.use.get(other.cpu));
        drawCPU(d, g, core[t].cpu, { x: left + i * cell.w, y }, same(line[i + 1]?.[t]), same(core[t + 1]), !same(line[i - 1]?.[t]) && !same(core[t - 1]));
      });
      y += cell.h;
    }
    y += 3;
  }
  return y;
}

/**
 * copy copies an element, which is made for the first one of its key, to a place.
 * @param {Drawing} d
 * @param {string} key
 * @param {() => Element} make
 * @param {Spot} at
 */
function copy(d, key, make, at) {
  let like = d.cells.get(key);
  if (!like) d.cells.set(key, like = make());
  const one = /** @type {Element} */ (like.cloneNode());
  one.setAttribute('x', String(at.x));
  one.setAttribute('y', String(at.y));
  return one;
}

/** @param {Use|undefined} a @param {Use|undefined} b */
function joined(a, b) { return a?.pod !== undefined && a.pod === b?.pod && a.kind === b.kind; }

/**
 * @param {Drawing} d
 * @param {SVGElement} g
 * @param {number} id
 * @param {Spot} at
 * @param {boolean} right joined with the next one
 * @param {boolean} below joined with the next thread
 * @param {boolean} first of its neighbours of a pod
 */
function drawCPU(d, g, id, at, right, below, first) {
  const u = d.use.get(id) ?? { kind: 'unknown' };
  const pod = u.pod === undefined ? undefined : d.scene.pods[u.pod];
  // Cells that differ only in their place and their pod are copies of one: a copy is made faster than what it is made of.
  const rect = copy(d, `${u.kind} ${pod?.planned} ${right} ${below}`, () => svg('rect', {
    class: `cell ${u.kind}${pod?.planned ? ' planned' : ''}`, width: cell.w - (right ? 0 : 2), height: cell.h - (below ? 0 : 2),
    rx: d.many || right || below ? null : 3,
  }), at);
  if (pod && u.pod !== undefined) {
    rect.setAttribute('data-pod', pod.uid);
    rect.setAttribute('fill', d.colors[u.pod] ??= color(u.pod));
  }
  rect.setAttribute('data-cpu', String(id));
  d.spots.set(id, { x: at.x + cell.w / 2, y: at.y + cell.h / 2 });
  g.append(rect);
  const sign = u.kind === 'broken' ? '!' : u.kind === 'offline' ? '×' : u.kind === 'unknown' ? '?' : pod && u.pod !== undefined && first ? letter(u.pod) : '';
  const dark = pod ? ' on' : '';
  if (sign) {
    const text = copy(d, `letter${dark}`, () => svg('text', { class: `letter${dark}` }), { x: at.x + cell.w / 2 - 1, y: at.y + (d.many ? 15 : 9.5) });
    text.textContent = sign;
    g.append(text);
  }
  if (!d.many) g.append(svg('text', { class: `number${dark}`, x: at.x + cell.w / 2 - 1, y: at.y + cell.h - 4.5 }, id));
}
