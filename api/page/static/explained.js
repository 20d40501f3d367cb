// @ts-check
// A decision in the words of berthctl explain, which the program that serves this page has made of it.
import { el, list } from './dom.js';
import { claimed } from './pod.js';

/** outcome is the verdict in a word, with its reason. @param {any} t a berth.types.v1.Trace */
export function outcome(t) {
  if (t.admitted) return el('span', { class: 'badge good' }, '✓ admitted');
  return t.reason ? el('span', { class: 'badge bad' }, `× rejected: ${t.reason}`) : el('span', { class: 'badge bad' }, 'deferred');
}

/** planOf are the claims of the last plan in a decision. @param {any} t a berth.types.v1.Trace */
export function planOf(t) {
  let claims = /** @type {any[]} */ ([]);
  for (const s of t?.steps || []) {
    if (s.kind === 'TRACE_STEP_KIND_REPLANNED') claims = [];
    if (s.kind === 'TRACE_STEP_KIND_PLANNED') claims.push(s.claim);
  }
  return claims;
}

/** @param {any} t a berth.types.v1.Trace @returns {import('./pod.js').PodOnMap} */
export function plannedPod(t) {
  const claims = planOf(t);
  return { uid: t.podUid, name: `${t.namespace}/${t.name}`, claims, cpus: claimed(claims), planned: true, pod: null };
}

/**
 * needsOf is what nodes lack, for the map; or, where nothing is short and the topology policy refuses, the nodes that each resource prefers.
 * @param {any} t a berth.types.v1.Trace
 * @returns {any[]}
 */
export function needsOf(t) {
  const seen = new Set();
  const short = (t?.steps || []).flatMap((/** @type {any} */ s) => s.shortages || []).filter((/** @type {any} */ s) => {
    const key = JSON.stringify(s);
    return seen.has(key) ? false : seen.add(key);
  });
  if (short.length) return short;
  const steps = t?.steps || [];
  const merged = steps.findLastIndex((/** @type {any} */ s) => s.kind === 'TRACE_STEP_KIND_MERGED');
  return steps.filter((/** @type {any} */ s, /** @type {number} */ i) => i < merged && s.kind === 'TRACE_STEP_KIND_ANSWERED' && s.containerName === steps[merged].containerName)
    .map((/** @type {any} */ s) => ({ resource: s.resource, sets: (s.hints || []).filter((/** @type {any} */ h) => h.preferred).map((/** @type {any} */ h) => h.numaNodes?.ids || []) }));
}

/** explanation tells why, and what would help. @param {any} t a berth.types.v1.Trace @param {any} told its steps in words */
export function explanation(t, told) {
  const missing = t.missing || [];
  const parts = told?.parts || [];
  return el('div', { class: 'explanation' },
    t.message && !missing.includes(t.message) ? el('p', {}, t.message) : null,
    missing.length ? el('h2', {}, 'Missing') : null, missing.length ? list(missing) : null,
    ...suggestions(t),
    parts.length ? el('h2', {}, 'Steps') : null,
    ...parts.map((/** @type {any} */ p) => el('div', { class: 'part' }, el('h3', {}, p.owner), list(p.steps))),
    told?.note ? el('p', { class: 'soft' }, told.note) : null);
}

/** @param {any} t */
function suggestions(t) {
  const all = t.suggestions || [];
  if (!all.length) return t.tried > 0 ? [el('p', { class: 'soft' }, `No smaller request, other policy or removal of pods was found to help (${t.tried} dry runs).`)] : [];
  return [el('h2', {}, 'It would fit'), el('ol', { class: 'help' }, ...all.map((/** @type {any} */ s) => el('li', {}, s.text, (s.how || []).length ? commands(s.how) : null)))];
}

/** commands are lines to carry out, with a button that copies them. @param {string[]} how */
function commands(how) {
  const text = how.join('\n');
  const lines = el('pre', { tabindex: 0 }, text);
  const copy = el('button', { class: 'copy', click: async () => {
    try {
      await navigator.clipboard.writeText(text);
      copy.textContent = 'copied';
    } catch { // a browser may refuse: the person copies the selection
      getSelection()?.selectAllChildren(lines);
      copy.textContent = 'selected';
    }
    setTimeout(() => { copy.textContent = 'copy'; }, 2000);
  } }, 'copy');
  return el('div', { class: 'how' }, lines, copy);
}
