// @ts-check
// History: the calls that changed something, and the map as it was after one of them.
import { el, name, ranges, table, when, word } from './dom.js';
import { draw } from './map.js';
import { api, patient, problem } from './net.js';
import { mark, pictureOf } from './nodelist.js';
import { legend } from './now.js';
import { address } from './route.js';
import { pastScene } from './verdicts.js';

/** pastView is the history with the state that the address names. @param {string[]} path @returns {Promise<import('./app.js').View>} */
export async function pastView([revision]) {
  const { list, callers } = await api('history');
  /** @type {any[]} */
  const entries = [];
  let next = '';
  /** @type {Record<string, string>} */
  const names = {};
  const take = (/** @type {any} */ page) => {
    entries.push(...(page.list.entries || []));
    Object.assign(names, page.callers);
    next = page.list.nextPageToken;
  };
  take({ list, callers });
  const rows = el('div', {});
  const state = el('section', { id: 'past', 'aria-live': 'polite', 'aria-label': 'The machine in the past' });
  let chosen = revision ?? '';
  let asked = 0;
  const fill = () => rows.replaceChildren(!entries.length ? '' : table(['State after', 'Call', 'Pod', 'Verdict', 'By'], entries.map((e) => e.damage ? [`entry ${e.number}`, e.damage] : [
    el('a', { href: address('history', e.revision), 'aria-current': e.revision === chosen ? 'true' : null, title: `revision ${e.revision}` }, when(e.time) || `revision ${e.revision}`), e.call || 'berthd itself',
    e.name ? e.admissionId && e.verdict !== 'VERDICT_UNSPECIFIED' ? el('a', { href: address('pods', e.namespace, e.name, 'verdicts', e.admissionId) }, name(`${e.namespace}/${e.name}`)) : name(`${e.namespace}/${e.name}`) : null,
    el('span', { class: e.verdict === 'VERDICT_REJECTED' || e.verdict === 'VERDICT_DEFERRED' ? 'bad' : '' }, e.verdict === 'VERDICT_UNSPECIFIED' ? '' : word(e.verdict, 'VERDICT_')), names[e.number] && name(names[e.number]),
  ])), next ? el('button', { click: async () => { take(await api(`history?page=${encodeURIComponent(next)}`)); fill(); } }, 'older ones') : '');
  const show = async () => {
    const mine = ++asked;
    for (const a of rows.querySelectorAll('a[aria-current]')) a.removeAttribute('aria-current');
    for (const a of rows.querySelectorAll(`a[href="${CSS.escape(address('history', chosen))}"]`)) a.setAttribute('aria-current', 'true');
    if (!chosen) {
      state.replaceChildren(el('p', { class: 'soft' }, entries.length ? 'Select a time: the map shows the machine as it was then.' : 'Nothing is recorded.'));
      return;
    }
    try {
      const answer = await patient(`past?at=${encodeURIComponent(chosen)}`);
      if (mine === asked) state.replaceChildren(...pastState(answer, chosen, entries));
    } catch (e) { if (mine === asked) state.replaceChildren(banner(chosen, entries), el('p', { class: 'bad' }, problem(e))); }
  };
  const select = () => { chosen = location.hash.split('/')[2] ?? ''; show(); };
  fill();
  show();
  return { node: el('section', { class: 'history' }, el('h2', {}, 'History'), el('div', { class: 'two wideright' }, el('div', { class: 'entries' }, rows), state)), select };
}

/** banner says which state it is, and leads to its neighbours. @param {string} revision @param {any[]} entries the newest first */
function banner(revision, entries) {
  const all = [...new Set(entries.map((e) => e.revision))];
  const at = all.indexOf(revision);
  const to = (/** @type {string|undefined} */ r, /** @type {string} */ text) => (r === undefined ? null : el('a', { href: address('history', r) }, text));
  const entry = entries.find((e) => e.revision === revision);
  return el('p', { class: 'banner' }, el('b', {}, 'The past'), ` revision ${revision}`, entry ? ', ' : '', when(entry?.time), ' ', to(at < 0 ? undefined : all[at + 1], '← earlier'), ' ', to(at > 0 ? all[at - 1] : undefined, 'later →'), ' ', el('a', { href: '#/now' }, 'now'));
}

/** @param {any} answer @param {string} revision @param {any[]} entries */
function pastState(answer, revision, entries) {
  const s = pastScene(answer);
  return [banner(revision, entries), el('div', { class: 'ofthepast' }, pictureOf(s, (x) => draw(x, { label: `Map of the past, revision ${revision},` }).picture)), legend(s),
    el('p', { class: 'soft' }, unknownThen(answer)),
    table(['', 'Pod', 'CPUs'], s.pods.slice(0, 200).map((p, i) => [mark(i), name(p.name), p.cpus.length ? ranges(p.cpus).replaceAll(',', ', ') : 'shared']))];
}

/** unknownThen says what is not known of the past. @param {any} answer */
export function unknownThen(answer) {
  return 'The machine, and what is reserved, are those of then. Devices are those of now, without their health.'
    + (answer.machine.otherPolicy ? ' The policy or the configuration was another one.' : '');
}
