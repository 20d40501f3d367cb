// @ts-check
// Verdicts: the list with its filter, and each one as a place of its own.
import { el, ids, name, table, when } from './dom.js';
import { lacking, verdictOf } from './attention.js';
import { explanation, needsOf, outcome, planOf, plannedPod } from './explained.js';
import { draw } from './map.js';
import { api, patient, problem } from './net.js';
import { pictureOf } from './nodelist.js';
import { legend } from './now.js';
import { order, podOnMap } from './pod.js';
import { route, withQuery } from './route.js';
import { instead, known, scene, withMemory } from './store.js';
import { href } from './subject.js';

/** verdictsView is the list. @returns {Promise<import('./app.js').View>} */
export async function verdictsView() {
  const { query } = route();
  /** @type {any[]} */
  const traces = [];
  let next = '';
  const wanted = { refused: query.get('refused') ?? '', reason: query.get('reason') ?? '', pod: query.get('pod') ?? '' };
  const load = async () => {
    const page = await api(`traces?refused=${wanted.refused === '1'}&page=${encodeURIComponent(next)}`);
    traces.push(...(page.traces || []));
    next = page.nextPageToken;
  };
  await load();
  const body = el('div', {});
  const reasons = /** @type {HTMLSelectElement} */ (el('select', { id: 'reason', change: () => { wanted.reason = reasons.value; keep(); } }));
  const pod = /** @type {HTMLInputElement} */ (el('input', { id: 'filter', type: 'search', value: wanted.pod, 'aria-label': 'Filter by pod', placeholder: 'pod  ( / )', input: () => { wanted.pod = pod.value; keep(); } }));
  const refused = /** @type {HTMLInputElement} */ (el('input', { id: 'refused', type: 'checkbox', checked: wanted.refused === '1' ? '' : null, change: () => { location.hash = withQuery({ refused: refused.checked ? '1' : '' }); } }));
  const keep = () => { history.replaceState(null, '', withQuery(wanted)); fill(); };
  const fill = () => {
    const all = [...new Set([...traces.map((t) => t.reason), wanted.reason].filter((r) => r))].sort();
    reasons.replaceChildren(...['', ...all].map((r) => el('option', { value: r, selected: r === wanted.reason ? '' : null }, r || 'any reason')));
    const found = traces.filter((t) => (!wanted.reason || t.reason === wanted.reason) && `${t.namespace}/${t.name}`.includes(wanted.pod));
    body.replaceChildren(table(['Time', 'Pod', 'Verdict', 'Missing'], found.map((t) => [
      when(t.decideTime), el('a', { href: verdictOf(t) }, name(`${t.resourceClaim ? 'claim ' : ''}${t.namespace}/${t.name}`)), outcome(t), t.admitted ? null : lacking(t),
    ])), found.length ? '' : el('p', { class: 'soft' }, traces.length ? 'No verdict matches.' : 'berthd remembers no verdict.'),
    next ? el('button', { click: async () => { await load(); fill(); } }, 'older ones') : '');
  };
  fill();
  return { node: el('section', {}, el('div', { class: 'bar' }, el('h2', {}, 'Verdicts'), pod, reasons, el('label', {}, refused, 'rejected only')), body) };
}

/** verdictView is one verdict. @param {string[]} path NS, NAME, "verdicts", ID @returns {Promise<import('./app.js').View>} */
export async function verdictView([namespace, podName, , id]) {
  const { trace: t, told, caller } = await api(`trace?admission=${encodeURIComponent(id)}`);
  const title = `${t.resourceClaim ? 'claim ' : ''}${t.namespace || namespace}/${t.name || podName}`;
  /** @type {[string, any][]} */
  const facts = [['Decided', when(t.decideTime)], ['Sent by', caller && name(caller)], ['On revision', t.revision], ['Admission', name(t.admissionId)], ['Uid', name(t.podUid)]];
  const there = known.pods.get(t.podUid);
  const right = el('section', { 'aria-label': 'Map' }, el('p', { class: 'soft' }, 'Reading the map …'));
  mapOf(t).then((m) => right.replaceChildren(m), (e) => right.replaceChildren(el('p', { class: 'bad' }, problem(e))));
  return { node: el('article', { class: 'verdict' }, el('h1', {}, name(title), ' ', outcome(t)),
    el('dl', { class: 'facts inline' }, ...facts.filter(([, v]) => v).map(([k, v]) => el('div', {}, el('dt', {}, k), el('dd', {}, v)))),
    there ? el('p', {}, el('a', { href: href({ kind: 'pod', id: t.podUid }) }, 'Where it is now')) : null,
    el('div', { class: 'two' }, explanation(t, told), right)) };
}

/** mapOf is the map of the moment of a decision, if it is kept, with what the pod got, or would need. @param {any} t */
async function mapOf(t) {
  const planned = planOf(t).length ? [plannedPod(t)] : [];
  let s = scene(planned);
  let when = 'The machine now';
  try {
    s = pastScene(await patient(`past?at=${t.revision}`), planned);
    when = `The machine at revision ${t.revision}`;
  } catch (e) { when += `, because that of the decision is not known (${problem(e)})`; }
  const needs = t.admitted ? [] : needsOf(t);
  const what = t.admitted ? (planned.length ? ', with what the pod got in a frame.' : ', before the pod came on the shared CPUs.') : !needs.length ? '.' : needs[0].sets ? ', with the nodes that each resource prefers.' : ', with what the pod needs, as far as it is there.';
  return el('div', {}, el('p', { class: 'soft' }, when + what), pictureOf(s, (x) => draw(x, { needs }).picture), legend(s));
}

/**
 * pastScene is a state of the past as the map takes it, on the machine of that time.
 * @param {any} answer
 * @param {import('./pod.js').PodOnMap[]} [extra]
 * @returns {import('./pod.js').Scene}
 */
export function pastScene(answer, extra = []) {
  const taken = new Set(extra.flatMap((p) => p.cpus));
  return { machine: answer.machine, state: withMemory(answer, extra), pods: instead(order((answer.list.pods || []).map(podOnMap)), extra), shared: ids(answer.cpu.shared?.list).filter((id) => !taken.has(id)) };
}
