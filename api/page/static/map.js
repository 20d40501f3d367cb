// @ts-check
// The map draws a machine with the pods on it. What a CPU is used for is told by a letter or a
// sign and by a color; either is enough.
import { svg, bytes, ids } from './dom.js';

/**
 * @typedef {{uid: string, name: string, cpus: number[], claims: any[], planned?: boolean, pod: any}} PodOnMap
 * @typedef {{machine: any, state: any, pods: PodOnMap[], shared: number[]}} Scene
 * @typedef {{kind: string, pod?: number}} Use
 */

const letters = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';
const cell = 15;
const perRow = 16;
const pad = 10;
// Up to so many CPUs each has its letter. On more, the first one of a pod in a row has it: texts
// and round corners take a browser longest, so the corners are square there, too.
const everyLetter = 1024;

/** @param {number} i */
export function letter(i) { return letters[i] ?? '+'; }

/** @param {number} i no hue is so dark that black on it has less contrast than 4.5:1 */
export function color(i) { return `hsl(${Math.round(i * 137.508) % 360} 65% ${i % 2 ? 66 : 74}%)`; }

/**
 * podOnMap collects what a pod holds.
 * @param {any} pod a berth.types.v1.PodAllocation
 * @returns {PodOnMap}
 */
export function podOnMap(pod) {
  const claims = [...(pod.claims || [])];
  for (const c of pod.containers || []) claims.push(...(c.claims || []).map((/** @type {any} */ claim) => ({ ...claim, containerName: c.containerName })));
  // A claim on dynamic resources may have a pod's name.
  return { uid: pod.uid, name: `${pod.resourceClaimNodes ? 'claim ' : ''}${pod.namespace}/${pod.name}`, cpus: claimed(claims), claims, pod };
}

/**
 * claimed are the CPUs in claims.
 * @param {any[]} claims
 */
export function claimed(claims) {
  return [...new Set(claims.flatMap((c) => (c.cpu ? ids(c.cpu.cpus?.list) : [])))].sort((a, b) => a - b);
}

/**
 * order sorts pods by size, the largest first, as berthctl map does.
 * @param {PodOnMap[]} pods
 */
export function order(pods) {
  const sum = (/** @type {PodOnMap} */ p) => p.claims.reduce((n, c) => n + (c.memory?.blocks || []).reduce((/** @type {number} */ m, /** @type {any} */ b) => m + Number(b.bytes), 0), 0);
  const size = new Map(pods.map((p) => [p, sum(p)]));
  return [...pods].sort((a, b) => b.cpus.length - a.cpus.length || (size.get(b) ?? 0) - (size.get(a) ?? 0) || (a.name < b.name ? -1 : 1));
}

/**
 * uses tells what each CPU is used for.
 * @param {Scene} scene with pods in their order
 * @returns {Map<number, Use>}
 */
export function uses(scene) {
  /** @type {Map<number, Use>} */
  const out = new Map();
  for (const c of scene.machine.cpus) out.set(c.cpu, { kind: 'unknown' });
  for (const id of scene.shared) out.set(id, { kind: 'shared' });
  for (const id of ids(scene.state.cpu.reserved?.list)) out.set(id, { kind: 'reserved' });
  const offline = new Set(ids(scene.machine.offlineCpus?.list));
  for (const id of offline) out.set(id, { kind: 'offline' });
  scene.pods.forEach((pod, i) => {
    for (const id of pod.cpus) out.set(id, { kind: offline.has(id) ? 'broken' : 'pod', pod: i });
  });
  return out;
}

/**
 * draw makes the picture. Every CPU is a rectangle with data-cpu.
 * @param {Scene} scene
 * @param {{only?: string, small?: boolean}} [options]
 */
