// Copies the link to the state, and puts it into the address bar; where copying is not allowed, the link can be selected.
element.addEventListener('click', event => {
  const button = event.target.closest('button');
  if (!button) return;
  const field = button.parentElement.querySelector('input'), link = new URL(button.dataset.query, location.href).href;
  history.replaceState(null, '', link);
  field.value = link;
  field.hidden = false;
  field.select();
  const copied = () => { button.textContent = 'Copied'; setTimeout(() => { button.textContent = 'Copy link'; }, 1500); };
  if (navigator.clipboard) navigator.clipboard.writeText(link).then(copied, () => {});
});
