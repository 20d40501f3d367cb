// @ts-check
// Pods as the map shows them: what they hold, their order, their letter and color; and what each CPU is used for.
import { ids } from './dom.js';

/**
 * @typedef {{uid: string, name: string, cpus: number[], claims: any[], planned?: boolean, pod: any}} PodOnMap
 * @typedef {{machine: any, state: any, pods: PodOnMap[], shared: number[]}} Scene
 * @typedef {{kind: string, pod?: number}} Use
 */

const letters = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';

/** letter is the sign of a pod: one letter, or two where there are many. @param {number} i @returns {string} */
export function letter(i) { return i < letters.length ? letters[i] : (letters[Math.floor(i / letters.length) - 1] ?? '+') + letters[i % letters.length]; }

/** @param {number} i no hue is so dark that black on it has less contrast than 4.5:1 */
export function color(i) { return `hsl(${Math.round(i * 137.508) % 360} 62% ${i % 2 ? 70 : 78}%)`; }

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

/** sharesReserved is whether containers without exclusive CPUs run on reserved CPUs, too. @param {Scene} scene */
export function sharesReserved(scene) {
  const shared = new Set(scene.shared);
  return ids(scene.state.cpu.reserved?.list).some((id) => shared.has(id));
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
  const kind = sharesReserved(scene) ? 'reserved shares' : 'reserved';
  for (const id of ids(scene.state.cpu.reserved?.list)) out.set(id, { kind });
  const offline = new Set(ids(scene.machine.offlineCpus?.list));
  for (const id of offline) out.set(id, { kind: 'offline' });
  scene.pods.forEach((pod, i) => {
    for (const id of pod.cpus) out.set(id, { kind: offline.has(id) ? 'broken' : 'pod', pod: i });
  });
  return out;
}

/** holders are the pods of a scene by the device that they hold, "RESOURCE\nID". @param {Scene} scene */
export function deviceHolders(scene) {
  /** @type {Map<string, string>} */
  const out = new Map();
  for (const p of scene.pods) for (const c of p.claims) for (const d of c.device?.devices || []) out.set(`${c.resource}\n${d.id}`, p.uid);
  return out;
}

/**
 * nodesOf are the NUMA nodes of what a pod holds.
 * @param {PodOnMap} pod
 * @param {Map<number, number>} nodeOf node by CPU
 */
export function nodesOf(pod, nodeOf) {
  const out = new Set(pod.cpus.map((id) => nodeOf.get(id) ?? -1));
  for (const c of pod.claims) {
    for (const b of c.memory?.blocks || []) for (const n of b.numaNodes?.ids || []) out.add(n);
    for (const d of c.device?.devices || []) for (const n of d.numaNodes?.ids || []) out.add(n);
  }
  out.delete(-1);
  return [...out].sort((a, b) => a - b);
}

/** places is the node of each CPU, those that are offline too where the kernel has told. @param {any} machine */
export function places(machine) {
  /** @type {Map<number, number>} */
  const out = new Map();
  for (const c of [...machine.cpus, ...(machine.offlinePlaces || [])]) out.set(c.cpu, c.numaNode);
  return out;
}
