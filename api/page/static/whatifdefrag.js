// @ts-check
// The plan of a defragmentation: which pods would move so that another one fits.
import { count, el, list, ranges } from './dom.js';
import { api } from './net.js';
import { podOnMap } from './pod.js';
import { known, podName, scene } from './store.js';
import { podPane } from './pane.js';
import { beforeAndAfter } from './whatifpolicy.js';
import { afterMove, cost, steps } from './whatifresize.js';

export function defragForm() {
  const most = /** @type {HTMLInputElement} */ (el('input', { id: 'moves', type: 'number', min: 1, max: 16, value: 4 }));
  const more = el('div', { class: 'fields' }, el('label', {}, el('span', {}, 'At most so many moves'), most),
    el('p', { class: 'soft' }, 'Only pods with the annotation berthd.github.io/movable move.'));
  return podPane(more, async (text, remark) => {
    const { plan, ignored } = await api(`trials/defrag?moves=${encodeURIComponent(most.value)}`, text);
    remark(ignored);
    return result(plan);
  });
}

/** @param {any} plan a berth.admission.v1.DefragmentPlan */
function result(plan) {
  const moves = (plan.moves || []).filter((/** @type {any} */ m) => known.pods.has(m.podUid));
  const text = plan.verdict === 'VERDICT_ADMITTED' ? '✓ The pod fits as things are: no pod moves.' : plan.fits ? `✓ The pod fits after ${count(moves.length, 'move')}.` : '× The pod does not fit.';
  const head = el('p', { id: 'verdict' }, el('span', { class: `badge ${plan.fits ? 'good' : 'bad'}` }, text));
  const why = [...new Set([plan.why, plan.verdict === 'VERDICT_ADMITTED' || !plan.message ? '' : plan.fits ? `Without them: ${plan.message}` : plan.message].filter((t) => t))].map((t) => el('p', {}, t));
  if (!plan.allocation) return el('div', {}, head, ...why);
  const after = moves.map((/** @type {any} */ m) => afterMove(known.pods.get(m.podUid), m.plan));
  const wanted = { ...podOnMap(plan.allocation), planned: true, pod: null };
  const shown = moves.map((/** @type {any} */ m, /** @type {number} */ i) => ({ from: podOnMap(known.pods.get(m.podUid)).cpus, to: after[i].cpus }));
  return el('div', {}, head, ...why, moves.length ? list(moves.map((/** @type {any} */ m) => `${podName(m.podUid)}: ${cost(m.plan)}`)) : null, wanted.cpus.length ? el('p', {}, `${wanted.name} would have the CPUs `, ranges(wanted.cpus)) : el('p', {}, `${wanted.name} would run on the shared CPUs.`),
    ...beforeAndAfter(scene(), scene([...after, wanted]), shown), moves.length ? steps(moves.map((/** @type {any} */ m) => m.plan)) : null);
}