export function draw(scene, options = {}) {
  const use = uses(scene);
  const root = svg('g');
  const nodes = new Map(scene.machine.nodes.map((/** @type {any} */ n) => [n.numaNode, n]));
  /** @type {Map<number, Map<number, any[]>>} CPUs by socket and node */
  const sockets = new Map();
  for (const c of scene.machine.cpus) {
    const of = sockets.get(c.socket) ?? new Map();
    const cpus = of.get(c.numaNode) ?? [];
    cpus.push(c);
    of.set(c.numaNode, cpus);
    sockets.set(c.socket, of);
  }
  const width = perRow * cell * 2 + 2 * pad;
  const columns = scene.machine.nodes.length > 8 ? 4 : 2;
  let y = 0;
  let right = 0;
  const drawn = new Set();
  for (const [socket, of] of [...sockets].sort((a, b) => a[0] - b[0])) {
    root.append(svg('text', { x: 0, y: y + 14, class: 'head' }, `socket ${socket}`));
    y += 22;
    let tallest = 0;
    let column = 0;
    for (const [id, cpus] of [...of].sort((a, b) => a[0] - b[0])) {
      if (column === columns) { column = 0; y += tallest + pad; tallest = 0; }
      const box = drawNode(scene, use, nodes.get(id), cpus, column * (width + pad), y, width, options);
      drawn.add(id);
      root.append(box.node);
      tallest = Math.max(tallest, box.height);
      right = Math.max(right, (column + 1) * (width + pad));
      column++;
    }
    y += tallest + 2 * pad;
  }
  const rest = [...nodes.keys()].filter((id) => !drawn.has(id));
  rest.forEach((id, i) => {
    if (i === 0) { root.append(svg('text', { x: 0, y: y + 14, class: 'head' }, 'nodes without CPUs')); y += 22; }
    const box = drawNode(scene, use, nodes.get(id), [], (i % columns) * (width + pad), y, width, options);
    root.append(box.node);
    right = Math.max(right, ((i % columns) + 1) * (width + pad));
    if (i % columns === columns - 1 || i === rest.length - 1) y += box.height + pad;
  });
  const hatch = svg('pattern', { id: 'hatch', width: 4, height: 4, patternUnits: 'userSpaceOnUse', patternTransform: 'rotate(45)' }, svg('line', { class: 'hatch', x1: 0, y1: 0, x2: 0, y2: 4 }));
  const picture = svg('svg', {
    class: options.small ? 'map small' : 'map', viewBox: `-4 -4 ${right + 8} ${y + 8}`, preserveAspectRatio: 'xMinYMin meet', role: 'img', tabindex: 0,
    'aria-label': `Map of ${scene.machine.cpus.length} CPUs on ${scene.machine.nodes.length} NUMA nodes with ${scene.pods.length} pods. The table of pods tells the same.`,
  }, svg('defs', {}, hatch), root);
  zoomable(picture);
  return { picture, use };
}

/**
 * @param {Scene} scene
 * @param {Map<number, Use>} use
 * @param {any} node
 * @param {any[]} cpus
 * @param {number} x
 * @param {number} y
 * @param {number} width
 * @param {{only?: string}} options
 */
function drawNode(scene, use, node, cpus, x, y, width, options) {
  const g = svg('g', { transform: `translate(${x} ${y})` });
  const distances = Object.keys(node.distances || {}).map(Number).sort((a, b) => a - b).map((to) => node.distances[to]).join(' ');
  g.append(svg('text', { x: pad, y: 18, class: 'head' }, `node ${node.numaNode}`));
  if (scene.machine.nodes.length > 1) g.append(svg('text', { x: pad + 60, y: 18, class: 'note' }, `distances ${distances.slice(0, 60)}`));
  let at = 26;
  /** @type {Map<number, Map<number, any[]>>} threads by cache and core */
  const caches = new Map();
  for (const c of cpus) {
    const of = caches.get(c.uncoreCache) ?? new Map();
    const core = of.get(c.core) ?? [];
    core.push(c);
    of.set(c.core, core);
    caches.set(c.uncoreCache, of);
  }
  for (const [cache, cores] of [...caches].sort((a, b) => a[0] - b[0])) {
    g.append(svg('text', { x: pad, y: at + 10, class: 'note' }, `cache ${cache}`));
    at += 14;
    let i = 0;
    let labelled = -1; // the pod whose letter stands in this row
    for (const [, threads] of [...cores].sort((a, b) => a[0] - b[0])) {
      const cx = pad + (i % perRow) * cell * 2;
      const cy = at + Math.floor(i / perRow) * (cell + 2);
      const w = (cell * 2 - 3) / threads.length;
      if (i % perRow === 0) labelled = -1;
      threads.forEach((/** @type {any} */ c, /** @type {number} */ t) => {
        const pod = use.get(c.cpu)?.pod ?? -1;
        g.append(...drawCPU(scene, use, c.cpu, cx + t * w, cy, w, options, scene.machine.cpus.length <= everyLetter || pod !== labelled));
        labelled = pod;
      });
      i++;
    }
    at += Math.ceil(i / perRow) * (cell + 2) + 4;
  }
  const memory = (scene.state.memory.nodes || []).find((/** @type {any} */ n) => n.numaNode === node.numaNode);
  for (const r of memory?.resources || []) at = drawMemory(g, scene, node.numaNode, r, at, width, options);
  if (!memory && Number(node.memoryBytes) > 0) {
    g.append(svg('text', { x: pad, y: at + 11, class: 'note' }, `memory ${bytes(node.memoryBytes)}, not allocated by NUMA node`));
    at += 16;
  }
  at = drawDevices(g, scene, node.numaNode, at, options);
  g.prepend(svg('rect', { class: 'box', x: 0, y: 0, width, height: at + 4, rx: 5 }));
  return { node: g, height: at + 4 };
}

