// @ts-check
// A subject is what a person looks at: a pod, a CPU, a device or a NUMA node. It has an address and a line that
// describes it, and everything that shows it is highlighted.
import { el, ids, name, ranges, word } from './dom.js';
import { address } from './route.js';
import { nodesOf, places, podOnMap, uses } from './pod.js';
import { known, podName, scene, usersOf } from './store.js';

/**
 * @typedef {{kind: 'pod'|'cpu'|'node', id: string} | {kind: 'device', id: string, resource: string}} Subject
 */

/** attributes mark what shows a subject. @param {Subject} s @returns {Record<string, string>} */
export function attributes(s) {
  return s.kind === 'device' ? { 'data-resource': s.resource, 'data-device': s.id } : { [`data-${s.kind}`]: s.id };
}

/** @param {Subject} s */
export function href(s) { return address('now', s.kind, ...(s.kind === 'device' ? [s.resource, s.id] : [s.id])); }

/** link leads to a subject on the first view. @param {Subject} s @param {string} text */
export function link(s, text) { return el('a', { href: href(s) }, name(text)); }

/** @param {string[]} path after #/now @returns {Subject|null} */
export function fromPath([kind, ...rest]) {
  if (kind === 'device' && rest.length === 2) return { kind, resource: rest[0], id: rest[1] };
  if ((kind === 'pod' || kind === 'cpu' || kind === 'node') && rest.length === 1) return { kind, id: rest[0] };
  return null;
}

/** @param {EventTarget|null} target @returns {Subject|null} */
export function subjectOf(target) {
  const at = target instanceof Element ? target.closest('[data-cpu], [data-device], [data-pod], [data-node]') : null;
  if (!at) return null;
  const [cpu, device, resource, pod, node] = ['cpu', 'device', 'resource', 'pod', 'node'].map((n) => at.getAttribute(`data-${n}`));
  if (cpu !== null) return { kind: 'cpu', id: cpu };
  if (device !== null && resource !== null) return { kind: 'device', id: device, resource };
  if (pod !== null) return { kind: 'pod', id: pod };
  return node !== null ? { kind: 'node', id: node } : null;
}

/** @param {Subject} s */
function selector(s) { return Object.entries(attributes(s)).map(([n, v]) => `[${n}="${CSS.escape(v)}"]`).join(''); }

/** podsOf are the pods that have something to do with a subject. @param {Subject} s @returns {string[]} */
function podsOf(s) {
  const pods = scene().pods;
  switch (s.kind) {
    case 'pod': return [s.id];
    case 'cpu': return pods.filter((p) => p.cpus.includes(Number(s.id))).map((p) => p.uid);
    case 'device': return pods.filter((p) => p.claims.some((c) => c.resource === s.resource && (c.device?.devices || []).some((/** @type {any} */ d) => d.id === s.id))).map((p) => p.uid);
  }
  const of = places(known.machine);
  return pods.filter((p) => nodesOf(p, of).includes(Number(s.id))).map((p) => p.uid);
}

/**
 * light highlights a subject, and what has to do with it, everywhere.
 * @param {Element} root
 * @param {Subject|null} s
 */
export function light(root, s) {
  for (const e of root.querySelectorAll('.lit, .at')) e.classList.remove('lit', 'at');
  root.classList.toggle('lighted', s !== null);
  if (!s) return;
  for (const e of root.querySelectorAll(selector(s))) e.classList.add('at');
  for (const uid of podsOf(s)) {
    const where = s.kind === 'node' ? 'tr' : '';
    for (const e of root.querySelectorAll(`${where}[data-pod="${CSS.escape(uid)}"]`)) e.classList.add('lit');
  }
  if (s.kind === 'pod') {
    const pod = known.pods.get(s.id);
    for (const n of pod ? nodesOf(podOnMap(pod), places(known.machine)) : []) {
      for (const e of root.querySelectorAll(`tr[data-node="${n}"]`)) e.classList.add('lit');
    }
  }
}

