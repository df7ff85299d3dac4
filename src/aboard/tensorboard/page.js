// New data shows by itself, unless whoever looks has decided otherwise: TensorBoard keeps
// the settings of its page here, and would start with reloading switched off.
(() => {
  const place = '_tb_global_settings';
  const often = 10_000;
  const seldom = 30_000; // the shortest time that TensorBoard accepts
  const settings = () => JSON.parse(localStorage.getItem(place) ?? '{}');
  try {
    if (settings().autoReload === undefined) {
      const reloading = {autoReload: true, autoReloadPeriodInMs: often};
      localStorage.setItem(place, JSON.stringify({...settings(), ...reloading}));
    }
  } catch (error) {
    console.debug('aboard: the settings of the page cannot be kept', error);
    return;
  }
  setInterval(() => {
    const {autoReload, autoReloadPeriodInMs} = settings();
    if (autoReload && autoReloadPeriodInMs < seldom && !document.hidden) {
      document.querySelector('button.reload-button')?.click();
    }
  }, often);
})();