/**
 * @param {Scene} scene
 * @param {Map<number, Use>} use
 * @param {number} id
 * @param {number} x
 * @param {number} y
 * @param {number} w
 * @param {{only?: string}} options
 * @param {boolean} label
 */
function drawCPU(scene, use, id, x, y, w, options, label) {
  const u = use.get(id) ?? { kind: 'unknown' };
  const pod = u.pod === undefined ? undefined : scene.pods[u.pod];
  const faded = options.only && pod?.uid !== options.only ? ' faded' : '';
  const rect = svg('rect', { class: `cell ${u.kind}${faded}${pod?.planned ? ' planned' : ''}`, x, y, width: w, height: cell, rx: scene.machine.cpus.length <= everyLetter ? 2 : null, 'data-cpu': id });
  if (pod && u.pod !== undefined) rect.setAttribute('fill', color(u.pod));
  const sign = u.kind === 'broken' ? '!' : u.kind === 'offline' ? '×' : u.kind === 'unknown' ? '?' : pod && u.pod !== undefined && label ? letter(u.pod) : '';
  if (!sign) return [rect];
  return [rect, svg('text', { class: `letter${faded}`, x: x + w / 2, y: y + cell - 4 }, sign)];
}

/**
 * drawMemory draws what a node has of a resource: pods, what is reserved, and what is free.
 * @param {SVGElement} g
 * @param {Scene} scene
 * @param {number} node
 * @param {any} r
 * @param {number} at
 * @param {number} width
 * @param {{only?: string}} options
 */
function drawMemory(g, scene, node, r, at, width, options) {
  const allocatable = Number(r.allocatableBytes);
  const reserved = Number(r.reservedBytes);
  const total = allocatable + reserved;
  if (total <= 0) return at;
  const full = width - 2 * pad;
  let x = pad;
  let left = Number(r.heldBytes);
  const part = (/** @type {string} */ name, /** @type {number} */ amount, /** @type {string|undefined} */ paint, /** @type {string|undefined} */ uid) => {
    const w = (amount / total) * full;
    const rect = svg('rect', { class: `cell ${name}${options.only && uid !== options.only ? ' faded' : ''}`, x, y: at + 15, width: Math.max(0, w), height: 8, 'data-pod': uid });
    if (paint) rect.setAttribute('fill', paint);
    g.append(rect);
    x += w;
  };
  // What claims on dynamic resources hold is a part of what is reserved.
  const parts = (/** @type {number} */ amountLeft, /** @type {boolean} */ claims) => {
    for (const alone of [true, false]) {
      scene.pods.forEach((pod, i) => {
        if (Boolean(pod.pod?.resourceClaimNodes) !== claims) return;
        for (const c of pod.claims) {
          if (c.resource !== r.resource) continue;
          for (const b of c.memory?.blocks || []) {
            const on = b.numaNodes?.ids || [];
            if (!on.includes(node) || (on.length === 1) !== alone) continue;
            const amount = Math.min(Number(b.bytes), amountLeft);
            amountLeft -= amount;
            if (amount > 0) part('pod', amount, color(i), pod.uid);
          }
        }
      });
    }
    return amountLeft;
  };
  left = parts(left, false);
  if (left > 0) part('unknown', left, undefined, undefined);
  left = parts(reserved, true);
  if (left > 0) part('reserved', left, undefined, undefined);
  part('shared', Math.max(0, full - (x - pad)) / full * total, undefined, undefined);
  const kernel = r.kernelFreeBytes === undefined ? '' : `, kernel ${bytes(r.kernelFreeBytes)}`;
  g.append(svg('text', { x: pad, y: at + 11, class: 'note' }, `${r.resource} ${bytes(Math.max(0, allocatable - Number(r.heldBytes)))} of ${bytes(allocatable)} free${kernel}`));
  return at + 27;
}

