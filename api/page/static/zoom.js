// @ts-check
// Zooming and moving a picture, with keys, wheel and pointer.

/**
 * zoomable lets + and - and the wheel with Ctrl zoom, 0 show all, and the pointer drag what is zoomed.
 * @param {SVGElement} picture
 */
export function zoomable(picture) {
  const view = () => (picture.getAttribute('viewBox') || '0 0 1 1').split(' ').map(Number);
  const all = view();
  const set = (/** @type {number[]} */ v) => {
    picture.setAttribute('viewBox', v.join(' '));
    picture.classList.toggle('zoomed', v[2] < all[2]);
  };
  const zoom = (/** @type {number} */ factor, /** @type {number} */ fx, /** @type {number} */ fy) => {
    const [x, y, w, h] = view();
    const scale = Math.min(Math.max(w * factor, all[2] / 60), all[2]) / w;
    if (w * scale >= all[2]) set(all);
    else set([x + w * fx * (1 - scale), y + h * fy * (1 - scale), w * scale, h * scale]);
  };
  picture.addEventListener('wheel', (e) => {
    if (!e.ctrlKey && !e.metaKey) return; // the page scrolls
    e.preventDefault();
    const box = picture.getBoundingClientRect();
    zoom(e.deltaY > 0 ? 1.15 : 1 / 1.15, (e.clientX - box.left) / box.width, (e.clientY - box.top) / box.height);
  }, { passive: false });
  /** @type {{x: number, y: number, view: number[]}|null} */
  let from = null;
  picture.addEventListener('pointerdown', (e) => { if (view()[2] < all[2]) from = { x: e.clientX, y: e.clientY, view: view() }; });
  picture.addEventListener('pointermove', (e) => {
    if (!from || !(e.buttons & 1)) { from = null; return; }
    const scale = from.view[2] / picture.getBoundingClientRect().width;
    set([from.view[0] - (e.clientX - from.x) * scale, from.view[1] - (e.clientY - from.y) * scale, from.view[2], from.view[3]]);
  });
  picture.addEventListener('keydown', (e) => {
    if (e.key === '+' || e.key === '=') zoom(1 / 1.3, 0.5, 0.5);
    else if (e.key === '-') zoom(1.3, 0.5, 0.5);
    else if (e.key === '0') set(all);
  });
}
