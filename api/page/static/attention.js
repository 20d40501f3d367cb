// @ts-check
// What a person may have to do something about, from what berthd tells.
import { count, el, ids, name, ranges, when, word } from './dom.js';
import { address } from './route.js';
import { known, podName } from './store.js';
import { attributes, href } from './subject.js';

/** @typedef {{sign: string, time?: string, title: string, text: string, more?: string[], href?: string, about?: Record<string, string>}} Item */

const most = 40;

/** @returns {Item[]} */
function items() {
  const a = known.attention ?? {};
  return [...rejections(a.rejections?.traces || []), ...machine(), ...devices(), ...(a.check?.findings || []).map(finding), ...(a.usage?.drifts || []).map(drift), ...node(a.status ?? {})];
}

/** verdictOf is the address of a decision. @param {any} t a berth.types.v1.Trace */
export function verdictOf(t) { return address('pods', t.namespace, t.name, 'verdicts', t.admissionId); }

/** lacking is the one thing that a rejected pod lacks most. @param {any} t a berth.types.v1.Trace @returns {string} */
export function lacking(t) { return (t.missing || [])[0] || t.message || t.reason; }

/** @param {any[]} traces the newest first @returns {Item[]} */
function rejections(traces) {
  /** @type {Map<string, any[]>} */
  const byPod = new Map();
  for (const t of traces) byPod.set(`${t.namespace}/${t.name}`, [...(byPod.get(`${t.namespace}/${t.name}`) ?? []), t]);
  return [...byPod].map(([pod, list]) => ({
    sign: list[0].reason ? 'rejected' : 'deferred', time: list[0].decideTime, title: pod,
    text: lacking(list[0]) + (list.length > 1 ? ` (${list.length} times)` : ''), more: (list[0].missing || []).slice(1), href: verdictOf(list[0]),
  }));
}

/** @returns {Item[]} */
function machine() {
  const offline = ids(known.machine.offlineCpus?.list);
  if (!offline.length) return [];
  const held = offline.filter((id) => [...known.pods.values()].some((p) => (p.containers || []).some((/** @type {any} */ c) => c.exclusiveCpus && ids(c.cpus?.list).includes(id))));
  const first = { kind: /** @type {const} */ ('cpu'), id: String((held.length ? held : offline)[0]) };
  return [{ sign: 'offline', title: `CPUs ${ranges(offline)}`, text: held.length ? `offline, and pods hold ${ranges(held)}` : 'offline; no pod holds them', href: href(first), about: attributes(first) }];
}

/** @returns {Item[]} */
function devices() {
  /** @type {Item[]} */
  const out = [];
  for (const r of known.state.device.resources || []) {
    const first = r.devices?.[0] && { kind: /** @type {const} */ ('device'), resource: r.name, id: r.devices[0].device.id };
    if (r.pluginState !== 'PLUGIN_STATE_CONNECTED') out.push({ sign: 'away', title: r.name, text: `its plugin is ${word(r.pluginState, 'PLUGIN_STATE_')}, and pods get none of ${count((r.devices || []).length, 'device')}`, href: first && href(first) });
    const ill = (r.devices || []).filter((/** @type {any} */ d) => d.device.health === 'HEALTH_UNHEALTHY');
    if (!ill.length) continue;
    const at = { kind: /** @type {const} */ ('device'), resource: r.name, id: ill[0].device.id };
    const holders = [...new Set(ill.flatMap((/** @type {any} */ d) => (d.holders || []).map((/** @type {any} */ h) => podName(h.podUid))))];
    out.push({ sign: 'unhealthy', time: ill[0].device.healthHistory?.at(-1)?.time, title: r.name, text: `${ill.slice(0, 8).map((/** @type {any} */ d) => d.device.id).join(', ')}${ill.length > 8 ? ` and ${ill.length - 8} more` : ''} ${holders.length ? `, held by ${holders.join(', ')}` : 'held by nobody'}`.replace(' ,', ','), href: href(at), about: attributes(at) });
  }
  return out;
}

/** @param {any} f a berth.inspect.v1.Finding @returns {Item} */
function finding(f) {
  const uid = f.holder?.podUid;
  const pod = uid && { kind: /** @type {const} */ ('pod'), id: uid };
  return { sign: 'finding', title: uid ? podName(uid) : word(f.kind, 'FINDING_KIND_'), text: f.text, href: pod && href(pod), about: pod && attributes(pod) };
}

/** @param {any} d a berth.cgroup.v1.Drift @returns {Item} */
function drift(d) {
  const pod = d.podUid && { kind: /** @type {const} */ ('pod'), id: d.podUid };
  const what = d.file ? `${d.file} is ${d.found}, and should be ${d.want}` : d.found || 'its cgroup was removed';
  return { sign: 'drift', time: d.findTime, title: d.podUid ? podName(d.podUid) : d.cgroup, text: what, href: pod && href(pod), about: pod && attributes(pod) };
}

/** @param {any} s a berth.node.v1.GetStatusResponse @returns {Item[]} */
function node(s) {
  const of = (/** @type {string} */ title, /** @type {string[]} */ texts) => (texts || []).map((text) => ({ sign: 'node', title, text }));
  return [...of('scheduler', s.schedulerExcess), ...of('requirement', s.softRequirements), ...of('kernel', s.kernelSettings),
    ...of('system', (s.systemContainers || []).map((/** @type {any} */ c) => c.problem && `${word(c.part, 'PART_')}: ${c.problem}`).filter((/** @type {string} */ t) => t))];
}

/** @type {Record<string, string>} */
const parts = { rejections: 'rejections', check: 'findings', status: 'the status of the node', usage: 'drift' };

/** attention lists what needs it. */
export function attention() {
  if (!known.attention) return el('p', { class: 'soft' }, 'Reading …');
  const all = items();
  const untold = Object.entries(known.attention.untold || {}).map(([part, message]) => el('p', { class: 'soft' }, `Not known here: ${parts[part] ?? part} (${message}).`));
  if (!all.length) return el('div', {}, el('p', { class: 'good' }, '✓ Nothing needs attention.'), ...untold);
  return el('div', {}, el('ul', { class: 'items' }, ...all.slice(0, most).map((i) => el('li', { class: i.sign, ...i.about },
    el('div', {}, el('span', { class: 'sign' }, i.sign), ' ', i.href ? el('a', { href: i.href }, name(i.title)) : el('b', {}, name(i.title)), ' ', el('span', { class: 'soft time' }, when(i.time))),
    el('div', { class: 'clamp' }, i.text), ...(i.more || []).map((text) => el('div', { class: 'clamp' }, text))))), all.length > most ? el('p', { class: 'soft' }, `and ${all.length - most} more`) : null, ...untold);
}