/**
 * drawDevices draws the devices near a node.
 * @param {SVGElement} g
 * @param {Scene} scene
 * @param {number} node
 * @param {number} at
 * @param {{only?: string}} options
 */
function drawDevices(g, scene, node, at, options) {
  const index = new Map(scene.pods.map((p, i) => [p.uid, i]));
  const planned = new Map();
  scene.pods.forEach((p) => { if (p.planned) for (const c of p.claims) for (const d of c.device?.devices || []) planned.set(`${c.resource}\n${d.id}`, p.uid); });
  for (const r of scene.state.device.resources || []) {
    const near = (r.devices || []).filter((/** @type {any} */ d) => (d.device.numaNodes?.ids || [])[0] === node || (!(d.device.numaNodes?.ids || []).length && node === scene.machine.nodes[0].numaNode));
    if (!near.length) continue;
    g.append(svg('text', { x: pad, y: at + 11, class: 'note' }, r.name.slice(0, 70)));
    at += 15;
    near.forEach((/** @type {any} */ d, /** @type {number} */ i) => {
      const uid = planned.get(`${r.name}\n${d.device.id}`) ?? d.holders?.[0]?.podUid;
      const pod = uid === undefined ? undefined : index.get(uid);
      const ill = d.device.health !== 'HEALTH_HEALTHY';
      const x = pad + (i % (perRow * 2)) * cell;
      const y = at + Math.floor(i / (perRow * 2)) * (cell + 2);
      const rect = svg('rect', { class: `cell ${pod !== undefined ? (ill ? 'broken' : 'pod') : ill ? 'offline' : uid ? 'unknown' : 'shared'}${options.only && uid !== options.only ? ' faded' : ''}`, x, y, width: cell - 2, height: cell, rx: 6, 'data-device': d.device.id, 'data-resource': r.name, 'data-pod': uid });
      if (pod !== undefined) rect.setAttribute('fill', color(pod));
      g.append(rect, svg('text', { class: 'letter', x: x + cell / 2 - 1, y: y + cell - 4 }, ill ? (pod !== undefined ? '!' : '×') : pod !== undefined ? letter(pod) : uid ? '?' : ''));
    });
    at += Math.ceil(near.length / (perRow * 2)) * (cell + 2) + 2;
  }
  return at;
}

/**
 * zoomable lets the wheel, + and - zoom, and the pointer drag.
 * @param {SVGElement} picture
 */
export function zoomable(picture) {
  const view = () => (picture.getAttribute('viewBox') || '0 0 1 1').split(' ').map(Number);
  const all = view();
  const set = (/** @type {number[]} */ v) => picture.setAttribute('viewBox', v.join(' '));
  const zoom = (/** @type {number} */ factor, /** @type {number} */ fx, /** @type {number} */ fy) => {
    const [x, y, w, h] = view();
    const scale = Math.min(Math.max(w * factor, all[2] / 60), all[2] * 2) / w;
    set([x + w * fx * (1 - scale), y + h * fy * (1 - scale), w * scale, h * scale]);
  };
  const fraction = (/** @type {MouseEvent} */ e) => {
    const box = picture.getBoundingClientRect();
    return [(e.clientX - box.left) / box.width, (e.clientY - box.top) / box.height];
  };
  picture.addEventListener('wheel', (e) => { e.preventDefault(); const [fx, fy] = fraction(e); zoom(e.deltaY > 0 ? 1.15 : 1 / 1.15, fx, fy); }, { passive: false });
  /** @type {{x: number, y: number, view: number[]}|null} */
  let from = null;
  picture.addEventListener('pointerdown', (e) => { from = { x: e.clientX, y: e.clientY, view: view() }; });
  picture.addEventListener('pointermove', (e) => {
    if (!from || !(e.buttons & 1)) { from = null; return; }
    const scale = from.view[2] / picture.getBoundingClientRect().width;
    set([from.view[0] - (e.clientX - from.x) * scale, from.view[1] - (e.clientY - from.y) * scale, from.view[2], from.view[3]]);
  });
  picture.addEventListener('keydown', (e) => {
    if (e.key === '+' || e.key === '=') zoom(1 / 1.3, 0.5, 0.5);
    else if (e.key === '-') zoom(1.3, 0.5, 0.5);
    else if (e.key === '0') set(all);
  });
}
