// @ts-check
// The map as a list, where there is no room for a picture: each NUMA node with who has which of its CPUs.
import { bytes, el, name, ranges } from './dom.js';
import { color, letter, places, uses } from './pod.js';
import { link } from './subject.js';

/** @type {Record<string, string>} */
const words = { shared: 'shared or free', reserved: 'reserved', 'reserved shares': 'reserved, also shared', offline: 'offline', unknown: 'unknown holder' };

/** mark is the sign of a pod as on the map. @param {number} i */
export function mark(i) {
  const m = el('b', { class: 'mark' }, letter(i));
  m.style.background = color(i); // as on the map, where the letter is black
  return m;
}

/** nodeList makes the list. @param {import('./pod.js').Scene} scene */
function nodeList(scene) {
  const of = places(scene.machine);
  const use = [...uses(scene)].sort((a, b) => a[0] - b[0]);
  return el('div', { class: 'nodes' }, ...scene.machine.nodes.map((/** @type {any} */ n) => {
    /** @type {Map<string, number[]>} */
    const groups = new Map();
    for (const [id, u] of use) {
      if (of.get(id) !== n.numaNode) continue;
      const key = u.pod === undefined ? u.kind : String(u.pod);
      groups.set(key, [...(groups.get(key) ?? []), id]);
    }
    const memory = (scene.state.memory.nodes || []).find((/** @type {any} */ m) => m.numaNode === n.numaNode);
    return el('section', { 'data-node': n.numaNode }, el('h3', {}, link({ kind: 'node', id: String(n.numaNode) }, `node ${n.numaNode}`)),
      el('ul', {}, ...[...groups].map(([key, list]) => {
        const pod = scene.pods[Number(key)];
        if (!pod) return el('li', {}, `CPUs ${ranges(list)}: ${words[key] ?? key}`);
        return el('li', { 'data-pod': pod.uid }, mark(Number(key)), ` CPUs ${ranges(list)}: `, pod.planned ? name(`${pod.name} (planned)`) : link({ kind: 'pod', id: pod.uid }, pod.name));
      }), ...(memory?.resources || []).map((/** @type {any} */ r) => el('li', {}, `${r.resource}: ${bytes(r.freeBytes)} of ${bytes(r.allocatableBytes)} free`))));
  }));
}

/** narrow is whether there is no room for the picture. */
export const narrow = matchMedia('(max-width: 34rem)');

/**
 * picture is the map, or the list.
 * @param {import('./pod.js').Scene} scene
 * @param {(s: import('./pod.js').Scene) => Element} drawn
 */
export function pictureOf(scene, drawn) { return narrow.matches ? nodeList(scene) : drawn(scene); }
