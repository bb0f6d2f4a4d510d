// A click on a picture selects a patch.
element.addEventListener('click', event => {
  const picture = event.target.closest('.cx-picture');
  if (!picture) return;
  const box = picture.getBoundingClientRect(), rows = +picture.dataset.rows, columns = +picture.dataset.columns;
  const column = Math.min(columns - 1, Math.max(0, Math.floor((event.clientX - box.left) / box.width * columns)));
  const row = Math.min(rows - 1, Math.max(0, Math.floor((event.clientY - box.top) / box.height * rows)));
  trigger('select', { patch: row * columns + column });
});
