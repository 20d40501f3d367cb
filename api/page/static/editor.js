// @ts-check
// A place to write a pod, with the number of each line, and its mistakes at their line.
import { el } from './dom.js';

const example = `apiVersion: v1
kind: Pod
metadata: {name: trial, namespace: default}
spec:
  containers:
  - name: main
    resources:
      limits: {cpu: 2, memory: 1Gi}
`;

/** The text stays while the page is open, also in another view. */
let written = example;

/**
 * editor makes it. remark marks lines; run is called with Ctrl+Enter.
 * @param {() => void} run
 */
export function editor(run) {
  const numbers = el('div', { class: 'numbers', 'aria-hidden': 'true' });
  const problems = el('ul', { class: 'problems', id: 'problems' });
  /** @type {Map<number, string>} */
  const marked = new Map();
  const text = /** @type {HTMLTextAreaElement} */ (el('textarea', { id: 'pod', spellcheck: 'false', wrap: 'off', 'aria-label': 'Pod in YAML or JSON', 'aria-describedby': 'problems' }));
  const number = () => {
    const lines = text.value.split('\n').length;
    numbers.replaceChildren(...Array.from({ length: lines }, (_, i) => el('div', { class: marked.get(i + 1) }, `${marked.has(i + 1) ? '● ' : ''}${i + 1}`)));
    numbers.scrollTop = text.scrollTop;
  };
  text.value = written;
  text.addEventListener('input', () => { written = text.value; number(); });
  text.addEventListener('scroll', () => { numbers.scrollTop = text.scrollTop; });
  text.addEventListener('keydown', (e) => { if (e.key === 'Enter' && (e.ctrlKey || e.metaKey)) run(); });
  const go = (/** @type {number} */ line) => {
    const lines = text.value.split('\n');
    const from = lines.slice(0, line - 1).join('\n').length + (line > 1 ? 1 : 0);
    text.focus();
    text.setSelectionRange(from, from + (lines[line - 1] ?? '').length);
    text.scrollTop = Math.max(0, (text.scrollHeight / lines.length) * (line - 4));
  };
  /** @param {{line: number, text: string}[]} list @param {'mistake'|'ignored'} kind */
  const remark = (list, kind) => {
    for (const r of list) {
      if (r.line > 0) marked.set(r.line, kind);
      problems.append(el('li', { class: kind }, r.line > 0 ? el('button', { class: 'plain', click: () => go(r.line) }, `line ${r.line}`) : null, r.line > 0 ? ': ' : null, r.text));
    }
    text.setAttribute('aria-invalid', String(kind === 'mistake' && list.length > 0));
    number();
  };
  const clear = () => { marked.clear(); problems.replaceChildren(); text.removeAttribute('aria-invalid'); number(); };
  number();
  return { node: el('div', {}, el('div', { class: 'editor' }, numbers, text), problems), text: () => text.value, remark, clear };
}