/** about describes a subject in a line. @param {Subject} s @returns {HTMLElement} */
export function about(s) {
  switch (s.kind) {
    case 'cpu': return aboutCPU(Number(s.id));
    case 'pod': return aboutPod(s.id);
    case 'node': return aboutNode(Number(s.id));
  }
  const device = (known.state.device.resources || []).find((/** @type {any} */ r) => r.name === s.resource)?.devices?.find((/** @type {any} */ d) => d.device.id === s.id);
  if (!device) return el('p', {}, `${s.resource} ${s.id} is not on this machine.`);
  const nodes = device.device.numaNodes?.ids || [];
  const holders = (device.holders || []).map((/** @type {any} */ h) => `${podName(h.podUid)}${h.containerName ? `/${h.containerName}` : ''}`);
  return el('p', {}, `${s.resource} ${s.id}: ${word(device.device.health, 'HEALTH_')}${nodes.length ? `, near node ${nodes.join(', ')}` : ''}, ${holders.length ? `held by ${holders.join(', ')}` : 'free'}.`);
}

/** why leads to the decision about a pod. @param {any} pod */
export function why(pod) {
  if (!pod?.admissionId) return null;
  return el('a', { href: address('pods', pod.namespace, pod.name, 'verdicts', pod.admissionId), 'aria-label': `why ${pod.namespace}/${pod.name} is there` }, 'why');
}

/** @param {number} id */
function aboutCPU(id) {
  const all = scene();
  const c = [...all.machine.cpus, ...(all.machine.offlinePlaces || [])].find((/** @type {any} */ x) => x.cpu === id);
  const u = uses(all).get(id);
  const where = c ? `CPU ${id}: core ${c.core}, node ${c.numaNode}, socket ${c.socket}. ` : `CPU ${id}. `;
  if (u?.pod === undefined) {
    const text = { shared: 'Shared: containers without exclusive CPUs run here, and a pod could get it.', reserved: 'Reserved for the system, or for claims on dynamic resources.', 'reserved shares': 'Reserved for the system, or for claims on dynamic resources, and shared: containers without exclusive CPUs run here.', offline: 'Offline.' }[u?.kind ?? ''] ?? 'berthd does not know what it is used for.';
    return el('p', {}, where + text);
  }
  const pod = all.pods[u.pod];
  const held = u.kind === 'broken' ? 'Offline, and held' : 'Exclusive, held';
  const who = link({ kind: 'pod', id: pod.uid }, pod.name);
  if (pod.pod?.resourceClaimNodes) {
    const users = usersOf(pod.uid);
    return el('p', {}, `${where}${held} by `, who, `, ${users.length ? `used by ${users.join(', ')}` : 'not in use'}. `, why(pod.pod));
  }
  const claim = pod.claims.find((x) => x.cpu && ids(x.cpu.cpus?.list).includes(id));
  const nodes = claim?.affinity?.numaNodes?.ids;
  const reason = nodes ? ` The topology policy placed the container on node ${nodes.join(', ')}${claim.affinity.preferred ? ', and no smaller set of nodes could do' : '; fewer could do on an idle machine'}.` : '';
  return el('p', {}, `${where}${held} by `, who, `${claim?.containerName ? `, container ${claim.containerName}` : ''}.${reason} `, why(pod.pod));
}

/** @param {string} uid */
function aboutPod(uid) {
  const pod = known.pods.get(uid);
  if (!pod) return el('p', {}, `The pod ${uid} is not on this machine.`);
  const p = podOnMap(pod);
  const nodes = nodesOf(p, places(known.machine));
  return el('p', {}, el('b', {}, name(p.name)), `: ${p.cpus.length ? `CPUs ${ranges(p.cpus)}` : 'on the shared CPUs'}${nodes.length ? `, node ${nodes.join(', ')}` : ''}. `, why(pod));
}

/** @param {number} node */
function aboutNode(node) {
  const n = known.machine.nodes.find((/** @type {any} */ x) => x.numaNode === node);
  if (!n) return el('p', {}, `This machine has no node ${node}.`);
  const pods = podsOf({ kind: 'node', id: String(node) }).length;
  return el('p', {}, `Node ${node}: CPUs ${n.cpus?.list || 'none'}. ${pods === 1 ? '1 pod has' : `${pods} pods have`} something of it.`);
}
