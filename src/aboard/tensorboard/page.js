// New data shows by itself, unless whoever looks has decided otherwise: TensorBoard keeps
// the settings of its page here, and would start with reloading switched off.
(() => {
  const place = '_tb_global_settings';
  try {
    const settings = JSON.parse(localStorage.getItem(place) ?? '{}');
    if (settings.autoReload === undefined) {
      const reloading = {autoReload: true, autoReloadPeriodInMs: 10_000};
      localStorage.setItem(place, JSON.stringify({...settings, ...reloading}));
    }
  } catch (error) {
    console.debug('aboard: the settings of the page cannot be kept', error);
  }
})();
