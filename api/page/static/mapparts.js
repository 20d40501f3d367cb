// @ts-check
// The parts of the map beside CPUs: memory by node, and devices near a node.
import { svg, bytes } from './dom.js';
import { color, letter } from './pod.js';

/**
 * @typedef {import('./map.js').Drawing} Drawing
 * @typedef {{g: SVGElement, x: number, width: number}} Box
 */

/**
 * drawMemory draws what a node has of a resource: pods, what is reserved, and what is free.
 * @param {Drawing} d
 * @param {Box} box
 * @param {number} node
 * @param {any} r
 * @param {number} at
 */
export function drawMemory(d, box, node, r, at) {
  const allocatable = Number(r.allocatableBytes);
  const reserved = Number(r.reservedBytes);
  const total = allocatable + reserved;
  if (total <= 0) return at;
  const kernel = r.kernelFreeBytes === undefined ? '' : `, kernel ${bytes(r.kernelFreeBytes)}`;
  box.g.append(svg('text', { x: box.x, y: at + 11, class: 'note' }, `${r.resource} ${bytes(Math.max(0, allocatable - Number(r.heldBytes)))} of ${bytes(allocatable)} free${kernel}`));
  let x = box.x;
  const part = (/** @type {string} */ kind, /** @type {number} */ amount, /** @type {string[]} */ [uid, paint] = []) => {
    const rect = svg('rect', { class: `cell ${kind}`, x, y: at + 15, width: Math.max(0, (amount / total) * box.width), height: 8, 'data-pod': uid });
    if (paint) rect.setAttribute('fill', paint);
    box.g.append(rect);
    x += (amount / total) * box.width;
  };
  // What claims on dynamic resources hold is a part of what is reserved.
  const parts = (/** @type {number} */ left, /** @type {boolean} */ claims) => {
    for (const block of blocks(d, node, r.resource, claims)) {
      const amount = Math.min(block.bytes, left);
      left -= amount;
      if (amount > 0) part('pod', amount, [block.uid, color(block.pod)]);
    }
    return left;
  };
  const unknown = parts(Number(r.heldBytes), false);
  if (unknown > 0) part('unknown', unknown);
  const system = parts(reserved, true);
  if (system > 0) part('reserved', system);
  part('shared', Math.max(0, (box.x + box.width - x) / box.width) * total);
  return at + 29;
}

/**
 * blocks are the pods' blocks of a resource on a node; those that are only there come first.
 * @param {Drawing} d
 * @param {number} node
 * @param {string} resource
 * @param {boolean} claims those of claims on dynamic resources, or those of pods
 */
function blocks(d, node, resource, claims) {
  /** @type {{pod: number, uid: string, bytes: number}[][]} */
  const [alone, spread] = [[], []];
  for (const [pod, p] of d.scene.pods.entries()) {
    if (Boolean(p.pod?.resourceClaimNodes) !== claims) continue;
    for (const c of p.claims) {
      if (c.resource !== resource) continue;
      for (const b of c.memory?.blocks || []) {
        const on = b.numaNodes?.ids || [];
        if (on.includes(node)) (on.length === 1 ? alone : spread).push({ pod, uid: p.uid, bytes: Number(b.bytes) });
      }
    }
  }
  return [...alone, ...spread];
}

const size = { w: 28, h: 20 };

/**
 * drawDevices draws the devices near a node.
 * @param {Drawing} d
 * @param {Box} box
 * @param {number} node
 * @param {number} at
 */
export function drawDevices(d, box, node, at) {
  const first = d.scene.machine.nodes[0].numaNode;
  const columns = Math.floor(box.width / size.w);
  for (const r of d.scene.state.device.resources || []) {
    const near = (r.devices || []).filter((/** @type {any} */ x) => ((x.device.numaNodes?.ids || [])[0] ?? first) === node);
    if (!near.length) continue;
    box.g.append(svg('text', { x: box.x, y: at + 11, class: 'note' }, r.name.slice(0, 60)));
    at += 16;
    near.forEach((/** @type {any} */ x, /** @type {number} */ i) => {
      const uid = d.holders.get(`${r.name}\n${x.device.id}`) ?? x.holders?.[0]?.podUid;
      const pod = uid === undefined ? undefined : d.pods.get(uid);
      const ill = x.device.health !== 'HEALTH_HEALTHY';
      const left = box.x + (i % columns) * size.w;
      const top = at + Math.floor(i / columns) * size.h;
      const kind = pod !== undefined ? (ill ? 'broken' : 'pod') : ill ? 'offline' : uid ? 'unknown' : 'shared';
      const rect = svg('rect', { class: `cell device ${kind}`, x: left, y: top, width: size.w - 3, height: size.h - 3, rx: 8, 'data-device': x.device.id, 'data-resource': r.name, 'data-pod': uid });
      if (pod !== undefined) rect.setAttribute('fill', color(pod));
      const sign = ill ? (pod !== undefined ? '!' : '×') : pod !== undefined ? letter(pod) : uid ? '?' : '';
      box.g.append(rect, svg('text', { class: `letter${pod !== undefined ? ' on' : ''}`, x: left + size.w / 2 - 1.5, y: top + 12.5 }, sign));
    });
    at += Math.ceil(near.length / columns) * size.h + 3;
  }
  return at;
}
