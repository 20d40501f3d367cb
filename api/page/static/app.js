// @ts-check
// The page: which view the address names, when it is drawn, and the keys of all views.
import { el } from './dom.js';
import { api, login, problem } from './net.js';
import { nowView } from './now.js';
import { pastView } from './past.js';
import { route } from './route.js';
import { known, start } from './store.js';
import { verdictsView, verdictView } from './verdicts.js';
import { whatifView } from './whatif.js';

/**
 * A view has its content. update draws again what has changed on the machine, and select follows a new path of the same view.
 * @typedef {{node: Element, update?: () => void, select?: () => void}} View
 */

const main = /** @type {HTMLElement} */ (document.getElementById('main'));
const statusLine = /** @type {HTMLElement} */ (document.getElementById('status'));

/** @param {string} text @param {boolean} [bad] */
function say(text, bad = false) {
  statusLine.textContent = text;
  statusLine.className = bad ? 'bad' : '';
}

/** @type {Record<string, {nav: string, show: (path: string[]) => View|Promise<View>}>} */
const views = {
  now: { nav: '#/now', show: nowView }, verdicts: { nav: '#/verdicts', show: verdictsView }, pods: { nav: '#/verdicts', show: verdictView },
  whatif: { nav: '#/whatif/pod', show: whatifView }, history: { nav: '#/history', show: pastView },
};

/** What is shown: its name and its query, and the view. @type {{key: string, view: View|null}} */
let shown = { key: '', view: null };
let turn = 0;

/** keyOf is equal for addresses of which one view follows the other by itself. @param {string} name */
function keyOf(name) {
  const { path, query } = route();
  return [name, ...(name === 'now' || name === 'history' ? [] : path.slice(1)), query].join('\n');
}

async function render() {
  if (!known.machine || !known.state) return;
  const { path } = route();
  const name = Object.hasOwn(views, path[0] ?? '') && (path[0] !== 'pods' || path.length === 5) ? path[0] : 'now';
  for (const a of document.querySelectorAll('header nav a')) {
    if (a.getAttribute('href') === views[name].nav) a.setAttribute('aria-current', 'page');
    else a.removeAttribute('aria-current');
  }
  const key = keyOf(name);
  if (shown.key === key && shown.view?.select) { shown.view.select(); return; }
  const mine = ++turn;
  const begin = performance.now();
  const focused = document.activeElement?.id;
  let view = /** @type {View} */ ({ node: el('p', {}, '') });
  try { view = await views[name].show(path.slice(1)); } catch (e) {
    view = { node: el('div', {}, el('p', { class: 'bad', id: 'failure' }, `This cannot be shown here: ${problem(e)}`), el('p', {}, el('a', { href: '#/now' }, 'Back to now'))) };
  }
  if (mine !== turn) return;
  const other = shown.key.split('\n')[0] !== name;
  shown = { key, view };
  main.replaceChildren(view.node);
  main.dataset.view = name;
  main.dataset.revision = known.revision;
  main.dataset.drawn = String(Math.round(performance.now() - begin));
  if (other) scrollTo(0, 0);
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

/** changed draws again what a live view shows. */
function changed() {
  if (!shown.view) { render(); return; }
  if (!shown.view.update) return;
  const begin = performance.now();
  shown.view.update();
  main.dataset.revision = known.revision;
  main.dataset.drawn = String(Math.round(performance.now() - begin));
}

const keys = /** @type {HTMLDialogElement} */ (el('dialog', { 'aria-label': 'Keys' }, el('h2', {}, 'Keys'), el('dl', { class: 'facts' },
  ...[['/', 'filter pods, or verdicts'], ['arrows', 'go over the CPUs of the map'], ['Enter', 'select what has the focus'], ['Escape', 'select nothing'], ['+ − 0', 'zoom the map, show all'],
    ['Ctrl+Enter', 'try the pod in What if'], ['Tab', 'go on'], ['?', 'show these keys']].flatMap(([k, text]) => [el('dt', {}, el('kbd', {}, k)), el('dd', {}, text)])),
  el('button', { class: 'go', click: () => keys.close() }, 'Close')));
document.body.append(keys);
document.getElementById('keys')?.addEventListener('click', () => keys.showModal());

document.addEventListener('keydown', (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || keys.open) return;
  const typing = e.target instanceof HTMLElement && e.target.matches('input:not([type=checkbox]), textarea, select');
  if (e.key === 'Escape' && shown.key.startsWith('now') && route().path.length > 1) location.hash = '#/now';
  else if (e.key === 'Escape' && typing) /** @type {HTMLElement} */ (e.target).blur();
  if (typing) return;
  if (e.key === '?') keys.showModal();
  else if (e.key === '/') {
    e.preventDefault();
    if (!document.getElementById('filter')) location.hash = '#/now';
    setTimeout(() => document.getElementById('filter')?.focus());
  }
});

async function begin() {
  try {
    await login();
    document.title = (await api('about')).about;
    await start(say, changed);
  } catch (e) {
    say(problem(e), true);
    setTimeout(begin, 2000);
    return;
  }
  addEventListener('hashchange', render);
}

begin();
