// @ts-check
// What each NUMA node has, and how much of it is free; and the devices with their history.
import { bytes, count, el, name, table, when, word } from './dom.js';
import { places, uses } from './pod.js';
import { podName, scene } from './store.js';
import { link } from './subject.js';

/** bar shows which part of an amount is used. @param {number} used @param {number} all */
function bar(used, all) {
  const part = el('i', {});
  part.style.width = `${all > 0 ? Math.min(100, (used / all) * 100) : 0}%`;
  return el('span', { class: 'amount', 'aria-hidden': 'true' }, part);
}

/** @param {string} free @param {string} of @param {number} used @param {number} all */
function cell(free, of, used, all) {
  return all > 0 ? el('span', {}, el('b', {}, free), el('span', { class: 'soft' }, ` of ${of}`), bar(used, all)) : null;
}

/** totals is a table with a row for each node: what is free of what pods can have. */
export function totals() {
  const s = scene();
  const of = places(s.machine);
  const use = uses(s);
  /** @type {Map<number, {pod: number, shared: number}>} */
  const cpus = new Map();
  for (const [id, u] of use) {
    const at = of.get(id);
    if (at === undefined) continue;
    const n = cpus.get(at) ?? { pod: 0, shared: 0 };
    if (u.kind === 'pod' || u.kind === 'broken') n.pod++;
    if (u.kind === 'shared') n.shared++;
    cpus.set(at, n);
  }
  const memory = new Map((s.state.memory.nodes || []).map((/** @type {any} */ n) => [n.numaNode, new Map((n.resources || []).map((/** @type {any} */ r) => [r.resource, r]))]));
  const resources = [...new Set([...memory.values()].flatMap((/** @type {any} */ m) => [...m.keys()]))].sort((a, b) => Number(b === 'memory') - Number(a === 'memory') || (a < b ? -1 : 1));
  const device = (s.state.device.resources || []).filter((/** @type {any} */ r) => (r.devices || []).length);
  const first = s.machine.nodes[0]?.numaNode;
  const near = (/** @type {any} */ r, /** @type {number} */ node) => (r.devices || []).filter((/** @type {any} */ d) => ((d.device.numaNodes?.ids || [])[0] ?? first) === node);
  const body = s.machine.nodes.map((/** @type {any} */ n) => {
    const c = cpus.get(n.numaNode) ?? { pod: 0, shared: 0 };
    const cells = [link({ kind: 'node', id: String(n.numaNode) }, `node ${n.numaNode}`), cell(String(c.shared), String(c.shared + c.pod), c.pod, c.shared + c.pod)];
    for (const name of resources) {
      const r = memory.get(n.numaNode)?.get(name);
      const [all, held] = [Number(r?.allocatableBytes ?? 0), Number(r?.heldBytes ?? 0) + Number(r?.takenBytes ?? 0)];
      cells.push(cell(bytes(Math.max(0, all - held)), bytes(all), held, all));
    }
    for (const r of device) {
      const all = near(r, n.numaNode).filter((/** @type {any} */ d) => d.device.health === 'HEALTH_HEALTHY');
      const used = all.filter((/** @type {any} */ d) => (d.holders || []).length).length;
      cells.push(cell(String(all.length - used), String(all.length), used, all.length));
    }
    return { about: { 'data-node': n.numaNode }, cells };
  });
  const short = (/** @type {string} */ text) => text.replace(/^hugepages-/, 'pages ').replace(/^.*\//, '');
  const head = ['', 'CPUs', ...resources.map(short), ...device.map((/** @type {any} */ r) => short(r.name))];
  return { head, body };
}

/** Which resources are unfolded. @type {Set<string>} */
const unfolded = new Set();

/** devices are the resources, each with its devices below. */
export function devices() {
  const resources = scene().state.device.resources || [];
  if (!resources.length) return el('p', { class: 'soft' }, 'No device plugin has registered.');
  return el('div', {}, ...resources.map((/** @type {any} */ r) => {
    const details = /** @type {HTMLDetailsElement} */ (el('details', { open: unfolded.has(r.name) ? '' : null, toggle: () => {
      if (details.open) unfolded.add(r.name);
      else unfolded.delete(r.name);
    } }, el('summary', {}, name(r.name), el('span', { class: 'soft' }, `  ${r.inUse} of ${count(Number(r.capacity), 'device')} in use, plugin ${word(r.pluginState, 'PLUGIN_STATE_')}`)),
    table(['Device', 'Health'])));
    const body = /** @type {HTMLElement} */ (details.querySelector('tbody'));
    for (const d of r.devices || []) {
      body.append(el('tr', { 'data-resource': r.name, 'data-device': d.device.id, 'data-pod': d.holders?.[0]?.podUid },
        el('td', {}, link({ kind: 'device', resource: r.name, id: d.device.id }, d.device.id),
          el('div', { class: 'soft' }, [...(d.device.numaNodes?.ids || []).map((/** @type {number} */ n) => `node ${n}`), (d.holders || []).length ? 'held by' : 'free'].join(', ')),
          ...(d.holders || []).map((/** @type {any} */ h) => el('div', {}, name(`${podName(h.podUid)}${h.containerName ? `/${h.containerName}` : ''}`)))),
        el('td', {}, el('span', { class: d.device.health === 'HEALTH_HEALTHY' ? 'good' : 'bad' }, word(d.device.health, 'HEALTH_')),
          ...(d.device.healthHistory || []).slice(-5).map((/** @type {any} */ h) => el('div', { class: 'soft' }, when(h.time), ` ${word(h.health, 'HEALTH_')}`)))));
    }
    return details;
  }));
}

/** unfold shows the devices of a resource. @param {string} resource */
export function unfold(resource) { unfolded.add(resource); }
