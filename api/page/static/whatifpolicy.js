// @ts-check
// A dry run of another policy.
import { el, ids, name, ranges, table, when } from './dom.js';
import { draw } from './map.js';
import { api } from './net.js';
import { pictureOf } from './nodelist.js';
import { scene } from './store.js';
import { pane } from './pane.js';

/** @type {[string, string, string[]][]} */
const fields = [
  ['topologyPolicy', 'Topology policy', ['none', 'best-effort', 'restricted', 'single-numa-node']], ['topologyScope', 'Scope', ['container', 'pod']],
  ['cpuPolicy', 'CPU policy', ['none', 'static']], ['memoryPolicy', 'Memory policy', ['None', 'Static']],
];

/** @type {Record<string, string>} */
const fates = { FATE_SAME: 'the same', FATE_OTHERWISE: 'something else', FATE_REFUSED: 'rejected' };

export async function policyForm() {
  const now = await api('policy');
  const s = now.settings || {};
  const inputs = fields.map(([key, title, values]) => {
    const select = /** @type {HTMLSelectElement} */ (el('select', { id: key }, ...values.map((v) => el('option', { value: v, selected: s[key] === v ? '' : null }, v))));
    return { key, select, node: el('label', {}, el('span', {}, title), select) };
  });
  const reserved = /** @type {HTMLInputElement} */ (el('input', { id: 'reservedCpus', value: s.reservedCpus?.list || '' }));
  const options = (/** @type {any} */ o) => Object.entries(o || {}).sort().map(([k, v]) => `${k}=${v}`).join(', ');
  const more = table(['Setting in force', ''], [['Topology options', options(s.topologyOptions)], ['CPU options', options(s.cpuOptions)], ['System reserved', options(s.systemReserved)], ['Kube reserved', options(s.kubeReserved)], ['Eviction', options(s.evictionHard)]]
    .filter(([, v]) => v));
  return pane([el('div', { class: 'fields' }, ...inputs.map((i) => i.node), el('label', {}, el('span', {}, 'Reserved CPUs'), reserved)),
    el('p', { class: 'soft' }, now.overridden ? 'In force: set by a call at ' : 'In force: as configured.', when(now.setTime)), more], async () => {
    /** @type {Record<string, any>} */
    const request = {};
    for (const i of inputs) if (i.select.value !== s[i.key]) request[i.key] = i.select.value;
    if (reserved.value !== (s.reservedCpus?.list || '')) request.reservedCpus = { list: reserved.value };
    return result(await api('trials/policy', JSON.stringify(request)));
  }).node;
}

/** @param {any} r a berth.topology.v1.SetPolicyResponse */
function result(r) {
  if (!r.changed) return el('p', {}, 'This is the policy in force.');
  const before = scene();
  const after = { ...before, shared: ids(r.sharedAfter?.list), state: { ...before.state, cpu: { ...before.state.cpu, reserved: r.reservedAfter } } };
  const differ = ranges(ids(r.sharedAfter?.list)) !== ranges(ids(r.sharedBefore?.list)) || r.reservedAfter?.list !== r.reservedBefore?.list;
  const refused = (/** @type {any} */ p) => p.fate === 'FATE_REFUSED';
  const pods = [...(r.pods || [])].sort((a, b) => Number(refused(b)) - Number(refused(a)));
  const count = (/** @type {string} */ fate) => pods.filter((/** @type {any} */ p) => p.fate === fate).length;
  return el('div', {}, el('p', {}, `If they came anew, ${count('FATE_SAME')} pods would get the same, ${count('FATE_OTHERWISE')} something else, and ${count('FATE_REFUSED')} would be rejected.`),
    el('p', { class: 'soft' }, `Shared CPUs: ${r.sharedBefore?.list || 'none'}, then ${r.sharedAfter?.list || 'none'}. Reserved CPUs: ${r.reservedBefore?.list || 'none'}, then ${r.reservedAfter?.list || 'none'}.`),
    ...(differ ? beforeAndAfter(before, after) : []),
    ...(pods.some(refused) ? [el('p', { id: 'refused', class: 'bad' }, `Rejected: ${pods.filter(refused).map((/** @type {any} */ p) => `${p.namespace}/${p.name}`).join(', ')}. Such pods would not start again.`)] : []),
    table(['Pod', 'If it came anew', 'Why', 'Keeps against the new policy'], pods.map((/** @type {any} */ p) => [name(`${p.namespace}/${p.name}`), el('span', { class: refused(p) ? 'bad' : null }, fates[p.fate] ?? p.fate), p.message || p.reason, (p.grandfathered || []).join('; ')])));
}

/**
 * beforeAndAfter are two maps.
 * @param {import('./pod.js').Scene} before
 * @param {import('./pod.js').Scene} after
 * @param {{from: number[], to: number[]}[]} [moves] drawn as arrows on the first
 * @returns {Element[]}
 */
export function beforeAndAfter(before, after, moves = []) {
  return [el('h3', {}, moves.length ? 'Before, with the moves' : 'Before'), pictureOf(before, (s) => draw(s, { label: 'Map before', moves }).picture),
    el('h3', {}, 'After'), pictureOf(after, (s) => draw(s, { label: 'Map after' }).picture)];
}
