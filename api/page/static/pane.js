// @ts-check
// A form of a dry run, with the result beside it.
import { el } from './dom.js';
import { editor } from './editor.js';
import { draw } from './map.js';
import { Problem, problem } from './net.js';
import { pictureOf } from './nodelist.js';
import { route } from './route.js';
import { scene } from './store.js';

/**
 * pane is a form with the result of its dry run beside it.
 * @param {(Node|null)[]} form
 * @param {() => Promise<Node>} run
 * @param {(e: unknown) => void} [failed]
 */
export function pane(form, run, failed = () => {}) {
  const result = el('div', { id: 'result', 'aria-live': 'polite' }, el('h3', {}, 'Now'), pictureOf(scene(), (s) => draw(s).picture));
  const start = async () => {
    result.setAttribute('aria-busy', 'true');
    try { result.replaceChildren(await run()); } catch (e) {
      result.replaceChildren(el('p', { class: 'bad', id: 'failure' }, e instanceof Problem && e.mistakes.length ? 'The pod cannot be read: see its lines.' : problem(e)));
      failed(e);
    }
    result.removeAttribute('aria-busy');
  };
  return { node: el('div', { class: 'two' }, el('div', {}, ...form, el('div', { class: 'bar' }, el('button', { id: 'try', class: 'go', click: start }, 'Try'))), result), start };
}

/**
 * podPane is a pane with a pod to write.
 * @param {Node|null} more of the form
 * @param {(text: string, remark: (ignored: any[]) => void) => Promise<Node>} run
 */
export function podPane(more, run) {
  const edit = editor(() => p.start());
  const p = pane([edit.node, more], () => { edit.clear(); return run(edit.text(), (ignored) => edit.remark(ignored ?? [], 'ignored')); },
    (e) => { if (e instanceof Problem) edit.remark(e.mistakes, 'mistake'); });
  return p.node;
}

/** chosenPod is the pod that the address names. */
export function chosenPod() { return route().query.get('pod') ?? ''; }
