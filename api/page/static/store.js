// @ts-check
// What is known of the machine now. Views read it, and are told when it changes.
import { count, ids } from './dom.js';
import { api, follow, problem } from './net.js';
import { order, podOnMap } from './pod.js';

export const known = {
  /** @type {any} */ machine: null,
  /** @type {any} */ state: null,
  /** @type {any} */ attention: null,
  /** @type {Map<string, any>} */ pods: new Map(),
  /** @type {number[]} */ shared: [],
  revision: '',
};

/** How often what no event tells is read again while the page is seen. */
const attentionEvery = 30_000;
/** The pause between two such readings after changes. */
const attentionPause = 2_000;

/** @type {(text: string, bad?: boolean) => void} */
let say = () => {};
/** @type {() => void} */
let tell = () => {};
let due = false;
/** The scene of what is known; null after a change. @type {import('./pod.js').Scene|null} */
let present = null;

/** changed tells the views, at most once a frame. */
function changed() {
  present = null;
  if (due || !known.machine || !known.state) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    say(count(known.pods.size, 'pod'));
    tell();
  });
}

/**
 * reader makes a function that reads something again, one call at a time.
 * @param {() => Promise<void>} read
 */
function reader(read) {
  let reading = false;
  let stale = false;
  return async () => {
    stale = true;
    if (reading) return;
    reading = true;
    while (stale) {
      stale = false;
      try { await read(); changed(); } catch (e) { say(problem(e), true); }
    }
    reading = false;
  };
}

// Watch does not tell memory by node, all devices, and what needs attention.
const readState = reader(async () => { known.state = await api('state'); });
const readMachine = reader(async () => { known.machine = await api('machine'); });
const readAttention = reader(async () => {
  known.attention = await api('attention');
  await new Promise((done) => { setTimeout(done, attentionPause); }); // it costs more than a change
});

/** @param {any} message a berth.allocation.v1.WatchResponse @param {boolean} first */
function apply(message, first) {
  if (first) known.pods.clear();
  for (const e of message.events || []) {
    const pod = e.added ?? e.changed;
    if (pod) known.pods.set(pod.uid, pod);
    if (e.removed) known.pods.delete(e.removed.uid);
    if (e.sharedCpus) known.shared = ids(e.sharedCpus.list);
    if (e.machine && !first) readMachine();
  }
  known.revision = message.revision;
  changed();
  readState();
  if (!document.hidden) readAttention();
}

/**
 * start reads the machine, and follows it.
 * @param {(text: string, bad?: boolean) => void} onSay
 * @param {() => void} onChange
 */
export async function start(onSay, onChange) {
  [say, tell] = [onSay, onChange];
  known.machine = await api('machine');
  follow(apply, () => say('no connection to berthd; trying again', true));
  setInterval(() => { if (!document.hidden) readAttention(); }, attentionEvery);
  document.addEventListener('visibilitychange', () => { if (!document.hidden) readAttention(); });
}

/** @param {string} uid */
export function podName(uid) {
  const pod = known.pods.get(uid);
  return pod ? `${pod.resourceClaimNodes ? 'claim ' : ''}${pod.namespace}/${pod.name}` : uid;
}

/**
 * scene is what the map shows now, with pods that are not on the machine.
 * @param {import('./pod.js').PodOnMap[]} [extra]
 * @returns {import('./pod.js').Scene}
 */
export function scene(extra = []) {
  if (!extra.length && present) return present;
  const there = extra.length ? scene().pods : order([...known.pods.values()].map(podOnMap));
  const taken = new Set(extra.flatMap((p) => p.cpus));
  const left = extra.flatMap((p) => (p.pod ? podOnMap(p.pod).cpus : []));
  const all = {
    machine: known.machine, state: withMemory(known.state, extra), pods: instead(there, extra),
    shared: [...new Set([...known.shared, ...left])].filter((id) => !taken.has(id)),
  };
  if (!extra.length) present = all;
  return all;
}

/**
 * instead has pods in the place of those with their uid, and new ones at the end, so that all others keep their letter and color.
 * @param {import('./pod.js').PodOnMap[]} pods
 * @param {import('./pod.js').PodOnMap[]} extra
 */
export function instead(pods, extra) {
  return [...pods.map((p) => extra.find((e) => e.uid === p.uid) ?? p), ...extra.filter((e) => !pods.some((p) => p.uid === e.uid))];
}

/**
 * withMemory is a state in which pods hold what they would have, in place of what they have.
 * @param {any} state
 * @param {import('./pod.js').PodOnMap[]} pods
 */
export function withMemory(state, pods) {
  if (!pods.length) return state;
  /** @type {Map<string, number>} */
  const more = new Map();
  const add = (/** @type {any[]} */ claims, /** @type {number} */ sign) => {
    for (const c of claims) {
      for (const b of c.memory?.blocks || []) {
        const nodes = b.numaNodes?.ids || [];
        for (const n of nodes) more.set(`${n} ${c.resource}`, (more.get(`${n} ${c.resource}`) ?? 0) + (sign * Number(b.bytes)) / nodes.length);
      }
    }
  };
  for (const p of pods) {
    add(p.claims, 1);
    if (p.pod) add(podOnMap(p.pod).claims, -1);
  }
  const nodes = (state.memory.nodes || []).map((/** @type {any} */ n) => ({ ...n, resources: (n.resources || []).map((/** @type {any} */ r) => ({ ...r, heldBytes: Math.max(0, Number(r.heldBytes) + (more.get(`${n.numaNode} ${r.resource}`) ?? 0)) })) }));
  return { ...state, memory: { ...state.memory, nodes } };
}

/**
 * usersOf names the containers that use a claim on dynamic resources, as berth-nri has told with their pods.
 * @param {string} uid
 */
export function usersOf(uid) {
  return [...known.pods.values()].flatMap((p) => (p.containers || [])
    .filter((/** @type {any} */ c) => (c.externalDevices || []).some((/** @type {any} */ d) => d.resource === 'dra.berthd.github.io/claim' && d.id.split(':')[0] === uid))
    .map((/** @type {any} */ c) => `${p.namespace}/${p.name}/${c.containerName}`));
}
