// @ts-check
// What if: dry runs. Each has an address, and nothing changes.
import { el } from './dom.js';
import { explanation, needsOf, outcome, plannedPod } from './explained.js';
import { draw } from './map.js';
import { api } from './net.js';
import { pictureOf } from './nodelist.js';
import { legend } from './now.js';
import { podPane } from './pane.js';
import { scene } from './store.js';
import { defragForm } from './whatifdefrag.js';
import { policyForm } from './whatifpolicy.js';
import { resizeForm } from './whatifresize.js';

/** @type {[string, string, string, () => Node|Promise<Node>][]} */
const kinds = [
  ['pod', 'Pod', 'The verdict on a pod as if it came now.', podForm],
  ['policy', 'Policy', 'What another policy would mean for each pod. Running pods keep what they have in any case.', policyForm],
  ['resize', 'Resize', 'What other amounts would mean for a pod that runs.', resizeForm],
  ['defrag', 'Defragmentation', 'Which pods would move so that another one fits.', defragForm],
];

/** whatifView is the dry run of the address. @param {string[]} path @returns {Promise<import('./app.js').View>} */
export async function whatifView([which]) {
  const [id, , text, form] = kinds.find(([kind]) => kind === which) ?? kinds[0];
  const tabs = el('nav', { class: 'tabs', 'aria-label': 'What if' }, ...kinds.map(([kind, title]) => el('a', { href: `#/whatif/${kind}`, 'aria-current': kind === id ? 'page' : null }, title)));
  return { node: el('section', { class: 'whatif' }, el('div', { class: 'bar' }, el('h2', {}, 'What if'), tabs), el('p', { class: 'soft' }, `${text} Nothing changes.`), await form()) };
}

function podForm() {
  const hint = el('p', { class: 'soft' }, 'Ctrl+Enter tries it, too.');
  return podPane(hint, async (text, remark) => {
    const { answer, told, ignored } = await api('trials/pod', text);
    remark(ignored);
    const t = answer.trace;
    const planned = answer.verdict === 'VERDICT_ADMITTED' && plannedPod(t);
    const s = scene(planned ? [planned] : []);
    const notes = answer.notes || [];
    return el('div', {}, el('p', { id: 'verdict' }, outcome(t), ` ${t.namespace}/${t.name}`), ...notes.map((/** @type {string} */ n) => el('p', { class: 'soft' }, n)),
      planned && !planned.cpus.length ? el('p', {}, 'It would run on the shared CPUs.') : null,
      pictureOf(s, (x) => draw(x, { needs: planned ? [] : needsOf(t) }).picture), legend(s), explanation(t, told));
  });
}
