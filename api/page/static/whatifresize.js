// @ts-check
// A dry run of a resize.
import { bytes, el, list, name, table, word } from './dom.js';
import { explanation } from './explained.js';
import { api } from './net.js';
import { claimed, order, podOnMap } from './pod.js';
import { withQuery } from './route.js';
import { known, podName, scene } from './store.js';
import { chosenPod, pane } from './pane.js';
import { beforeAndAfter } from './whatifpolicy.js';

export function resizeForm() {
  const pods = order([...known.pods.values()].filter((p) => !p.resourceClaimNodes).map(podOnMap)).sort((a, b) => (a.name < b.name ? -1 : 1));
  if (!pods.length) return el('p', {}, 'There is no pod.');
  const uid = known.pods.has(chosenPod()) ? chosenPod() : pods[0].uid;
  const pod = known.pods.get(uid);
  const select = /** @type {HTMLSelectElement} */ (el('select', { id: 'resized', change: () => { location.hash = withQuery({ pod: select.value }); } }, ...pods.map((p) => el('option', { value: p.uid, selected: p.uid === uid ? '' : null }, p.name))));
  const fields = (pod.containers || []).flatMap(inputs);
  return pane([el('div', { class: 'fields' }, el('label', {}, el('span', {}, 'Pod'), select), ...fields.map((/** @type {Field} */ f) => f.node))], async () => {
    /** @type {Map<string, any>} */
    const changes = new Map();
    for (const f of fields) {
      if (f.input.value === f.now) continue;
      const c = changes.get(f.container) ?? { containerName: f.container, resources: { requests: {}, limits: {} } };
      for (const kind of f.kinds) c.resources[kind][f.resource] = f.input.value;
      changes.set(f.container, c);
    }
    if (!changes.size) return el('p', {}, 'These are the amounts that the pod has.');
    const { answer, told } = await api('trials/resize', JSON.stringify({ podUid: uid, owner: pod.owner, containers: [...changes.values()] }));
    return result(pod, answer, told);
  }).node;
}

/** @typedef {{container: string, resource: string, kinds: string[], now: string, input: HTMLInputElement, node: Element}} Field */

/** inputs are the amounts of a container: one input where request and limit are the same. @param {any} c @returns {Field[]} */
function inputs(c) {
  const [requests, limits] = [c.resources?.requests ?? {}, c.resources?.limits ?? {}];
  const field = (/** @type {string} */ resource, /** @type {string[]} */ kinds, /** @type {string} */ now, /** @type {string} */ text) => {
    const shown = resource === 'memory' && /^\d+$/.test(now) && bytes(now).replace(/[^\d.]+$/, '').indexOf('.') < 0 && Number(now) % 1048576 === 0 ? `${Number(now) / 1048576}Mi` : now;
    const input = /** @type {HTMLInputElement} */ (el('input', { value: shown, 'data-container': c.containerName, 'data-amount': resource }));
    return { container: c.containerName, resource, kinds, now: shown, input, node: el('label', {}, el('span', {}, name(`${c.containerName}: ${resource}${text}`)), input) };
  };
  return ['cpu', 'memory'].flatMap((r) => {
    const [request, limit] = [requests[r], limits[r]];
    if (request === undefined && limit === undefined) return [];
    if (request === limit) return [field(r, ['requests', 'limits'], request, '')];
    return [...(request === undefined ? [] : [field(r, ['requests'], request, ' request')]), ...(limit === undefined ? [] : [field(r, ['limits'], limit, ' limit')])];
  });
}

/** @param {any} pod @param {any} r a berth.admission.v1.ResizeResponse @param {any} told */
function result(pod, r, told) {
  const admitted = r.verdict === 'VERDICT_ADMITTED';
  const head = el('p', { id: 'verdict' }, el('span', { class: `badge ${admitted ? 'good' : 'bad'}` }, `${admitted ? '✓ ' : '× '}${word(r.verdict, 'VERDICT_')}${r.reason ? `: ${r.reason}` : ''}`), ` ${podName(pod.uid)}`);
  if (!admitted) return el('div', {}, head, r.trace ? explanation(r.trace, told) : el('p', {}, r.message));
  const after = afterMove(pod, r.plan, r.allocations);
  const before = podOnMap(pod);
  const restarts = r.restartContainers || [];
  return el('div', {}, head, list([`disruption: ${word(r.disruption, 'DISRUPTION_') || 'none'}`, ...(restarts.length ? [`restarts ${restarts.join(', ')}`] : []), r.plan ? cost(r.plan) : 'in place, in one step']),
    ...beforeAndAfter(scene(), scene([after]), [{ from: before.cpus, to: after.cpus }]), r.plan ? steps([r.plan]) : null);
}

/** cost says how much a plan moves. @param {any} plan a berth.types.v1.MovePlan */
export function cost(plan) { return `containers that move: ${plan.containerCount}, CPUs that get another owner: ${plan.cpuCount}, memory that moves: at most ${bytes(plan.bytes)}`; }

/**
 * afterMove is a pod with what it has after a move, or a resize.
 * @param {any} pod
 * @param {any} plan a berth.types.v1.MovePlan, or null
 * @param {any[]} [containers] what they have then, before the plan
 * @returns {import('./pod.js').PodOnMap}
 */
export function afterMove(pod, plan, containers = pod.containers || []) {
  const planned = (/** @type {string} */ container, /** @type {any[]} */ claims) => (claims || []).map((c) => (plan?.claims || [])
    .find((/** @type {any} */ to) => to.containerName === container && to.provider === c.provider && to.resource === c.resource) ?? c);
  const claims = [...planned('', pod.claims), ...containers.flatMap((c) => planned(c.containerName, c.claims).map((/** @type {any} */ claim) => ({ ...claim, containerName: c.containerName })))];
  return { uid: pod.uid, name: podName(pod.uid), claims, cpus: claimed(claims), planned: true, pod };
}

/** steps is a table of the steps of plans. @param {any[]} plans */
export function steps(plans) {
  const change = (/** @type {string} */ a, /** @type {string} */ b) => (a === b ? a : `${a || 'none'} to ${b || 'none'}`);
  return table(['Step', 'Container', 'CPUs', 'Memory nodes', 'Moves'], plans.flatMap((p) => (p.steps || []).map((/** @type {any} */ s) => [
    word(s.kind, 'MOVE_STEP_KIND_'), name(`${podName(s.podUid)}${s.containerName ? `/${s.containerName}` : ''}`), change(s.cpusBefore?.list ?? '', s.cpusAfter?.list ?? ''),
    change((s.memoryNodesBefore?.ids || []).join(', '), (s.memoryNodesAfter?.ids || []).join(', ')), s.kind === 'MOVE_STEP_KIND_MIGRATE' ? `at most ${bytes(s.bytes)}` : null,
  ])));
}
