// Reads a picture that is chosen, dropped or pasted, and sends its bytes; no file is stored.
const limit = 10 * 1024 * 1024, zone = () => element.querySelector('.cx-drop');
const send = file => {
  if (!file) return;
  if (file.size > limit) { trigger('upload', { name: file.name, size: file.size, content: '' }); return; }
  const reader = new FileReader();
  reader.onload = () => trigger('upload', { name: file.name, size: file.size, content: reader.result.split(',')[1] || '' });
  reader.readAsDataURL(file);
};
element.addEventListener('change', event => { send(event.target.files[0]); event.target.value = ''; });
element.addEventListener('dragover', event => { event.preventDefault(); zone().classList.add('cx-over'); });
element.addEventListener('dragleave', () => zone().classList.remove('cx-over'));
element.addEventListener('drop', event => {
  event.preventDefault(); zone().classList.remove('cx-over'); send(event.dataTransfer.files[0]);
});
document.addEventListener('paste', event => {
  if (element.offsetParent === null) return;
  const item = [...event.clipboardData.items].find(one => one.kind === 'file');
  if (item) { event.preventDefault(); send(item.getAsFile()); }
});
