// @ts-check
// The first view: the map, what needs attention, totals and pods. A selection is in the address, and everything
// follows it, and a hover for as long as it lasts.
import { el, rows, table } from './dom.js';
import { attention } from './attention.js';
import { draw } from './map.js';
import { narrow, pictureOf } from './nodelist.js';
import { podTable } from './pods.js';
import { address, route } from './route.js';
import { sharesReserved } from './pod.js';
import { scene } from './store.js';
import { about, fromPath, href, light, subjectOf } from './subject.js';
import { devices, totals, unfold } from './totals.js';

/** @typedef {import('./subject.js').Subject} Subject */

const hint = 'Point at anything, or use the arrow keys in the map: this line says what it is. Enter or a click selects it, Escape lets go.';

/** What stays when the map is drawn again. */
const kept = { viewBox: '', cursor: '' };

/** nowView makes the view. @returns {import('./app.js').View} */
export function nowView() {
  const line = el('div', { class: 'panel', 'aria-live': 'polite', id: 'about' });
  const picture = el('div', { id: 'picture' });
  const signs = el('div', {});
  const needs = el('section', { id: 'attention', 'aria-labelledby': 'needs' });
  const sums = el('section', { id: 'totals', 'aria-labelledby': 'sums' });
  const pods = podTable();
  const first = el('div', { class: 'first' }, el('section', { 'aria-label': 'Map' }, picture, signs), el('aside', {}, needs, sums));
  const node = el('div', { class: 'now' }, line, first, pods.node);

  /** @type {Subject|null} */
  let selected = fromPath(route().path.slice(1));
  /** @type {Subject|null} */
  let pointed = null;
  const show = () => {
    const subject = pointed ?? selected;
    light(node, subject);
    line.replaceChildren(subject ? about(subject) : el('p', { class: 'soft' }, narrow.matches ? 'Select a pod or a node: this line says what it is.' : hint));
    line.classList.toggle('selected', selected !== null && pointed === null);
    node.classList.toggle('picked', selected !== null && pointed === null);
  };
  const point = (/** @type {EventTarget|null} */ target) => {
    if (target instanceof Element && target.closest('#about')) return; // its links stay reachable
    const next = subjectOf(target);
    if (JSON.stringify(next) === JSON.stringify(pointed)) return;
    pointed = next;
    show();
  };
  node.addEventListener('pointerover', (e) => { if (!(e.buttons & 1)) point(e.target); });
  node.addEventListener('pointerleave', () => point(null));
  node.addEventListener('focusin', (e) => { if (!(e.target instanceof Element && e.target.matches('.map'))) point(e.target); });
  node.addEventListener('click', (e) => {
    if (!(e.target instanceof Element) || e.target.closest('a, button, input, summary')) return;
    const s = subjectOf(e.target);
    if (s) location.hash = JSON.stringify(s) === JSON.stringify(selected) ? address('now') : href(s);
  });

  /** cursor moves to a CPU of the map. @param {string} id */
  const cursor = (id) => {
    kept.cursor = id;
    for (const e of picture.querySelectorAll('.chosen')) e.classList.remove('chosen');
    picture.querySelector(`[data-cpu="${id}"]`)?.classList.add('chosen');
  };
  const drawMap = () => {
    const focused = document.activeElement?.classList.contains('map');
    signs.replaceChildren(legend(scene()));
    picture.replaceChildren(pictureOf(scene(), (s) => {
      const map = draw(s).picture;
      map.id = 'map';
      if (kept.viewBox) map.setAttribute('viewBox', kept.viewBox);
      new MutationObserver(() => { kept.viewBox = map.getAttribute('viewBox') || ''; }).observe(map, { attributeFilter: ['viewBox'] });
      map.addEventListener('keydown', (e) => {
        const next = step(map, kept.cursor, e.key);
        if (next !== null) {
          e.preventDefault();
          cursor(next);
          pointed = { kind: 'cpu', id: next };
          show();
        } else if (e.key === 'Enter' && kept.cursor) location.hash = href({ kind: 'cpu', id: kept.cursor });
      });
      return map;
    }));
    if (kept.cursor) cursor(kept.cursor);
    if (focused) /** @type {HTMLElement|null} */ (picture.querySelector('.map'))?.focus({ preventScroll: true });
  };
  const drawTotals = () => {
    const { head, body } = totals();
    const of = table(head);
    rows(of, body);
    keepFocus(sums, () => sums.replaceChildren(el('h2', { id: 'sums' }, 'Free'), of, el('h2', {}, 'Devices'), devices()));
  };
  const update = () => {
    drawMap();
    keepFocus(needs, () => needs.replaceChildren(el('h2', { id: 'needs' }, 'Needs attention'), attention()));
    drawTotals();
    keepFocus(pods.node, pods.update);
    show();
  };
  const select = () => {
    selected = fromPath(route().path.slice(1));
    pointed = null;
    if (selected?.kind === 'cpu') cursor(selected.id);
    if (selected?.kind === 'device') { unfold(selected.resource); drawTotals(); }
    show();
  };
  if (selected?.kind === 'device') unfold(selected.resource);
  if (selected?.kind === 'cpu') kept.cursor = selected.id;
  update();
  narrow.onchange = update;
  return { node, update, select };
}

/** keepFocus replaces content, and focuses the link again that had the focus. @param {Element} within @param {() => void} replace */
function keepFocus(within, replace) {
  const at = document.activeElement;
  const link = at && within.contains(at) ? at.getAttribute('href') : null;
  replace();
  if (link) /** @type {HTMLElement|null} */ (within.querySelector(`a[href="${CSS.escape(link)}"]`))?.focus({ preventScroll: true });
}

/**
 * step is the next CPU in the direction of a key; null for another key.
 * @param {SVGElement} map
 * @param {string} from
 * @param {string} key
 */
function step(map, from, key) {
  const [dx, dy] = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[key] ?? [0, 0];
  if (!dx && !dy) return null;
  const at = map.querySelector(`[data-cpu="${from}"]`);
  if (!at) return map.querySelector('[data-cpu]')?.getAttribute('data-cpu') ?? null;
  const [x, y] = spot(at);
  let [best, nearest] = [from, Infinity];
  for (const other of map.querySelectorAll('[data-cpu]')) {
    const [ox, oy] = spot(other);
    const along = (ox - x) * dx + (oy - y) * dy;
    const across = Math.abs((ox - x) * dy) + Math.abs((oy - y) * dx);
    if (along > 0 && along + 3 * across < nearest) [best, nearest] = [other.getAttribute('data-cpu') ?? from, along + 3 * across];
  }
  return best;
}

/** @param {Element} rect */
function spot(rect) { return [Number(rect.getAttribute('x')), Number(rect.getAttribute('y'))]; }

/** legend explains the signs; pods are in the table. @param {import('./pod.js').Scene} scene */
export function legend(scene) {
  const sign = (/** @type {string} */ kind, /** @type {string} */ text, /** @type {string} */ what) => el('li', {}, el('i', { class: `key ${kind}` }, text), what);
  return el('ul', { class: 'legend' }, sign('pod', 'A', 'held by a pod'), sign('shared', '', 'shared or free'), sign('reserved', '', sharesReserved(scene) ? 'reserved, also shared' : 'reserved'),
    sign('offline', '×', 'offline or unhealthy'), sign('broken', '!', 'held, and offline or unhealthy'), sign('unknown', '?', 'unknown holder'));
}
