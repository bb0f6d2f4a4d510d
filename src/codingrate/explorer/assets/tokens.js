// Hovering a token shades those that it attends to; a click selects it.
const shade = index => {
  const strip = element.querySelector('.cx-tokens');
  if (!strip) return;
  const count = +strip.dataset.count, tokens = strip.querySelectorAll('.cx-token');
  const weights = strip.dataset.weights ? atob(strip.dataset.weights) : '';
  tokens.forEach((token, other) => token.style.setProperty('--cx-heat',
    weights && index !== null ? weights.charCodeAt(index * count + other) / 255 : 0));
};
const chosen = () => { const token = element.querySelector('.cx-selected'); shade(token ? +token.dataset.index : null); };
element.addEventListener('mouseover', event => {
  const token = event.target.closest('.cx-token');
  if (token) shade(+token.dataset.index);
});
element.addEventListener('mouseleave', chosen);
element.addEventListener('click', event => {
  const token = event.target.closest('.cx-token');
  if (token) trigger('select', { token: +token.dataset.index });
});
watch('value', () => setTimeout(chosen, 0));
setTimeout(chosen, 0);
