// A click on a button reports the numbers in its data attributes.
element.addEventListener('click', event => {
  const button = event.target.closest('button');
  if (!button) return;
  const numbers = Object.fromEntries(Object.entries(button.dataset).map(([name, value]) => [name, +value]));
  trigger('select', numbers);
});
