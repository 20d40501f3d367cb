// @ts-check
// The table of pods with its filter.
import { bytes, el, name, ranges, rows, table, when, word } from './dom.js';
import { mark } from './nodelist.js';
import { nodesOf, places } from './pod.js';
import { scene } from './store.js';
import { link, why } from './subject.js';

/** How many rows are shown at first. */
const some = 25;

let filter = '';

/** podTable makes the table. update fills it again. */
export function podTable() {
  const of = table(['', 'Pod', 'CPUs', 'Nodes', 'Memory', 'Devices', 'QoS', 'Admitted', '']);
  of.classList.add('pods');
  const more = el('p', { class: 'soft' });
  let all = false;
  const update = () => {
    const s = scene();
    const place = places(s.machine);
    const found = s.pods.map((p, i) => ({ p, i })).filter(({ p }) => p.name.toLowerCase().includes(filter.toLowerCase()));
    const shown = all ? found : found.slice(0, some);
    rows(of, shown.map(({ p, i }) => ({
      about: { 'data-pod': p.uid },
      cells: [mark(i), link({ kind: 'pod', id: p.uid }, p.name), p.cpus.length ? el('span', { class: 'list' }, ranges(p.cpus).replaceAll(',', ', ')) : 'shared', nodesOf(p, place).join(', '),
        lines(p.claims.flatMap((c) => (c.memory?.blocks || []).map((/** @type {any} */ b) => `${c.resource} ${bytes(b.bytes)} on ${(b.numaNodes?.ids || []).join(', ')}`))),
        lines(p.claims.filter((c) => c.device).map((c) => `${c.resource}: ${c.device.devices.map((/** @type {any} */ d) => d.id).join(', ')}`)),
        word(p.pod.qosClass, 'QOS_CLASS_'), when(p.pod.admitTime), why(p.pod)],
    })));
    const left = found.length - shown.length;
    more.replaceChildren(...(left ? [`${left} more: filter, or `, el('button', { class: 'plain', click: () => { all = true; update(); } }, 'show all')]
      : !found.length ? [s.pods.length ? 'No pod has such a name.' : 'No pods.'] : []));
  };
  const input = /** @type {HTMLInputElement} */ (el('input', { type: 'search', id: 'filter', value: filter, 'aria-label': 'Filter pods by name', placeholder: 'filter  ( / )', input: () => { filter = input.value; update(); } }));
  return { node: el('section', { id: 'pods', 'aria-labelledby': 'podtitle' }, el('div', { class: 'bar' }, el('h2', { id: 'podtitle' }, 'Pods'), input), of, more), update };
}

/** @param {string[]} texts */
function lines(texts) { return texts.length ? el('span', {}, ...texts.map((t) => el('div', {}, name(t)))) : null; }
